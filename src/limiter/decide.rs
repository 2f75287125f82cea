//! How a table decides new calls. Each operation stands here once, for all that call it: methods of a limiter, calls
//! with options, layers, and fallbacks of limiters in Redis.
//!
//! If the key has a state and no queue, and the limiter is open, the algorithm decides by the state in the key's slot.
//! This is the fast path. All other calls go through a [`Key`].

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Shared;
use super::attempt::Attempt;
use super::charge::{MemoryCharge, Reservable};
use super::contract::Acquired;
use super::fingerprint::Fingerprint;
use super::queue::{Enqueued, Key, check_to_queue};
use super::reservation::{Permit, Reservation};
use super::shard::{Locked, Shard};
use super::table::Table;
use super::wait::QueuedAcquire;
use crate::algorithm::{Algorithm, SharedPermit, holds_requests};
use crate::clock::Nanos;
use crate::decision::{Decision, Denied};
use crate::stats::CallOutcome;
use crate::sys::lock::SpinGuard;

/// A call that was charged, and has no reservation yet. If the algorithm panics when it is cloned for the reservation,
/// the units that the call holds are released.
struct Charged<'k, 'a, A: Algorithm> {
    key: &'k mut Key<'a, A>,
    cost: u64,
}

impl<A: Algorithm> Drop for Charged<'_, '_, A> {
    fn drop(&mut self) {
        if A::NEEDS_RELEASE {
            let release = || {
                drop(SharedPermit::of_admitted(self.key.algorithm(), self.cost));
                self.key.end(self.cost);
            };
            // A second panic would end the process.
            let _ = catch_unwind(AssertUnwindSafe(release));
        }
    }
}

impl<A: Algorithm> Table<A> {
    /// Charges the call, or denies it. See [`RateLimiter::check_n`](crate::RateLimiter::check_n).
    #[inline]
    pub(super) fn check(&self, id: Fingerprint, call: Attempt<'_, A>) -> Decision {
        let Shared { clock, calls, .. } = &self.shared;
        let now = clock.now();
        let shard = self.of(id);
        if A::DENIALS_STAND
            && let Some(denial) = shard.standing_denial(id, now)
            && call.is_plain()
        {
            calls.add_decision(&denial, false);
            return denial;
        }
        let mut locked = shard.lock_for(&call);
        let Some((algorithm, state, now)) = locked.open(id, call.algorithm(), now, clock) else {
            shard.remove_denial();
            return self.check_slow(locked, id, call, now);
        };
        let decision = algorithm.check(state, now, call.cost());
        calls.add_decision(&decision, false);
        if !decision.is_allowed() && self.stands(&call, algorithm) {
            shard.keep_denial(id, now, &decision);
        }
        decision
    }

    /// Decides a call for which the fast path of [`check`](Self::check) has not all that it needs. `shard` is the
    /// locked shard of the key.
    #[cold]
    fn check_slow(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        id: Fingerprint,
        call: Attempt<'_, A>,
        now: Nanos,
    ) -> Decision {
        let locked = Locked::new(&self.shared, shard, id, Some(now));
        // The decision is not returned by the closure, because it would be copied several times.
        let mut checked = None;
        locked.call(call, |key| {
            let decision = checked.insert(key.check(call.cost()));
            self.shared.calls.add_decision(decision, false);
        });
        checked.unwrap_or_else(|| self.deny_without_room(id, call))
    }

    /// Returns the decision that [`check`](Self::check) would make. Charges nothing.
    pub(super) fn peek(&self, id: Fingerprint, call: Attempt<'_, A>) -> Decision {
        self.lock(id).peek(call.algorithm(), |key| key.peek(call.cost()))
    }

    /// Charges the call, queues it, or denies it. See [`LimiterFor::acquire`](super::LimiterFor::acquire).
    #[inline]
    pub(super) fn acquire(
        self: &Arc<Self>,
        id: Fingerprint,
        call: Attempt<'_, A>,
    ) -> Acquired<QueuedAcquire<A>> {
        if call.has_priority() {
            self.heeds_priority(call.algorithm());
        }
        let Shared { clock, calls, .. } = &self.shared;
        let now = clock.now();
        let shard = self.of(id);
        if A::DENIALS_STAND
            && let Some(denial) = shard.standing_denial(id, now)
            && call.is_plain()
        {
            calls.add_decision(&denial, call.is_in_shadow());
            return Acquired::Ready(denial, Reservation::default());
        }
        let mut locked = shard.lock_for(&call);
        let open = if A::NEEDS_RELEASE { None } else { locked.open(id, call.algorithm(), now, clock) };
        let Some((algorithm, state, now)) = open else {
            shard.remove_denial();
            let locked = Locked::new(&self.shared, locked, id, Some(now));
            return self.acquire_slow(id, locked, call, None);
        };
        let queue = algorithm.queue_config().filter(|queue| call.may_wait() || queue.holds_requests());
        let decision = match queue {
            None => algorithm.check(state, now, call.cost()),
            Some(queue) => {
                let decision = check_to_queue(algorithm, state, now, call.cost(), queue);
                if !decision.is_allowed() {
                    let locked = Locked::new(&self.shared, locked, id, Some(now));
                    return self.acquire_slow(id, locked, call, Some(decision));
                }
                decision
            }
        };
        calls.add_decision(&decision, call.is_in_shadow());
        if !decision.is_allowed() && self.stands(&call, algorithm) {
            shard.keep_denial(id, now, &decision);
        }
        if !call.wants_reservation() || !decision.is_allowed() {
            return Acquired::Ready(decision, Reservation::default());
        }
        let charged_at = self.shared.charge_time(algorithm.last_update(state));
        drop(locked);
        Acquired::Ready(decision, Reservation::of(MemoryCharge::new(self, id, call, charged_at)))
    }

