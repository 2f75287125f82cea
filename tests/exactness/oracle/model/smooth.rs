//! The model of the smooth limiters.

use std::ops::RangeInclusive;

use num_bigint::BigInt;

use super::store::{Store, grain, hair, nanos, positive, whole_nanos};
use super::{Oracle, Timeline, Verdict};
use crate::oracle::config::Rule;

/// Guava's algorithm in real arithmetic. The state is the time that the next call would wait, and the stored time, both
/// in nanoseconds.
///
/// An implementation that computes in fractions of a nanosecond rounds, so its values differ from the exact values by a
/// small error. A replacement or a cold start can increase this error, so the model also has a bound of the error.
#[derive(Clone, Debug)]
pub(crate) struct Smooth {
    clock: Timeline,
    limit: BigInt,
    period: BigInt,
    store: Store,
    wait: Rounded,
    /// The time for which the limiter has been idle.
    idle: BigInt,
    stored: Rounded,
    /// `true` once the configuration was replaced.
    is_replaced: bool,
    /// `true` if a charge was undone since then. Its time may have been rounded up in the other configuration, and by
    /// less than what is undone, so that the next call is due a grain too early.
    is_undone: bool,
}

/// An exact number, and by how much the rounded number of the crate may be larger or smaller.
#[derive(Clone, Debug)]
struct Rounded {
    exact: BigInt,
    more: BigInt,
    less: BigInt,
}

impl Rounded {
    fn new(exact: BigInt) -> Self {
        Self { exact, more: BigInt::ZERO, less: BigInt::ZERO }
    }

    fn scale(&mut self, by: &BigInt, over: &BigInt) {
        for number in [&mut self.exact, &mut self.more, &mut self.less] {
            *number = &*number * by / over;
        }
    }
}

impl Smooth {
    /// Creates the model of a key. A fresh key is treated as idle since `created_at`.
    pub(crate) fn new(rule: &Rule, created_at: u64, start: u64) -> Self {
        let store = Store::of(rule);
        let stored = Rounded::new(store.at_first() + store.filled_in(&nanos(start - created_at)));
        let mut smooth = Self {
            clock: Timeline::new(start, rule.period),
            limit: rule.limit.into(),
            period: rule.period.into(),
            store,
            wait: Rounded::new(BigInt::ZERO),
            idle: nanos(1),
            stored,
            is_replaced: false,
            is_undone: false,
        };
        smooth.cap();
        smooth
    }

    /// Returns the time that the next call would wait, in nanoseconds, rounded up.
    pub(crate) fn waits(&self) -> u128 {
        whole_nanos(&self.wait.exact)
    }

    fn time_of(&self, units: u64) -> BigInt {
        nanos(units) * &self.period / &self.limit
    }

    /// Returns the number of permits that are stored. The interval of a permit may be too long by one grain, because of
    /// rounding.
    fn permits(&self, stored: BigInt, grain: &BigInt) -> u64 {
        if self.store.slope.is_some() {
            return 0;
        }
        let permits = stored * &self.limit / (nanos(1) * &self.period + &self.limit * grain);
        u64::try_from(permits).unwrap_or(u64::MAX)
    }

    /// Returns the number of calls that are admitted at once. These are the calls that the store pays for, and one call
    /// that the next call pays for.
    fn passing(&self, stored: &Rounded) -> RangeInclusive<u64> {
        let least = self.permits(positive(&stored.exact - &stored.less), &grain());
        let most = self.permits(&stored.exact + &stored.more + hair(), &BigInt::ZERO);
        least.saturating_add(1)..=most.saturating_add(1)
    }

    /// Returns whether no call waits, with any rounding of the wait.
    fn no_call_waits(&self) -> bool {
        self.wait.exact == BigInt::ZERO && self.idle >= &self.wait.more + self.store.margin()
    }

    /// Limits the store to its maximum. A full store has exactly the maximum, however it was rounded before.
    fn cap(&mut self) {
        let most = &self.store.most;
        if self.stored.exact >= most + &self.stored.less {
            (self.stored.more, self.stored.less) = (self.store.grain(), BigInt::ZERO);
        }
        self.stored.exact = self.stored.exact.clone().min(most.clone());
    }
}

impl Oracle for Smooth {
    const BOUNDS_DEBT: bool = false;

    fn clock(&self) -> &Timeline {
        &self.clock
    }

    fn observe(&mut self, now: u64) {
        let on = nanos(self.clock.observe(now));
        let wait = &mut self.wait;
        if on <= wait.exact {
            wait.exact -= on;
            return;
        }
        let idle = on - &wait.exact;
        if self.idle == BigInt::ZERO {
            // If the rounded wait is longer, the idle time is shorter, and the store fills less.
            self.stored.less += self.store.filled_in(&wait.more) + hair();
            self.stored.more += self.store.filled_in(&wait.less);
        }
        self.stored.more += self.store.grain();
        self.idle += &idle;
        (wait.exact, wait.less) = (BigInt::ZERO, BigInt::ZERO);
        self.stored.exact += self.store.filled_in(&idle);
        self.cap();
    }

