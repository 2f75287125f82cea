//! The in-memory store.

mod acquire;
mod buckets;
mod charge;
mod config;
mod context;
mod entry;
mod fingerprint;
mod latest_denial;
mod location;
mod maintenance;
mod multi;
mod on_full;
mod placement;
mod repeated_denial;
mod room;
mod shard;
mod slots;
mod stats;
mod table;
mod turnover;
mod wait;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use self::charge::permit_for;
use self::config::StoreConfig;
use self::context::MemoryContext;
use self::fingerprint::Fingerprint;
use self::location::shared_bits;
use self::table::Table;
use super::{
    Attempt, CheckStore, CloseStore, Denied, KeyedStore, Permit, ReleaseStore, ReplaceAlgorithm, SettleStore,
    Store,
};
use crate::algorithm::{Algorithm, Semaphore, SharedPermit};
use crate::clock::AnyClock;
use crate::decision::Decision;
use crate::stats::{CallCounts, LimiterStats};

pub use config::{MemoryOptions, OnClose};
pub use fingerprint::MemoryKey;
pub(crate) use multi::decide_at_once;
pub use multi::{AllDecisions, AnyAlgorithm, Decided, Few, JointOutcome, JointRequest, JointWait, decide};
pub use on_full::OnFull;
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
    context: Arc<MemoryContext<A>>,
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
        let MemoryOptions { max_keys, max_queued, on_close, on_full } = options;
        let max_queued = max_queued.map_or_else(|| default_max_waiting(&algorithm), |max| max as u64);
        let shared_bits = shared_bits(max_keys);
        let config = StoreConfig { waiting: Semaphore::new(max_queued), on_close, on_full, shared_bits };
        let table = Table::new(max_keys, &algorithm, clock, config);
        Self { context: Arc::new(MemoryContext::new(algorithm, table)) }
    }

    pub(crate) fn queued(&self) -> usize {
        usize::try_from(self.context.table.config.waiting.len()).unwrap_or(usize::MAX)
    }

    pub(crate) fn len(&self) -> usize {
        self.context.table.len()
    }

    pub(crate) fn limiter_stats(&self) -> LimiterStats {
        LimiterStats { calls: self.context.table.counters.calls.stats(), store: self.stats() }
    }

    /// Creates a request that can be decided jointly with others. The call is counted in `counts`.
    pub(crate) fn part<'a, K: MemoryKey + ?Sized>(
        &'a self,
        key: &K,
        call: Attempt<'_, A>,
        counts: &'a Arc<CallCounts>,
    ) -> JointRequest<'a> {
        JointRequest::new(&self.context, self.context.seed.fingerprint(key), call, counts)
    }

    /// Creates a [`JointRequest`] as [`part`](Self::part) does. The call is counted with the calls that are made
    /// without a layer.
    pub(crate) fn direct_part<K: MemoryKey + ?Sized>(
        &self,
        key: &K,
        call: Attempt<'_, A>,
    ) -> JointRequest<'_> {
        self.part(key, call, &self.context.table.counters.calls.direct)
    }
}

impl<A: Algorithm, K: MemoryKey + ?Sized> KeyedStore<A, K> for MemoryStore<A> {
    #[inline]
    fn key(&self, key: &K) -> KeyId {
        KeyId(self.context.seed.fingerprint(key))
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
        let table = &self.context.table;
        let now = table.clock.now();
        let shard = table.keys.of(key);
        if let Some(denial) = table.standing_denial(shard, key, &call, now) {
            return denial;
        }
        let mut locked = table.lock_for(shard, &call);
        let Some((algorithm, state, now)) = table.existing(&mut locked, key, &call, now) else {
            shard.denial.remove();
            return self.context.check_slow(locked, key, call, now);
        };
        let decision = algorithm.check(state, now, call.cost);
        table.counters.count(&call, &decision);
        table.keep_denial(shard, key, &call, now, algorithm, &decision);
        decision
    }

    fn try_acquire_permit(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Result<Permit, Denied> {
        let context = &self.context;
        let decided = context.decide(key, call, |mut entry, now| {
            let (location, holds) = (entry.location(), entry.algorithm_to_release(call.cost));
            let decision = entry.check(now, call.cost);
            context.table.counters.count(&call, &decision);
            (decision, location, holds)
        });
        let (decision, permit) = match decided {
            Some((decision, location, holds)) => {
                let permit = holds.filter(|_| decision.is_allowed());
                (decision, permit.map(|algorithm| permit_for(context, location, algorithm, call.cost)))
            }
            None => (context.deny_without_room(call), None),
        };
        Permit::decided(decision, permit.unwrap_or_default())
    }

    fn peek(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Decision {
        let context = &*self.context;
        context.table.peek_entry(key, call.algorithm, |entry, now| entry.peek(now, call.cost))
    }

    fn refund(&self, KeyId(key): KeyId, cost: u64) {
        self.context.table.refund(key, cost);
    }

    fn reset(&self, KeyId(key): KeyId) {
        self.context.table.reset(key);
    }
}

impl<A: Algorithm> ReleaseStore<A> for MemoryStore<A> {
    fn release(&self, KeyId(key): KeyId, call: Attempt<'_, A>) {
        let (context, cost) = (&*self.context, call.cost);
        let released = context.table.with_used(key, call.algorithm, |entry, now| {
            // At most the units that the key's calls in progress hold are released, so that the calls of other keys
            // stay counted in the total.
            let (algorithm, cost) =
                (entry.algorithm().clone(), cost.min(entry.algorithm().in_flight(entry.state)));
            entry.end(now, cost);
            (algorithm, cost)
        });
        // A key that is not in the table has no calls in progress.
        if let Some((algorithm, cost)) = released {
            drop(SharedPermit::of_admitted(&algorithm, cost));
        }
    }
}

impl<A: Algorithm> SettleStore<A> for MemoryStore<A> {}

impl<A: Algorithm> ReplaceAlgorithm<A> for MemoryStore<A> {
    fn replace(&self, algorithm: A) {
        let context = &*self.context;
        // Waiters that the new algorithm releases are woken once no lock is held.
        drop(context.replace(algorithm, |new| context.table.replace(new)));
    }
}

impl<A: Algorithm> CloseStore<A> for MemoryStore<A> {
    fn close(&self) {
        // The waiters are woken once no lock is held.
        drop(self.context.table.close());
    }
}

impl<A: Algorithm> Clone for MemoryStore<A> {
    fn clone(&self) -> Self {
        Self { context: Arc::clone(&self.context) }
    }
}

impl<A: Algorithm> fmt::Debug for MemoryStore<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Returns the configured queue capacity, but at least `DEFAULT_MAX_QUEUED`.
fn default_max_waiting<A: Algorithm>(algorithm: &A) -> u64 {
    let min = MemoryStore::<A>::DEFAULT_MAX_QUEUED as u64;
    let chosen = algorithm.queue_config().and_then(|queue| queue.explicit_capacity());
    chosen.map_or(min, |places| places.max(min))
}
