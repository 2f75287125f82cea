use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::MissingKey;

/// Counts of a layer's requests without a key and of its forbidden callers. Returned by
/// [`key_stats`](crate::middleware::RateLimitLayer::key_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStats {
    /// The number of requests rejected without a key: [`MissingKey::Reject`].
    pub rejected: u64,
    /// The number of requests without a key that were charged to their shared budget: [`MissingKey::Shared`].
    pub shared: u64,
    /// The number of requests without a key that were not limited: [`MissingKey::Pass`].
    pub unlimited: u64,
    /// The number of requests of forbidden callers: [`KeyError::forbidden`](crate::key::KeyError::forbidden).
    pub forbidden: u64,
    /// The number of requests rejected because the client made the key invalid:
    /// [`KeyError::invalid`](crate::key::KeyError::invalid).
    pub invalid: u64,
}

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
    pub(in crate::middleware) fn count_invalid(&self) {
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
