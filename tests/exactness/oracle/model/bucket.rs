//! The model of the token bucket.

use std::ops::RangeInclusive;

use super::{Oracle, Rate, Timeline, Verdict, exactly};
use crate::oracle::config::Rule;

/// The tokens that are missing from a full bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    clock: Timeline,
    rate: Rate,
    burst: u64,
    /// The missing tokens, in grains.
    missing: u128,
}

impl Bucket {
    pub(crate) fn full(rule: &Rule, start: u64) -> Self {
        let clock = Timeline::new(start, rule.period);
        Self { clock, rate: Rate::of(rule), burst: rule.burst, missing: 0 }
    }

    /// Returns the same bucket after it was empty and has filled for `idle` nanoseconds.
    pub(crate) fn empty_until(mut self, idle: u64) -> Self {
        self.missing = self.size().saturating_sub(u128::from(idle) * self.rate.speed);
        self
    }

    fn size(&self) -> u128 {
        u128::from(self.burst) * self.rate.unit
    }
}

impl Oracle for Bucket {
    fn clock(&self) -> &Timeline {
        &self.clock
    }

    fn observe(&mut self, now: u64) {
        let brought = u128::from(self.clock.observe(now)) * self.rate.speed;
        self.missing = self.missing.saturating_sub(brought);
    }

    fn verdict(&self, cost: u64) -> Verdict {
        Verdict::exact(cost == 0 || u128::from(cost) * self.rate.unit + self.missing <= self.size())
    }

    fn admit(&mut self, cost: u64) {
        self.missing += u128::from(cost) * self.rate.unit;
    }

    fn refund(&mut self, cost: u64) {
        self.missing = self.missing.saturating_sub(u128::from(cost) * self.rate.unit);
    }

    /// Since the charge, at least the charged units less those that were refilled are missing.
    fn refund_settled(&mut self, charged: u64, actual: u64, ago: u64) {
        let refilled = u128::from(ago) * self.rate.speed;
        let counts = (u128::from(charged) * self.rate.unit).saturating_sub(refilled);
        let less = u128::from(charged - actual) * self.rate.unit;
        self.missing = self.missing.saturating_sub(less.min(counts));
    }

    fn undo(&mut self, cost: u64, ago: u64) {
        let refilled = u128::from(ago) * self.rate.speed;
        let left = (u128::from(cost) * self.rate.unit).saturating_sub(refilled);
        self.missing = self.missing.saturating_sub(left);
    }

    fn charge(&mut self, cost: u64, max_debt: u64) -> u64 {
        let most = u128::from(self.burst.saturating_add(max_debt)) * self.rate.unit;
        let before = self.missing;
        self.missing = (before + u128::from(cost) * self.rate.unit).min(most.max(before));
        (self.missing - before).div_ceil(self.rate.unit) as u64
    }

    /// Keeps the number of missing tokens, but at most the new burst and the debt.
    fn replace(&mut self, rule: &Rule) {
        let (rate, old) = (Rate::of(rule), self.rate);
        let debt = rate.convert(self.missing.saturating_sub(self.size()), old);
        self.missing = rate.convert(self.missing, old);
        (self.rate, self.burst, self.clock.period) = (rate, rule.burst, rule.period);
        let most = u128::from(u64::MAX) * rate.unit;
        self.missing = self.missing.min(self.size() + debt).min(most);
    }

    fn remaining(&self) -> RangeInclusive<u64> {
        exactly((self.size().saturating_sub(self.missing) / self.rate.unit) as u64)
    }

    fn reset(&self) -> RangeInclusive<u128> {
        exactly(self.rate.nanos(self.missing) + u128::from(self.behind()))
    }

    fn limit(&self) -> RangeInclusive<u64> {
        exactly(self.burst)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.burst)
    }
}
