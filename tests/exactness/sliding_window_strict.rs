//! A sliding window is strict: no span of the length of a period has more admitted units than the limit.

use std::time::Duration;

use tower_throttle::Quota;
use tower_throttle::algorithm::{Algorithm, SlidingWindow};
use tower_throttle::clock::Nanos;

use crate::support::{Random, scaled};

const ARRIVALS: u64 = 1_000_000;
const LIMIT: u64 = 23;

/// The admitted calls: the time and cost of each.
#[derive(Debug, Default)]
struct Admitted(Vec<(u64, u64)>);

impl Admitted {
    /// Returns the maximum number of units in a span of this length. A span with the maximum can be moved so that it
    /// ends with a call.
    fn most_within(&self, span: u64) -> u64 {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at, cost) in &self.0 {
            sum += cost;
            while self.0[first].0 + span <= *at {
                sum -= self.0[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    /// Returns the number of units that were admitted less than `span` before now.
    fn since(&self, now: u64, span: u64) -> u64 {
        self.0.iter().rev().take_while(|(at, _)| at + span > now).map(|(_, cost)| cost).sum()
    }
}

/// The times of calls: random ones, the same instant again, the edges of slices and periods, and the reported time of a
/// retry.
struct Arrivals {
    random: Random,
    now: u64,
    period: u64,
    slice: u64,
}

impl Arrivals {
    fn next(&mut self, retry: u64) -> (u64, u64) {
        let random = &mut self.random;
        self.now += match random.below(16) {
            0..=3 => 0,
            4..=6 => random.below(2 * self.period / LIMIT),
            7 => random.below(self.slice + 1),
            8 => self.slice - random.below(2),
            9 => self.slice + random.below(2),
            10 => self.period - random.below(2),
            11 => self.period + random.below(2),
            12 => random.below(2 * self.period),
            13 => retry.saturating_sub(1),
            _ => retry,
        };
        let cost = match random.below(8) {
            0 => 1 + random.below(LIMIT),
            1 | 2 => 1 + random.below(5),
            _ => 1,
        };
        (self.now, cost)
    }
}

fn slice(period: u64, slices: usize) -> u64 {
    period.div_ceil(slices as u64)
}

#[test]
fn no_period_holds_more_than_the_limit() {
    // A prime number, which is no multiple of a number of slices, and a number that is a multiple of many.
    for period in [1_000_003, 1_048_320] {
        for slices in [1, 2, 3, 7, 10, 13, 64, 1_000] {
            let quota = Quota::per(LIMIT, Duration::from_nanos(period)).unwrap();
            let window = SlidingWindow::new(quota).slices(slices);
            let mut state = window.new_state(Nanos::ZERO, Nanos::ZERO);
            let slice = slice(period, slices);
            let mut arrivals = Arrivals { random: Random::new(slices as u64), now: 0, period, slice };
            let (mut admitted, mut retry) = (Admitted::default(), 0);
            for _ in 0..scaled(ARRIVALS) {
                let (now, cost) = arrivals.next(retry);
                let decision = window.check(&mut state, Nanos(now), cost);
                if decision.is_allowed() {
                    admitted.0.push((now, cost));
                    retry = 0;
                } else {
                    let late = admitted.since(now, period + slice - 1);
                    assert!(late + cost > LIMIT, "{slices} slices: not back a slice after its period");
                    retry = decision.retry_after().expect("no cost is above the limit").as_nanos() as u64;
                }
            }
            assert_eq!(admitted.most_within(period), LIMIT, "{slices} slices of {period} ns");
        }
    }
}

/// Many implementations drop a slice when it is `slices` slices old. The calls of these tests detect this fault.
#[test]
fn a_window_that_drops_a_slice_too_soon_is_detected() {
    let period = 1_000_003;
    for slices in [1, 2, 3, 7, 10, 13, 64] {
        let slice = slice(period, slices);
        let mut arrivals = Arrivals { random: Random::new(slices as u64), now: 0, period, slice };
        let mut admitted = Admitted::default();
        for _ in 0..ARRIVALS / 10 {
            let (now, cost) = arrivals.next(0);
            let first = (now / slice + 1).saturating_sub(slices as u64) * slice;
            if admitted.since(now, now - first.min(now) + 1) + cost <= LIMIT {
                admitted.0.push((now, cost));
            }
        }
        assert!(admitted.most_within(period) > LIMIT, "{slices} slices");
    }
}
