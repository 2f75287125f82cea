//! The counters of a full table.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts of how often the key table of a limiter was full, and of what happened then. Returned by
/// [`RateLimiter::stats`](crate::limiter::RateLimiter::stats).
///
/// Counted since the limiter was created. If all are zero, [`max_keys`](crate::limiter::Builder::max_keys) is
/// large enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterStats {
    /// Keys that were evicted to make room for new ones: [`OnFull::EvictLeastUsed`](crate::store::OnFull).
    pub evicted: u64,
    /// Evicted keys that were at their limits or locked out: such a key gets its quota once more when it
    /// returns.
    pub evicted_at_limit: u64,
    /// Calls that were decided by a bucket that several keys share:
    /// [`OnFull::ShareBuckets`](crate::store::OnFull::ShareBuckets).
    pub shared: u64,
    /// Calls that were denied because there was no room for their key.
    pub rejected_when_full: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    evicted: AtomicU64,
    evicted_at_limit: AtomicU64,
    shared: AtomicU64,
    rejected: AtomicU64,
    /// `true` once the table was found full.
    full: AtomicBool,
}

impl Counters {
    pub(super) fn evict(&self, at_limit: bool) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if at_limit {
            self.evicted_at_limit.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn share(&self) {
        self.shared.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn reject(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the table was found full. Logs that the first time, so no lock may be held by the caller.
    pub(super) fn full(&self, max_keys: usize) {
        let known = self.full.load(Ordering::Relaxed) || self.full.swap(true, Ordering::Relaxed);
        if !known {
            warn_full(max_keys);
        }
    }

    pub(super) fn stats(&self) -> LimiterStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LimiterStats {
            evicted: count(&self.evicted),
            evicted_at_limit: count(&self.evicted_at_limit),
            shared: count(&self.shared),
            rejected_when_full: count(&self.rejected),
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