    fn verdict(&self, cost: u64) -> Verdict {
        if cost == 0 || self.no_call_waits() {
            return Verdict::Admit;
        }
        // A call is never early, unless replacements have made the rounding error larger than the margin, or a charge
        // was undone since a replacement.
        let is_early = self.is_undone || self.wait.less > self.store.margin();
        let early = if is_early { &self.wait.less } else { &BigInt::ZERO };
        if self.wait.exact > early + hair() { Verdict::Deny } else { Verdict::Either }
    }

    fn admit(&mut self, cost: u64) {
        if cost == 0 {
            return;
        }
        let (time, stored) = (self.time_of(cost), &mut self.stored);
        if self.wait.exact > BigInt::ZERO {
            // The crate's rounded wait was already over, so the crate has added idle time to the store.
            stored.more += self.store.filled_in(&self.wait.less) + hair();
        }
        let from =
            [&stored.exact - &stored.less, stored.exact.clone(), &stored.exact + &stored.more].map(positive);
        let exact = self.store.price(&from[1], &time);
        let [less, _, more] = from.each_ref().map(|from| self.store.price(from, &time));
        self.wait.less = &self.wait.exact + &exact - less.min(more);
        let [less, _, more] = from.each_ref().map(|from| self.store.price(from, &(&time + grain())));
        self.wait.more = less.max(more) - &exact + grain();
        self.wait.exact += exact;
        self.idle = BigInt::ZERO;

        let [less, exact, more] = from.map(|from| positive(from - &time));
        *stored = Rounded { less: &exact - less + grain(), more: more - &exact, exact };
    }

    fn refund(&mut self, cost: u64) {
        if !self.no_call_waits() {
            self.wait.exact = positive(&self.wait.exact - self.time_of(cost));
            self.wait.more += grain();
        }
    }

    fn undo(&mut self, cost: u64, ago: u64) {
        if !self.no_call_waits() {
            let left = positive(self.time_of(cost) - nanos(ago));
            self.wait.exact = positive(&self.wait.exact - left);
            self.wait.more += grain() * 2;
            if self.is_replaced {
                self.wait.less += grain();
                self.is_undone = true;
            }
        }
    }

    fn charge(&mut self, cost: u64, _max_debt: u64) -> u64 {
        let before = self.wait.clone();
        let is_over = cost == 0 || self.no_call_waits();
        self.admit(cost);
        if !is_over {
            // The charge comes on top of the wait, as it was rounded.
            self.wait.less += before.less - before.exact;
            self.wait.more += before.more;
        }
        cost
    }

    /// Keeps the number of intervals to wait. The store keeps its fraction, or is that of a new limiter.
    fn replace(&mut self, rule: &Rule) {
        let (limit, period) = (BigInt::from(rule.limit), BigInt::from(rule.period));
        if !self.no_call_waits() {
            self.wait.scale(&(&period * &self.limit), &(&limit * &self.period));
            self.wait.more += grain();
            self.idle = BigInt::ZERO;
        } else {
            self.idle += nanos(1);
        }
        let (store, old) = (Store::of(rule), &self.store);
        if store.slope.is_some() != old.slope.is_some() || old.most == BigInt::ZERO {
            self.stored = Rounded::new(store.at_first());
        } else {
            self.stored.scale(&store.most, &old.most);
        }
        self.is_replaced = true;
        // The maximum may be rounded up, and so may the store.
        self.stored.more += store.grain() * 2;
        (self.limit, self.period, self.store, self.clock.period) = (limit, period, store, rule.period);
    }

    fn remaining(&self) -> RangeInclusive<u64> {
        let passing = self.passing(&self.stored);
        match self.verdict(1) {
            Verdict::Admit => passing,
            Verdict::Either => 0..=*passing.end(),
            Verdict::Deny => 0..=0,
        }
    }

    fn reset(&self) -> RangeInclusive<u128> {
        let (wait, stored, behind) = (&self.wait, &self.stored, u128::from(self.behind()));
        let exact = &wait.exact + self.store.time_to_fill(&stored.exact);
        let least = &exact - &wait.less - &stored.more * 2 - grain();
        let most = &exact + &wait.more + &stored.less * 2 + grain() * 2 + self.store.margin();
        whole_nanos(&positive(least)) + behind..=whole_nanos(&most) + behind
    }

    fn limit(&self) -> RangeInclusive<u64> {
        self.passing(&Rounded::new(self.store.most.clone()))
    }

    /// Returns whether the wait is longer than the range of any clock.
    fn is_beyond(&self) -> bool {
        self.wait.exact >= nanos(1 << 63)
    }
}
