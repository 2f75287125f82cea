//! The in-memory store.

mod buckets;
mod charge;
mod config;
mod context;
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

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use self::charge::{Held, MemoryCharge, permit_for};
use self::config::StoreConfig;
use self::context::MemoryContext;
use self::entry::KeyEntry;
use self::fingerprint::Fingerprint;
use self::location::shared_bits;
use self::table::Table;
use super::{
    Acquired, Attempt, CheckStore, CloseStore, Denied, KeyedStore, Permit, ReplaceAlgorithm, Reservation,
    SettleStore, Store,
};
use crate::algorithm::{Algorithm, Semaphore};
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::queue::{Arrival, Enqueued, Fate, PollTurn, QueueView};

pub use config::{MemoryOptions, OnClose};
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
pub struct MemoryStore<A: Algorithm> {
    context: Arc<MemoryContext<A>>,
}

/// The identity of a key in a [`MemoryStore`].
#[derive(Clone, Copy, Debug)]
pub struct KeyId(Fingerprint);

impl<A: Algorithm> MemoryStore<A> {
    /// The maximum number of keys by default.
    pub const DEFAULT_MAX_KEYS: usize = 100_000;

    /// The maximum number of queued calls by default, for all keys together; a larger capacity that was
    /// configured for the queue of one key takes its place.
    pub const DEFAULT_MAX_QUEUED: usize = 10_000;

    pub(crate) fn with(algorithm: A, clock: AnyClock, options: MemoryOptions) -> Self {
        let MemoryOptions { max_keys, max_queued, on_close, on_full } = options;
        let max_queued = max_queued.map_or_else(|| default_max_waiting(&algorithm), |max| max as u64);
        let shared_bits = shared_bits(max_keys);
        let config = StoreConfig { waiting: Semaphore::new(max_queued), on_close, on_full, shared_bits };
        let table = Table::new(max_keys, &algorithm, config);
        Self { context: Arc::new(MemoryContext::new(algorithm, clock, table)) }
    }

    pub(crate) fn queued(&self) -> usize {
        usize::try_from(self.context.table.config.waiting.len()).unwrap_or(usize::MAX)
    }

    pub(crate) fn len(&self) -> usize {
        self.context.table.len()
    }

    pub(crate) fn stats(&self) -> LimiterStats {
        self.context.table.counters.stats()
    }

    /// Creates a call that is to be decided together with others.
    pub(crate) fn part<K: MemoryKey + ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> JointRequest<'_> {
        JointRequest::new(&self.context, self.context.seed.fingerprint(key), call)
    }

    /// Ends calls that were admitted without a permit.
    pub(crate) fn release<K: MemoryKey + ?Sized>(&self, key: &K, call: Attempt<'_, A>) {
        let (context, cost) = (&*self.context, call.cost);
        let key = context.seed.fingerprint(key);
        let released = context.table.with_used(context, key, call.algorithm, |entry, now| {
            // No more than it holds in flight itself: other keys' calls are not released.
            let (algorithm, cost) =
                (entry.algorithm.clone(), cost.min(entry.algorithm.in_flight(entry.state)));
            entry.end(now, cost);
            (algorithm, cost)
        });
        // A key that is not in the table holds nothing.
        if let Some((algorithm, cost)) = released {
            algorithm.release_total(cost);
        }
    }

    #[cold]
    fn acquire_slow(&self, key: Fingerprint, call: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        let context = &self.context;
        let entered = context.decide(key, call, |mut entry, now| {
            let (location, holds) = (entry.location(), entry.needs_release(call.cost));
            let may_wait = call.may_wait || entry.algorithm.holds_requests();
            let entered = entry.acquire(call.arrival(now, may_wait));
            // Calls in progress are free when they end, and a closed limiter charges nothing.
            let settles = call.reserves && !entry.algorithm.needs_release() && !entry.closed;
            (entered, location, holds, settles.then(|| entry.algorithm.last_update(entry.state)))
        });
        let Some((entered, location, holds, charged_at)) = entered else {
            return Acquired::Ready(context.reject(call), Reservation::default());
        };
        let held = match (holds, charged_at) {
            (Some(algorithm), _) => Some(Held::Permit { location, algorithm, cost: call.cost }),
            (None, Some(charged_at)) => {
                Some(Held::Charge(MemoryCharge::new(context, key, &call, charged_at)))
            }
            (None, None) => None,
        };
        match entered {
            Enqueued::Decided(decision) => {
                let held = held.filter(|_| decision.is_allowed());
                Acquired::Ready(decision, held.map(|held| held.reserve(context)).unwrap_or_default())
            }
            Enqueued::Queued(ticket) => {
                Acquired::Pending(QueuedAcquire::new(Arc::clone(context), key, ticket, held))
            }
        }
    }
}

impl<A: Algorithm> MemoryContext<A> {
    #[cold]
    fn check_slow(&self, key: Fingerprint, call: Attempt<'_, A>) -> Decision {
        self.decide(key, call, |mut entry, now| entry.check(now, call.cost))
            .unwrap_or_else(|| self.reject(call))
    }

    /// Locks the key while `decide` runs. Returns `None` if there is no room for it: never for a cost of 0,
    /// which needs none.
    fn decide<R>(
        &self,
        key: Fingerprint,
        call: Attempt<'_, A>,
        decide: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        match call.cost {
            0 => {
                self.table.drop_empty_queue(self, key);
                Some(self.table.peek_entry(self, key, call.algorithm, decide))
            }
            _ => self.table.with_entry(self, key, call.algorithm, decide),
        }
    }

