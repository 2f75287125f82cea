//! The in-memory store.

mod charge;
mod entry;
mod eviction;
mod fingerprint;
mod joint;
mod latest_denial;
mod options;
mod shard;
mod slots;
mod table;
mod wait;

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use self::charge::{MemoryCharge, Reservable, permit_for};
use self::entry::KeyEntry;
use self::fingerprint::Fingerprint;
use self::joint::InMemory;
use self::shard::Shard;
use self::table::Table;
use super::{
    Acquired, Attempt, CheckStore, CloseStore, Denied, JointStore, KeyedStore, Permit, ReleaseStore,
    ReplaceAlgorithm, Reservation, SettleStore, Store,
};
use crate::algorithm::{Algorithm, SharedPermit};
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::queue::{Enqueued, Fate, Judged, QueueView};
use crate::stats::{CallCounts, CallOutcome, LimiterStats, StoreStats};
use crate::sys::lock::SpinGuard;
use crate::sys::wakers::Wakers;

pub use fingerprint::MemoryKey;
pub use joint::{JointRequest, JointWait, decide_in_memory};
pub use options::{MemoryOptions, OnClose, OnFull};
pub use wait::QueuedAcquire;

/// A store that keeps the state of keys in this process. Its memory is bounded. Fresh keys are removed without a thread
/// or a runtime.
///
/// # Guarantees
///
/// One call at a time changes the state of a key. At most `max_keys` keys are kept. A fresh key may be removed at any
/// time. Its removal changes no decision while the table has room for new keys.
///
/// [`OnFull`] defines what happens to new keys when the table is full of keys that are not fresh. By default, one of
/// eight sampled keys is evicted, so that new keys need not be denied: the least used of those that were not called
/// recently. A key with calls in progress or queued calls is never evicted.
/// [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) counts evictions and other effects of a full table.
///
/// # How large `max_keys` should be
///
/// `max_keys` should be well above the number of distinct keys in the longest window of the algorithm, or in the
/// duration of a lockout if that duration is longer. The window of a bucket is the time in which the bucket fills. For
/// a [`SlidingCounter`](crate::algorithm::SlidingCounter), count the keys of two windows. Then no key is evicted.
/// [Floods of keys](crate::guide::floods) explains how to keep invented keys out.
///
/// # Memory
///
/// A key is kept as a 64-bit keyed fingerprint. So the length of the key does not matter, and the key cannot be read
/// back. With a million keys, the probability that two of them share a state is 5 in 100 million. A slot of the table
/// takes 8 bytes more than the algorithm's state, which takes 24 bytes for a
/// [`TokenBucket`](crate::algorithm::TokenBucket). When a table with the default `max_keys` is full, 73 % of its slots
/// are occupied. So with a `TokenBucket`, count 44 bytes per key: 4.4 MB for the default of 100,000 keys.
///
/// The table consists of shards, each with its own lock. Up to 4,096 keys, there is one shard for each 64 keys of
/// `max_keys`. Above that, there is about one shard for each 1,500 keys, but there are at least 64. Above 1.5 million
/// keys, there are 512 to 1,024 shards, and each of them has more keys. An empty table takes less than 64 kB by
/// default. A shard grows by doubling. A call with a new key that makes a shard grow moves all keys of that shard:
/// usually fewer than a thousand, or more if `max_keys` is above 1.5 million. During the move, other calls for keys of
/// that shard usually wait for a few microseconds, and sometimes for about a hundred. The memory of removed keys is
/// reused, but not freed while the limiter exists.
///
/// State is lost when the process ends, or when the last clone of the limiter is dropped.
pub struct MemoryStore<A: Algorithm> {
    table: Arc<Table<A>>,
}

/// The identity of a key in a [`MemoryStore`].
#[derive(Clone, Copy, Debug)]
pub struct KeyId(Fingerprint);

impl<A: Algorithm> MemoryStore<A> {
    /// The maximum number of keys by default.
    pub const DEFAULT_MAX_KEYS: usize = 100_000;

