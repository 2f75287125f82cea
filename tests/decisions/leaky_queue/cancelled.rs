//! Cancelled calls leave no gap in the queue, and a removed queue leaves no state.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{MS, ten_a_second};
use crate::support::Random;

#[tokio::test(start_paused = true)]
async fn ten_thousand_callers_of_which_a_tenth_is_cancelled_are_released_without_a_gap() {
    const CALLERS: u64 = 10_000;
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(1_000)).queue(CALLERS));
    let mut random = Random::new(7);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..CALLERS {
        let timeout_after = match random.one_in(10) {
            true => MS * random.below(10_000) as u32,
            false => Duration::from_secs(3_600),
        };
        let call = timeout(timeout_after, limiter.acquire("key"));
        calls.spawn(async move {
            let admitted = call.await.ok().map(|decision| {
                assert!(decision.is_allowed());
                start.elapsed()
            });
            (timeout_after, admitted)
        });
    }
    let seen = calls.join_all().await;
    assert!(seen.iter().all(|(timeout_after, at)| at.is_some() || *timeout_after < Duration::from_secs(11)));
    let mut left: Vec<_> = seen.into_iter().filter_map(|(_, at)| at).collect();
    left.sort_unstable();
    assert!(left.len() > 9_000 && left.len() < 9_900, "{}", left.len());
    for (n, at) in (0..).zip(&left) {
        let exact = MS * n;
        assert!(*at >= exact && *at <= exact + MS * 2, "number {n} left at {at:?}");
    }
    assert!(limiter.check("key").retry_after().unwrap() <= MS);
}

#[tokio::test(start_paused = true)]
async fn no_state_remains_of_a_removed_queue() {
    let limiter = RateLimiter::builder(ten_a_second().queue(3)).max_keys(50).build();
    for round in 0..20 {
        let mut calls = JoinSet::new();
        for key in 0..40 {
            for n in 0..4 {
                let call = timeout(MS * 150 * (1 + n % 2), limiter.acquire(&(round, key)));
                calls.spawn(async move { call.await.is_ok() });
            }
        }
        calls.join_all().await;
        assert!(limiter.len() <= 50);
        sleep(MS * 500).await;
    }
    // All keys are fresh, so each key has a place in the table, and its calls can be queued.
    let mut calls = JoinSet::new();
    for key in 0..50 {
        for _ in 0..4 {
            calls.spawn(limiter.acquire(&("last", key)));
        }
    }
    assert!(calls.join_all().await.iter().all(Decision::is_allowed));
}
