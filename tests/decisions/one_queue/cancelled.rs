//! A cancelled call costs little, and those behind it leave as if it had never been queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_throttle::algorithm::*;

use super::{MS, NANOSECOND, on, per, poll, waits};
use crate::support::OwnAlgorithm;

/// Makes one more call behind `length` waiters, cancels it, and checks that the waiters behind a cancelled call move
/// up. Returns how often the methods of the algorithm were called.
fn asked_for_one_that_is_cancelled<A: Algorithm>(inner: A, length: usize) -> u64 {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let (clock, limiter) = on(OwnAlgorithm::new(inner, move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    while limiter.check("key").is_allowed() {}
    let mut calls: Vec<_> = (0..length).map(|_| waits(limiter.acquire("key"))).collect();
    let wait = limiter.check("key").retry_after().unwrap();
    let mut most = 0;
    for _ in 0..20 {
        clock.advance(NANOSECOND);
        asked.store(0, Ordering::Relaxed);
        let before_last = calls.remove(calls.len() / 2);
        drop(before_last);
        calls.push(waits(limiter.acquire("key")));
        most = most.max(asked.load(Ordering::Relaxed));
    }
    assert_eq!(limiter.check("key").retry_after(), Some(wait - 20 * NANOSECOND));
    most
}

#[test]
fn a_cancelled_call_of_a_bucket_costs_the_same_behind_ten_thousand() {
    let quota = per(1, 10 * MS);
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
    let asked = asked_for_one_that_is_cancelled(FixedWindow::new(per(1, 10 * MS)), length);
    assert!(asked <= 2 * length as u64, "{asked} for {length} waiters");
}

/// If a release is undone, the state is as before, even if the release has taken permits from a store.
#[test]
fn those_behind_a_dropped_release_leave_as_if_it_had_never_come() {
    fn leave<A: Algorithm>(algorithm: A, first: u32) {
        let (clock, limiter) = on(algorithm);
        while limiter.check("key").is_allowed() {}
        let [dropped, mut second, mut third] = [(); 3].map(|()| waits(limiter.acquire("key")));
        clock.advance(first * MS);
        assert!(!limiter.check("key").is_allowed(), "this releases the first");
        drop(dropped);
        assert!(poll(&mut second).is_some());
        clock.advance(50 * MS - NANOSECOND);
        assert!(poll(&mut third).is_none());
        clock.advance(NANOSECOND);
        assert!(poll(&mut third).is_some());
    }
    let quota = per(1, 50 * MS);
    leave(TokenBucket::new(quota), 50);
    leave(LeakyBucket::new(quota).queue(5), 50);
    leave(Smooth::bursty(quota).queue(5), 50);
    leave(Tiered::new(TokenBucket::new(quota)), 50);
    leave(TokenBucket::new(quota).block_for(MS).after(1_000), 50);
    leave(FixedWindow::new(quota), 50);
    leave(SlidingLog::new(quota), 50);
    leave((TokenBucket::new(quota), SlidingLog::new(quota)), 50);
}
