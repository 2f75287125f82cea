//! The release of due waiters.

use std::task::Waker;

use super::waiter::{LastRelease, Released, Waiter};
use super::{Arrival, PollTurn, Queue, QueueView, queue_config};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;

impl<A: Algorithm> Queue<A> {
    /// Releases all due waiters.
    pub(crate) fn release(&mut self, base: &A, state: &mut A::State, now: Nanos, wake: &mut Vec<Waker>) {
        if self.is_known_to_wait(base, state, now) {
            return;
        }
        // The key may have observed the clock since the last access to the queue. Only a reading before the key's
        // latest reading means that the clock was set back.
        self.seen = self.seen.max(base.last_update(state));
        let known = self.released.len();
        let mut remaining = Vec::new();
        while let Some(first) = self.waiting.front() {
            let cost = first.cost;
            let before = A::UNDO_BY_COPY.then(|| state.clone());
            let arrived = first.arrived.max(self.since);
            let admitted = first.algorithm(base).admit_queued(state, now, arrived, cost);
            self.observe_time(base.last_update(state));
            let Some(at) = admitted else { break };
            // If the first of the released waiters was released on time, the other waiters were as well.
            if remaining.is_empty() {
                self.record_departure(base, at);
            }
            let Some(Waiter { ticket, tier, arrived, permit, waker, .. }) = self.waiting.pop_front() else {
                break;
            };
            self.ahead -= u128::from(cost);
            self.undo = Some(LastRelease { ticket, cost, at: self.seen, before });
            remaining.push((self.waiting.len(), self.ahead));
            let decision = Decision::allow(0, 0, 0).with_delay(now.saturating_since(arrived));
            // A bucket may admit a call without advancing its state to `now`.
            let charged_at = now.max(self.seen);
            self.released.push_back(Released { ticket, cost, tier, decision, charged_at, permit });
            wake.extend(waker);
        }
        wake.extend(self.head_waker(base, state, now));
        if !remaining.is_empty() {
            self.decide_released(base, state, now, known, &remaining);
        }
    }

    /// Returns whether an earlier access has computed that no waiter is due at `now`.
    ///
    /// If the result is `true`, only the queue records the reading `now`, and the state is not advanced to `now`. If
    /// the clock is later set back to before this reading, the state is advanced to this reading before it observes the
    /// earlier one.
    #[inline]
    fn is_known_to_wait(&mut self, base: &A, state: &mut A::State, now: Nanos) -> bool {
        let (Some(checked_at), Some(ready_at)) = (self.checked_at, self.ready_at) else { return false };
        self.observe_checked(base, state, now);
        let is_known = checked_at <= now && now < ready_at;
        self.checked_at = is_known.then_some(now);
        is_known
    }

    /// Advances the state to the latest reading that only the queue has recorded, if the clock was set back since.
    fn observe_checked(&self, base: &A, state: &mut A::State, now: Nanos) {
        if let Some(checked_at) = self.checked_at.filter(|checked_at| now < *checked_at) {
            let _ = base.peek(state, checked_at, 0);
        }
    }

    /// Records the time at which the first waiter is released, as computed at `now`. Returns that time. If the time is
    /// unknown, returns [`Nanos::MAX`], and each access computes the time again.
    pub(super) fn set_ready_at(&mut self, ready_at: Option<Nanos>, now: Nanos) -> Nanos {
        self.checked_at = ready_at.map(|_| now);
        *self.ready_at.insert(ready_at.unwrap_or(Nanos::MAX))
    }

    /// Records that the first waiter was released at `at`. If `at` is later than the computed time, the waiters behind
    /// the released waiter are delayed, and the projection is only approximate. If no time was computed, the projection
    /// also counts as approximate.
    fn record_departure(&mut self, base: &A, at: Nanos) {
        if self.ready_at.is_none_or(|ready_at| at > ready_at) {
            self.is_stale = true;
            // The schedule of a bucket has moved, which is rare. The decisions of the released calls must be computed
            // from the new schedule.
            if A::ADDS_UP || queue_config(base).is_counted() {
                self.projection = None;
            }
        }
    }

    /// Simulates the release of all due waiters on `state`, which is a copy of the key's state. Returns the number of
    /// due waiters.
    pub(crate) fn simulate_due(&mut self, base: &A, state: &mut A::State, now: Nanos) -> usize {
        let mut released = 0;
        self.observe_checked(base, state, now);
        let seen = self.seen.max(base.last_update(state));
        for waiter in &self.waiting {
            let arrived = waiter.arrived.max(self.since);
            let admitted = waiter.algorithm(base).admit_queued(state, now, arrived, waiter.cost);
            let Some(at) = admitted else { break };
            self.is_stale |= released == 0 && self.ready_at.is_none_or(|ready_at| at > ready_at);
            released += 1;
        }
        if base.last_update(state) < seen {
            self.projection = None;
        }
        released
    }

    /// Computes the time at which the first waiter is released. Returns the waker of this waiter if the release is
    /// before the time of the waiter's timer.
    pub(super) fn head_waker(&mut self, base: &A, state: &mut A::State, now: Nanos) -> Option<Waker> {
        let first = self.waiting.front()?;
        let ready_at = first.algorithm(base).ready_at(state, now, first.cost);
        let ready_at = self.set_ready_at(ready_at, now);
        self.observe_time(base.last_update(state));
        let first = self.waiting.front()?;
        first.waker.clone().filter(|_| first.wake_at > ready_at)
    }

