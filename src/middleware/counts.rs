use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::MissingKey;

/// How many requests a layer has met whose key could not be had, or whose caller is not served. See
/// [`key_counts`](super::RateLimitLayer::key_counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyCounts {
    /// Without a key, and refused: [`MissingKey::Reject`].
    pub rejected: u64,
    /// Without a key, and decided by the budget that they share: [`MissingKey::Shared`].
    pub shared: u64,
    /// Without a key, and not limited: [`MissingKey::Pass`].
    pub passed: u64,
    /// Turned away: [`KeyError::forbidden`](crate::key::KeyError::forbidden).
    pub forbidden: u64,
    /// Refused because of a mistake of the client: [`KeyError::invalid`](crate::key::KeyError::invalid).
    pub invalid: u64,
}

#[derive(Debug, Default)]
pub(super) struct KeyCounters {
    rejected: AtomicU64,
    shared: AtomicU64,
    passed: AtomicU64,
    forbidden: AtomicU64,
    invalid: AtomicU64,
}

impl KeyCounters {
    pub(super) fn miss(&self, missing: MissingKey) {
        let counter = match missing {
            MissingKey::Reject => &self.rejected,
            MissingKey::Shared => &self.shared,
            MissingKey::Pass => &self.passed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn forbid(&self) {
        self.forbidden.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was refused because of a mistake of the client.
    pub(super) fn count_invalid(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> KeyCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KeyCounts {
            rejected: count(&self.rejected),
            shared: count(&self.shared),
            passed: count(&self.passed),
            forbidden: count(&self.forbidden),
            invalid: count(&self.invalid),
        }
    }
}
