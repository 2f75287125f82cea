//! The model of the leaky bucket.

use std::ops::RangeInclusive;

use super::{Oracle, Rate, Timeline, Verdict, exactly};
use crate::oracle::config::Rule;

/// The time until the next slot, in grains.
#[derive(Clone, Debug)]
pub(crate) struct Leaky {
    clock: Timeline,
    rate: Rate,
    rest: u128,
}

impl Leaky {
    pub(crate) fn new(rule: &Rule, start: u64) -> Self {
        Self { clock: Timeline::new(start, rule.period), rate: Rate::of(rule), rest: 0 }
    }
}

impl Oracle for Leaky {
    fn clock(&self) -> &Timeline {
        &self.clock
    }

    fn observe(&mut self, now: u64) {
        let gone = u128::from(self.clock.observe(now)) * self.rate.speed;
        self.rest = self.rest.saturating_sub(gone);
    }

    fn verdict(&self, cost: u64) -> Verdict {
        Verdict::exact(cost == 0 || self.rest == 0)
    }

    fn admit(&mut self, cost: u64) {
        self.rest += u128::from(cost) * self.rate.unit;
    }

    fn refund(&mut self, cost: u64) {
        self.rest = self.rest.saturating_sub(u128::from(cost) * self.rate.unit);
    }

    /// Since the charge, at least the charged units less those that were refilled are missing.
    fn refund_settled(&mut self, charged: u64, actual: u64, ago: u64) {
        let refilled = u128::from(ago) * self.rate.speed;
        let counts = (u128::from(charged) * self.rate.unit).saturating_sub(refilled);
        let less = u128::from(charged - actual) * self.rate.unit;
        self.rest = self.rest.saturating_sub(less.min(counts));
    }

    fn undo(&mut self, cost: u64, ago: u64) {
        let passed = u128::from(ago) * self.rate.speed;
        let left = (u128::from(cost) * self.rate.unit).saturating_sub(passed);
        self.rest = self.rest.saturating_sub(left);
    }

    fn charge(&mut self, cost: u64, max_debt: u64) -> u64 {
        let most = if max_debt == 0 { cost } else { max_debt.saturating_add(1) };
        let (most, before) = (u128::from(most) * self.rate.unit, self.rest);
        self.rest = before.saturating_add(u128::from(cost) * self.rate.unit).min(most.max(before));
        (self.rest - before).div_ceil(self.rate.unit) as u64
    }

    /// Keeps the number of intervals until the next slot.
    fn replace(&mut self, rule: &Rule) {
        let rate = Rate::of(rule);
        self.rest = rate.convert(self.rest, self.rate);
        (self.rate, self.clock.period) = (rate, rule.period);
    }

    fn remaining(&self) -> RangeInclusive<u64> {
        exactly(u64::from(self.rest == 0))
    }

    fn reset(&self) -> RangeInclusive<u128> {
        // Sums of later times must fit.
        exactly(self.rate.nanos(self.rest).min(1 << 126) + u128::from(self.behind()))
    }

    fn limit(&self) -> RangeInclusive<u64> {
        exactly(1)
    }

    /// Returns whether the next slot is so far away that later sums may not fit. With most rates, such a slot is beyond
    /// the end of any clock.
    fn is_beyond(&self) -> bool {
        self.rest >= 1 << 126
    }

    /// Returns 1, because a call is admitted only if the time until the next slot is zero.
    fn whole(&self) -> Option<u64> {
        Some(1)
    }
}
