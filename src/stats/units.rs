//! The numbers of units that were charged or given back after the fact, and the counters from which they are read.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of units that were charged or given back when the actual costs of calls were known: by
/// [settlements](crate::limiter::Reservation::settle), and by [`charge`](crate::limiter::RateLimiter::charge).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitStats {
    /// Units that were charged in addition to what calls were charged when they were admitted.
    pub charged: u64,
    /// Units by which calls were charged more than their actual cost, and which settlements have given back. They
    /// include units that did not count any more. In memory, those of a key that the key table no longer has, or that
    /// was reset, are not included.
    pub refunded: u64,
    /// Units that were used, but not charged: because of the [`max_debt`](crate::limiter::Builder::max_debt), because
    /// the key table had no room for the key, or because the limiter was closed. With Redis, a limiter that was closed
    /// charges as well, and these are the units of the `max_debt` and of settlements and charges that failed.
    pub uncharged: u64,
}

/// The counters from which [`UnitStats`] are read. They are exact up to `u64::MAX`.
#[derive(Debug, Default)]
pub struct UnitCounts {
    charged: AtomicU64,
    refunded: AtomicU64,
    uncharged: AtomicU64,
}

impl UnitCounts {
    /// Counts that `charged` of `cost` units were charged after the fact.
    pub fn add_charge(&self, cost: u64, charged: u64) {
        add(&self.charged, charged);
        add(&self.uncharged, cost.saturating_sub(charged));
    }

    /// Counts units that a settlement has given back.
    pub fn add_refund(&self, units: u64) {
        add(&self.refunded, units);
    }

    /// Returns the numbers of units.
    pub fn stats(&self) -> UnitStats {
        let [charged, refunded, uncharged] =
            [&self.charged, &self.refunded, &self.uncharged].map(|counter| counter.load(Ordering::Relaxed));
        UnitStats { charged, refunded, uncharged }
    }
}

fn add(counter: &AtomicU64, units: u64) {
    if units > 0 {
        let more = |count: u64| Some(count.saturating_add(units));
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}
