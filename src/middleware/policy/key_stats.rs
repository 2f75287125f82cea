//! The counters of requests without a valid key and of requests from forbidden callers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::MissingKey;
use crate::stats::KeyStats;

#[derive(Debug, Default)]
pub(in crate::middleware) struct KeyCounters {
    rejected: AtomicU64,
    shared: AtomicU64,
    unlimited: AtomicU64,
    forbidden: AtomicU64,
    invalid: AtomicU64,
}

impl KeyCounters {
    pub(in crate::middleware) fn record_missing(&self, missing: MissingKey) {
        let counter = match missing {
            MissingKey::Reject => &self.rejected,
            MissingKey::Shared => &self.shared,
            MissingKey::Pass => &self.unlimited,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::middleware) fn record_forbidden(&self) {
        self.forbidden.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was rejected because the client made its key invalid.
    pub(in crate::middleware) fn record_invalid(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::middleware) fn counts(&self) -> KeyStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KeyStats {
            rejected: count(&self.rejected),
            shared: count(&self.shared),
            unlimited: count(&self.unlimited),
            forbidden: count(&self.forbidden),
            invalid: count(&self.invalid),
        }
    }
}
