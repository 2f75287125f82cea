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

    /// Returns the units that count, multiplied by the period.
    fn weight(&self) -> u128 {
        u128::from(self.previous) * (self.period() - self.gone) + u128::from(self.current) * self.period()
    }

    /// Returns the free units, multiplied by the period.
    fn free(&self) -> u128 {
        (u128::from(self.limit) * self.period()).saturating_sub(self.weight())
    }

    /// Returns the units that count, rounded up.
    fn count(&self) -> u64 {
        u64::try_from(self.weight().div_ceil(self.period())).unwrap_or(u64::MAX)
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

    fn undo(&mut self, cost: u64, ago: u64) {
        if u128::from(ago) <= self.gone {
            self.current = self.current.saturating_sub(cost);
        }
    }

    fn charge(&mut self, cost: u64, max_debt: u64) -> u64 {
        let charged = cost.min(self.limit.saturating_add(max_debt).saturating_sub(self.count()));
        if charged > 0 {
            self.admit(charged);
        }
        charged
    }

    /// Keeps the elapsed part of the window. If the counts exceed the new limit and the debt, they are lowered to it.
    fn replace(&mut self, rule: &Rule) {
        let most = rule.limit.saturating_add(self.count().saturating_sub(self.limit));
        self.gone = self.gone * u128::from(rule.period) / self.period();
        (self.limit, self.clock.period) = (rule.limit, rule.period);
        self.current = self.current.min(most);
        let spare = u128::from(most - self.current) * self.period() / (self.period() - self.gone);
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
