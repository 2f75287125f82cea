//! Decisions over time, and calls that wait in a queue. A limiter makes a decision at an unknown time between the call
//! and the reply. So each case asserts only what is true for every possible time of the decision.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket,
};
use tower_throttle::limiter::{Acquired, Attempt, LimiterFor};

use crate::case::{Env, Timed, until};
use crate::tested::{MakeLimiter, Subject};

list! {
    retry_after_of_a_token_bucket_is_true
    retry_after_of_a_fixed_window_is_true
    retry_after_of_a_sliding_window_is_true
    retry_after_of_a_sliding_counter_is_true
    retry_after_of_a_leaky_bucket_is_true
    reset_after_is_true
    a_window_starts_anew_after_its_period
    a_bucket_refills_at_its_rate
    an_idle_key_stores_no_more_than_its_burst
    a_sliding_window_never_holds_more_than_its_limit
    acquire_waits_until_units_are_available
    acquire_of_a_fresh_key_does_not_wait
    acquire_within_too_short_a_time_is_denied_at_once
    acquire_of_more_than_the_limit_is_denied_at_once
    an_acquire_that_was_never_polled_charges_nothing
    a_cancelled_acquire_charges_nothing
    a_call_of_cost_0_is_allowed_behind_a_queue
    a_bucket_admits_waiting_calls_at_its_rate
    a_leaky_bucket_admits_waiting_calls_at_its_rate
}

const PERIOD: Duration = Duration::from_millis(240);
const MS: Duration = Duration::from_millis(1);

fn quota(limit: u64) -> Quota {
    Quota::per(limit, PERIOD).unwrap_or(Quota::per_second(limit))
}

async fn retry_after_is_true<A: Algorithm, M: MakeLimiter<A>>(env: Env<M>, algorithm: A) {
    let limiter = env.limiter(algorithm);
    let (_, denied) = limiter.exhaust("a").await;
    let wait = denied.retry_after();
    for part in 24..32 {
        sleep_until(denied.after + wait * part / 32).await;
        let early = limiter.timed("a").await;
        if early.decision.is_allowed() {
            // The call is admitted only if the machine has stalled until the wait was over. As in `until`, a
            // millisecond is allowed for the limiter's clock.
            let passed = early.after - denied.before;
            assert!(passed + MS >= wait, "admitted after {passed:?}, before the wait of {wait:?} is over");
            return;
        }
    }
    until(denied.after + wait).await;
    assert!(limiter.check("a").await.is_allowed(), "denied after the wait of {wait:?}");
}

async fn retry_after_of_a_token_bucket_is_true<M: Subject>(env: Env<M>) {
    retry_after_is_true(env, TokenBucket::new(quota(3))).await;
}

async fn retry_after_of_a_fixed_window_is_true<M: Subject>(env: Env<M>) {
    retry_after_is_true(env, FixedWindow::new(quota(3))).await;
}

async fn retry_after_of_a_sliding_window_is_true<M: Subject>(env: Env<M>) {
    retry_after_is_true(env, SlidingWindow::new(quota(3))).await;
}

async fn retry_after_of_a_sliding_counter_is_true<M: Subject>(env: Env<M>) {
    retry_after_is_true(env, SlidingCounter::new(quota(3))).await;
}

async fn retry_after_of_a_leaky_bucket_is_true<M: Subject>(env: Env<M>) {
    retry_after_is_true(env, LeakyBucket::new(quota(3))).await;
}

async fn reset_after_is_true<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(quota(3)));
    let last = limiter.timed("a").await;
    let reset_after = last.decision.reset_after();
    assert!(reset_after > Duration::ZERO && reset_after <= PERIOD / 3 + MS, "{reset_after:?}");
    until(last.after + reset_after).await;
    let fresh = limiter.peek("a").await;
    assert_eq!((fresh.remaining(), fresh.reset_after()), (3, Duration::ZERO));
}

async fn a_window_starts_anew_after_its_period<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(quota(3)));
    let first = limiter.timed("a").await;
    until(first.after + PERIOD).await;
    assert_eq!(limiter.take_n("a", 3).await, 0);
}

async fn a_bucket_refills_at_its_rate<M: Subject>(env: Env<M>) {
    // A rate of 50 units a second.
    let limiter = env.limiter(TokenBucket::new(quota(12).burst(5)));
    let start = Instant::now();
    let (mut admitted, first) = limiter.exhaust("a").await;
    let (mut last, mut lost) = (first.after, Duration::ZERO);
    while start.elapsed() < PERIOD * 2 {
        sleep(7 * MS).await;
        let before = last;
        let (more, denied) = limiter.exhaust("a").await;
        admitted += more;
        last = denied.before;
        // While the machine stalls, the bucket can become full. The units that arrive after that are lost.
        lost += (denied.after - before).saturating_sub(100 * MS);
        let at_most = 5 + units(denied.after - start);
        assert!(admitted <= at_most + 1, "{admitted} admitted, and at most {at_most} in that time");
    }
    let at_least = 5 + units((last - first.after).saturating_sub(lost));
    assert!(admitted + 1 >= at_least, "{admitted} admitted, and at least {at_least} in that time");
}

