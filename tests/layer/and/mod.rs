//! Several limits charge a call together or not at all. The limits are in a tuple on one key, or in layers that are
//! joined by `.and` on several keys. They are compared with limits that are called one by one.

mod joined_layers;
mod tuples;

use std::time::Duration;

use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::Nanos;
use tower_throttle::{Decision, Quota};

use crate::support::Random;
use crate::support::limiter;

const SECOND: u64 = 1_000_000_000;
/// The number of calls in one case.
const CALLS: usize = 24;
/// Waits beyond 584 years from the clock's zero are not exact.
const LONG: Duration = Duration::from_nanos(i64::MAX as u64);

/// Returns a quota that a few calls can use up, or sometimes an extreme quota.
fn quota(random: &mut Random) -> Quota {
    let limit = match random.below(8) {
        0 => 1,
        1 => u64::MAX >> random.below(64),
        _ => 1 + random.below(12),
    };
    let period = match random.below(8) {
        0 => 1,
        1 => i64::MAX as u64 >> random.below(63),
        2 => 1 + random.below(100),
        _ => SECOND / (1 + random.below(7)),
    };
    let quota = Quota::per(limit, Duration::from_nanos(period)).unwrap();
    if random.one_in(3) { quota.burst(1 + random.below(20)) } else { quota }
}

/// An algorithm that can be made from random numbers.
trait Kind: Algorithm + PartialEq {
    fn any(random: &mut Random) -> Self;
}

impl Kind for TokenBucket {
    fn any(random: &mut Random) -> Self {
        let bucket = Self::new(quota(random));
        if random.one_in(4) { bucket.start_empty() } else { bucket }
    }
}

impl Kind for FixedWindow {
    fn any(random: &mut Random) -> Self {
        let window = Self::new(quota(random));
        if random.one_in(2) { window.aligned() } else { window }
    }
}

impl Kind for SlidingWindow {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random)).slices(1 + random.below(12) as usize)
    }
}

impl Kind for SlidingCounter {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random))
    }
}

impl Kind for SlidingLog {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random))
    }
}

/// No call is queued. A call that cannot be admitted at once is denied.
impl Kind for LeakyBucket {
    fn any(random: &mut Random) -> Self {
        Self::new(quota(random)).queue(0)
    }
}

impl Kind for Smooth {
    fn any(random: &mut Random) -> Self {
        let quota = quota(random);
        let smooth = match random.below(2) {
            0 => Self::bursty(quota),
            _ => Self::warming_up(quota, Duration::from_millis(random.below(5_000))),
        };
        smooth.queue(0)
    }
}

/// Runs a check with each pair of the seven kinds.
macro_rules! with_each_pair {
    ($test:ident, $cases:expr) => {
        with_each_pair!($test, $cases, TokenBucket FixedWindow SlidingWindow SlidingCounter SlidingLog LeakyBucket Smooth);
    };
    ($test:ident, $cases:expr, $($first:ident)+) => {
        let mut random = Random::new(0x709e_7e12);
        $(
            with_each_pair!(@second $test, $cases, random, $first);
        )+
    };
    (@second $test:ident, $cases:expr, $random:ident, $first:ident) => {
        for _ in 0..$cases {
            $test::<$first, TokenBucket>($random.word());
            $test::<$first, FixedWindow>($random.word());
            $test::<$first, SlidingWindow>($random.word());
            $test::<$first, SlidingCounter>($random.word());
            $test::<$first, SlidingLog>($random.word());
            $test::<$first, LeakyBucket>($random.word());
            $test::<$first, Smooth>($random.word());
        }
    };
}
pub(crate) use with_each_pair;

/// The number of cases for each of the 49 pairs. In all, there are more than 10,000 cases.
const CASES: usize = 210;

/// Returns the next reading of the clock. It is a later reading, the reported time, or an earlier reading.
fn next_time(random: &mut Random, now: u64, reported: Option<&Decision>) -> u64 {
    let reported =
        |span: fn(&Decision) -> Duration| reported.map_or(0, |reported| Nanos::from(span(reported)).0);
    let retry = reported(|decision| decision.retry_after().unwrap_or_default());
    let on = match random.below(16) {
        0..=5 => 0,
        6 => 1,
        7 => retry,
        8 => retry.saturating_sub(1),
        9 => reported(Decision::reset_after),
        10 => random.below(100),
        11 => return now.saturating_sub(random.below(100)),
        12 => return now.saturating_sub(random.below(3 * SECOND)),
        13 => random.below(100 * SECOND),
        _ => random.below(SECOND),
    };
    now.saturating_add(on).min(1 << 61)
}

fn next_cost(random: &mut Random) -> u64 {
    match random.below(16) {
        0 => 0,
        1 => u64::MAX >> random.below(64),
        2 | 3 => 1 + random.below(12),
        4 => u64::MAX,
        _ => 1 + random.below(2),
    }
}
