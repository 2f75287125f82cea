//! The model of the sliding window.

use std::ops::RangeInclusive;

use super::{Oracle, Timeline, Verdict, exactly};
use crate::oracle::config::Rule;

/// All units that count, oldest first. A unit counts until one period after the last instant of its slice.
///
/// An exact window has slices of one nanosecond.
#[derive(Clone, Debug)]
pub(crate) struct Sliding {
    clock: Timeline,
    limit: u64,
    exact: bool,
    slice: u64,
    /// The last instant of the latest slice in which a unit was charged.
    edge: u128,
    units: Vec<Units>,
}

/// The units that were charged at one instant.
#[derive(Clone, Debug)]
struct Units {
    number: u64,
    came: u128,
    /// The last instant of the slice of these units.
    until: u128,
}

impl Sliding {
    pub(crate) fn sliced(rule: &Rule, start: u64) -> Self {
        let clock = Timeline::new(start, rule.period);
        let slice = rule.period.div_ceil(rule.slices);
        Self { clock, limit: rule.limit, exact: false, slice, edge: 0, units: Vec::new() }
    }

    pub(crate) fn exact(rule: &Rule, start: u64) -> Self {
        let clock = Timeline::new(start, rule.period);
        Self { clock, limit: rule.limit, exact: true, slice: 1, edge: 0, units: Vec::new() }
    }

    fn count(&self) -> u64 {
        self.units.iter().map(|units| units.number).sum()
    }

    fn forget(&mut self) {
        let (now, period) = (self.clock.time, u128::from(self.clock.period));
        self.units.retain(|units| {
            let counts = now < units.until + period;
            assert!(counts || now - units.came >= period, "forgotten before its period is over");
            counts
        });
    }

    fn drop_oldest(&mut self, mut number: u64) {
        for units in &mut self.units {
            let dropped = number.min(units.number);
            units.number -= dropped;
            number -= dropped;
        }
        self.units.retain(|units| units.number > 0);
    }

    /// Lays new slices, backwards from now. Each unit is treated as if it had been charged at the last instant of its
    /// slice.
    fn cut_anew(&mut self, slice: u64) {
        let now = self.clock.time;
        self.slice = slice;
        self.edge = now;
        for units in &mut self.units {
            let age = now.saturating_sub(units.until);
            units.until = now - age / u128::from(slice) * u128::from(slice);
        }
    }
}

impl Oracle for Sliding {
    fn clock(&self) -> &Timeline {
        &self.clock
    }

    fn observe(&mut self, now: u64) {
        self.clock.observe(now);
        self.forget();
    }

    fn verdict(&self, cost: u64) -> Verdict {
        Verdict::exact(cost <= self.limit.saturating_sub(self.count()))
    }

    fn admit(&mut self, cost: u64) {
        if cost == 0 {
            return;
        }
        let now = self.clock.time;
        if self.units.is_empty() {
            // The first call is at the last instant of its slice.
            self.edge = now;
        }
        let slices = now.saturating_sub(self.edge).div_ceil(self.slice.into());
        self.edge += slices * u128::from(self.slice);
        self.units.push(Units { number: cost, came: now, until: self.edge });
        assert!(self.edge >= now && self.edge - now < u128::from(self.slice), "free more than a slice late");
    }

    fn refund(&mut self, cost: u64) {
        self.drop_oldest(cost);
    }

    /// Takes the units of the charge's slice, and then those of older slices.
    fn undo(&mut self, mut cost: u64, ago: u64) {
        if ago >= self.clock.period {
            return;
        }
        let (now, slice) = (self.clock.time, u128::from(self.slice));
        for units in self.units.iter_mut().rev().filter(|units| units.until + u128::from(ago) < now + slice) {
            let given = cost.min(units.number);
            units.number -= given;
            cost -= given;
        }
        self.units.retain(|units| units.number > 0);
    }

    /// An exact window has as many instants as its limit at most. If it has as many, the units of the latest of them
    /// are treated as if they had been charged now.
    fn charge(&mut self, cost: u64, max_debt: u64) -> u64 {
        let charged = cost.min(self.limit.saturating_add(max_debt).saturating_sub(self.count()));
        let mut instants: Vec<_> = self.units.iter().map(|units| units.until).collect();
        instants.dedup();
        if charged > 0 && self.exact && instants.len() as u64 >= self.limit {
            let latest = self.units.iter_mut().filter(|units| Some(&units.until) == instants.last());
            latest.for_each(|units| units.until = self.clock.time);
        }
        self.admit(charged);
        charged
    }

    fn replace(&mut self, rule: &Rule) {
        let debt = self.count().saturating_sub(self.limit);
        let slice = if self.exact { 1 } else { rule.period.div_ceil(rule.slices) };
        let as_they_are = rule.period == self.clock.period && slice == self.slice;
        (self.limit, self.clock.period) = (rule.limit, rule.period);
        if !as_they_are {
            let now = self.clock.time;
            self.units.retain(|units| now.saturating_sub(units.until) < u128::from(rule.period));
            self.cut_anew(slice);
        }
        self.drop_oldest(self.count().saturating_sub(self.limit.saturating_add(debt)));
    }

    fn remaining(&self) -> RangeInclusive<u64> {
        exactly(self.limit.saturating_sub(self.count()))
    }

    fn reset(&self) -> RangeInclusive<u128> {
        let free = |newest: &Units| newest.until + u128::from(self.clock.period) - self.clock.time;
        exactly(self.units.last().map_or(0, free) + u128::from(self.behind()))
    }

    fn limit(&self) -> RangeInclusive<u64> {
        exactly(self.limit)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.limit)
    }
}
