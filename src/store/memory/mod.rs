//! The in-memory store.

mod buckets;
mod charge;
mod config;
mod entry;
mod fingerprint;
mod location;
mod maintenance;
mod multi;
mod on_full;
mod placement;
mod room;
mod shard;
mod stats;
mod sweep;
mod table;
mod wait;

use std::convert::Infallible;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use self::charge::MemoryCharge;
use self::config::StoreConfig;
use self::entry::KeyEntry;
use self::fingerprint::{Fingerprint, HashSeed};
use self::location::{Location, shared_bits};
use self::table::Table;
use super::{Acquired, Attempt, Permit, Reservation, Store};
use crate::algorithm::{Algorithm, Semaphore};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Arrival, Enqueued, Fate, PollTurn, QueueView};
use crate::store::context::Context;

pub use config::OnClose;
pub use fingerprint::MemoryKey;
pub(crate) use multi::{AllDecisions, JointOutcome, decide};
pub use multi::{Decided, Few, JointRequest, JointWait};
pub use on_full::OnFull;
pub use stats::LimiterStats;
pub use wait::QueuedAcquire;

/// The state of keys in this process: bounded, and cleaned without a thread or a runtime.
///
/// # Guarantees
///
/// One call at a time changes a key. At most `max_keys` keys are kept. A key that is fresh may be removed at
/// any time, which changes no decision while there is room.
///
/// [`OnFull`] defines what happens to new keys when the table is full of keys that are not fresh. By default
/// the least used of eight sampled keys is evicted, so that new keys are not denied, a key at its limit stays
/// limited while less used keys can be evicted, and a flood of keys has no effect after it ends. A key with
/// calls in progress or queued calls is never evicted.
/// [`RateLimiter::stats`](crate::limiter::RateLimiter::stats) counts how often the table was full.
///
/// # How large `max_keys` should be
///
/// Larger than the number of distinct keys in the longest window of the algorithm (of a bucket: in the time in
/// which it fills), lockouts included: then no key is evicted. [Floods of keys](crate::guide::floods) explains
/// how to keep invented keys out.
///
/// # Memory
///
/// A key is kept as a 128-bit keyed fingerprint, so its length does not matter, and it cannot be read back. Per
/// key: 16 bytes, the algorithm's state (24 for a [`TokenBucket`](crate::algorithm::TokenBucket)) and 16 in the
/// list of keys to sweep. Tables grow by doubling: count 60 to 120 bytes per key, so the default of 100,000
/// keys is 6 to 12 MB. The cost of growth is amortised: the call for the new key that makes one of the 64 parts
/// of the table grow moves the keys of that part, and calls for its other keys wait meanwhile. Memory of
/// removed keys is used again, and not freed while the limiter lives.
///
/// Not promised: state outlives neither the process nor the last clone of its limiter.
#[derive(Debug)]
pub struct MemoryStore<A: Algorithm> {
    seed: HashSeed,
    table: Table<A>,
}

/// The context of a limiter with a memory store.
pub(super) type MemoryContext<A> = Context<A, MemoryStore<A>>;

impl<A: Algorithm> MemoryStore<A> {
    /// The maximum number of keys by default.
    pub const DEFAULT_MAX_KEYS: usize = 100_000;

    /// The maximum number of queued calls by default, for all keys together; a larger capacity that was
    /// configured for the queue of one key takes its place.
    pub const DEFAULT_MAX_QUEUED: usize = 10_000;

    /// Creates a store of at most `max_keys` keys for a limiter with that algorithm. 0 counts as 1.
    #[must_use]
    pub fn new(algorithm: &A, max_keys: usize) -> Self {
        Self::with(algorithm, max_keys, None, OnClose::default(), OnFull::default())
    }

    pub(crate) fn with(
        algorithm: &A,
        max_keys: usize,
        max_queued: Option<usize>,
        on_close: OnClose,
        on_full: OnFull,
    ) -> Self {
        let max_queued = max_queued.map_or_else(|| default_max_waiting(algorithm), |max| max as u64);
        let shared_bits = shared_bits(max_keys);
        let config = StoreConfig { waiting: Semaphore::new(max_queued), on_close, on_full, shared_bits };
        Self { seed: HashSeed::random(), table: Table::new(max_keys, algorithm, config) }
    }

    pub(crate) fn queued(&self) -> usize {
        usize::try_from(self.table.config.waiting.len()).unwrap_or(usize::MAX)
    }

