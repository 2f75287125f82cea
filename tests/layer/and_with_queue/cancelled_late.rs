//! A call that is cancelled long after its charge takes no units from other calls.

use std::time::Duration;

use tower::{Layer, Service};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{MS, answers, joined, limiter};
use crate::support::{PolledByHand, Random};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a limiter whose queue releases no call for a minute, to be joined with another limit. One call has just been
/// admitted.
fn stuck(clock: &ManualClock) -> RateLimiter<LeakyBucket> {
    let line = limiter(LeakyBucket::new(Quota::per_minute(1)).queue(1_000), clock);
    assert!(line.check(&()).is_allowed());
    line
}

/// Checks that a call that is cancelled late gives back the units of its charge that still count, and no units that are
/// already available again.
fn is_cancelled_late<A: Algorithm>(algorithm: A) {
    let clock = ManualClock::new();
    clock.set(SECOND * 1_000);
    let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
    let call = joined!(line, other).call(());
    let most = other.peek(&()).remaining();
    clock.advance(SECOND * 5);
    // The unit of the call and all other units are available again, and other calls take them all.
    let full = other.peek(&()).remaining();
    assert!(full > most);
    assert!(other.check_n(&(), full).is_allowed());
    drop(call);
    assert_eq!(other.peek(&()).remaining(), 0, "it was others' units: {algorithm:?}");
}

#[test]
fn a_call_cancelled_late_takes_no_units_from_others_of_a_token_bucket() {
    is_cancelled_late(TokenBucket::new(Quota::per_second(3)));
}

#[test]
fn a_call_cancelled_late_takes_no_units_from_others_of_a_window() {
    is_cancelled_late(FixedWindow::new(Quota::per_second(3)));
    is_cancelled_late(FixedWindow::new(Quota::per_second(3)).aligned());
    is_cancelled_late(SlidingWindow::new(Quota::per_second(3)));
    is_cancelled_late(SlidingLog::new(Quota::per_second(3)));
    is_cancelled_late(SlidingCounter::new(Quota::per_second(3)));
}

/// Random runs, in which calls are queued and cancelled, and other calls are admitted. In any period, no more than the
/// limit is admitted.
fn served_within<A: Algorithm>(algorithm: A, limit: usize) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
        let mut service = joined!(line, other);
        let (mut time, mut calls, mut served) = (Duration::ZERO, Vec::new(), Vec::new());
        for _ in 0..100 {
            match random.below(5) {
                0 => {
                    let mut call = PolledByHand::new(service.call(()));
                    if !call.poll() {
                        calls.push(call);
                    }
                }
                1 if !calls.is_empty() => drop(calls.swap_remove(random.below(calls.len() as u64) as usize)),
                2 => {
                    let step = MS * random.below(400) as u32;
                    clock.advance(step);
                    time += step;
                }
                _ if other.check(&()).is_allowed() => served.push(time),
                _ => {}
            }
        }
        for window in served.windows(limit + 1) {
            let span = window[limit] - window[0];
            assert!(span >= SECOND, "seed {seed}: {} within {span:?}, of {algorithm:?}", limit + 1);
        }
    }
}

/// The unit of the fast limit is available again long before the unit of the slow limit.
#[test]
fn a_call_cancelled_late_takes_no_units_from_others_of_any_member_of_a_tuple() {
    let pair = (TokenBucket::new(Quota::per_second(3)), FixedWindow::new(Quota::per_day(1_000)));
    is_cancelled_late(pair.clone());
    is_cancelled_late((pair.1.clone(), pair.0.clone()));
    is_cancelled_late((FixedWindow::new(Quota::per_second(3)), SlidingLog::new(Quota::per_day(1_000))));
    is_cancelled_late(pair.0.block_for(SECOND * 100).after(5));
}

/// If the clock is set back after a charge, the charge does not become newer, because the key's time is the latest
/// reading that it has observed.
#[test]
fn a_call_cancelled_after_the_clock_was_set_back_takes_no_units_from_others() {
    fn holds<A: Algorithm>(algorithm: A) {
        let clock = ManualClock::new();
        clock.set(SECOND * 100);
        let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
        let call = joined!(line, other).call(());
        clock.advance(SECOND);
        assert!(other.check(&()).is_allowed());
        clock.set(SECOND * 100);
        drop(call);
        clock.set(SECOND * 101);
        assert_eq!(other.peek(&()).remaining(), 0, "it was another's unit: {algorithm:?}");
    }
    holds(TokenBucket::new(Quota::per_second(1)));
    holds(FixedWindow::new(Quota::per_second(1)));
    holds(SlidingLog::new(Quota::per_second(1)));
    holds(LeakyBucket::new(Quota::per_second(1)).queue(0));
}

#[test]
fn with_any_cancelled_waiter_admitted_calls_stay_within_a_bucket() {
    let clocks = (0..300).map(|seed| (Random::new(seed), ManualClock::new()));
    for (seed, (mut random, clock)) in clocks.enumerate() {
        let (line, other) = (stuck(&clock), limiter(TokenBucket::new(Quota::per_second(4).burst(3)), &clock));
        let mut service = joined!(line, other);
        let (mut time, mut calls, mut served) = (0_u64, Vec::new(), Vec::new());
        for _ in 0..150 {
            match random.below(6) {
                0 | 1 => {
                    let mut call = PolledByHand::new(service.call(()));
                    if !call.poll() {
                        calls.push(call);
                    }
                }
                2 if !calls.is_empty() => drop(calls.swap_remove(random.below(calls.len() as u64) as usize)),
                3 => {
                    let step = random.below(400);
                    clock.advance(MS * step as u32);
                    time += step;
                }
                _ if other.check(&()).is_allowed() => served.push(time),
                _ => {}
            }
        }
        for (first, from) in served.iter().enumerate() {
            for (last, to) in served.iter().enumerate().skip(first) {
                let due = 3 + (to - from) * 4 / 1_000;
                assert!(
                    ((last - first) as u64) < due,
                    "seed {seed}: {} from {from} to {to} ms",
                    last - first + 1
                );
            }
        }
    }
}

#[test]
fn with_any_cancelled_waiter_admitted_calls_stay_within_a_log() {
    served_within(SlidingLog::new(Quota::per_second(4)), 4);
}

#[test]
fn with_any_cancelled_waiter_admitted_calls_stay_within_a_window() {
    served_within(SlidingWindow::new(Quota::per_second(4)), 4);
}
