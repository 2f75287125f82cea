//! Calls are queued in several queues at once, or in one queue beside other limits.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{LeakyBucket, Smooth, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{INTERVAL, MS, answers, joined, limiter, queue, waits};
use crate::support::PolledByHand;

#[tokio::test(start_paused = true)]
async fn a_call_in_two_queues_waits_for_both() {
    let slow = LeakyBucket::new(Quota::per_second(4)).queue(100);
    for slow_first in [true, false] {
        let (fast, slow) = (RateLimiter::new(queue()), RateLimiter::new(slow.clone()));
        let (start, mut calls) = (Instant::now(), JoinSet::new());
        for n in 0..10_u32 {
            let call: std::pin::Pin<Box<dyn Future<Output = bool> + Send>> = match slow_first {
                true => {
                    let call = joined!(slow, fast).call(());
                    Box::pin(async move { call.await.is_ok() })
                }
                false => {
                    let call = joined!(fast, slow).call(());
                    Box::pin(async move { call.await.is_ok() })
                }
            };
            calls.spawn(async move { (n, call.await, start.elapsed()) });
        }
        let mut left = calls.join_all().await;
        left.sort_unstable();
        assert_eq!(left, (0..10).map(|n| (n, true, MS * 250 * n)).collect::<Vec<_>>());
        // Both limits are free one interval after their last slots. The fast limit has been free for a long time.
        assert!(fast.check(&()).is_allowed());
        assert_eq!(slow.check(&()).retry_after(), Some(MS * 250));
    }
}

/// Drops a call that is in two queues, after `polls` polls. Returns when the next call in each queue is released, and
/// whether the dropped call was ready.
fn dropped_in_two_queues(polls: usize) -> (Duration, Duration, bool) {
    let clock = ManualClock::new();
    let fast = limiter(queue(), &clock);
    let slow = limiter(LeakyBucket::new(Quota::per_second(4)).queue(100), &clock);
    assert!(fast.check(&()).is_allowed() && slow.check(&()).is_allowed());
    let mut call = PolledByHand::new(joined!(fast, slow).call(()));
    let mut behind = [waits(fast.acquire(&())), waits(slow.acquire(&()))];
    let (mut time, mut left) = (Duration::ZERO, [None; 2]);
    let mut go = |time: &mut Duration, behind: &mut [PolledByHand<_>; 2]| {
        clock.advance(MS * 10);
        *time += MS * 10;
        for (behind, left) in behind.iter_mut().zip(&mut left) {
            if left.is_none() && behind.run() {
                *left = Some(*time);
            }
        }
        left[0].zip(left[1])
    };
    for poll in 0..polls {
        if poll > 0 {
            go(&mut time, &mut behind);
        }
        call.poll();
    }
    let ready = call.output.is_some();
    call.abandon();
    loop {
        if let Some((fast, slow)) = go(&mut time, &mut behind) {
            return (fast, slow, ready);
        }
    }
}

#[test]
fn a_call_in_two_queues_dropped_at_any_poll_frees_its_slot_in_both() {
    for polls in 0..=10 {
        // The dropped call was ahead of the other calls in both queues, and leaves both.
        assert_eq!(dropped_in_two_queues(polls), (INTERVAL, MS * 250, false), "after {polls} polls");
    }
    for polls in 11..=20 {
        // The slot of the dropped call in the first queue was at 100 ms, and was not used. It is given back, so the
        // next call may be released at once.
        let now = MS * 10 * polls as u32;
        assert_eq!(dropped_in_two_queues(polls), (now, MS * 250, false), "after {polls} polls");
    }
    for polls in 21..=25 {
        // The next call was released in its own slot.
        assert_eq!(dropped_in_two_queues(polls), (INTERVAL * 2, MS * 250, false), "after {polls} polls");
    }
    assert_eq!(dropped_in_two_queues(26), (INTERVAL * 2, MS * 500, true));
}

#[tokio::test(start_paused = true)]
async fn smooth_queues_with_other_limits_too() {
    let smooth = RateLimiter::new(Smooth::bursty(Quota::per_second(5)).queue(10));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(8)));
    let service = joined!(smooth, bucket);
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..10_u32 {
        let call = service.clone().oneshot(());
        calls.spawn(async move { (call.await.is_ok(), n, start.elapsed()) });
        tokio::task::yield_now().await;
    }
    let mut left = calls.join_all().await;
    left.retain(|(passed, ..)| *passed);
    left.sort_unstable();
    assert_eq!(left, (0..8).map(|n| (true, n, MS * 200 * n)).collect::<Vec<_>>());
    // The two calls that the bucket denied were not queued.
    assert_eq!(smooth.check(&()).retry_after(), Some(MS * 200));
}

/// For all keys of a request, calls have the same order, whichever queue is called first.
#[tokio::test(start_paused = true)]
async fn calls_with_queues_of_their_own_and_one_in_common_are_all_released() {
    let common = RateLimiter::new(queue());
    let own = RateLimiter::new(LeakyBucket::new(Quota::per_second(2)).queue(100));
    let by_user = from_fn(|user: &u64| Some(*user));
    let layer = RateLimitLayer::with_limiter(Global, common.clone())
        .and(RateLimitLayer::with_limiter(by_user, own.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(async |user: u64| Ok::<_, Infallible>(user)));
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for n in 0..40_u64 {
        let call = service.clone().oneshot(n % 4);
        calls.spawn(async move {
            assert!(call.await.is_ok());
            (n, start.elapsed())
        });
        tokio::task::yield_now().await;
    }
    for (n, at) in calls.join_all().await {
        let (nth, own) = (INTERVAL * n as u32, MS * 500 * (n / 4) as u32);
        // The queue of the user is free at the first call of each user. The call is charged there at its arrival, and
        // not at its scheduled time in the common queue.
        assert_eq!(at, nth.max(own), "{n}");
    }
}
