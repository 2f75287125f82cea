//! The room for keys in all shards together, and what is counted of the keys.

use std::mem;

use super::eviction::Turnover;
use super::observed::Observed;
use super::options::OnFull;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::observe::Recurrence;
use crate::stats::StoreStats;
use crate::sys::lock::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Ten seconds, in nanoseconds. A fresh key that has been idle for this time may be removed while there is room, even
/// if the window of the algorithm is longer.
const MAX_RETENTION: u64 = 10_000_000_000;

/// The room for keys in all shards together, the keys that came and went, and what is counted of them.
#[derive(Debug)]
pub(super) struct Room {
    /// The number of keys.
    len: AtomicUsize,
    max_keys: usize,
    /// `true` if keys are evicted when there is no room.
    pub(super) evicts: bool,
    pub(super) turnover: Turnover,
    /// The latest clock reading at which a key was removed.
    removed_until: AtomicU64,
    /// The time for which an idle fresh key is kept while there is room, in nanoseconds.
    retention: AtomicU64,
    /// The time at which the limiter was created. A new key counts as idle since then.
    pub(super) created_at: Nanos,
    evicted: AtomicU64,
    evicted_at_limit: AtomicU64,
    /// The number of times that there was no room for a new key.
    denied: AtomicU64,
    /// When the table was found full the last time, in nanoseconds after the clock's zero, plus 1. 0 if it never was.
    full_at: AtomicU64,
    full: Recurrence,
}

/// Room for one key. It is free again on drop.
pub(super) struct Place<'a>(&'a Room);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.len.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Place<'a> {
    /// Gives the place to a key, and returns the room.
    #[inline]
    pub(super) fn occupy(self) -> &'a Room {
        let room = self.0;
        mem::forget(self);
        room
    }
}

impl Room {
    /// Creates the room of a table of at most `max_keys` keys, which is created at `created_at`.
    pub(super) fn new<A: Algorithm>(
        max_keys: usize,
        on_full: OnFull,
        algorithm: &A,
        created_at: Nanos,
    ) -> Self {
        let max_keys = max_keys.max(1);
        Self {
            len: AtomicUsize::new(0),
            max_keys,
            evicts: on_full == OnFull::EvictLeastUsed,
            turnover: Turnover::new(max_keys),
            removed_until: AtomicU64::new(0),
            retention: AtomicU64::new(retention(algorithm)),
            created_at,
            evicted: AtomicU64::new(0),
            evicted_at_limit: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
            full: Recurrence::new(),
        }
    }

    /// Records that the algorithm was replaced by `new`.
    pub(super) fn replace<A: Algorithm>(&self, new: &A) {
        self.retention.store(retention(new), Ordering::Relaxed);
    }

    /// Returns the time for which an idle fresh key is kept while there is room, in nanoseconds.
    pub(super) fn retention(&self) -> u64 {
        self.retention.load(Ordering::Relaxed)
    }

    /// Returns the time of a key that is new at `now`.
    #[inline]
    pub(super) fn time_of_new_key(&self, now: Nanos) -> Nanos {
        now.max(Nanos(self.removed_until.load(Ordering::Relaxed)))
    }

    /// Logs a warning if the table was found full, and a warning is due. `limiter` has the name of the limiter. The
    /// caller must hold no lock.
    #[inline]
    pub(super) fn warn_if_full(&self, limiter: &Observed) {
        let full_at = self.full_at.load(Ordering::Relaxed);
        if cfg!(feature = "tracing") && full_at > 0 && self.full.is_due_at(full_at) {
            let total = self.evicted.load(Ordering::Relaxed) + self.denied.load(Ordering::Relaxed);
            self.full.table_full(full_at, total, limiter.name(), self.max_keys);
        }
    }

    /// Returns the number of keys, and the number of those that were evicted.
    pub(super) fn stats(&self) -> StoreStats {
        StoreStats {
            keys: self.len.load(Ordering::Relaxed) as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            evicted_at_limit: self.evicted_at_limit.load(Ordering::Relaxed),
            ..StoreStats::default()
        }
    }

    #[inline]
    pub(super) fn has_max_keys(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= self.max_keys
    }

    #[inline]
    pub(super) fn try_reserve(&self) -> Option<Place<'_>> {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        let reserved = self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        // `then_some` would create a place even if no room was reserved, and dropping that place would free room.
        reserved.then(|| Place(self))
    }

    /// Records that a key is removed at `now`. Returns its place.
    #[inline]
    pub(super) fn vacate(&self, now: Nanos) -> Place<'_> {
        self.observe_removal(now);
        Place(self)
    }

    /// Records that a key with this time was removed, or never inserted.
    #[inline]
    pub(super) fn observe_removal(&self, now: Nanos) {
        self.removed_until.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Records that there was no room for a new key.
    pub(super) fn record_denial(&self, now: Nanos) {
        self.denied.fetch_add(1, Ordering::Relaxed);
        self.full_at.store(now.0.saturating_add(1), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn record_eviction(&self, at_limit: bool, now: Nanos) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if at_limit {
            self.evicted_at_limit.fetch_add(1, Ordering::Relaxed);
        }
        self.full_at.store(now.0.saturating_add(1), Ordering::Relaxed);
    }
}

/// Returns the time for which a fresh key must be idle before it is removed while there is room, in nanoseconds: the
/// algorithm's longest window, but at most ten seconds. The result is ten seconds for an algorithm that limits calls in
/// progress.
fn retention<A: Algorithm>(algorithm: &A) -> u64 {
    let mut longest = 0;
    algorithm.for_each_policy(&mut |policy| {
        let window = if policy.is_concurrent() { MAX_RETENTION } else { Nanos::from(policy.window).0 };
        longest = longest.max(window);
    });
    longest.min(MAX_RETENTION)
}