    pub(crate) fn close(context: &MemoryContext<A>) {
        // The waiters are woken once no lock is held.
        drop(context.store().table.close(context));
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn stats(&self) -> LimiterStats {
        self.table.counters.stats()
    }

    #[inline]
    pub(crate) fn check<K: Hash + ?Sized>(
        &self,
        context: &MemoryContext<A>,
        key: &K,
        call: Attempt<'_, A>,
    ) -> Decision {
        let key = self.seed.fingerprint(key);
        let known = self.table.with_existing(context, key, call.algorithm, |algorithm, state, now| {
            Some(algorithm.check(state, now, call.cost))
        });
        match known {
            Some(decision) => decision,
            None => self.check_slow(context, key, call),
        }
    }

    #[cold]
    fn check_slow(&self, context: &MemoryContext<A>, key: Fingerprint, call: Attempt<'_, A>) -> Decision {
        self.decide(context, key, call, |mut entry, now| entry.check(now, call.cost))
            .unwrap_or_else(|| self.reject(context, call))
    }

    /// Locks the key while `decide` runs. Returns `None` if there is no room for it: never for a cost of 0,
    /// which needs none.
    fn decide<R>(
        &self,
        context: &MemoryContext<A>,
        key: Fingerprint,
        call: Attempt<'_, A>,
        decide: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        match call.cost {
            0 => {
                self.table.drop_empty_queue(context, key);
                Some(self.table.peek_entry(context, key, call.algorithm, decide))
            }
            _ => self.table.with_entry(context, key, call.algorithm, decide),
        }
    }

    /// Denies a call for whose key there is no room.
    fn reject(&self, context: &MemoryContext<A>, call: Attempt<'_, A>) -> Decision {
        let quota = |algorithm: &A| algorithm.policy().quota;
        self.table.reject(call.algorithm.map_or_else(|| quota(&context.algorithm()), quota))
    }

    pub(crate) fn peek<K: Hash + ?Sized>(
        &self,
        context: &MemoryContext<A>,
        key: &K,
        call: Attempt<'_, A>,
    ) -> Decision {
        let key = self.seed.fingerprint(key);
        self.table.peek_entry(context, key, call.algorithm, |entry, now| entry.peek(now, call.cost))
    }

    pub(crate) fn refund<K: Hash + ?Sized>(&self, context: &MemoryContext<A>, key: &K, cost: u64) {
        let key = self.seed.fingerprint(key);
        let _ = self.table.with_used(context, key, None, |entry, now| entry.refund(now, cost));
    }

    pub(crate) fn reset<K: Hash + ?Sized>(&self, context: &MemoryContext<A>, key: &K) {
        self.table.reset(context, self.seed.fingerprint(key));
    }

    pub(crate) fn replace(context: &MemoryContext<A>, algorithm: A) {
        // Waiters that the new algorithm releases are woken once no lock is held.
        drop(context.replace(algorithm, |new| context.store().table.replace(context, new)));
    }

    /// Creates a call that is to be decided together with others.
    pub(crate) fn part<'a, K: MemoryKey + ?Sized>(
        context: &'a Arc<MemoryContext<A>>,
        key: &K,
        call: Attempt<'_, A>,
    ) -> JointRequest<'a> {
        JointRequest::new(context, context.store().seed.fingerprint(key), call)
    }

    pub(crate) fn key_id<K: MemoryKey + ?Sized>(&self, key: &K) -> KeyId {
        KeyId(self.seed.fingerprint(key))
    }

    /// Charges `cost` units, or queues the call.
    #[inline]
    pub(crate) fn enter(
        context: &Arc<MemoryContext<A>>,
        key: KeyId,
        call: Attempt<'_, A>,
    ) -> Acquired<QueuedAcquire<A>> {
        let KeyId(key) = key;
        let store = context.store();
        let mut charged_at = Nanos::ZERO;
        let known = store.table.with_existing(context, key, call.algorithm, |algorithm, state, now| {
            if algorithm.needs_release() {
                return None;
            }
            let queue = algorithm.queue_config();
            let may_wait = call.may_wait || queue.is_some_and(|queue| queue.holds_requests());
            let decision = match queue.filter(|_| may_wait) {
                None => Some(algorithm.check(state, now, call.cost)),
                Some(queue) => {
                    let waiting = &store.table.config.waiting;
                    let mut view = QueueView::empty(algorithm, queue, state, waiting);
                    match view.decide(call.arrival(now, may_wait)) {
                        Fate::Decided(decision) => Some(decision),
                        Fate::Waits | Fate::Full => None,
                    }
                }
            };
            if call.reserves {
                charged_at = algorithm.last_update(state);
            }
            decision
        });
        match known {
            Some(decision) if call.reserves && decision.is_allowed() => {
                Acquired::Reserved(decision, MemoryCharge::new(context, key, &call, charged_at).into())
            }
            Some(decision) => Acquired::Ready(decision),
            None => Self::acquire_slow(context, key, call),
        }
    }

    #[cold]
    fn acquire_slow(
        context: &Arc<MemoryContext<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
    ) -> Acquired<QueuedAcquire<A>> {
        let store = context.store();
        let entered = store.decide(context, key, call, |mut entry, now| {
            let (location, holds) = (entry.location(), entry.needs_release(call.cost));
            let may_wait = call.may_wait || entry.holds_requests();
            let entered = entry.acquire(call.arrival(now, may_wait));
            // Calls in progress are free when they end, and a closed limiter charges nothing.
            let settles = call.reserves && !entry.algorithm().needs_release() && !entry.closed;
            (entered, location, holds, settles.then(|| entry.algorithm().last_update(entry.state)))
        });
        let Some((entered, location, holds, charged_at)) = entered else {
            return Acquired::Ready(store.reject(context, call));
        };
        let charge = || charged_at.map(|charged_at| MemoryCharge::new(context, key, &call, charged_at));
        let permit = || {
            holds
                .map(|algorithm| Self::permit_for(context, location, algorithm, call.cost))
                .unwrap_or_default()
        };
        match entered {
            Enqueued::Decided(decision) if decision.is_allowed() => match permit() {
                permit if permit.is_empty() => match charge() {
                    Some(charge) => Acquired::Reserved(decision, charge.into()),
                    None => Acquired::Ready(decision),
                },
                permit => Acquired::Held(decision, permit),
            },
            Enqueued::Decided(decision) => Acquired::Ready(decision),
            Enqueued::Queued(ticket) => {
                let permit = permit().disarmed();
                Acquired::Pending(QueuedAcquire::new(Arc::clone(context), key, ticket, permit, charge()))
            }
        }
    }

    /// Charges `cost` units or none. Returns the decision and the permit of the call.
    pub(crate) fn try_acquire(
        context: &Arc<MemoryContext<A>>,
        KeyId(key): KeyId,
        call: Attempt<'_, A>,
    ) -> (Decision, Permit) {
        let store = context.store();
        let decided = store.decide(context, key, call, |mut entry, now| {
            let (location, holds) = (entry.location(), entry.needs_release(call.cost));
            (entry.check(now, call.cost), location, holds)
        });
        let Some((decision, location, holds)) = decided else {
            return (store.reject(context, call), Permit::default());
        };
        let permit = holds.filter(|_| decision.is_allowed());
        (
            decision,
            permit
                .map(|algorithm| Self::permit_for(context, location, algorithm, call.cost))
                .unwrap_or_default(),
        )
    }

    /// Creates the permit of a call that was admitted with that algorithm.
    fn permit_for(context: &Arc<MemoryContext<A>>, location: Location, algorithm: A, cost: u64) -> Permit {
        let context = Arc::clone(context);
        Permit::new(move || {
            algorithm.release_total(cost);
            context.store().table.end(&context, location, &algorithm, cost);
        })
    }

    /// Ends calls that were admitted without a permit.
    pub(crate) fn release<K: Hash + ?Sized>(context: &MemoryContext<A>, key: &K, call: Attempt<'_, A>) {
        let (store, cost) = (context.store(), call.cost);
        let key = store.seed.fingerprint(key);
        let released = store.table.with_used(context, key, call.algorithm, |entry, now| {
            // No more than it holds in flight itself: other keys' calls are not released.
            let (algorithm, cost) =
                (entry.algorithm().clone(), cost.min(entry.algorithm().in_flight(entry.state)));
            entry.end(now, cost);
            (algorithm, cost)
        });
        // A key that is not in the table holds nothing.
        if let Some((algorithm, cost)) = released {
            algorithm.release_total(cost);
        }
    }

    fn ask(&self, context: &MemoryContext<A>, key: Fingerprint, ticket: u64, waker: &Waker) -> PollTurn {
        let asked = self.table.with_used(context, key, None, |entry, now| entry.ask(now, ticket, waker));
        let Some((turn, _spare)) = asked else { unreachable!("a key with queued calls is never evicted") };
        turn
    }

    fn abandon(&self, context: &MemoryContext<A>, key: Fingerprint, ticket: u64) {
        let _spare = self.table.with_used(context, key, None, |entry, now| entry.abandon(now, ticket));
    }
}

