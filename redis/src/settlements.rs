//! The settlements of a store and of its limiters: those that are open, those that failed, and the units that they
//! have charged or given back.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::error::{RedisError, RedisErrorKind};
use tower_throttle::stats::UnitStats;
use tower_throttle::store_support::{Recurrence, UnitCounts};

/// The settlements of all limiters of a store.
#[derive(Debug, Default)]
pub(super) struct StoreSettlements {
    open: AtomicU64,
    failed: AtomicU64,
    /// Wakes those that wait until no settlement is open.
    none_open: Notify,
}

/// The settlements of a limiter and its clones.
#[derive(Debug)]
pub(super) struct Settlements {
    store: Arc<StoreSettlements>,
    /// The name of the limiter, for the log.
    name: Box<str>,
    units: UnitCounts,
    failed: AtomicU64,
    failures: Recurrence,
}

/// Settlements or charges whose trip has not ended. If this value is dropped before, the trip has failed.
#[derive(Debug)]
pub(super) struct Unsettled {
    settlements: Arc<Settlements>,
    units: u64,
    /// The number of settlements or charges, which are one operation.
    count: u64,
    kind: Kind,
    has_ended: bool,
}

/// What a trip does with units after the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Charges units, and no caller waits for the trip.
    Charge,
    /// Gives back units, and no caller waits for the trip.
    Refund,
    /// Charges units, and a caller gets the error if the trip fails.
    Awaited,
    /// Charges units, and a caller charges the fallback if the trip fails.
    WithFallback,
}

impl StoreSettlements {
    /// Waits until no settlement is open, but at most for `longest`. Returns how many settlements are still open.
    pub(super) async fn flush(&self, longest: Duration) -> u64 {
        let none_open = async {
            loop {
                let mut ended = pin!(self.none_open.notified());
                // From here on, the end of the last settlement is not missed.
                ended.as_mut().enable();
                if self.open.load(Ordering::SeqCst) == 0 {
                    return;
                }
                ended.await;
            }
        };
        match timeout(longest, none_open).await {
            Ok(()) => 0,
            Err(_) => self.open.load(Ordering::SeqCst),
        }
    }

    /// Returns the number of settlements that failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Settlements {
    /// Creates the settlements of the limiter `name`.
    pub(super) fn new(store: Arc<StoreSettlements>, name: &str) -> Self {
        Self {
            store,
            name: name.into(),
            units: UnitCounts::default(),
            failed: AtomicU64::new(0),
            failures: Recurrence::new(),
        }
    }

    /// Returns the numbers of units.
    pub(super) fn units(&self) -> UnitStats {
        self.units.stats()
    }

    /// Returns the number of settlements that failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Begins a settlement for which no caller waits. It charges `units` or, if `gives_units`, gives them back.
    pub(super) fn settle(self: &Arc<Self>, units: u64, gives_units: bool) -> Unsettled {
        self.begin(units, if gives_units { Kind::Refund } else { Kind::Charge })
    }

    /// Begins a charge whose caller gets the error, or charges the fallback, if the trip fails.
    pub(super) fn charge(self: &Arc<Self>, units: u64, has_fallback: bool) -> Unsettled {
        self.begin(units, if has_fallback { Kind::WithFallback } else { Kind::Awaited })
    }

    fn begin(self: &Arc<Self>, units: u64, kind: Kind) -> Unsettled {
        self.store.open.fetch_add(1, Ordering::SeqCst);
        Unsettled { settlements: Arc::clone(self), units, count: 1, kind, has_ended: false }
    }
}

impl Unsettled {
    /// Adds other charges of the same limiter, which have become a part of this operation.
    pub(super) fn add(&mut self, mut other: Self) {
        self.units = self.units.saturating_add(other.units);
        self.count += mem::take(&mut other.count);
        other.has_ended = true;
    }

    /// Ends the settlement by the result of its trip: the number of units that were charged, or given back.
    pub(super) fn end(mut self, settled: Result<u64, &RedisError>) {
        self.count(settled);
    }

    fn count(&mut self, settled: Result<u64, &RedisError>) {
        self.has_ended = true;
        let Self { settlements, units, count, kind, .. } = self;
        let (units, kind) = (*units, *kind);
        match (settled, kind) {
            (Ok(refunded), Kind::Refund) => settlements.units.add_refund(refunded),
            (Ok(charged), _) => settlements.units.add_charge(units, charged),
            (Err(_), Kind::WithFallback) => {}
            (Err(_), Kind::Awaited) => settlements.units.add_charge(units, 0),
            (Err(error), Kind::Charge | Kind::Refund) => {
                if kind == Kind::Charge {
                    settlements.units.add_charge(units, 0);
                }
                settlements.failed.fetch_add(*count, Ordering::Relaxed);
                settlements.store.failed.fetch_add(*count, Ordering::Relaxed);
                if let Some(count) = settlements.failures.due(false) {
                    log_failed(&settlements.name, error, count);
                }
            }
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.has_ended {
            let detail = "the runtime that had the settlement has ended";
            self.count(Err(&RedisError::new(RedisErrorKind::NoRuntime, detail)));
        }
        let store = &self.settlements.store;
        if self.count > 0 && store.open.fetch_sub(self.count, Ordering::SeqCst) == self.count {
            store.none_open.notify_waiters();
        }
    }
}

#[cfg(feature = "tracing")]
fn log_failed(limiter: &str, error: &RedisError, count: u64) {
    tracing::error!(target: "tower_throttle", event = "settlement_failed", limiter, reason = %error, count,
        "tower-throttle[R02]: settlements fail, so that units are not charged or not given back");
}

#[cfg(not(feature = "tracing"))]
fn log_failed(_: &str, _: &RedisError, _: u64) {}
