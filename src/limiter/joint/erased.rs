//! Limiters and their shards, with the type of the algorithm erased.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use super::AnyAlgorithm;
use crate::algorithm::{Algorithm, AlgorithmInfo, holds_requests};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::limiter::attempt::Attempt;
use crate::limiter::charge::{MemoryCharge, Reservable, permit_for};
use crate::limiter::contract::Decided;
use crate::limiter::entry::KeyEntry;
use crate::limiter::fingerprint::{Fingerprint, Location};
use crate::limiter::queue::{Arrival, Enqueued, Preview};
use crate::limiter::reservation::Reservation;
use crate::limiter::shard::{Existing, Shard};
use crate::limiter::table::{Settled, Table};
use crate::limiter::wait::QueuedAcquire;
use crate::stats::{CallCounts, CallOutcome};
use crate::sys::lock::SpinGuard;

/// A call, as it is passed to the methods of an [`ErasedShard`].
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    location: Location,
    cost: u64,
    priority: bool,
    max_wait: u64,
    algorithm: Option<&'a AnyAlgorithm>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(
        location: Location,
        cost: u64,
        priority: bool,
        max_wait: u64,
        algorithm: Option<&'a AnyAlgorithm>,
    ) -> Self {
        Self { location, cost, priority, max_wait, algorithm }
    }

    /// Returns the algorithm that the call chose.
    fn tier<A: Algorithm>(&self) -> Option<&'a A> {
        self.algorithm.and_then(|algorithm| algorithm.downcast_ref())
    }
}

/// A limiter with state in memory and with any algorithm.
pub(super) trait ErasedLimiter: fmt::Debug {
    fn address(&self) -> *const ();
    /// Returns the shared bucket of a key that has no place of its own, and counts that the key shares the bucket.
    /// Returns `None` if the table has no shared buckets.
    fn overflow_location(&self, key: Fingerprint) -> Option<Location>;
    /// Locks `key`, and decides a call of `cost` together with `others`. The argument of `others` says whether this call
    /// is allowed. `others` returns whether all calls are admitted, or `None` if they cannot be decided at once. Returns
    /// `None`, too, if the caller does not know the algorithm: `known` is the generation that the caller knows, or 0.
    fn decide_at_once(
        &self,
        key: Fingerprint,
        cost: u64,
        known: u64,
        others: &mut dyn FnMut(bool) -> Option<bool>,
    ) -> Option<(Decision, bool)>;
    /// Returns the counts of the limiter's calls.
    fn calls(&self) -> &Arc<CallCounts>;
    /// Returns the address of the lock of a location.
    fn lock(&self, location: Location) -> *const ();
    fn hold(&self, location: Location) -> Box<dyn ErasedShard + '_>;
    /// Logs a warning if the table was found full and no warning was logged before. The caller must hold no lock.
    fn warn_if_full(&self);
    fn undo(&self, key: Fingerprint, cost: u64, algorithm: Option<&AnyAlgorithm>) -> Undo;
    fn try_reserve(
        &self,
        key: Fingerprint,
        cost: u64,
        priority: bool,
        algorithm: Option<&AnyAlgorithm>,
    ) -> Reserve;
}

/// The future of a call in one queue. Yields the decision with the permit of the call, and the clock reading at which
/// the call was charged.
pub(super) type BoxWait = Pin<Box<dyn Future<Output = (Decided, Nanos)> + Send>>;

/// A function that undoes the charge of a call. The argument is the clock reading at which the call was charged.
pub(super) type Undo = Box<dyn FnOnce(Nanos) + Send>;

/// A function that creates the reservation of a call. The argument is the clock reading at which the call was charged.
pub(super) type Reserve = Box<dyn FnOnce(Nanos) -> Reservation + Send>;

