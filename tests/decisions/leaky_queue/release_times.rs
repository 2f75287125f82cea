//! Queued calls are released in order, each at its slot.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{MS, NS, ten_a_second};
use crate::support::PolledByHand;

/// Makes `count` calls for one key at one instant, each in a task. Returns the decisions in the order of the calls,
/// each with the time at which it was made.
async fn at_one_instant(bucket: LeakyBucket, count: usize) -> Vec<(Decision, Duration)> {
    let limiter = RateLimiter::new(bucket);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..count {
        let acquire = limiter.acquire("key");
        calls.spawn(async move { (n, acquire.await, start.elapsed()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_by_key(|(n, ..)| *n);
    seen.into_iter().map(|(_, decision, at)| (decision, at)).collect()
}

#[tokio::test(start_paused = true)]
async fn of_five_at_one_instant_four_are_released_one_by_one_and_the_fifth_is_rejected_immediately() {
    let seen = at_one_instant(ten_a_second().queue(3), 5).await;
    for (n, (decision, at)) in (0..4).zip(&seen) {
        assert!(decision.is_allowed());
        assert_eq!((*at, decision.delay()), (MS * 100 * n, MS * 100 * n));
        assert_eq!((decision.limit(), decision.remaining(), decision.retry_after()), (1, 0, None));
    }
    let (fifth, at) = &seen[4];
    assert!(!fifth.is_allowed());
    assert_eq!((*at, fifth.delay()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(fifth.retry_after(), Some(MS * 100));
    assert_eq!((fifth.limit(), fifth.remaining()), (1, 0));
}

/// The timer has ticks of a millisecond. No call is released before its slot, or later than the tick after its slot.
#[tokio::test(start_paused = true)]
async fn queued_calls_are_released_at_the_first_tick_from_their_slots_on() {
    // With the largest rate, each tick has ten thousand slots. With the smallest, two of three slots are between ticks.
    for (limit, calls) in [(1_000, 1_001), (5_000, 1_001), (10_000_000, 100_001), (3, 301)] {
        let bucket = LeakyBucket::new(Quota::per_second(limit)).queue(calls as u64);
        for (n, (decision, at)) in (0..).zip(at_one_instant(bucket, calls).await) {
            let slot = (n * 1_000_000_000_u128).div_ceil(limit.into());
            assert!(decision.is_allowed(), "{n} at {limit}/s");
            assert_eq!(at.as_nanos(), slot.next_multiple_of(1_000_000), "{n} at {limit}/s");
        }
    }
}

#[test]
fn slots_are_exact_to_the_nanosecond_for_an_hour() {
    for limit in [3_u64, 7, 11] {
        let clock = ManualClock::new();
        let limiter =
            RateLimiter::builder(LeakyBucket::new(Quota::per_second(limit))).clock(clock.clone()).build();
        assert!(PolledByHand::new(limiter.acquire("key")).poll());
        let mut before = 0_u64;
        for n in 1..=3_600 * limit {
            let mut next = PolledByHand::new(limiter.acquire("key"));
            assert!(!next.poll());
            let slot = (n * 1_000_000_000).div_ceil(limit);
            clock.advance(Duration::from_nanos(slot - before - 1));
            assert!(!next.run(), "{n} at {limit}/s is early");
            clock.advance(NS);
            assert!(next.run(), "{n} at {limit}/s is late");
            before = slot;
        }
        assert_eq!(before, 3_600_000_000_000);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_released_in_order_of_arrival() {
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(100)).queue(500));
    let left = Arc::new(Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    for n in 0..500 {
        let (limiter, left) = (limiter.clone(), left.clone());
        calls.spawn(async move {
            // The calls arrive in random order, spread over half a second, ten at a time.
            let place = n * 7 % 500;
            sleep(MS * 10 * (place / 10)).await;
            let acquire = limiter.acquire("key");
            sleep(MS * (place % 10)).await;
            assert!(acquire.await.is_allowed());
            left.lock().unwrap().push(place);
        });
    }
    calls.join_all().await;
    // A call takes its place in the queue at its first poll.
    assert_eq!(*left.lock().unwrap(), (0..500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_higher_cost_is_released_at_its_slot_and_delays_the_next() {
    let limiter = RateLimiter::new(ten_a_second().queue(9));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for (n, cost) in [1, 5, 1, 0, 30, 2, 1].into_iter().enumerate() {
        let acquire = limiter.acquire_n("key", cost);
        calls.spawn(async move { (n, acquire.await.is_allowed(), start.elapsed().as_millis()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    // A call of cost 0 does not wait.
    assert_eq!(
        seen,
        [
            (0, true, 0),
            (1, true, 100),
            (2, true, 600),
            (3, true, 0),
            (4, true, 700),
            (5, true, 3_700),
            (6, true, 3_900)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let limiter = RateLimiter::new(ten_a_second().queue(3));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for key in 0..200 {
        for n in 0..4 {
            let acquire = limiter.acquire(&key);
            calls.spawn(async move { (n, acquire.await.is_allowed(), start.elapsed()) });
        }
    }
    for (n, passes, at) in calls.join_all().await {
        assert_eq!((passes, at), (true, MS * 100 * n));
    }
    assert!(limiter.len() <= 200);
}
