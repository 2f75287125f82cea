//! The number of admitted calls, also of calls of many tasks at once and of calls that are dropped, and the reports of
//! decisions.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket,
};

use crate::case::{Env, Tested};
use crate::tested::{MakeLimiter, Subject, TestedLimiter};

list! {
    a_token_bucket_admits_its_burst_and_no_more
    a_fixed_window_admits_its_limit_and_no_more
    a_sliding_window_admits_its_limit_and_no_more
    a_sliding_counter_admits_its_limit_and_no_more
    a_leaky_bucket_admits_one_call_at_a_time
    remaining_counts_down
    the_limit_is_reported
    a_key_that_was_never_used_is_fresh
    a_cost_is_charged_all_or_none
    a_cost_of_zero_is_free
    a_cost_above_the_limit_is_denied_without_a_wait
    the_largest_cost_is_denied
    a_denial_charges_nothing
    denials_delay_nothing
    a_peek_charges_nothing
    a_peek_predicts_the_check
    concurrent_calls_on_a_bucket_admit_its_burst
    concurrent_calls_on_a_fixed_window_admit_its_limit
    concurrent_calls_on_a_sliding_window_admit_its_limit
    concurrent_calls_with_costs_admit_what_fits
    concurrent_calls_on_many_keys_admit_each_limit
    concurrent_checks_and_refunds_count_exactly
    a_dropped_call_charges_once_or_not_at_all
    a_call_that_was_never_polled_blocks_no_other
}

const SEVEN_AN_HOUR: Quota = Quota::per_hour(7);

async fn admits<A: Algorithm, M: MakeLimiter<A>>(env: Env<M>, algorithm: A, limit: u64) {
    let limiter = env.limiter(algorithm);
    let (admitted, denied) = limiter.exhaust("a").await;
    assert_eq!(admitted, limit);
    let wait = denied.retry_after();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(3_600), "{wait:?}");
    assert_eq!(denied.decision.remaining(), 0);
    assert!(!limiter.check("a").await.is_allowed(), "a second denial");
}

async fn a_token_bucket_admits_its_burst_and_no_more<M: Subject>(env: Env<M>) {
    admits(env.clone(), TokenBucket::new(SEVEN_AN_HOUR), 7).await;
    admits(env, TokenBucket::new(SEVEN_AN_HOUR.burst(3)), 3).await;
}

async fn a_fixed_window_admits_its_limit_and_no_more<M: Subject>(env: Env<M>) {
    admits(env, FixedWindow::new(SEVEN_AN_HOUR), 7).await;
}

async fn a_sliding_window_admits_its_limit_and_no_more<M: Subject>(env: Env<M>) {
    // A unit is available again at most one period and one slice after its call.
    let limiter = env.limiter(SlidingWindow::new(SEVEN_AN_HOUR));
    let (admitted, denied) = limiter.exhaust("a").await;
    assert_eq!(admitted, 7);
    assert!(denied.retry_after() <= Duration::from_secs(3_960), "{:?}", denied.retry_after());
}

async fn a_sliding_counter_admits_its_limit_and_no_more<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingCounter::new(SEVEN_AN_HOUR));
    let (admitted, denied) = limiter.exhaust("a").await;
    assert_eq!(admitted, 7);
    assert!(denied.retry_after() <= Duration::from_secs(7_200), "{:?}", denied.retry_after());
}

async fn a_leaky_bucket_admits_one_call_at_a_time<M: Subject>(env: Env<M>) {
    admits(env, LeakyBucket::new(SEVEN_AN_HOUR), 1).await;
}

async fn remaining_counts_down<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(SEVEN_AN_HOUR));
    for left in (0..7).rev() {
        let decision = limiter.check("a").await;
        assert_eq!((decision.is_allowed(), decision.remaining()), (true, left));
    }
}

async fn the_limit_is_reported<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(SEVEN_AN_HOUR.burst(3)));
    assert_eq!(limiter.check("a").await.limit(), 3);
    assert_eq!(limiter.check_n("a", 3).await.limit(), 3, "of a denial");
    assert_eq!(limiter.peek("a").await.limit(), 3, "of a peek");
}

async fn a_key_that_was_never_used_is_fresh<M: Subject>(env: Env<M>) {
    let fresh = env.limiter(TokenBucket::new(SEVEN_AN_HOUR)).peek("a").await;
    assert_eq!((fresh.is_allowed(), fresh.remaining(), fresh.reset_after()), (true, 7, Duration::ZERO));
    assert_eq!(fresh.retry_after(), None);
}

async fn a_cost_is_charged_all_or_none<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(SEVEN_AN_HOUR));
    assert_eq!(limiter.take_n("a", 5).await, 2);
    assert!(!limiter.check_n("a", 3).await.is_allowed());
    assert_eq!(limiter.take_n("a", 2).await, 0);
}

async fn a_cost_of_zero_is_free<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(SEVEN_AN_HOUR));
    assert_eq!(limiter.take_n("a", 0).await, 7);
    assert!(limiter.check_n("a", 7).await.is_allowed());
    let free = limiter.check_n("a", 0).await;
    assert_eq!((free.is_allowed(), free.remaining()), (true, 0), "of a used-up key");
}

async fn a_cost_above_the_limit_is_denied_without_a_wait<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(SEVEN_AN_HOUR));
    let denied = limiter.check_n("a", 8).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, None));
    assert_eq!(limiter.remaining("a").await, 7);
}

async fn the_largest_cost_is_denied<M: Subject>(env: Env<M>) {
    for cost in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 53] {
        let limiter = env.limiter(SlidingWindow::new(SEVEN_AN_HOUR));
        assert!(!limiter.check_n("a", cost).await.is_allowed(), "{cost}");
        assert!(!limiter.peek_n("a", cost).await.is_allowed(), "{cost}");
        assert_eq!(limiter.remaining("a").await, 7, "{cost}");
    }
}

