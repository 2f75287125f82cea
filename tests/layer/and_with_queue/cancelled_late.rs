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
fn a_call_cancelled_late_takes_no_units_from_others() {
    is_cancelled_late(TokenBucket::new(Quota::per_second(3)));
    is_cancelled_late(FixedWindow::new(Quota::per_second(3)));
    is_cancelled_late(FixedWindow::new(Quota::per_second(3)).aligned());
    is_cancelled_late(SlidingWindow::new(Quota::per_second(3)));
    is_cancelled_late(SlidingLog::new(Quota::per_second(3)));
    is_cancelled_late(SlidingCounter::new(Quota::per_second(3)));
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

/// Random runs, in which calls are queued and cancelled, and other calls are admitted. Asserts that no span has more
/// admitted calls than `most` of its length.
fn stays_within<A: Algorithm>(algorithm: A, most: impl Fn(Duration) -> usize) {
    for seed in 0..300 {
        let (mut random, clock) = (Random::new(seed), ManualClock::new());
        let (line, other) = (stuck(&clock), limiter(algorithm.clone(), &clock));
        let mut service = joined!(line, other);
        let (mut time, mut calls, mut served) = (Duration::ZERO, Vec::new(), Vec::new());
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
                    let step = MS * random.below(400) as u32;
                    clock.advance(step);
                    time += step;
                }
                _ if other.check(&()).is_allowed() => served.push(time),
                _ => {}
            }
        }
        for (first, from) in served.iter().enumerate() {
            for (count, to) in (1..).zip(&served[first..]) {
                let span = *to - *from;
                assert!(count <= most(span), "seed {seed}: {count} within {span:?}, of {algorithm:?}");
            }
        }
    }
}

#[test]
fn with_any_cancelled_waiters_admitted_calls_stay_within_the_limit() {
    let four = Quota::per_second(4);
    stays_within(TokenBucket::new(four.burst(3)), |span| 3 + span.as_millis() as usize * 4 / 1_000);
    let in_a_window = |span| if span < SECOND { 4 } else { usize::MAX };
    stays_within(SlidingLog::new(four), in_a_window);
    stays_within(SlidingWindow::new(four), in_a_window);
}
