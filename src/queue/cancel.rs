//! Waiters that leave the queue before their release, and releases that are undone.

use std::mem;
use std::task::Waker;

use super::Queue;
use super::waiter::{Displaced, Released, Waiter};
use crate::algorithm::{Algorithm, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

impl<A: Algorithm> Queue<A> {
    /// Cancels a waiter, or a released call whose future was not polled since the release. The charge of a released
    /// call is undone, unless another call was admitted since the release, or the state was changed in another way,
    /// such as by a refund. With an algorithm that [needs a release](Algorithm::NEEDS_RELEASE), the units of an
    /// admitted call are released in any case.
    ///
    /// Returns the waker of the call, which must be dropped while no lock is held.
    pub(crate) fn cancel(
        &mut self,
        base: &A,
        state: &mut A::State,
        now: Nanos,
        ticket: u64,
        wake: &mut Vec<Waker>,
    ) -> Option<Waker> {
        if let Ok(at) = self.find(ticket) {
            let waiter = self.remove(base, now, at)?;
            if let Some(behind) = self.waiting.get_mut(at) {
                // The time is recomputed at the next poll.
                behind.wake_at = Nanos::ZERO;
                wake.extend(behind.waker.clone());
            }
            return waiter.waker;
        }
        let released = self.take_released(ticket)?;
        let algorithm = released.tier.as_deref().unwrap_or(base);
        if let Some(undo) = self.undo.take_if(|undo| undo.ticket == ticket) {
            match undo.before {
                Some(before) => algorithm.restore(state, before),
                None => algorithm.undo(state, algorithm.last_update(state), undo.cost, undo.at),
            }
            (self.is_stale, self.checked_at) = (true, None);
        }
        if released.decision.is_allowed() {
            // The units of the call are subtracted from the totals when `released.permit` is dropped.
            algorithm.release(state, algorithm.last_update(state), released.cost);
            self.checked_at = None;
        }
        None
    }

    /// Removes the waiter at the index `at`.
    pub(super) fn remove(&mut self, base: &A, now: Nanos, at: usize) -> Option<Waiter<A>> {
        let waiter = self.waiting.remove(at)?;
        self.ahead -= u128::from(waiter.cost);
        if at == 0 {
            self.ready_at = None;
        }
        let algorithm = waiter.algorithm(base);
        self.projection.take_if(|projection| !projection.remove(algorithm, now, waiter.cost));
        Some(waiter)
    }

    /// Records the denial of a waiter, which the next poll of the waiter returns. Returns the waker of the waiter.
    pub(super) fn reject(&mut self, displaced: Displaced<A>, refusal: Decision, now: Nanos) -> Option<Waker> {
        let Displaced { ticket, cost, tier, arrived, waker } = displaced;
        let decision = refusal.with_delay(now.saturating_since(arrived));
        let permit = SharedPermit::default();
        self.released.push_back(Released { ticket, cost, tier, decision, charged_at: now, permit });
        waker
    }

    /// Denies all waiters. Calls that were released before stay admitted.
    pub(crate) fn close(&mut self, now: Nanos, refusal: Decision, wake: &mut Vec<Waker>) {
        for waiter in mem::take(&mut self.waiting) {
            wake.extend(self.reject(waiter.into(), refusal, now));
        }
        self.ahead = 0;
        self.projection = None;
    }
}