    /// The maximum number of queued calls by default, for all keys together. If a larger capacity was set for the queue
    /// of each key, that capacity is the default.
    pub const DEFAULT_MAX_QUEUED: usize = 10_000;

    pub(crate) fn with(algorithm: A, clock: AnyClock, options: MemoryOptions) -> Self {
        let max_queued = options.max_queued.map_or_else(|| default_max_waiting(&algorithm), |max| max as u64);
        Self { table: Arc::new(Table::new(algorithm, clock, options, max_queued)) }
    }

    pub(crate) fn limiter_stats(&self) -> LimiterStats {
        LimiterStats { calls: self.table.calls().stats(), store: self.stats() }
    }

    /// Creates a part of a joint call, which is counted with the calls that are made without a layer.
    pub(crate) fn direct_part<K: MemoryKey + ?Sized>(
        &self,
        key: &K,
        call: Attempt<'_, A>,
    ) -> JointRequest<'_> {
        self.joint_part(key, call, &self.table.calls().direct)
    }

    /// Decides a call for which [`existing`](Shard::existing) returned `None`. `shard` is the locked shard of the key.
    #[cold]
    fn check_slow(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
        now: Nanos,
    ) -> Decision {
        let table = &self.table;
        let checked = table.with_called(shard, key, &call, Some(now), |mut entry, now| {
            let decision = entry.check(now, call.cost());
            table.count(&call, &decision);
            decision
        });
        checked.unwrap_or_else(|| self.deny_without_room(call))
    }

    /// Decides or queues a call that [`acquire`](Store::acquire) cannot decide by the state of the key alone. `shard`
    /// is the locked shard of the key.
    #[cold]
    fn acquire_slow(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
        now: Nanos,
    ) -> Acquired<QueuedAcquire<A>> {
        let table = &self.table;
        let outcome = table.with_called(shard, key, &call, Some(now), |mut entry, now| {
            let (location, holds) = (entry.location(), entry.algorithm_to_release(call.cost()));
            let may_wait = call.may_wait() || entry.holds_requests();
            let entered = entry.acquire(call.arrival(now, may_wait));
            match &entered {
                Enqueued::Decided(decision) => table.count(&call, decision),
                Enqueued::Queued(_) => table.add(&call, CallOutcome::Queued),
            }
            let settles = call.wants_reservation() && entry.settles();
            (entered, location, holds, settles.then(|| entry.last_update()))
        });
        let Some((outcome, location, holds, charged_at)) = outcome else {
            return Acquired::Ready(self.deny_without_room(call), Reservation::default());
        };
        let held = match (holds, charged_at) {
            (Some(algorithm), _) => Some(Reservable::Permit { location, algorithm, cost: call.cost() }),
            (None, Some(charged_at)) => Some(Reservable::Charge(self.charge(key, &call, charged_at))),
            (None, None) => None,
        };
        match outcome {
            Enqueued::Decided(decision) => {
                let held = held.filter(|_| decision.is_allowed());
                Acquired::Ready(decision, held.map(|held| held.reserve(table)).unwrap_or_default())
            }
            Enqueued::Queued(ticket) => {
                let counts = !call.is_counted();
                Acquired::Pending(QueuedAcquire::new(Arc::clone(table), key, ticket, held, counts))
            }
        }
    }

    /// Queues a call that [`acquire`](Store::acquire) has judged by the state of the key alone. `shard` is the shard of
    /// the key, which was locked since before that.
    #[cold]
    fn enqueue(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
        judged: Judged,
    ) -> Acquired<QueuedAcquire<A>> {
        let table = &self.table;
        let mut wake = Wakers::default();
        // This variable is dropped before `wake`. So the lock is released before the wakers are woken.
        let mut shard = shard;
        let Some(mut entry) = shard.entry(key, call.algorithm(), table.config(), &mut wake) else {
            unreachable!("the call was judged by the state of the key")
        };
        match entry.enqueue(judged) {
            Enqueued::Decided(denial) => {
                table.count(&call, &denial);
                Acquired::Ready(denial, Reservation::default())
            }
            Enqueued::Queued(ticket) => {
                table.add(&call, CallOutcome::Queued);
                let charged_at = call.wants_reservation().then(|| entry.last_update());
                drop(shard);
                let held = charged_at.map(|at| Reservable::Charge(self.charge(key, &call, at)));
                let counts = !call.is_counted();
                Acquired::Pending(QueuedAcquire::new(Arc::clone(table), key, ticket, held, counts))
            }
        }
    }

    fn charge(&self, key: Fingerprint, call: &Attempt<'_, A>, charged_at: Nanos) -> MemoryCharge<A> {
        let (table, algorithm) = (Arc::clone(&self.table), call.algorithm().cloned());
        MemoryCharge::new(table, key, algorithm, call.cost(), call.has_priority(), charged_at)
    }

    /// Denies a call because there is no room for its key, and counts the call.
    fn deny_without_room(&self, call: Attempt<'_, A>) -> Decision {
        let quota = |algorithm: &A| algorithm.policy().quota;
        let denial = Decision::table_full(call.algorithm().map_or_else(|| quota(&self.algorithm()), quota));
        self.table.count(&call, &denial);
        denial
    }
}

