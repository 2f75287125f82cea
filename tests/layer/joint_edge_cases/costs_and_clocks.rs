//! Several limits stay exact with costs above all limits, waits to the nanosecond, and clocks that are set back.

use std::time::Duration;

use tower::{Layer, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer};

use super::{ask, hourly, limiter, served};
use crate::support::Random;

const NANO: Duration = Duration::from_nanos(1);

#[test]
fn extreme_costs_are_denied_by_all_or_fit() {
    let clock = ManualClock::new();
    let most = Quota::per(u64::MAX, Duration::from_secs(1)).unwrap();
    let (first, second) = (limiter(FixedWindow::new(most), &clock), limiter(TokenBucket::new(most), &clock));
    for (costs, passes) in
        [([u64::MAX, u64::MAX], true), ([1, 1], false), ([0, 0], true), ([u64::MAX, 0], false)]
    {
        let layer = RateLimitLayer::with_limiter(Global, first.clone()).cost(move |(): &()| costs[0]);
        let layers =
            layer.and(RateLimitLayer::with_limiter(Global, second.clone()).cost(move |(): &()| costs[1]));
        assert_eq!(ask(&mut served!(layers), ()).is_ok(), passes, "{costs:?}");
    }
    // Two charges of the largest cost on one key are more than the largest cost. The sum must not wrap around.
    let one = limiter(SlidingCounter::new(most), &clock);
    let layer = RateLimitLayer::with_limiter(Global, one.clone()).cost(|(): &()| u64::MAX - 1);
    let mut twice = served!(layer.clone().and(layer.clone()));
    // The sum of both costs saturates at the largest possible cost.
    assert!(ask(&mut twice, ()).is_ok());
    assert_eq!(one.peek(&()).remaining(), 0);
}

/// Asserts that a call that joined layers deny is denied at every instant before its wait has passed, and allowed at
/// this instant.
fn waits_are_true<A: Algorithm, B: Algorithm>(rules: impl Fn(&mut Random) -> (A, B)) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (a, b) = rules(&mut random);
        let clock = ManualClock::new();
        let (first, second) = (limiter(a, &clock), limiter(b, &clock));
        let layer = RateLimitLayer::with_limiter(Global, first.clone()).cost(|costs: &[u64; 2]| costs[0]);
        let other = RateLimitLayer::with_limiter(Global, second.clone()).cost(|costs: &[u64; 2]| costs[1]);
        let mut service = served!(layer.and(other));
        for _ in 0..20 {
            let costs = [random.below(5), random.below(5)];
            let Err(Error::Limited(denied)) = ask(&mut service, costs) else {
                clock.advance(Duration::from_nanos(random.below(300_000_000)));
                continue;
            };
            let case = format!("seed {seed}: {costs:?} of {first:?} and {second:?}");
            let Some(wait) = denied.retry_after() else {
                clock.advance(Duration::from_secs(1_000_000));
                assert!(ask(&mut service, costs).is_err(), "{case}");
                continue;
            };
            assert!(!wait.is_zero(), "{case}");
            let early = Duration::from_nanos(random.below(wait.as_nanos() as u64));
            clock.advance(early);
            match ask(&mut service, costs) {
                Err(Error::Limited(reported)) => {
                    assert_eq!(reported.retry_after(), Some(wait - early), "{case}");
                }
                _ => panic!("{case}: allowed after {early:?} of {wait:?}"),
            }
            clock.advance(wait - early - NANO);
            assert!(ask(&mut service, costs).is_err(), "{case}");
            clock.advance(NANO);
            assert!(ask(&mut service, costs).is_ok(), "{case}: denied after {wait:?}");
        }
    }
}

fn any(random: &mut Random) -> Quota {
    let period = Duration::from_nanos(1 + random.below(2_000_000_000));
    Quota::per(1 + random.below(7), period).unwrap().burst(1 + random.below(7))
}

#[test]
fn the_wait_of_joined_layers_is_true_to_the_nanosecond() {
    waits_are_true(|random| (TokenBucket::new(any(random)), FixedWindow::new(any(random))));
    waits_are_true(|random| (SlidingLog::new(any(random)), SlidingCounter::new(any(random))));
    waits_are_true(|random| (SlidingWindow::new(any(random)), FixedWindow::new(any(random)).aligned()));
    waits_are_true(|random| (LeakyBucket::new(any(random)).queue(0), TokenBucket::new(any(random))));
    waits_are_true(|random| (Smooth::bursty(any(random)).queue(0), SlidingLog::new(any(random))));
    waits_are_true(|random| {
        ((TokenBucket::new(any(random)), SlidingLog::new(any(random))), FixedWindow::new(any(random)))
    });
}

/// A clock that jumps to random times admits nothing extra. By the latest readings, no period has more admitted calls
/// than the limit.
#[test]
fn a_clock_that_steps_back_admits_nothing_extra_to_joined_layers_and_tuples() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(100));
        let second = Duration::from_secs(1);
        let (log, bucket) = (SlidingLog::new(Quota::per_second(5)), TokenBucket::new(hourly(40)));
        let pair = limiter((log.clone(), bucket.clone()), &clock);
        let joined = RateLimitLayer::with_limiter(Global, limiter(log, &clock))
            .and(RateLimitLayer::with_limiter(Global, limiter(bucket, &clock)));
        let mut service = served!(joined);
        let (mut latest, mut now) = (Duration::from_secs(100), Duration::from_secs(100));
        let (mut seen, mut times) = (Duration::ZERO, [Vec::new(), Vec::new()]);
        for _ in 0..400 {
            match random.below(4) {
                0 => now = latest.saturating_sub(Duration::from_millis(random.below(1_001))),
                1 => {
                    latest += Duration::from_millis(random.below(150));
                    now = latest;
                }
                _ => {
                    clock.set(now);
                    // The latest reading that was observed counts, and not the present reading.
                    seen = seen.max(now);
                    if pair.check(&()).is_allowed() {
                        times[0].push(seen);
                    }
                    if ask(&mut service, ()).is_ok() {
                        times[1].push(seen);
                    }
                }
            }
        }
        for times in times {
            assert!(times.len() <= 41, "seed {seed}");
            for window in times.windows(6) {
                assert!(window[5] - window[0] >= second, "seed {seed}: {window:?}");
            }
        }
    }
}
