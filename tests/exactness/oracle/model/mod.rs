//! The algorithms once more, as naive and exact as they can be written. Nothing here knows how the crate
//! computes.
//!
//! A model records what *the crate* admitted, so that one wrong decision does not become a hundred.

mod bucket;
mod counter;
mod fixed;
mod leaky;
mod sliding;
mod smooth;
mod store;

use std::fmt::Debug;
use std::ops::RangeInclusive;

pub(crate) use bucket::Bucket;
pub(crate) use counter::Counter;
pub(crate) use fixed::Fixed;
pub(crate) use leaky::Leaky;
pub(crate) use sliding::Sliding;
pub(crate) use smooth::Smooth;

use super::config::Rule;

/// The decision of an algorithm for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admit,
    Refuse,
    /// The decision lies within what the algorithm allows for rounding.
    Either,
}

impl Verdict {
    pub(crate) fn exact(admits: bool) -> Self {
        if admits { Self::Admit } else { Self::Refuse }
    }
}

pub(crate) trait Oracle: Clone + Debug {
    fn clock(&self) -> &Timeline;
    /// Advances the model to the reading `now`.
    fn observe(&mut self, now: u64);
    fn verdict(&self, cost: u64) -> Verdict;
    fn admit(&mut self, cost: u64);
    fn refund(&mut self, cost: u64);
    fn replace(&mut self, rule: &Rule);
    fn remaining(&self) -> RangeInclusive<u64>;
    /// Returns the time until the key is fresh; a key that is fresh waits for nothing but the clock.
    fn reset(&self) -> RangeInclusive<u128>;
    /// Returns the maximum that can be admitted at one instant.
    fn limit(&self) -> RangeInclusive<u64>;

    /// Returns the cost above which a call never fits.
    fn capacity(&self) -> Option<u64> {
        None
    }

    /// Returns the units that a key admits at once exactly when it is fresh.
    fn whole(&self) -> Option<u64> {
        self.capacity()
    }

    /// Returns whether nothing more can be reported of the key, because the clock will have ended first.
    fn is_beyond(&self) -> bool {
        false
    }

    /// Returns how far the clock is behind the key's time, which stands still meanwhile.
    fn behind(&self) -> u64 {
        self.clock().behind
    }
}

/// A key's own time: the sum of the clock's advances, as promise 6 has it.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    pub(crate) period: u64,
    pub(crate) latest: u64,
    pub(crate) time: u128,
    pub(crate) behind: u64,
}

impl Timeline {
    pub(crate) fn new(start: u64, period: u64) -> Self {
        Self { period, latest: start, time: 0, behind: 0 }
    }

    /// Returns how far time went on.
    pub(crate) fn observe(&mut self, now: u64) -> u64 {
        let on = now.saturating_sub(self.latest);
        self.behind = self.latest.saturating_sub(now);
        if self.behind > self.period {
            self.behind = 0;
        }
        if self.behind == 0 {
            self.latest = now;
        }
        self.time += u128::from(on);
        on
    }
}

/// The rate `limit` per `period`, in lowest terms. A nanosecond brings `speed` grains, and a unit is `unit`
/// of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) speed: u128,
    pub(crate) unit: u128,
}

impl Rate {
    pub(crate) fn of(rule: &Rule) -> Self {
        let shared = divisor(rule.limit, rule.period);
        Self { speed: u128::from(rule.limit / shared), unit: u128::from(rule.period / shared) }
    }

    /// Converts `grains` to the same number of units at `other`, rounded up to a grain.
    pub(crate) fn convert(self, grains: u128, other: Self) -> u128 {
        let (whole, part) = (grains / other.unit, grains % other.unit);
        whole * self.unit + (part * self.unit).div_ceil(other.unit)
    }

    /// Returns how long `grains` take.
    pub(crate) fn nanos(self, grains: u128) -> u128 {
        grains.div_ceil(self.speed)
    }
}

/// Returns the greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn exactly<T: Copy>(number: T) -> RangeInclusive<T> {
    number..=number
}
