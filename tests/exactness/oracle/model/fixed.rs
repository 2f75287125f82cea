//! The model of the fixed window.

use std::ops::RangeInclusive;

use super::{Oracle, Timeline, Verdict, exactly};
use crate::oracle::config::Rule;

/// The beginning of the window, in the key's time, and the number of units that the window has admitted.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    clock: Timeline,
    limit: u64,
    aligned: bool,
    /// The beginning of the window, which may be before the key's time began.
    began: i128,
    count: u64,
}

impl Fixed {
    pub(crate) fn new(rule: &Rule, start: u64) -> Self {
        let clock = Timeline::new(start, rule.period);
        Self { clock, limit: rule.limit, aligned: rule.aligned, began: 0, count: 0 }
    }

    fn now(&self) -> i128 {
        self.clock.time as i128
    }

    fn period(&self) -> i128 {
        self.clock.period.into()
    }

    /// Returns the beginning of the window of the clock's grid that contains the key's time.
    fn edge(&self) -> i128 {
        self.now() - i128::from(self.clock.latest % self.clock.period)
    }

    fn end_if_over(&mut self) {
        if self.now() - self.began >= self.period() {
            self.count = 0;
        }
    }
}

impl Oracle for Fixed {
    fn clock(&self) -> &Timeline {
        &self.clock
    }

    fn observe(&mut self, now: u64) {
        let earlier = now < self.clock.latest;
        self.clock.observe(now);
        self.end_if_over();
        // After the clock was set back, the window of the grid is another one. The count stays.
        if self.aligned && earlier && self.behind() == 0 {
            self.began = self.edge();
        }
    }

    fn verdict(&self, cost: u64) -> Verdict {
        Verdict::exact(cost <= self.limit.saturating_sub(self.count))
    }

    fn admit(&mut self, cost: u64) {
        if self.count == 0 {
            self.began = if self.aligned { self.edge() } else { self.now() };
        }
        self.count += cost;
    }

    fn refund(&mut self, cost: u64) {
        self.count = self.count.saturating_sub(cost);
    }

    fn undo(&mut self, cost: u64, ago: u64) {
        if i128::from(ago) <= self.now() - self.began {
            self.refund(cost);
        }
    }

    fn charge(&mut self, cost: u64, max_debt: u64) -> u64 {
        let charged = cost.min(self.limit.saturating_add(max_debt).saturating_sub(self.count));
        if charged > 0 {
            self.admit(charged);
        }
        charged
    }

    /// Keeps the beginning of the window, or takes the beginning of the window of the new grid.
    fn replace(&mut self, rule: &Rule) {
        let debt = self.count.saturating_sub(self.limit);
        (self.limit, self.clock.period, self.aligned) = (rule.limit, rule.period, rule.aligned);
        self.count = self.count.min(self.limit.saturating_add(debt));
        if self.aligned {
            self.began = self.edge();
        }
        self.end_if_over();
    }

    fn remaining(&self) -> RangeInclusive<u64> {
        exactly(self.limit.saturating_sub(self.count))
    }

    fn reset(&self) -> RangeInclusive<u128> {
        let rest = if self.count == 0 { 0 } else { self.began + self.period() - self.now() };
        exactly(rest as u128 + u128::from(self.behind()))
    }

    fn limit(&self) -> RangeInclusive<u64> {
        exactly(self.limit)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.limit)
    }
}