/// Returns the number of units that become available within `time`, at 50 units a second.
fn units(time: Duration) -> u64 {
    time.as_micros() as u64 / 20_000
}

async fn an_idle_key_stores_no_more_than_its_burst<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(quota(1_000).burst(3)));
    assert!(limiter.check_n("a", 3).await.is_allowed());
    sleep(PERIOD).await;
    assert_eq!(limiter.remaining("a").await, 3);
    assert!(!limiter.check_n("a", 4).await.is_allowed());
}

async fn a_sliding_window_never_holds_more_than_its_limit<M: Subject>(env: Env<M>) {
    const LIMIT: usize = 4;
    let limiter = env.limiter(SlidingWindow::new(quota(LIMIT as u64)));
    let (mut admitted, start) = (Vec::<Timed>::new(), Instant::now());
    // If the machine stalls, the loop runs longer. If the window never frees a unit, the loop never ends.
    while start.elapsed() < PERIOD * 3 || admitted.len() <= LIMIT {
        let call = limiter.timed("a").await;
        if call.decision.is_allowed() {
            admitted.push(call);
        }
        sleep(5 * MS).await;
    }
    for calls in admitted.windows(LIMIT + 1) {
        let span = calls[LIMIT].after - calls[0].before;
        assert!(span >= PERIOD, "{} calls within {span:?}", LIMIT + 1);
    }
}

async fn acquire_waits_until_units_are_available<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_second(10).burst(1)));
    let first = limiter.timed("a").await;
    assert!(limiter.acquire("a").await.is_allowed());
    let waited = first.before.elapsed();
    assert!(waited >= 100 * MS, "only {waited:?}");
}

async fn acquire_of_a_fresh_key_does_not_wait<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(2)));
    for left in [1, 0] {
        let decision = limiter.acquire("a").await;
        assert_eq!((decision.is_allowed(), decision.remaining()), (true, left));
    }
}

async fn acquire_within_too_short_a_time_is_denied_at_once<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(1)));
    assert!(limiter.check("a").await.is_allowed());
    // If the call waited instead, the case would time out.
    let denied = limiter.acquire_n_within("a", 1, Duration::from_secs(3_000)).await;
    assert!(!denied.is_allowed());
}

async fn acquire_of_more_than_the_limit_is_denied_at_once<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(5)));
    let denied = limiter.acquire_n_within("a", 6, Duration::MAX).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, None));
    assert_eq!(limiter.remaining("a").await, 5);
}

async fn an_acquire_that_was_never_polled_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(5)));
    // A limiter that decides in the process may decide at once.
    let charged = match LimiterFor::<str>::acquire(&limiter.limiter, "a", Attempt::new(1).wait()) {
        Acquired::Pending(wait) => {
            drop(wait);
            0
        }
        _ => 1,
    };
    assert_eq!(limiter.exhaust("a").await.0, 5 - charged);
}

async fn a_cancelled_acquire_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(Quota::per_hour(1)));
    limiter.exhaust("a").await;
    let cancelled = timeout(20 * MS, limiter.acquire("a")).await;
    assert!(cancelled.is_err(), "it waits");
    limiter.refund("a", 1).await;
    assert!(limiter.check("a").await.is_allowed(), "the unit is gone");
}

async fn a_call_of_cost_0_is_allowed_behind_a_queue<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(1)).queue(1));
    limiter.exhaust("a").await;
    let mut calls = JoinSet::new();
    let queued = limiter.clone();
    calls.spawn(async move { queued.acquire("a").await });
    // The other call is queued first, or at the same time.
    sleep(20 * MS).await;
    let free = limiter.acquire_n_within("a", 0, Duration::MAX).await;
    assert!(free.is_allowed(), "{free:?}");
}

async fn admits_at_20_a_second<A: Algorithm, M: MakeLimiter<A>>(env: Env<M>, algorithm: A) {
    let limiter = env.limiter(algorithm);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let decision = limiter.acquire("a").await;
            (decision.is_allowed(), start.elapsed())
        });
    }
    let mut ended = calls.join_all().await;
    ended.sort_unstable();
    for (number, (is_allowed, elapsed)) in (0_u32..).zip(ended) {
        assert!(is_allowed, "{number}");
        assert!(elapsed >= 50 * MS * number, "call {number} was admitted after {elapsed:?}");
    }
}

async fn a_bucket_admits_waiting_calls_at_its_rate<M: Subject>(env: Env<M>) {
    admits_at_20_a_second(env, TokenBucket::new(Quota::per_second(20).burst(1))).await;
}

async fn a_leaky_bucket_admits_waiting_calls_at_its_rate<M: Subject>(env: Env<M>) {
    admits_at_20_a_second(env, LeakyBucket::new(Quota::per_second(20)).queue(10)).await;
}
