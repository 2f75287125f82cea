//! Queued calls are released in order, each at its slot.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{MS, NS, admitted, ten_a_second};
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
        assert_eq!((decision.limit(), decision.retry_after()), (4, None));
    }
    let (fifth, at) = &seen[4];
    assert!(!fifth.is_allowed());
    assert_eq!((*at, fifth.delay()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(fifth.retry_after(), Some(MS * 100));
    assert_eq!((fifth.limit(), fifth.remaining()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn the_layer_queues_requests_and_rejects_the_fifth_immediately() {
    let layer = RateLimitLayer::new(from_fn(|_: &String| Some(())), ten_a_second().queue(3));
    let service = layer
        .responder(ErrorResponder)
        .layer(service_fn(|line: String| async move { Ok::<_, std::convert::Infallible>(line) }));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..5_u32 {
        let call = service.clone().oneshot(n.to_string());
        calls.spawn(async move { (n, call.await.is_ok(), start.elapsed()) });
    }
    let mut seen = calls.join_all().await;
    seen.sort_unstable();
    let expected = [(0, true, 0), (1, true, 100), (2, true, 200), (3, true, 300), (4, false, 0)];
    assert_eq!(seen, expected.map(|(n, passes, at)| (n, passes, MS * at)));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_queued_at_five_thousand_a_second_are_released_after_200_ms() {
    let bucket = LeakyBucket::new(Quota::per_second(5_000)).queue(1_000);
    let seen = at_one_instant(bucket, 1_001).await;
    assert_eq!(admitted(&seen).len(), 1_001);
    for (n, (_, at)) in (0..).zip(&seen) {
        // The timer has ticks of a millisecond. No call is released before its slot, or later than the tick after its
        // slot.
        let slot = MS / 5 * n;
        assert_eq!(at.as_nanos(), slot.as_nanos().next_multiple_of(1_000_000), "{n}");
    }
    assert_eq!(seen[1_000].1, MS * 200);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_queued_at_a_thousand_a_second_are_released_one_each_millisecond() {
    let bucket = LeakyBucket::new(Quota::per_second(1_000)).queue(1_000);
    let seen = at_one_instant(bucket, 1_001).await;
    assert_eq!(admitted(&seen), (0..=1_000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_rate_above_that_of_the_timer_is_kept() {
    // In the first case, each tick has ten thousand slots. In the second case, two of three slots are between ticks.
    for (limit, calls, last) in [(10_000_000, 100_001, 10), (3, 301, 100_000)] {
        let bucket = LeakyBucket::new(Quota::per_second(limit)).queue(calls as u64);
        let seen = at_one_instant(bucket, calls).await;
        assert_eq!(seen.last().unwrap().1, MS * last, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn three_a_second_do_not_drift_in_an_hour() {
    const CALLS: u32 = 3 * 3_600;
    let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(3)).queue(6));
    let start = Instant::now();
    // Six callers call again as soon as they are admitted, so the queue is never empty.
    let mut callers = JoinSet::new();
    let left = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..6 {
        let (limiter, left) = (limiter.clone(), left.clone());
        callers.spawn(async move {
            while left.lock().unwrap().len() < CALLS as usize + 1 {
                assert!(limiter.acquire("key").await.is_allowed());
                left.lock().unwrap().push(start.elapsed());
            }
        });
    }
    callers.join_all().await;
    for (n, at) in (0_u128..).zip(left.lock().unwrap().iter()) {
        assert_eq!(at.as_millis(), (n * 1_000).div_ceil(3), "the call with number {n}");
    }
    assert_eq!(left.lock().unwrap()[CALLS as usize], Duration::from_secs(3_600));
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
