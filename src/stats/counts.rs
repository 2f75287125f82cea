//! The counters of calls.
//!
//! A limiter in memory counts most calls while the key's shard is locked, in a cell of that shard. So a plain load and
//! a plain store are enough, and no atomic read-modify-write is needed. A call that is denied without the lock is
//! counted in a cell of its thread, by a plain load and a plain store as well. All other calls are counted in one more
//! cell, by an atomic addition.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::calls::CallStats;
use super::outcome::{CallOutcome, OUTCOMES};
use super::thread_number::thread_number;
use crate::decision::Decision;

/// The number of threads that count in cells of their own. These are the threads with the lowest numbers.
const CELLS: usize = 64;

/// Counters that share no cache line with other counters.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell([AtomicU64; OUTCOMES]);

impl Cell {
    /// Counts a call while no other thread counts in this cell.
    #[inline]
    fn add_alone(&self, outcome: CallOutcome) {
        let counter = &self.0[outcome as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// The counters of one policy, or of the calls that are made to a limiter without a layer.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// One cell for each shard of a store in memory. This list is empty if the layer counts the calls instead of the
    /// store.
    by_shard: Box<[Cell]>,
    /// One cell for each thread number below [`CELLS`], if the store counts the calls.
    by_thread: Box<[Cell]>,
    rest: Cell,
}

impl CallCounts {
    /// Creates counters in which a store counts calls while one of its `shards` is locked.
    pub(crate) fn by_shard(shards: usize) -> Self {
        let cells = |count| (0..count).map(|_| Cell::default()).collect();
        Self { by_shard: cells(shards), by_thread: cells(CELLS), rest: Cell::default() }
    }

    /// Returns whether the store counts the calls itself.
    #[inline]
    pub(crate) fn is_by_shard(&self) -> bool {
        !self.by_shard.is_empty()
    }

    /// Counts a call while its shard is locked, so that no other thread counts in the cell.
    #[inline]
    pub(crate) fn add_locked(&self, shard: usize, outcome: CallOutcome) {
        self.by_shard[shard].add_alone(outcome);
    }

    /// Counts a call in the cell of this thread, if the thread has one. No lock is needed. Returns whether the call was
    /// counted.
    #[inline]
    pub(crate) fn add_by_thread(&self, outcome: CallOutcome) -> bool {
        let cell = thread_number().and_then(|number| self.by_thread.get(number));
        cell.inspect(|cell| cell.add_alone(outcome)).is_some()
    }

    /// Counts a call. No lock is needed.
    pub(crate) fn add(&self, outcome: CallOutcome) {
        self.rest.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn totals(&self) -> [u64; OUTCOMES] {
        let cells = || self.by_shard.iter().chain(&self.by_thread).chain([&self.rest]);
        from_fn(|outcome| cells().map(|cell| cell.0[outcome].load(Ordering::Relaxed)).sum())
    }

    /// Adds the counts of `other`.
    fn absorb(&self, other: &Self) {
        for (counter, more) in self.rest.0.iter().zip(other.totals()) {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> CallStats {
        stats(self.totals())
    }
}

fn stats(totals: [u64; OUTCOMES]) -> CallStats {
    let of = |outcome: CallOutcome| totals[outcome as usize];
    CallStats {
        admitted: of(CallOutcome::Admitted),
        denied: of(CallOutcome::Denied),
        queue_full: of(CallOutcome::QueueFull),
        table_full: of(CallOutcome::TableFull),
        closed: of(CallOutcome::Closed),
        denied_by_others: of(CallOutcome::DeniedByOthers),
        cancelled: of(CallOutcome::Cancelled),
        shadow_denied: of(CallOutcome::ShadowDenied),
        queued: of(CallOutcome::Queued),
    }
}

/// The counters in which a queued call is counted, and whether the call's policy is in shadow mode.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) counts: Arc<CallCounts>,
    pub(crate) in_shadow: bool,
}

impl Counted {
    /// Counts the outcome of a call. No lock is needed.
    pub(crate) fn add(&self, outcome: CallOutcome) {
        self.counts.add(outcome);
    }

    /// Counts the outcome of `decision`, while the shard is locked.
    pub(crate) fn add_locked(&self, shard: usize, decision: &Decision) {
        self.counts.add_locked(shard, CallOutcome::of(decision, self.in_shadow));
    }
}

/// The counters of a limiter: one set for the calls that are made without a layer, and one set for each policy that
/// uses the limiter.
#[derive(Debug)]
pub(crate) struct CallRegistry {
    shards: usize,
    pub(crate) direct: Arc<CallCounts>,
    policies: Mutex<Vec<Arc<CallCounts>>>,
}

impl CallRegistry {
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards, direct: Arc::new(CallCounts::by_shard(shards)), policies: Mutex::default() }
    }

    /// Creates the counters of a policy. Adds the counts of dropped policies to the counts of the calls that are made
    /// without a layer.
    pub(crate) fn register(&self) -> Arc<CallCounts> {
        let counts = Arc::new(CallCounts::by_shard(self.shards));
        let mut policies = self.lock();
        policies.retain(|known| {
            let is_used = Arc::strong_count(known) > 1;
            if !is_used {
                // This fence makes visible what was counted by the thread that dropped the last other reference.
                fence(Ordering::Acquire);
                self.direct.absorb(known);
            }
            is_used
        });
        policies.push(Arc::clone(&counts));
        counts
    }

    pub(crate) fn stats(&self) -> CallStats {
        let policies = self.lock();
        let all = || policies.iter().chain([&self.direct]);
        let totals: Vec<_> = all().map(|counts| counts.totals()).collect();
        stats(from_fn(|outcome| totals.iter().map(|totals| totals[outcome]).sum()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<CallCounts>>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_dropped_policy_stay_in_those_of_its_limiter() {
        let limiter = CallRegistry::new(64);
        let first = limiter.register();
        first.add_locked(7, CallOutcome::Admitted);
        first.add(CallOutcome::Cancelled);
        drop(first);
        let second = limiter.register();
        second.add_locked(63, CallOutcome::Admitted);
        limiter.direct.add(CallOutcome::Denied);
        assert_eq!(limiter.lock().len(), 1);
        let stats = limiter.stats();
        assert_eq!((stats.admitted, stats.cancelled, stats.denied, stats.ended()), (2, 1, 1, 4));
        assert_eq!((second.stats().admitted, second.stats().ended()), (1, 1));
    }

    #[test]
    fn each_outcome_but_queued_ends_a_call() {
        let counts = CallCounts::by_shard(9);
        for (shard, outcome) in [
            CallOutcome::Admitted,
            CallOutcome::Denied,
            CallOutcome::QueueFull,
            CallOutcome::TableFull,
            CallOutcome::Closed,
            CallOutcome::DeniedByOthers,
            CallOutcome::Cancelled,
            CallOutcome::ShadowDenied,
            CallOutcome::Queued,
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(outcome as usize, shard);
            counts.add_locked(shard, outcome);
            counts.add(outcome);
        }
        let stats = counts.stats();
        assert_eq!((stats.ended(), stats.queued, stats.rejected()), (16, 2, 10));
    }
}