/// The identity of a key in this store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyId(Fingerprint);

impl<A: Algorithm, K: MemoryKey + ?Sized> Store<A, K> for MemoryStore<A> {
    type Error = Infallible;
    type Wait = QueuedAcquire<A>;

    #[inline]
    fn acquire(context: &Arc<Context<A, Self>>, key: &K, call: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        let key = context.store().key_id(key);
        Self::enter(context, key, call)
    }

    fn permit(wait: Pin<&mut QueuedAcquire<A>>) -> Permit {
        wait.permit()
    }

    fn reservation(wait: Pin<&mut QueuedAcquire<A>>) -> Option<Reservation> {
        wait.reservation()
    }
}

impl<A> Attempt<'_, A> {
    fn arrival(&self, now: Nanos, may_wait: bool) -> Arrival {
        let Self { cost, priority, max_wait, .. } = *self;
        Arrival { priority, may_wait, max_wait, ..Arrival::new(now, cost) }
    }
}

/// Returns the configured queue capacity, but at least `DEFAULT_MAX_QUEUED`.
fn default_max_waiting<A: Algorithm>(algorithm: &A) -> u64 {
    let min = MemoryStore::<A>::DEFAULT_MAX_QUEUED as u64;
    let chosen = algorithm.queue_config().and_then(|queue| queue.explicit_capacity());
    chosen.map_or(min, |places| places.max(min))
}
