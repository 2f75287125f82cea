//! A call that is cancelled in the queue gives back all that it was charged.

use std::future::Future;
use std::time::Duration;

use tower::{Layer, Service};
use tower_throttle::algorithm::{Algorithm, FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

use super::{INTERVAL, MS, answers, joined, limiter, queue, waits};
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