/// A locked shard.
pub(super) trait ErasedShard {
    /// Returns the latest clock reading that the key has observed. Just after a call was admitted, this is the reading
    /// at which the call was charged.
    fn last_update(&mut self, ask: Ask<'_>) -> Nanos;
    /// Returns whether an admitted call can be settled.
    fn settles(&self) -> bool;
    /// Returns the info of the limiter's algorithm.
    fn info(&self) -> &Arc<AlgorithmInfo>;
    /// Returns whether an admitted call holds units until it is released.
    fn needs_release(&self, ask: Ask<'_>) -> bool;
    /// Returns the permit of an admitted call. The permit is empty if the call needs no release.
    fn permit(&self, ask: Ask<'_>) -> Reservation;
    /// Returns the future of the call that is queued on `key` under `ticket`.
    fn wait(&self, ask: Ask<'_>, key: Fingerprint, ticket: u64, known: u64) -> BoxWait;
    /// Gives the key or the shared bucket at `location` a state, unless it has a state already or there is no room for
    /// the key. Removes none of the keys in `keep`.
    fn insert_if_absent(&mut self, location: Location, keep: &[Fingerprint]) -> Settled;
    /// Returns the preview of a call for whose key there is no room. If the call has a cost and the limiter is open,
    /// the call needs room. The result is then an error with the algorithm's quota, and the caller denies the call.
    fn preview_without_room(&mut self, ask: Ask<'_>) -> Result<Preview, u64>;
    fn preview(&mut self, ask: Ask<'_>) -> Preview;
    fn enter(&mut self, ask: Ask<'_>) -> Enqueued;
    /// Removes the new keys that are not used, and unlocks the shard. Returns the wakers to wake.
    fn release(self: Box<Self>) -> Vec<Waker>;
}

struct ShardGuard<'a, A: Algorithm> {
    table: &'a Arc<Table<A>>,
    shard: SpinGuard<'a, Shard<A>>,
    now: Nanos,
    new: Vec<Fingerprint>,
    wake: Vec<Waker>,
}

/// Removes the new keys if an algorithm panicked, so that their places are free again.
impl<A: Algorithm> Drop for ShardGuard<'_, A> {
    fn drop(&mut self) {
        for key in mem::take(&mut self.new) {
            self.table.remove(&mut self.shard, key, self.now);
        }
    }
}

impl<A: Algorithm> ShardGuard<'_, A> {
    /// Returns the algorithm of a call.
    fn algorithm<'r>(&'r self, ask: Ask<'r>) -> &'r A {
        self.shard.algorithm(ask.tier())
    }

    fn with<R>(&mut self, ask: Ask<'_>, change: impl FnOnce(KeyEntry<'_, A>, Arrival) -> R) -> R {
        let Self { table, shard, now, wake, .. } = self;
        let Ask { location, cost, priority, max_wait, .. } = ask;
        table.with_settled(shard, location, ask.tier(), wake, |entry| {
            let may_wait = entry.holds_requests();
            change(entry, Arrival::new(*now, cost).with_options(priority, may_wait, max_wait))
        })
    }
}

impl<A: Algorithm> ErasedShard for ShardGuard<'_, A> {
    fn last_update(&mut self, ask: Ask<'_>) -> Nanos {
        self.with(ask, |entry, _| entry.last_update())
    }

    /// Returns `false` if calls need a release, because such calls give back their units when they end. Also returns
    /// `false` for a closed limiter, because it charges nothing.
    fn settles(&self) -> bool {
        !A::NEEDS_RELEASE && !self.shard.is_closed()
    }

    fn info(&self) -> &Arc<AlgorithmInfo> {
        self.shard.info()
    }

    fn needs_release(&self, ask: Ask<'_>) -> bool {
        ask.cost > 0 && A::NEEDS_RELEASE && !self.shard.is_closed()
    }

    fn permit(&self, ask: Ask<'_>) -> Reservation {
        match self.needs_release(ask) {
            true => permit_for(self.table, ask.location, self.algorithm(ask).clone(), ask.cost),
            false => Reservation::default(),
        }
    }

    fn wait(&self, ask: Ask<'_>, key: Fingerprint, ticket: u64, known: u64) -> BoxWait {
        let Ask { location, cost, .. } = ask;
        let algorithm = || self.algorithm(ask).clone();
        let held =
            self.needs_release(ask).then(|| Reservable::Permit { location, algorithm: algorithm(), cost });
        let wait = QueuedAcquire::new(Arc::clone(self.table), key, ticket, held, known, false);
        Box::pin(async move {
            let mut wait = pin!(wait);
            match wait.as_mut().await {
                Ok(decided) => (decided, wait.charged_at()),
                Err(never) => match never {},
            }
        })
    }

    fn insert_if_absent(&mut self, location: Location, keep: &[Fingerprint]) -> Settled {
        let table = &self.table;
        let settled = table.insert_if_absent(&mut self.shard, location, keep, self.now);
        if let (Settled::New, Location::Own(key)) = (settled, location) {
            self.new.push(key);
        }
        settled
    }

    fn preview_without_room(&mut self, ask: Ask<'_>) -> Result<Preview, u64> {
        let Self { table, shard, now, wake, .. } = self;
        let (key, arrival) = (ask.location.fingerprint(), Arrival::new(*now, ask.cost));
        table.preview_without_room(shard, key, ask.tier(), arrival, wake)
    }

    fn preview(&mut self, ask: Ask<'_>) -> Preview {
        self.with(ask, |mut entry, arrival| entry.preview(arrival))
    }

    fn enter(&mut self, ask: Ask<'_>) -> Enqueued {
        self.with(ask, |mut entry, arrival| entry.acquire(arrival))
    }

    fn release(mut self: Box<Self>) -> Vec<Waker> {
        for key in mem::take(&mut self.new) {
            self.table.remove_unless_used(&mut self.shard, key, self.now);
        }
        mem::take(&mut self.wake)
    }
}

impl<A: Algorithm> ErasedLimiter for Arc<Table<A>> {
    fn address(&self) -> *const () {
        Arc::as_ptr(self).cast()
    }

    fn calls(&self) -> &Arc<CallCounts> {
        (**self).calls()
    }

    fn warn_if_full(&self) {
        (**self).warn_if_full();
    }

    fn overflow_location(&self, key: Fingerprint) -> Option<Location> {
        (**self).overflow_location(key)
    }

    fn decide_at_once(
        &self,
        key: Fingerprint,
        cost: u64,
        known: u64,
        others: &mut dyn FnMut(bool) -> Option<bool>,
    ) -> Option<(Decision, bool)> {
        if A::NEEDS_RELEASE {
            return None;
        }
        let table = &**self;
        let mut shard = table.of(key).lock();
        let now = table.clock().now();
        let existing = shard.existing(key, &Attempt::new(cost), now, table.clock())?;
        if known != 0 && known != existing.generation() {
            return None;
        }
        let Existing { algorithm, state, now, .. } = existing;
        if holds_requests(algorithm) {
            return None;
        }
        let preview = algorithm.peek(state, now, cost);
        let is_admitted = others(preview.is_allowed())?;
        // A call that its own limit denies is checked nevertheless, because the algorithm may count the denial.
        let decision = match preview.is_allowed() && !is_admitted {
            true => preview,
            false => algorithm.check(state, now, cost),
        };
        table.calls().add(CallOutcome::of_joint(&decision, is_admitted));
        Some((decision, is_admitted && decision.is_allowed()))
    }

    fn lock(&self, location: Location) -> *const () {
        ptr::from_ref((**self).shard(location)).cast()
    }

    fn hold(&self, location: Location) -> Box<dyn ErasedShard + '_> {
        let shard = (**self).shard(location).lock();
        // The clock is read while the shard is locked, so that no other call on the shard has a later reading.
        let now = (**self).clock().now();
        Box::new(ShardGuard { table: self, shard, now, new: Vec::new(), wake: Vec::new() })
    }

    fn undo(&self, key: Fingerprint, cost: u64, algorithm: Option<&AnyAlgorithm>) -> Undo {
        let table = Arc::clone(self);
        let algorithm = algorithm.and_then(|algorithm| algorithm.downcast_ref::<A>()).cloned();
        Box::new(move |charged_at| {
            Table::undo(&table, key, algorithm.as_ref(), cost, charged_at);
        })
    }

    fn try_reserve(
        &self,
        key: Fingerprint,
        cost: u64,
        priority: bool,
        algorithm: Option<&AnyAlgorithm>,
    ) -> Reserve {
        let table = Arc::clone(self);
        let algorithm = algorithm.and_then(|algorithm| algorithm.downcast_ref::<A>()).cloned();
        Box::new(move |charged_at| {
            MemoryCharge::new(table, key, algorithm, cost, priority, charged_at).into()
        })
    }
}