impl<A: Algorithm> Store<A> for MemoryStore<A> {
    type Key = KeyId;
    type Error = Infallible;
    type Wait = QueuedAcquire<A>;

    const OWNS_COUNTS: bool = true;
    const CAN_FAIL: bool = false;

    #[inline]
    fn algorithm(&self) -> Cow<'_, A> {
        self.table.algorithm()
    }

    fn stats(&self) -> StoreStats {
        self.table.stats()
    }

    fn new_counts(&self) -> Arc<CallCounts> {
        self.table.calls().register()
    }

    #[inline]
    fn acquire(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        let table = &self.table;
        let now = table.clock().now();
        let shard = table.of(key);
        if let Some(denial) = shard.standing_denial(key, &call, now) {
            table.count(&call, &denial);
            return Acquired::Ready(denial, Reservation::default());
        }
        let mut locked = shard.lock_for(&call);
        let existing = match A::NEEDS_RELEASE {
            true => None,
            false => locked.existing(key, &call, now, table.clock()),
        };
        let Some((algorithm, state, now)) = existing else {
            shard.remove_denial();
            return self.acquire_slow(locked, key, call, now);
        };
        let queue = algorithm.queue_config();
        let may_wait = call.may_wait() || queue.is_some_and(|queue| queue.holds_requests());
        let decision = match queue.filter(|_| may_wait) {
            None => algorithm.check(state, now, call.cost()),
            Some(queue) => {
                let mut view = QueueView::empty(algorithm, queue, state, table.config().waiting());
                match view.try_admit(call.arrival(now, may_wait)) {
                    Fate::Decided(decision) => decision,
                    Fate::Waits(judged) => {
                        shard.remove_denial();
                        return self.enqueue(locked, key, call, judged);
                    }
                }
            }
        };
        table.count(&call, &decision);
        shard.keep_denial(key, &call, now, algorithm, &decision, table.clock());
        if !call.wants_reservation() || !decision.is_allowed() {
            return Acquired::Ready(decision, Reservation::default());
        }
        let charged_at = algorithm.last_update(state);
        drop(locked);
        Acquired::Ready(decision, self.charge(key, &call, charged_at).into())
    }
}

impl<A: Algorithm, K: MemoryKey + ?Sized> KeyedStore<A, K> for MemoryStore<A> {
    #[inline]
    fn key(&self, key: &K) -> KeyId {
        KeyId(self.table.fingerprint(key))
    }
}

impl<A: Algorithm> CheckStore<A> for MemoryStore<A> {
    type Reply<T: Send + 'static> = T;
    type Output<T> = T;

