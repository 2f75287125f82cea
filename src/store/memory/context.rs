use std::borrow::Cow;
use std::task::Waker;

use super::entry::KeyEntry;
use super::fingerprint::{Fingerprint, HashSeed};
use super::shard::Shard;
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::PollTurn;
use crate::store::Attempt;
use crate::sys::lock::atomic::{AtomicBool, Ordering};
use crate::sys::lock::{PoisonError, RwLock, SpinGuard};

/// The data that the clones of a store share.
#[derive(Debug)]
pub(super) struct MemoryContext<A: Algorithm> {
    /// The algorithm with which the limiter was created. Most limiters never replace it.
    initial: A,
    replaced: AtomicBool,
    replacement: RwLock<Option<A>>,
    pub(super) seed: HashSeed,
    pub(super) table: Table<A>,
}

impl<A: Algorithm> MemoryContext<A> {
    pub(super) fn new(algorithm: A, table: Table<A>) -> Self {
        Self {
            initial: algorithm,
            replaced: AtomicBool::new(false),
            replacement: RwLock::new(None),
            seed: HashSeed::random(),
            table,
        }
    }

    /// Returns the current algorithm.
    #[inline]
    pub(super) fn algorithm(&self) -> Cow<'_, A> {
        if !self.is_replaced() {
            return Cow::Borrowed(&self.initial);
        }
        match &*self.replacement.read().unwrap_or_else(PoisonError::into_inner) {
            Some(replacement) => Cow::Owned(replacement.clone()),
            None => Cow::Borrowed(&self.initial),
        }
    }

    #[inline]
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Runs `change` with the new algorithm, and then makes that algorithm the current one. Only one replacement runs
    /// at a time.
    pub(super) fn replace<R>(&self, algorithm: A, change: impl FnOnce(&A) -> R) -> R {
        let mut replacement = self.replacement.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&algorithm);
        *replacement = Some(algorithm);
        self.replaced.store(true, Ordering::Release);
        result
    }

    /// Decides a call for which [`existing`](Table::existing) returned `None`. `shard` is the locked shard of the key.
    #[cold]
    pub(super) fn check_slow(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
        now: Nanos,
    ) -> Decision {
        let checked = self.decide_locked(shard, key, call, Some(now), |mut entry, now| {
            let decision = entry.check(now, call.cost);
            self.table.counters.count(&call, &decision);
            decision
        });
        checked.unwrap_or_else(|| self.deny_without_room(call))
    }

    /// Locks the key while `decide` runs. Returns `None` if there is no room for the key. A call of cost 0 needs no
    /// room.
    pub(super) fn decide<R>(
        &self,
        key: Fingerprint,
        call: Attempt<'_, A>,
        decide: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        self.decide_locked(self.table.keys.lock(key), key, call, None, decide)
    }

    /// Like [`decide`](MemoryContext::decide), but takes the locked shard of the key. `now` is a clock reading that was
    /// made before the shard was locked, or `None`.
    #[inline]
    pub(super) fn decide_locked<R>(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
        now: Option<Nanos>,
        decide: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        if call.cost > 0 {
            return self.table.with_locked_entry(shard, key, call.algorithm, now, decide);
        }
        drop(shard);
        self.table.sweep_for_peek(key);
        Some(self.table.peek_entry(key, call.algorithm, decide))
    }

    /// Denies a call because there is no room for its key, and counts the call.
    pub(super) fn deny_without_room(&self, call: Attempt<'_, A>) -> Decision {
        let quota = |algorithm: &A| algorithm.policy().quota;
        let denial = Decision::table_full(call.algorithm.map_or_else(|| quota(&self.algorithm()), quota));
        self.table.counters.count(&call, &denial);
        denial
    }

    pub(super) fn ask(&self, key: Fingerprint, ticket: u64, counts: bool, waker: &Waker) -> PollTurn {
        let asked = self.table.with_used(key, None, |entry, now| {
            let asked = entry.ask(now, ticket, waker);
            if let (PollTurn::Ready(decision, _), true) = (&asked.0, counts) {
                self.table.counters.calls.direct.add_decision(decision, false);
            }
            asked
        });
        let Some((turn, _spare)) = asked else { unreachable!("a key with queued calls is never evicted") };
        turn
    }

    pub(super) fn abandon(&self, key: Fingerprint, ticket: u64) {
        let _spare = self.table.with_used(key, None, |entry, now| entry.abandon(now, ticket));
    }
}
