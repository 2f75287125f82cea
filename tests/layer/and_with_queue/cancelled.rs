//! A call that is cancelled in the queue gives back all that it was charged.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_throttle::algorithm::{Algorithm, FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{INTERVAL, MS, answers, joined, limiter, passes, queue, waits};
use crate::support::{PolledByHand, Random};

/// Drops a call after `polls` polls. Returns the remaining units of the bucket when the next call is released, the time
/// of this release, and whether the dropped call was ready.
fn dropped_after(polls: usize, line_first: bool) -> (u64, Duration, bool) {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(9)), &clock));
    assert!(line.check(&()).is_allowed());
    let mut call: PolledByHand<std::pin::Pin<Box<dyn Future<Output = bool>>>> = match line_first {
        true => {
            let call = joined!(line, bucket).call(());
            PolledByHand::new(Box::pin(async move { call.await.is_ok() }))
        }
        false => {
            let call = joined!(bucket, line).call(());
            PolledByHand::new(Box::pin(async move { call.await.is_ok() }))
        }
    };
    let mut behind = waits(line.acquire(&()));
    let mut time = Duration::ZERO;
    for poll in 0..polls {
        if poll > 0 {
            clock.advance(MS * 20);
            time += MS * 20;
        }
        call.poll();
    }
    let ready = call.output.is_some();
    call.abandon();
    let left = bucket.peek(&()).remaining();
    while !behind.run() {
        clock.advance(MS);
        time += MS;
    }
    (left, time, ready)
}

#[test]
fn a_call_dropped_at_any_poll_is_charged_by_both_or_by_neither() {
    for line_first in [true, false] {
        for polls in 0..=5 {
            assert_eq!(dropped_after(polls, line_first), (9, INTERVAL, false), "after {polls} polls");
        }
        assert_eq!(dropped_after(6, line_first), (8, INTERVAL * 2, true));
    }
}

#[test]
fn waiters_behind_a_cancelled_one_move_up_and_its_unit_is_free() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(4)), &clock));
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    let mut calls = [(); 3].map(|()| waits(service.call(())));
    assert!(!passes(service.call(())));
    calls[0].abandon();
    let mut newcomer = waits(service.call(()));
    assert!(!passes(service.call(())), "one unit came back, not two");
    clock.advance(INTERVAL);
    assert!(calls[1].run() && !calls[2].run());
    clock.advance(INTERVAL);
    assert!(calls[2].run() && !newcomer.run());
    clock.advance(INTERVAL);
    assert!(newcomer.run());
}

/// The calls are cancelled as in a server: every third call at a random time. The other calls are released in order,
/// one per interval.
#[tokio::test(start_paused = true)]
async fn when_every_third_of_a_hundred_is_cancelled_the_bucket_is_charged_for_the_rest() {
    for seed in 0..100 {
        let (line, bucket) =
            (RateLimiter::new(queue()), RateLimiter::new(TokenBucket::new(Quota::per_day(100))));
        let service = joined!(line, bucket);
        let mut random = Random::new(seed);
        let (start, mut calls) = (Instant::now(), JoinSet::new());
        for n in 0..100_u64 {
            let patience = if n % 3 == 2 { MS * random.below(9_000) as u32 } else { Duration::MAX };
            let call = service.clone().oneshot(());
            calls.spawn(async move {
                let left = tokio::time::timeout(patience, call).await.is_ok_and(|answer| answer.is_ok());
                (left, n, start.elapsed())
            });
            tokio::task::yield_now().await;
        }
        let mut left: Vec<_> = calls.join_all().await;
        left.retain(|(left, ..)| *left);
        left.sort_by_key(|(_, n, _)| *n);
        for (nth, (_, n, at)) in (0..).zip(&left) {
            assert_eq!(*at, INTERVAL * nth, "seed {seed}: {n}");
        }
        assert!(left.len() >= 67);
        // A hundredth of a unit, which the bucket has regained in the meantime, may be missing from the refund.
        let (due, reported) = (100 - left.len() as u64, bucket.peek(&()).remaining());
        assert!((due - 1..=due).contains(&reported), "seed {seed}: {reported} left, {due} due");
    }
}

#[test]
fn a_call_released_but_not_polled_gives_back_both_when_dropped() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(9)), &clock));
    assert!(line.check(&()).is_allowed());
    let call = waits(joined!(line, bucket).call(()));
    clock.advance(INTERVAL);
    // Any call for the key releases the waiter whose scheduled time has come.
    assert!(line.check_n(&(), 0).is_allowed());
    drop(call);
    assert_eq!(bucket.peek(&()).remaining(), 9);
    assert!(line.check(&()).is_allowed());
}

/// If a call is cancelled at the instant of its charge, the state is as before. There is one exception: a sliding
/// window gives back the oldest units, so others count longer.
#[test]
fn a_call_cancelled_at_once_leaves_no_trace() {
    fn holds<A: Algorithm>(algorithm: A, oldest: bool) {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let clock = ManualClock::new();
            let line = limiter(queue(), &clock);
            let (other, alone) = (limiter(algorithm.clone(), &clock), limiter(algorithm.clone(), &clock));
            let mut service = joined!(line, other);
            for _ in 0..30 {
                clock.advance(MS * random.below(200) as u32);
                let cost = random.below(3);
                assert_eq!(other.check_n(&(), cost), alone.check_n(&(), cost), "seed {seed}");
                let _ = line.check(&());
                let mut call = PolledByHand::new(service.call(()));
                assert!(!call.poll() || call.output.as_ref().unwrap().is_err());
                drop(call);
                assert_eq!(
                    other.peek(&()).remaining(),
                    alone.peek(&()).remaining(),
                    "seed {seed}: {algorithm:?}"
                );
                if oldest {
                    // Both limiters continue with the same clock.
                    other.reset(&());
                    alone.reset(&());
                } else {
                    assert_eq!(other.peek_n(&(), 9), alone.peek_n(&(), 9), "seed {seed}: {algorithm:?}");
                }
            }
        }
    }
    holds(TokenBucket::new(Quota::per_second(9)), false);
    holds(FixedWindow::new(Quota::per_second(9)), false);
    holds(SlidingWindow::new(Quota::per_second(9)), true);
    holds(SlidingLog::new(Quota::per_second(9)), true);
}