    #[inline]
    fn output<T>(result: Result<T, Infallible>) -> T {
        match result {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    #[inline]
    fn check(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Decision {
        let table = &self.table;
        let now = table.clock().now();
        let shard = table.of(key);
        if let Some(denial) = shard.standing_denial(key, &call, now) {
            table.count(&call, &denial);
            return denial;
        }
        let mut locked = shard.lock_for(&call);
        let Some((algorithm, state, now)) = locked.existing(key, &call, now, table.clock()) else {
            shard.remove_denial();
            return self.check_slow(locked, key, call, now);
        };
        let decision = algorithm.check(state, now, call.cost());
        table.count(&call, &decision);
        shard.keep_denial(key, &call, now, algorithm, &decision, table.clock());
        decision
    }

    fn try_acquire_permit(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Result<Permit, Denied> {
        let table = &self.table;
        let decided = table.with_called(table.of(key).lock(), key, &call, None, |mut entry, now| {
            let (location, holds) = (entry.location(), entry.algorithm_to_release(call.cost()));
            let decision = entry.check(now, call.cost());
            table.count(&call, &decision);
            (decision, location, holds)
        });
        let (decision, permit) = match decided {
            Some((decision, location, holds)) => {
                let permit = holds.filter(|_| decision.is_allowed());
                (decision, permit.map(|algorithm| permit_for(table, location, algorithm, call.cost())))
            }
            None => (self.deny_without_room(call), None),
        };
        Permit::decided(decision, permit.unwrap_or_default())
    }

    fn peek(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Decision {
        self.table.peek_entry(key, call.algorithm(), |entry, now| entry.peek(now, call.cost()))
    }

    fn refund(&self, KeyId(key): KeyId, cost: u64) {
        self.table.refund(key, cost);
    }

    fn reset(&self, KeyId(key): KeyId) {
        self.table.reset(key);
    }
}

impl<A: Algorithm> ReleaseStore<A> for MemoryStore<A> {
    fn release(&self, KeyId(key): KeyId, call: Attempt<'_, A>) {
        let end = |entry: KeyEntry<'_, A>, now| entry.end_held(now, call.cost());
        let released = self.table.with_used(key, call.algorithm(), end);
        // A key that is not in the table has no calls in progress.
        if let Some((algorithm, cost)) = released {
            drop(SharedPermit::of_admitted(&algorithm, cost));
        }
    }
}

impl<A: Algorithm> SettleStore<A> for MemoryStore<A> {}

impl<A: Algorithm> ReplaceAlgorithm<A> for MemoryStore<A> {
    fn replace(&self, algorithm: A) {
        // Waiters that the new algorithm releases are woken once no lock is held.
        drop(self.table.replace(algorithm));
    }
}

impl<A: Algorithm> CloseStore<A> for MemoryStore<A> {
    fn close(&self) {
        // The waiters are woken once no lock is held.
        drop(self.table.close());
    }
}

impl<A: Algorithm, K: MemoryKey + ?Sized> JointStore<A, K> for MemoryStore<A> {
    type Kind = InMemory;

    #[inline]
    fn joint_part<'a>(
        &'a self,
        key: &K,
        attempt: Attempt<'_, A>,
        counts: &'a Arc<CallCounts>,
    ) -> JointRequest<'a> {
        JointRequest::new(&self.table, self.table.fingerprint(key), attempt, counts)
    }
}

impl<A: Algorithm> Clone for MemoryStore<A> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table) }
    }
}

impl<A: Algorithm> fmt::Debug for MemoryStore<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.stats().keys).finish_non_exhaustive()
    }
}

/// Returns the configured queue capacity, but at least `DEFAULT_MAX_QUEUED`.
fn default_max_waiting<A: Algorithm>(algorithm: &A) -> u64 {
    let min = MemoryStore::<A>::DEFAULT_MAX_QUEUED as u64;
    let chosen = algorithm.queue_config().and_then(|queue| queue.explicit_capacity());
    chosen.map_or(min, |places| places.max(min))
}
