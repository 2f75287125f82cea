//! A cancelled call costs little, and those behind it leave as if it had never been queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_throttle::algorithm::*;
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{MS, few, on, use_up, waits};
use crate::queueing::{ns, quota};
use crate::support::OwnAlgorithm;

/// Makes one more call behind `length` waiters, cancels a waiter in the middle, and checks that the waiters behind it
/// move up. Returns how often the methods of the algorithm were called.
fn asked_for_one_that_is_cancelled<A: Algorithm>(inner: A, length: usize) -> u64 {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let rule = OwnAlgorithm::new(inner, move |method| {
        if !matches!(method, "last_update" | "is_fresh" | "clone" | "drop") {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (limiter, clock) = few(rule, 20_000);
    use_up(&limiter, "key");
    let mut line: Vec<_> = (0..length).map(|_| waits(&limiter, "key", 1)).collect();
    let wait = limiter.check("key").retry_after().unwrap();
    let mut most = 0;
    for _ in 0..20 {
        clock.advance(ns(1));
        asked.store(0, Ordering::Relaxed);
        drop(line.remove(line.len() / 2));
        line.push(waits(&limiter, "key", 1));
        most = most.max(asked.load(Ordering::Relaxed));
    }
    assert_eq!(limiter.check("key").retry_after(), Some(wait - ns(20)));
    most
}

#[test]
fn a_cancelled_call_of_a_bucket_costs_the_same_behind_ten_thousand() {
    let quota = quota(1, 10_000_000);
    for length in [10, 10_000] {
        let bucket = asked_for_one_that_is_cancelled(TokenBucket::new(quota), length);
        let leaky = asked_for_one_that_is_cancelled(LeakyBucket::new(quota).queue(20_000), length);
        assert!(bucket <= 30 && leaky <= 30, "{bucket} and {leaky} with {length} waiters");
    }
}

/// The projection of a window is computed only once for each cancelled call.
#[test]
fn a_cancelled_call_of_a_window_recomputes_the_projection_once() {
    let length = 1_000;
    let asked = asked_for_one_that_is_cancelled(FixedWindow::new(quota(1, 10_000_000)), length);
    assert!(asked <= 2 * length as u64, "{asked} for {length} waiters");
}

/// If an admission is undone, the state is as before, even if the admission has taken permits from a store.
#[test]
fn those_behind_a_dropped_admission_leave_as_if_it_had_never_come() {
    fn look<A: Algorithm>(rule: A) {
        let (limiter, clock) = on(rule);
        use_up(&limiter, "key");
        let [dropped, mut second, mut third] = [(); 3].map(|()| waits(&limiter, "key", 1));
        clock.set(ns(50));
        assert!(!limiter.check("key").is_allowed(), "this admits the first");
        drop(dropped);
        assert!(second.run());
        clock.set(ns(99));
        assert!(!third.run());
        clock.set(ns(100));
        assert!(third.run());
    }
    let quota = quota(1, 50);
    look(TokenBucket::new(quota));
    look(LeakyBucket::new(quota).queue(5));
    look(Smooth::bursty(quota).queue(5));
    look(Tiered::new(TokenBucket::new(quota)));
    look(TokenBucket::new(quota).block_for(ns(1)).after(1_000));
    look(FixedWindow::new(quota));
    look(SlidingLog::new(quota));
    look((TokenBucket::new(quota), SlidingLog::new(quota)));
}

#[tokio::test(start_paused = true)]
async fn no_state_remains_of_a_removed_queue() {
    let rule = LeakyBucket::new(Quota::per_second(10)).queue(3);
    let limiter = RateLimiter::builder(rule).max_keys(50).build();
    for round in 0..20 {
        let mut calls = JoinSet::new();
        for (key, nth) in (0..40).flat_map(|key| (0..4).map(move |nth| (key, nth))) {
            let call = timeout(MS * 150 * (1 + nth % 2), limiter.acquire(&(round, key)));
            calls.spawn(async move { call.await.is_ok() });
        }
        calls.join_all().await;
        assert!(limiter.len() <= 50);
        sleep(MS * 500).await;
    }
    // All keys are fresh, so each key has a place in the table, and its calls can be queued.
    let mut calls = JoinSet::new();
    for key in (0..50).flat_map(|key| [key; 4]) {
        calls.spawn(limiter.acquire(&("last", key)));
    }
    assert!(calls.join_all().await.iter().all(Decision::is_allowed));
}
