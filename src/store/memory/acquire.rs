//! The method [`acquire`](Store::acquire) of the store, which decides a call or queues it.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;

use super::charge::{Held, MemoryCharge};
use super::fingerprint::Fingerprint;
use super::shard::Shard;
use super::{KeyId, MemoryStore, QueuedAcquire};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::queue::{Arrival, Enqueued, Fate, QueueView};
use crate::stats::{CallCounts, CallOutcome, StoreStats};
use crate::store::{Acquired, Attempt, Reservation, Store};
use crate::sys::lock::SpinGuard;

impl<A: Algorithm> Store<A> for MemoryStore<A> {
    type Key = KeyId;
    type Error = Infallible;
    type Wait = QueuedAcquire<A>;

    const OWNS_COUNTS: bool = true;
    const CAN_FAIL: bool = false;

    #[inline]
    fn algorithm(&self) -> Cow<'_, A> {
        self.context.algorithm()
    }

    fn stats(&self) -> StoreStats {
        let counted = self.context.table.counters.stats();
        StoreStats { keys: self.len() as u64, waiting: self.context.table.config.waiting.len(), ..counted }
    }

    fn new_counts(&self) -> Arc<CallCounts> {
        self.context.table.counters.calls.register()
    }

    #[inline]
    fn acquire(&self, KeyId(key): KeyId, call: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        let (context, table) = (&self.context, &self.context.table);
        let now = table.clock.now();
        let shard = table.keys.of(key);
        if let Some(denial) = table.standing_denial(shard, key, &call, now) {
            return Acquired::Ready(denial, Reservation::default());
        }
        let mut locked = table.lock_for(shard, &call);
        let existing = if A::NEEDS_RELEASE { None } else { table.existing(&mut locked, key, &call, now) };
        let Some((algorithm, state, now)) = existing else {
            shard.denial.remove();
            return self.acquire_slow(locked, key, call, now);
        };
        let queue = algorithm.queue_config();
        let may_wait = call.may_wait || queue.is_some_and(|queue| queue.holds_requests());
        let decision = match queue.filter(|_| may_wait) {
            None => algorithm.check(state, now, call.cost),
            Some(queue) => {
                let mut view = QueueView::empty(algorithm, queue, state, &table.config.waiting);
                match view.try_admit(call.arrival(now, may_wait)) {
                    Fate::Decided(decision) => decision,
                    Fate::Waits | Fate::Full => {
                        shard.denial.remove();
                        return self.acquire_slow(locked, key, call, now);
                    }
                }
            }
        };
        table.counters.count(&call, &decision);
        table.keep_denial(shard, key, &call, now, algorithm, &decision);
        if !call.reserves || !decision.is_allowed() {
            return Acquired::Ready(decision, Reservation::default());
        }
        let charged_at = algorithm.last_update(state);
        drop(locked);
        Acquired::Ready(decision, MemoryCharge::new(context, key, &call, charged_at).into())
    }
}

impl<A: Algorithm> MemoryStore<A> {
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
        let context = &self.context;
        let outcome = context.decide_locked(shard, key, call, Some(now), |mut entry, now| {
            let (location, holds) = (entry.location(), entry.algorithm_to_release(call.cost));
            let may_wait = call.may_wait || entry.holds_requests();
            let entered = entry.acquire(call.arrival(now, may_wait));
            match &entered {
                Enqueued::Decided(decision) => context.table.counters.count(&call, decision),
                Enqueued::Queued(_) => context.table.counters.add(&call, CallOutcome::Queued),
            }
            // A call that needs a release gives back its units when it ends, and a closed limiter charges nothing. So
            // neither kind of call is settled.
            let settles = call.reserves && !A::NEEDS_RELEASE && !entry.closed;
            (entered, location, holds, settles.then(|| entry.algorithm().last_update(entry.state)))
        });
        let Some((outcome, location, holds, charged_at)) = outcome else {
            return Acquired::Ready(context.deny_without_room(call), Reservation::default());
        };
        let held = match (holds, charged_at) {
            (Some(algorithm), _) => Some(Held::Permit { location, algorithm, cost: call.cost }),
            (None, Some(charged_at)) => {
                Some(Held::Charge(MemoryCharge::new(context, key, &call, charged_at)))
            }
            (None, None) => None,
        };
        match outcome {
            Enqueued::Decided(decision) => {
                let held = held.filter(|_| decision.is_allowed());
                Acquired::Ready(decision, held.map(|held| held.reserve(context)).unwrap_or_default())
            }
            Enqueued::Queued(ticket) => {
                let counts = !call.is_counted;
                Acquired::Pending(QueuedAcquire::new(Arc::clone(context), key, ticket, held, counts))
            }
        }
    }
}

impl<A> Attempt<'_, A> {
    fn arrival(&self, now: Nanos, may_wait: bool) -> Arrival {
        let Self { cost, priority, max_wait, .. } = *self;
        Arrival::new(now, cost).with_options(priority, may_wait, max_wait)
    }
}
