//! Models of the algorithms, which are as naive and exact as possible. The models do not depend on how the crate
//! computes.
//!
//! A model records what the *crate* has admitted, so that one wrong decision does not cause a hundred failures.

mod bucket;
mod counter;
mod fixed;
mod leaky;
mod paused;
mod sliding;
mod smooth;
mod store;

use std::fmt::Debug;
use std::ops::RangeInclusive;

pub(crate) use bucket::Bucket;
pub(crate) use counter::Counter;
pub(crate) use fixed::Fixed;
pub(crate) use leaky::Leaky;
pub(crate) use paused::Paused;
pub(crate) use sliding::Sliding;
pub(crate) use smooth::Smooth;

use super::config::Rule;

/// The decision that an algorithm must make on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admit,
    Deny,
    /// Both decisions are correct, because of the rounding that the algorithm allows.
    Either,
}

impl Verdict {
    pub(crate) fn exact(admits: bool) -> Self {
        if admits { Self::Admit } else { Self::Deny }
    }
}

pub(crate) trait Oracle: Clone + Debug {
    /// `false` if the model knows only charges without a bound.
    const BOUNDS_DEBT: bool = true;

    fn clock(&self) -> &Timeline;
    /// Advances the model to the reading `now`.
    fn observe(&mut self, now: u64);
    fn verdict(&self, cost: u64) -> Verdict;
    fn admit(&mut self, cost: u64);
    fn refund(&mut self, cost: u64);
    /// Gives back `cost` units of the charge that was made `ago` nanoseconds before the latest reading, as far as they
    /// still count.
    fn undo(&mut self, cost: u64, ago: u64);
    /// Settles a call that was charged `charged` units `ago` nanoseconds before the latest reading, and has cost less.
    fn refund_settled(&mut self, charged: u64, actual: u64, ago: u64) {
        self.undo(charged - actual, ago);
    }
    /// Charges up to `cost` units after the fact, so that the key is in debt by at most `max_debt` units. Returns the
    /// number of units that were charged.
    fn charge(&mut self, cost: u64, max_debt: u64) -> u64;
    fn replace(&mut self, rule: &Rule);
    fn remaining(&self) -> RangeInclusive<u64>;
    /// Returns the time until the key is fresh. If the key is fresh, but the clock is behind, this is the time until
    /// the clock has caught up.
    fn reset(&self) -> RangeInclusive<u128>;
    /// Returns the maximum number of units that can be admitted at one instant.
    fn limit(&self) -> RangeInclusive<u64>;

    /// Returns the cost above which a call can never be admitted.
    fn capacity(&self) -> Option<u64> {
        None
    }

    /// Returns the number of units that a fresh key admits at once. A key that is not fresh admits fewer.
    fn whole(&self) -> Option<u64> {
        self.capacity()
    }

    /// Returns whether the key's times cannot be reported, because the clock will end before.
    fn is_beyond(&self) -> bool {
        false
    }

    /// Returns the time by which the clock is behind the key's time. The key's time stands still while the clock is
    /// behind.
    fn behind(&self) -> u64 {
        self.clock().behind
    }
}

/// A key's own time, which is the sum of the clock's advances, as the guide promises of a clock that steps back.
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

    /// Returns by how much the key's time has advanced.
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

/// The rate `limit` per `period`, in lowest terms. `speed` is the number of grains per nanosecond, and `unit` is the
/// number of grains of one unit.
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

    /// Converts `grains` of the rate `other` to grains of this rate, for the same number of units, rounded up.
    pub(crate) fn convert(self, grains: u128, other: Self) -> u128 {
        let (whole, part) = (grains / other.unit, grains % other.unit);
        whole.saturating_mul(self.unit).saturating_add((part * self.unit).div_ceil(other.unit))
    }

    /// Returns the time in nanoseconds that it takes for `grains` to become available, rounded up.
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