    /// Updates the key's time to `seen`. If the clock was set back, moves the times of the waiters back as well.
    fn observe_time(&mut self, seen: Nanos) {
        if seen < self.seen {
            let back = self.seen.saturating_since(seen);
            for waiter in &mut self.waiting {
                waiter.arrived = waiter.arrived.min(seen);
                waiter.deadline = earlier(waiter.deadline, back);
                waiter.wake_at = earlier(waiter.wake_at, back);
            }
            self.since = self.since.min(seen);
            self.projection = None;
        }
        self.seen = seen;
    }

    /// Computes the decisions of the calls that were just released. Each decision describes the queue as it was right
    /// after the release. The `reset_after` of a decision may come from an approximate projection, because the exact
    /// projection is not recomputed for each released call.
    fn decide_released(
        &mut self,
        base: &A,
        state: &mut A::State,
        now: Nanos,
        known: usize,
        remaining: &[(usize, u128)],
    ) {
        self.ensure_approximate_projection(base, state, now, 0);
        for (at, (waiting, ahead)) in (known..).zip(remaining) {
            let tier = self.released[at].tier.take();
            let algorithm = tier.as_deref().unwrap_or(base);
            let mut view = QueueView::behind(base, algorithm, state, self, 0).with(*waiting, *ahead);
            let decision = view.admission(now, false);
            // The cost of 0 keeps the call allowed even if a lockout began while the call waited.
            let decision = algorithm.report(state, now, 0, false, decision);
            let released = &mut self.released[at];
            let delay = released.decision.delay();
            released.decision = decision.with_delay(Nanos::from(delay).0);
            released.tier = tier;
        }
    }

    /// Polls a waiter. Due waiters must have been [released](Queue::release).
    ///
    /// Also returns a waker that is no longer needed. This waker must be dropped while no lock is held, because
    /// dropping a waker may run any code.
    pub(crate) fn ask(
        &mut self,
        base: &A,
        state: &mut A::State,
        now: Nanos,
        ticket: u64,
        waker: &Waker,
    ) -> (PollTurn, Option<Waker>) {
        if let Some(released) = self.take_released(ticket) {
            self.undo.take_if(|undo| undo.ticket == ticket);
            if released.decision.is_allowed() {
                released.permit.forget();
            }
            return (PollTurn::Ready(released.decision, released.charged_at), None);
        }
        let Ok(at) = self.find(ticket) else { unreachable!("a waiter is in its queue until it is released") };
        // `Nanos::MAX` means that the call has no deadline, because its maximum wait was checked when it was queued.
        if self.waiting[at].deadline <= now && self.waiting[at].deadline < Nanos::MAX {
            return self.time_out(base, state, now, at);
        }
        // Waiters behind the first keep their timers, unless a timer fired too early, for example because the algorithm
        // was replaced.
        if at == 0 || self.waiting[at].wake_at <= self.seen.max(now) {
            let ready_at = match at {
                0 => self.ready_at,
                _ if !queue_config(base).is_timed() => None,
                _ => {
                    let mut ahead = self.after(base, state, now, 0..at);
                    let waiter = &self.waiting[at];
                    let ready_at = waiter.algorithm(base).ready_at(&mut ahead.state, ahead.at, waiter.cost);
                    ready_at.map(|ready_at| ready_at.max(ahead.at))
                }
            };
            self.waiting[at].wake_at = ready_at.unwrap_or(Nanos::MAX).min(self.waiting[at].deadline);
        }
        let waiter = &mut self.waiting[at];
        let spare = match &waiter.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => waiter.waker.replace(waker.clone()),
        };
        (PollTurn::NotBefore(waiter.wake_at), spare)
    }

    /// Denies a waiter that has reached its `max_wait`.
    fn time_out(
        &mut self,
        base: &A,
        state: &mut A::State,
        now: Nanos,
        at: usize,
    ) -> (PollTurn, Option<Waker>) {
        let Some(waiter) = self.remove(base, now, at) else { unreachable!("it was found") };
        let arrival = Arrival { may_wait: false, ..Arrival::new(now, waiter.cost) };
        let decision = self.view(base, waiter.algorithm(base), state, now).reject(arrival);
        let decision = decision.with_delay(now.saturating_since(waiter.arrived));
        (PollTurn::Ready(decision, now), waiter.waker)
    }

    pub(super) fn take_released(&mut self, ticket: u64) -> Option<Released<A>> {
        let at = self.released.binary_search_by_key(&ticket, |released| released.ticket).ok()?;
        self.released.remove(at)
    }
}

/// Moves an instant back by `back`, the time by which the clock was set back. `Nanos::MAX` means never, and is returned
/// unchanged.
fn earlier(instant: Nanos, back: u64) -> Nanos {
    match instant {
        Nanos::MAX => Nanos::MAX,
        Nanos(instant) => Nanos(instant.saturating_sub(back)),
    }
}