    /// Denies a call for whose key there is no room.
    fn reject(&self, call: Attempt<'_, A>) -> Decision {
        let quota = |algorithm: &A| algorithm.policy().quota;
        self.table.reject(call.algorithm.map_or_else(|| quota(&self.algorithm()), quota))
    }

    fn ask(&self, key: Fingerprint, ticket: u64, waker: &Waker) -> PollTurn {
        let asked = self.table.with_used(self, key, None, |entry, now| entry.ask(now, ticket, waker));
        let Some((turn, _spare)) = asked else { unreachable!("a key with queued calls is never evicted") };
        turn
    }

    fn abandon(&self, key: Fingerprint, ticket: u64) {
        let _spare = self.table.with_used(self, key, None, |entry, now| entry.abandon(now, ticket));
    }
}

impl<A: Algorithm> Store<A> for MemoryStore<A> {
    type Key = KeyId;
    type Error = Infallible;
    type Wait = QueuedAcquire<A>;

    #[inline]
    fn algorithm(&self) -> Cow<'_, A> {
        self.context.algorithm()
    }

    #[inline]
    fn acquire(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        let context = &self.context;
        let mut charged_at = Nanos::ZERO;
        let known = context.table.with_existing(context, key, call.algorithm, |algorithm, state, now| {
            if algorithm.needs_release() {
                return None;
            }
            let before = algorithm.switch_tier(state, now);
            let may_wait = call.may_wait || algorithm.holds_requests();
            let decision = match algorithm.queueing().filter(|_| may_wait) {
                None => Some(algorithm.check(state, now, call.cost)),
                Some(queueing) => match QueueView::empty(queueing, state, &context.table.config.waiting)
                    .decide(call.arrival(now, may_wait))
                {
                    Fate::Decided(decision) => Some(decision),
                    Fate::Waits | Fate::Full => None,
                },
            };
            if let Some(before) = before
                && !decision.is_some_and(|decision| decision.is_allowed())
            {
                algorithm.restore_tier(state, now, before);
            }
            if call.reserves {
                charged_at = algorithm.last_update(state);
            }
            decision
        });
        match known {
            Some(decision) if call.reserves && decision.is_allowed() => {
                Acquired::Ready(decision, MemoryCharge::new(context, key, &call, charged_at).into())
            }
            Some(decision) => Acquired::Ready(decision, Reservation::default()),
            None => self.acquire_slow(key, call),
        }
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
        let context = &*self.context;
        let known = context.table.with_existing(context, key, call.algorithm, |algorithm, state, now| {
            let before = algorithm.switch_tier(state, now);
            let decision = algorithm.check(state, now, call.cost);
            if let Some(before) = before
                && !decision.is_allowed()
            {
                algorithm.restore_tier(state, now, before);
            }
            Some(decision)
        });
        match known {
            Some(decision) => decision,
            None => context.check_slow(key, call),
        }
    }

    fn try_acquire_permit(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Result<Permit, Denied> {
        let context = &self.context;
        let decided = context.decide(key, call, |mut entry, now| {
            let (location, holds) = (entry.location(), entry.needs_release(call.cost));
            (entry.check(now, call.cost), location, holds)
        });
        let (decision, permit) = match decided {
            Some((decision, location, holds)) => {
                let permit = holds.filter(|_| decision.is_allowed());
                (decision, permit.map(|algorithm| permit_for(context, location, algorithm, call.cost)))
            }
            None => (context.reject(call), None),
        };
        Permit::decided(decision, permit.unwrap_or_default())
    }

    fn peek(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Decision {
        let context = &*self.context;
        context.table.peek_entry(context, key, call.algorithm, |entry, now| entry.peek(now, call.cost))
    }

    fn refund(&self, KeyId(key): KeyId, cost: u64) {
        let context = &*self.context;
        let _ = context.table.with_used(context, key, None, |entry, now| entry.refund(now, cost));
    }

    fn reset(&self, KeyId(key): KeyId) {
        self.context.table.reset(&self.context, key);
    }
}

impl<A: Algorithm> SettleStore<A> for MemoryStore<A> {}

impl<A: Algorithm> ReplaceAlgorithm<A> for MemoryStore<A> {
    fn replace(&self, algorithm: A) {
        let context = &*self.context;
        // Waiters that the new algorithm releases are woken once no lock is held.
        drop(context.replace(algorithm, |new| context.table.replace(context, new)));
    }
}

impl<A: Algorithm> CloseStore<A> for MemoryStore<A> {
    fn close(&self) {
        // The waiters are woken once no lock is held.
        drop(self.context.table.close(&self.context));
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

impl<A> Attempt<'_, A> {
    fn arrival(&self, now: Nanos, may_wait: bool) -> Arrival {
        let Self { cost, priority, max_wait, .. } = *self;
        Arrival { priority, may_wait, max_wait, ..Arrival::new(now, cost) }
    }
}

/// Returns the configured queue capacity, but at least `DEFAULT_MAX_QUEUED`.
fn default_max_waiting<A: Algorithm>(algorithm: &A) -> u64 {
    let min = MemoryStore::<A>::DEFAULT_MAX_QUEUED as u64;
    let state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    let chosen = algorithm.queueing().and_then(|queueing| queueing.queue_config(&state).explicit_capacity());
    chosen.map_or(min, |places| places.max(min))
}