async fn a_denial_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(SEVEN_AN_HOUR));
    assert!(limiter.check_n("a", 4).await.is_allowed());
    for _ in 0..10 {
        assert!(!limiter.check_n("a", 4).await.is_allowed());
    }
    assert_eq!(limiter.take_n("a", 3).await, 0);
}

async fn denials_delay_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(SEVEN_AN_HOUR));
    let (_, first) = limiter.exhaust("a").await;
    for _ in 0..20 {
        let next = limiter.timed("a").await;
        let passed = next.after - first.before;
        assert!(next.retry_after() <= first.retry_after(), "it grows");
        assert!(next.retry_after() + passed >= first.retry_after(), "it shrinks faster than time passes");
    }
}

async fn a_peek_charges_nothing<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(SlidingWindow::new(SEVEN_AN_HOUR));
    for _ in 0..10 {
        assert_eq!(limiter.remaining("a").await, 7);
    }
    assert_eq!(limiter.take_n("a", 7).await, 0);
    for _ in 0..10 {
        assert!(!limiter.peek("a").await.is_allowed());
    }
}

async fn a_peek_predicts_the_check<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(SEVEN_AN_HOUR));
    for cost in [3, 2, 3, 2, 1, 0, 8] {
        let (peek, check) = (limiter.peek_n("a", cost).await, limiter.check_n("a", cost).await);
        assert_eq!(peek.is_allowed(), check.is_allowed(), "{cost}");
        assert_eq!(peek.retry_after().is_some(), check.retry_after().is_some(), "{cost}");
        assert!(peek.retry_after() >= check.retry_after(), "{cost}");
    }
}

const TASKS: u64 = 8;
const CALLS: u64 = 20;
const FIFTY_AN_HOUR: Quota = Quota::per_hour(50);

/// Runs `call` [`CALLS`] times in each of [`TASKS`] tasks. Returns the sum of all results.
async fn in_tasks<L, F, Fut>(limiter: &Tested<L>, call: F) -> u64
where
    L: TestedLimiter,
    F: Fn(Tested<L>, u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = u64> + Send,
{
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limiter, call) = (limiter.clone(), call.clone());
        tasks.spawn(async move {
            let mut sum = 0;
            for number in 0..CALLS {
                sum += call(limiter.clone(), task * CALLS + number).await;
                yield_now().await;
            }
            sum
        });
    }
    tasks.join_all().await.into_iter().sum()
}

async fn admits_50<A: Algorithm, M: MakeLimiter<A>>(env: Env<M>, algorithm: A) {
    let limiter = env.limiter(algorithm);
    let admitted =
        in_tasks(&limiter, async |limiter: Tested<_>, _| u64::from(limiter.check("a").await.is_allowed()));
    assert_eq!(admitted.await, 50);
}

async fn concurrent_calls_on_a_bucket_admit_its_burst<M: Subject>(env: Env<M>) {
    admits_50(env, TokenBucket::new(FIFTY_AN_HOUR)).await;
}

async fn concurrent_calls_on_a_fixed_window_admit_its_limit<M: Subject>(env: Env<M>) {
    admits_50(env, FixedWindow::new(FIFTY_AN_HOUR)).await;
}

async fn concurrent_calls_on_a_sliding_window_admit_its_limit<M: Subject>(env: Env<M>) {
    admits_50(env, SlidingWindow::new(FIFTY_AN_HOUR)).await;
}

async fn concurrent_calls_with_costs_admit_what_fits<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(FIFTY_AN_HOUR));
    let charged = in_tasks(&limiter, |limiter, number| async move {
        let cost = 1 + number % 4;
        if limiter.check_n("a", cost).await.is_allowed() { cost } else { 0 }
    });
    // The last calls include calls of cost 1, so all units are used.
    assert_eq!(charged.await, 50);
    assert_eq!(limiter.remaining("a").await, 0);
}

async fn concurrent_calls_on_many_keys_admit_each_limit<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(Quota::per_hour(10)));
    let admitted = in_tasks(&limiter, |limiter, number| async move {
        let key = (number % 5).to_string();
        u64::from(limiter.check(&key).await.is_allowed())
    });
    assert_eq!(admitted.await, 50);
}

async fn concurrent_checks_and_refunds_count_exactly<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(FIFTY_AN_HOUR));
    in_tasks(&limiter, |limiter, _| async move {
        if limiter.check_n("a", 2).await.is_allowed() {
            limiter.refund("a", 2).await;
        }
        0
    })
    .await;
    assert_eq!(limiter.remaining("a").await, 50);
}

async fn a_dropped_call_charges_once_or_not_at_all<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(FIFTY_AN_HOUR));
    for number in 0..20 {
        let mut call = pin!(limiter.check("a"));
        // The call is dropped after zero, one or two polls.
        for _ in 0..number % 3 {
            if timeout(Duration::ZERO, &mut call).await.is_ok() {
                break;
            }
        }
    }
    let charged = 50 - limiter.remaining("a").await;
    assert!(charged <= 20, "{charged} charged by 20 calls");
    let admitted = limiter.exhaust("a").await.0;
    assert!(admitted <= 50 - charged, "{charged} charged, and {admitted} admitted");
    assert!(admitted + 20 >= 50, "only {admitted} admitted");
}

async fn a_call_that_was_never_polled_blocks_no_other<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(FIFTY_AN_HOUR));
    let kept = limiter.check("a");
    assert!(limiter.check("a").await.is_allowed());
    assert!(limiter.check("b").await.is_allowed());
    drop(kept);
    assert!(limiter.check("a").await.is_allowed());
}