    /// Decides or queues a call for which the fast path of [`acquire`](Self::acquire) has not all that it needs.
    /// `judged` is the denial of the algorithm at the clock reading of `locked`, if it was made.
    #[cold]
    fn acquire_slow(
        self: &Arc<Self>,
        id: Fingerprint,
        locked: Locked<'_, A>,
        call: Attempt<'_, A>,
        judged: Option<Decision>,
    ) -> Acquired<QueuedAcquire<A>> {
        let calls = &self.shared.calls;
        // Not returned by the closure, so that a waker that panics cancels the call, or releases its permit.
        let mut wait = None;
        let mut reservation = Reservation::default();
        let acquire = |key: &mut Key<'_, A>| match key.acquire(call, judged) {
            Enqueued::Decided(decision) => {
                calls.add_decision(&decision, call.is_in_shadow());
                if decision.is_allowed() {
                    reservation = self.reservation(key, id, call);
                }
                Some(decision)
            }
            Enqueued::Queued(ticket) => {
                self.of(id).remove_denial();
                calls.add(CallOutcome::Queued);
                // The wait comes first, so that the call leaves its queue if the algorithm panics.
                let wait = wait.insert(QueuedAcquire::new(Arc::clone(self), id, ticket, true));
                wait.hold(self.reservable(key, id, call));
                None
            }
        };
        let decided = if judged.is_some() {
            locked.with_known(call.algorithm(), acquire)
        } else {
            locked.call(call, acquire)
        };
        if let Some(wait) = wait {
            return Acquired::Pending(wait);
        }
        let decision = decided.flatten().unwrap_or_else(|| self.deny_without_room(id, call));
        Acquired::Ready(decision, reservation)
    }

    /// Charges the call as [`check`](Self::check) does. Also returns the permit of an admitted call or, if the call
    /// asks for a reservation, its charge.
    pub(super) fn reserve(
        self: &Arc<Self>,
        id: Fingerprint,
        call: Attempt<'_, A>,
    ) -> (Decision, Reservation) {
        // Not returned by the closure, so that a waker that panics releases the permit.
        let mut reservation = Reservation::default();
        let decided = self.lock(id).call(call, |key| {
            let decision = key.check(call.cost());
            self.shared.calls.add_decision(&decision, false);
            if decision.is_allowed() {
                reservation = self.reservation(key, id, call);
            }
            decision
        });
        (decided.unwrap_or_else(|| self.deny_without_room(id, call)), reservation)
    }

    /// Charges the call as [`check`](Self::check) does, and returns the permit of an admitted call.
    pub(super) fn permit(self: &Arc<Self>, id: Fingerprint, call: Attempt<'_, A>) -> Result<Permit, Denied> {
        let (decision, reservation) = self.reserve(id, call);
        self.shared.observed.checked(&decision);
        Permit::decided(decision, reservation)
    }

    /// Returns the reservation of a call that was just admitted. Its key is locked.
    fn reservation(
        self: &Arc<Self>,
        key: &mut Key<'_, A>,
        id: Fingerprint,
        call: Attempt<'_, A>,
    ) -> Reservation {
        let charged = Charged { key, cost: call.cost() };
        let held = self.reservable(charged.key, id, call);
        mem::forget(charged);
        held.map(|held| held.reserve(self)).unwrap_or_default()
    }

    /// Returns what the reservation of a call is made of that was just admitted or queued. Its key is locked.
    pub(super) fn reservable(
        self: &Arc<Self>,
        key: &Key<'_, A>,
        id: Fingerprint,
        call: Attempt<'_, A>,
    ) -> Option<Reservable<A>> {
        let cost = call.cost();
        if key.is_closed() {
            // A closed limiter charges nothing.
            None
        } else if A::NEEDS_RELEASE {
            (cost > 0).then(|| Reservable::Permit { id, algorithm: key.algorithm().clone(), cost })
        } else {
            let charge = || MemoryCharge::new(self, id, call, self.shared.charge_time(key.last_update()));
            call.wants_reservation().then(|| Reservable::Charge(charge()))
        }
    }

    /// Returns whether a denial of a call by `algorithm` may deny later calls. If the algorithm queues the requests of
    /// a layer, a denial by `check` must not deny a request that could wait.
    #[inline]
    fn stands(&self, call: &Attempt<'_, A>, algorithm: &A) -> bool {
        call.is_plain() && self.shared.clock.is_monotonic() && !holds_requests(algorithm)
    }

    /// Denies a call because there is no room for its key, and counts the call.
    #[cold]
    fn deny_without_room(&self, id: Fingerprint, call: Attempt<'_, A>) -> Decision {
        let denial = self.of(id).lock().deny_without_room(call.algorithm());
        self.shared.calls.add_decision(&denial, call.is_in_shadow());
        denial
    }
}
