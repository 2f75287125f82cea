//! The model of the sliding counter.

use std::ops::RangeInclusive;

use super::{Oracle, Timeline, Verdict, exactly};
use crate::oracle::config::Rule;

/// The elapsed part of the current window, and the counts of two windows.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    clock: Timeline,
    limit: u64,
    gone: u128,
    previous: u64,
    current: u64,
}

impl Counter {
    pub(crate) fn new(rule: &Rule, start: u64) -> Self {
        let clock = Timeline::new(start, rule.period);
        Self { clock, limit: rule.limit, gone: 0, previous: 0, current: 0 }
    }

    fn period(&self) -> u128 {
        self.clock.period.into()
    }

    /// Returns the free units, multiplied by the period.
    fn free(&self) -> u128 {
        let weighs = u128::from(self.previous) * (self.period() - self.gone);
        u128::from(self.limit - self.current) * self.period() - weighs
    }

    fn is_idle(&self) -> bool {
        self.previous == 0 && self.current == 0
    }
}

impl Oracle for Counter {
    fn clock(&self) -> &Timeline {
        &self.clock
    }

    fn observe(&mut self, now: u64) {
        self.gone += u128::from(self.clock.observe(now));
        let ended = self.gone / self.period();
        self.gone %= self.period();
        match ended {
            0 => {}
            1 => (self.previous, self.current) = (self.current, 0),
            _ => (self.previous, self.current) = (0, 0),
        }
    }

    fn verdict(&self, cost: u64) -> Verdict {
        Verdict::exact(cost <= self.limit && u128::from(cost) * self.period() <= self.free())
    }

    fn admit(&mut self, cost: u64) {
        if self.is_idle() {
            self.gone = 0;
        }
        self.current += cost;
    }

    fn refund(&mut self, cost: u64) {
        let newest = cost.min(self.current);
        self.current -= newest;
        self.previous = self.previous.saturating_sub(cost - newest);
    }

    /// Keeps the elapsed part of the window. If the counts exceed the new limit, they are lowered to it.
    fn replace(&mut self, rule: &Rule) {
        self.gone = self.gone * u128::from(rule.period) / self.period();
        (self.limit, self.clock.period) = (rule.limit, rule.period);
        self.current = self.current.min(self.limit);
        let spare = u128::from(self.limit - self.current) * self.period() / (self.period() - self.gone);
        self.previous = u128::from(self.previous).min(spare) as u64;
    }

    fn remaining(&self) -> RangeInclusive<u64> {
        exactly((self.free() / self.period()) as u64)
    }

    fn reset(&self) -> RangeInclusive<u128> {
        let windows = if self.current > 0 { 2 } else { 1 };
        let rest = if self.is_idle() { 0 } else { windows * self.period() - self.gone };
        exactly(rest + u128::from(self.behind()))
    }

    fn limit(&self) -> RangeInclusive<u64> {
        exactly(self.limit)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.limit)
    }
}
