use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::MissingKey;

/// How many requests a layer has met whose key could not be had, or whose caller is not served. See
/// [`key_stats`](crate::middleware::RateLimitLayer::key_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStats {
    /// Without a key, and refused: [`MissingKey::Reject`].
    pub rejected: u64,
    /// Without a key, and decided by the budget that they share: [`MissingKey::Shared`].
    pub shared: u64,
    /// Without a key, and not limited: [`MissingKey::Pass`].
    pub unlimited: u64,
    /// Turned away: [`KeyError::forbidden`](crate::key::KeyError::forbidden).
    pub forbidden: u64,
    /// Refused because of a mistake of the client: [`KeyError::invalid`](crate::key::KeyError::invalid).
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

    /// Counts a request that was refused because of a mistake of the client.
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
