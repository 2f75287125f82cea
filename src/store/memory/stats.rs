//! The counters of a limiter in memory.

use crate::decision::Decision;
use crate::stats::{CallOutcome, CallRegistry, StoreStats};
use crate::store::Attempt;
use crate::sys::lock::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) calls: CallRegistry,
    evicted: AtomicU64,
    evicted_at_limit: AtomicU64,
    shared: AtomicU64,
    /// `true` once the table was found full.
    is_full: AtomicBool,
    /// `true` once a warning was logged.
    has_warned: AtomicBool,
}

impl Counters {
    /// Counts the decision on a call, unless a layer counts the call.
    #[inline]
    pub(super) fn count<A>(&self, call: &Attempt<'_, A>, decision: &Decision) {
        if !call.is_counted {
            self.calls.direct.add_decision(decision, false);
        }
    }

    /// Counts the outcome of a call, unless a layer counts the call.
    #[inline]
    pub(super) fn add<A>(&self, call: &Attempt<'_, A>, outcome: CallOutcome) {
        if !call.is_counted {
            self.calls.direct.add(outcome);
        }
    }

    pub(super) fn evict(&self, at_limit: bool) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if at_limit {
            self.evicted_at_limit.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn share(&self) {
        self.shared.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the table was found full.
    pub(super) fn record_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Logs a warning if the table was found full and no warning was logged before. The caller must hold no lock.
    pub(super) fn warn_if_full(&self, max_keys: usize) {
        let is_settled = !self.is_full.load(Ordering::Relaxed)
            || self.has_warned.load(Ordering::Relaxed)
            || self.has_warned.swap(true, Ordering::Relaxed);
        if !is_settled {
            warn_full(max_keys);
        }
    }

    pub(super) fn stats(&self) -> StoreStats {
        StoreStats {
            evicted: self.evicted.load(Ordering::Relaxed),
            evicted_at_limit: self.evicted_at_limit.load(Ordering::Relaxed),
            shared: self.shared.load(Ordering::Relaxed),
            ..StoreStats::default()
        }
    }
}

#[cfg(feature = "tracing")]
fn warn_full(max_keys: usize) {
    tracing::warn!(
        max_keys,
        "tower-throttle: the table of keys is full for the first time: set `max_keys` above the number of \
         distinct keys in the longest window, or verify keys before limiting by them (said once)"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn_full(_max_keys: usize) {}
