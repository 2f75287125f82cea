//! Calls that wait in a queue.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::super::tested::{Env, MakeTested, Subject};
use crate::algorithm::{Algorithm, FixedWindow, LeakyBucket, TokenBucket};
use crate::quota::Quota;

list! {
    acquire_waits_until_units_are_available
    acquire_of_a_fresh_key_does_not_wait
    acquire_within_too_short_a_time_is_denied_at_once
    acquire_of_more_than_the_limit_is_denied_at_once
    an_acquire_that_was_never_polled_charges_nothing
    a_cancelled_acquire_charges_nothing
    a_call_of_cost_0_is_allowed_behind_a_queue
    a_bucket_releases_waiting_calls_at_its_rate
    a_leaky_bucket_releases_waiting_calls_at_its_rate
}

const MS: Duration = Duration::from_millis(1);

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
    drop(limiter.limiter.acquire("a"));
    assert_eq!(limiter.exhaust("a").await.0, 5);
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

async fn releases_at_20_a_second<A: Algorithm, M: MakeTested<A>>(env: Env<M>, algorithm: A) {
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
        assert!(elapsed >= 50 * MS * number, "call {number} was released after {elapsed:?}");
    }
}

async fn a_bucket_releases_waiting_calls_at_its_rate<M: Subject>(env: Env<M>) {
    releases_at_20_a_second(env, TokenBucket::new(Quota::per_second(20).burst(1))).await;
}

async fn a_leaky_bucket_releases_waiting_calls_at_its_rate<M: Subject>(env: Env<M>) {
    releases_at_20_a_second(env, LeakyBucket::new(Quota::per_second(20)).queue(10)).await;
}
