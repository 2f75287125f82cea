//! The queue of one key: the waiters, their order, and their release.
//!
//! A queue is a list of waiters beside the key's state. It reads no clock and never sleeps: the caller of any
//! of its methods passes the time, and takes the wakers to wake once the locks are released.
//!
//! The time at which a waiter is released is computed from the schedule on every access, and not stored. So a
//! waiter that is removed leaves no gap: those behind it move up. Every access releases all due waiters; so a
//! queue moves on even if its first waiter's task is not polled, and a new call never finds a slot taken that
//! is free by the schedule.
//!
//! Each waiter has one timer. That of the first is set to the time of its release. The others' are set to that
//! time as computed when they arrived, which is never too early; a waiter that becomes the first, or whose
//! predecessor is cancelled, is woken once to set its timer again.
//!
//! Whether a new call's wait is short enough is computed on a *projected* state, the *tail*: a copy on which
//! every waiter ahead has been admitted at its scheduled time. A new waiter adds itself to it, which takes
//! constant time; after something unforeseen (a call was cancelled, a timer was late for a window, the
//! algorithm was replaced) the next call that needs it computes it anew, in proportion to the length of the
//! queue. So any algorithm that can say when *one* call can be admitted can have a queue, and what is reported
//! is exact whatever the calls cost.

#[cfg(test)]
mod tests;
mod view;
mod waiter;

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use self::waiter::{Evicted, LastRelease, Released, Waiter};
use crate::algorithm::{Admission, Queueing, Semaphore, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

pub(crate) use view::{Arrival, Fate, QueueView};
pub(crate) use waiter::{Enqueued, PollTurn};

/// The waiters of one key, and the released calls that have not observed their release yet.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    /// The waiters of all keys.
    total: Semaphore,
    waiting: VecDeque<Waiter>,
    /// The total cost of all waiters.
    ahead: u128,
    /// The state after every waiter has been admitted at its scheduled time. Computed on demand, and valid as
    /// long as nothing else happens.
    tail: Option<S>,
    /// Set when a waiter was released late or a release was undone: `tail` is approximate until it is
    /// recomputed.
    is_stale: bool,
    /// The released calls, in the order of their tickets.
    released: VecDeque<Released>,
    /// The latest release, as long as nothing was admitted after it.
    undo: Option<LastRelease<S>>,
    next_ticket: u64,
    /// The time at which the schedule began anew: no waiter is owed a slot before it.
    since: Nanos,
    /// The key's time at the last access.
    seen: Nanos,
}

impl<S> Queue<S> {
    /// Creates an empty queue whose waiters count towards `total`.
    pub(crate) fn new(total: Semaphore) -> Self {
        Self {
            total,
            waiting: VecDeque::new(),
            ahead: 0,
            tail: None,
            is_stale: false,
            released: VecDeque::new(),
            undo: None,
            next_ticket: 0,
            since: Nanos::ZERO,
            seen: Nanos::ZERO,
        }
    }

    /// Returns the number of waiters and of released calls that have not observed their release yet.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.released.len()
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of waiters, including those that are due.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Forgets the last release, since a call bypassed the queue: the release can no longer be undone.
    pub(crate) fn commit_release(&mut self) {
        self.undo = None;
        self.tail = None;
    }

    /// Discards the projection, since the state changed to another algorithm or back.
    pub(crate) fn invalidate(&mut self) {
        self.tail = None;
    }

    /// Ends a call of `cost`: its key holds that much less, both now and in the projection.
    pub(crate) fn end(&mut self, queueing: &dyn Queueing<S>, cost: u64) {
        match &mut self.tail {
            Some(tail) if !queueing.is_timed() => queueing.end(tail, cost),
            _ => self.tail = None,
        }
    }

    /// Begins the schedule anew, since the state was reset: the first waiter may be admitted now, and the
    /// others after it.
    pub(crate) fn reset_schedule(&mut self, now: Nanos) {
        self.commit_release();
        self.since = now;
    }
}

impl<S: Clone> Queue<S> {
    /// Returns the queue as a call sees it that arrives now. Due waiters must have been
    /// [released](Queue::release).
    pub(crate) fn view<'a>(
        &'a mut self,
        queueing: &'a dyn Queueing<S>,
        state: &'a mut S,
        now: Nanos,
    ) -> QueueView<'a, S> {
        self.view_after(queueing, state, now, 0)
    }

    /// Returns the queue as it will be after the first `gone` waiters were admitted, which `state` accounts
    /// for.
    pub(crate) fn view_after<'a>(
        &'a mut self,
        queueing: &'a dyn Queueing<S>,
        state: &'a mut S,
        now: Nanos,
        gone: usize,
    ) -> QueueView<'a, S> {
        self.ensure_exact_projection(queueing, state, now, gone);
        QueueView::behind(queueing, state, self, gone)
    }

    /// Simulates releasing all due waiters on `state`, a copy of the key's state. Returns their number.
    pub(crate) fn simulate_due(&mut self, queueing: &dyn Queueing<S>, state: &mut S, now: Nanos) -> usize {
        let mut left = 0;
        for waiter in &self.waiting {
            match queueing.depart(state, now, waiter.arrived.max(self.since), waiter.cost) {
                Admission::NotReady => break,
                Admission::OnSchedule => {}
                Admission::Late => self.is_stale = true,
            }
            left += 1;
        }
        let seen = queueing.observe(state, now);
        if seen < self.seen {
            self.tail = None;
        }
        left
    }

    /// Computes the exact projection, ignoring the first `gone` waiters.
    fn ensure_exact_projection(&mut self, queueing: &dyn Queueing<S>, state: &S, now: Nanos, gone: usize) {
        if self.is_stale {
            self.tail = None;
        }
        self.ensure_approximate_projection(queueing, state, now, gone);
    }

    /// Computes the projection if there is none.
    fn ensure_approximate_projection(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &S,
        now: Nanos,
        gone: usize,
    ) {
        match &mut self.tail {
            _ if self.waiting.is_empty() => (self.tail, self.is_stale) = (None, false),
            Some(tail) => advance_projection(queueing, tail, now),
            None => {
                self.tail = Some(self.after(queueing, state, gone..self.waiting.len()));
                self.is_stale = false;
            }
        }
    }

    /// Returns the state after the waiters in the range `part` have been admitted, each at its scheduled time.
    fn after(&self, queueing: &dyn Queueing<S>, state: &S, part: std::ops::Range<usize>) -> S {
        let (mut state, seen) = (state.clone(), queueing.time(state));
        for waiter in self.waiting.range(part) {
            queueing.follow(&mut state, waiter.eligible_since(self.since, seen), waiter.cost);
        }
        state
    }

    /// Releases all due waiters.
    pub(crate) fn release(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        wake: &mut Vec<Waker>,
    ) {
        let known = self.released.len();
        let mut remaining = Vec::new();
        while let Some(first) = self.waiting.front() {
            let (before, cost) = (queueing.keep(state), first.cost);
            let departure = queueing.depart(state, now, first.arrived.max(self.since), cost);
            self.observe_time(queueing.time(state));
            if departure == Admission::NotReady {
                break;
            }
            match departure {
                // The schedule has moved, which is rare: the released calls are answered by the new one.
                Admission::Late if queueing.keeps_schedule() => self.tail = None,
                Admission::Late => self.is_stale = true,
                Admission::OnSchedule | Admission::NotReady => {}
            }
            let Some(Waiter { ticket, arrived, place, waker, .. }) = self.waiting.pop_front() else { break };
            self.ahead -= u128::from(cost);
            self.undo = Some(LastRelease { ticket, cost, at: self.seen, before });
            remaining.push((self.waiting.len(), self.ahead));
            let decision = Decision::allow(0, 0, 0).with_delay(now.saturating_since(arrived));
            // A bucket need not bring its state up to `now` for that.
            let charged_at = now.max(self.seen);
            self.released.push_back(Released { ticket, cost, decision, charged_at, place });
            wake.extend(waker);
        }
        let seen = queueing.observe(state, now);
        self.observe_time(seen);
        wake.extend(self.head_waker(queueing, state));
        if !remaining.is_empty() {
            self.decide_released(queueing, state, now, known, &remaining);
        }
    }

    /// Updates the key's time to `seen`. If the clock was set back, no waiter counts as arrived later than now.
    fn observe_time(&mut self, seen: Nanos) {
        if seen < self.seen {
            let back = self.seen.saturating_since(seen);
            for waiter in &mut self.waiting {
                waiter.arrived = waiter.arrived.min(seen);
                waiter.deadline = earlier(waiter.deadline, back);
                waiter.wake_at = earlier(waiter.wake_at, back);
            }
            self.since = self.since.min(seen);
            self.tail = None;
        }
        self.seen = seen;
    }

    /// Decides what the calls that were just released report, each with the queue as it was left. The time
    /// until the key is fresh comes from the projection as it is, exact or not: it is not recomputed for each
    /// released call.
    fn decide_released(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        known: usize,
        remaining: &[(usize, u128)],
    ) {
        self.ensure_approximate_projection(queueing, state, now, 0);
        let mut reported = Vec::with_capacity(remaining.len());
        for (waiting, ahead) in remaining {
            let mut view = QueueView::behind(queueing, state, self, 0).with(*waiting, *ahead);
            let decision = view.admission(now, false);
            // As for a call that costs nothing more: it is allowed, even if a lockout began meanwhile.
            reported.push(queueing.answer(state, now, 0, false, decision));
        }
        for (released, decision) in self.released.iter_mut().skip(known).zip(reported) {
            let delay = released.decision.delay();
            released.decision = decision.with_delay(Nanos::from(delay).0);
        }
    }

    /// Decides a new call, or queues it. Due waiters must have been [released](Queue::release).
    pub(crate) fn try_enqueue(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Enqueued {
        let Arrival { now, cost, .. } = arrival;
        let config = queueing.queue_config(state);
        let has_place = (self.waiting.len() as u64) < config.places() && self.total.available() > 0;
        let waits = arrival.may_wait
            && queueing.fits(state, cost)
            && !queueing.bars(state)
            && queueing.lends(state).is_none();
        match waits && has_place && arrival.queue_config(config) == u64::MAX {
            // It waits, however long that takes.
            true => self.ensure_approximate_projection(queueing, state, now, 0),
            false => self.ensure_exact_projection(queueing, state, now, 0),
        }
        let mut view = QueueView::behind(queueing, state, self, 0);
        match view.decide(arrival) {
            Fate::Decided(decision) => {
                if decision.is_allowed() && cost > 0 {
                    self.commit_release();
                }
                Enqueued::Decided(decision)
            }
            Fate::Full if view.drops_oldest() => self.evict_and_enqueue(queueing, state, arrival, wake),
            Fate::Full => Enqueued::Decided(view.reject(arrival)),
            Fate::Waits => self.join(queueing, state, arrival),
        }
    }

    /// Queues a call in a full queue and rejects the oldest waiter, if the call can then wait.
    fn evict_and_enqueue(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Enqueued {
        let now = arrival.now;
        let Some(oldest) = self.pop_oldest_if(queueing, state, arrival) else {
            return Enqueued::Decided(self.view(queueing, state, now).reject(arrival));
        };
        let (deadline, wake_at) = (oldest.deadline, oldest.wake_at);
        let oldest = Evicted::from(oldest);
        let entered = self.join(queueing, state, arrival);
        let Enqueued::Queued(_) = entered else {
            // The total of all keys is full, though this queue has a free place.
            if let Some((slot, place)) = self.total.try_acquire_one().zip(queueing.join(oldest.cost)) {
                let Evicted { ticket, cost, arrived, waker } = oldest;
                let waiter = Waiter { ticket, cost, arrived, deadline, wake_at, waker, _slot: slot, place };
                self.ahead += u128::from(cost);
                self.waiting.push_front(waiter);
                self.tail = None;
                return entered;
            }
            wake.extend(self.reject_evicted(queueing, state, oldest, now));
            return entered;
        };
        wake.extend(self.reject_evicted(queueing, state, oldest, now));
        wake.extend(self.head_waker(queueing, state));
        entered
    }

    /// Rejects an evicted waiter. Its `retry_after` waits for a free place.
    fn reject_evicted(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        gone: Evicted,
        now: Nanos,
    ) -> Option<Waker> {
        let arrival = Arrival { dropped: true, ..Arrival::new(now, gone.cost) };
        let refusal = self.view(queueing, state, now).reject(arrival);
        self.reject(gone, refusal, now)
    }

    /// Queues a call, if the total of all keys has a free place.
    fn join(&mut self, queueing: &dyn Queueing<S>, state: &mut S, arrival: Arrival) -> Enqueued {
        let Arrival { now, cost, .. } = arrival;
        let Some((slot, place)) = self.total.try_acquire_one().zip(queueing.join(cost)) else {
            // As for a call that does not wait: it is unknown which queue moves first.
            let arrival = Arrival { may_wait: false, ..arrival };
            return Enqueued::Decided(self.view(queueing, state, now).reject(arrival));
        };
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let tail = self.tail.get_or_insert_with(|| state.clone());
        let wake_at = queueing.turn(tail, cost);
        let deadline = if queueing.is_timed() {
            Nanos::MAX
        } else {
            now.saturating_add(arrival.queue_config(queueing.queue_config(state)))
        };
        queueing.follow(tail, now.min(queueing.time(state)), cost);
        self.ahead += u128::from(cost);
        let wake_at = wake_at.min(deadline);
        self.waiting.push_back(Waiter {
            ticket,
            cost,
            arrived: now,
            deadline,
            wake_at,
            waker: None,
            _slot: slot,
            place,
        });
        Enqueued::Queued(ticket)
    }

    /// Removes the oldest waiter from the queue, if the new call can then wait in its place.
    fn pop_oldest_if(&mut self, queueing: &dyn Queueing<S>, state: &S, arrival: Arrival) -> Option<Waiter> {
        let Arrival { now, cost, .. } = arrival;
        let oldest = self.waiting.front()?;
        let mut tail = self.tail.clone().filter(|_| !self.is_stale);
        let now_seen = queueing.time(state);
        let is_shorter =
            |tail: &mut S| queueing.time(tail) <= now_seen && queueing.unfollow(tail, oldest.cost);
        let tail = match tail.take_if(is_shorter) {
            Some(tail) => tail,
            None => self.after(queueing, state, 1..self.waiting.len()),
        };
        if !queueing.in_time(&tail, cost, now, arrival.queue_config(queueing.queue_config(state))) {
            return None;
        }
        self.tail = Some(tail);
        self.ahead -= u128::from(oldest.cost);
        self.waiting.pop_front()
    }

    /// Returns the waker of the first waiter, if its release has moved forward.
    fn head_waker(&self, queueing: &dyn Queueing<S>, state: &S) -> Option<Waker> {
        let first = self.waiting.front()?;
        first.waker.clone().filter(|_| first.wake_at > queueing.turn(state, first.cost))
    }

    /// Reports a rejection to a call that has waited. Returns the waker to wake.
    fn reject(&mut self, gone: Evicted, refusal: Decision, now: Nanos) -> Option<Waker> {
        let Evicted { ticket, cost, arrived, waker } = gone;
        let decision = refusal.with_delay(now.saturating_since(arrived));
        self.released.push_back(Released {
            ticket,
            cost,
            decision,
            charged_at: now,
            place: SharedPermit::default(),
        });
        waker
    }

    /// Polls a waiter. Due waiters must have been [released](Queue::release).
    ///
    /// Also returns a waker that is no longer needed, to be dropped while no lock is held: dropping one may run
    /// any code.
    pub(crate) fn ask(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        ticket: u64,
        waker: &Waker,
    ) -> (PollTurn, Option<Waker>) {
        if let Some(released) = self.take_released(ticket) {
            self.undo.take_if(|undo| undo.ticket == ticket);
            if released.decision.is_allowed() {
                released.place.forget();
            }
            return (PollTurn::Ready(released.decision, released.charged_at), None);
        }
        let seen = queueing.observe(state, now);
        let Ok(at) = self.find(ticket) else { unreachable!("a waiter is in its queue until it is released") };
        if self.waiting[at].deadline <= now && !queueing.is_timed() {
            return self.time_out(queueing, state, now, at);
        }
        // The others keep their timers, unless a timer fired too early because the algorithm was replaced.
        if at == 0 || self.waiting[at].wake_at <= seen {
            let turn = match at {
                0 => queueing.turn(state, self.waiting[at].cost),
                _ => queueing.turn(&self.after(queueing, state, 0..at), self.waiting[at].cost),
            };
            self.waiting[at].wake_at = turn.min(self.waiting[at].deadline);
        }
        let waiter = &mut self.waiting[at];
        let spare = match &waiter.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => waiter.waker.replace(waker.clone()),
        };
        (PollTurn::NotBefore(waiter.wake_at), spare)
    }

    /// Rejects a waiter that has reached its `max_wait`.
    fn time_out(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        at: usize,
    ) -> (PollTurn, Option<Waker>) {
        let Some(waiter) = self.waiting.remove(at) else { unreachable!("it was found") };
        self.ahead -= u128::from(waiter.cost);
        self.shorten(queueing, state, waiter.cost);
        let arrival = Arrival { may_wait: false, ..Arrival::new(now, waiter.cost) };
        let decision =
            self.view(queueing, state, now).reject(arrival).with_delay(now.saturating_since(waiter.arrived));
        (PollTurn::Ready(decision, now), waiter.waker)
    }

    /// Cancels a waiter, or a released call that has not observed its release. Its units are returned if
    /// nothing was admitted after it.
    ///
    /// Returns its waker, to be dropped while no lock is held.
    pub(crate) fn cancel(
        &mut self,
        queueing: &dyn Queueing<S>,
        state: &mut S,
        ticket: u64,
        wake: &mut Vec<Waker>,
    ) -> Option<Waker> {
        if let Ok(at) = self.find(ticket) {
            let waiter = self.waiting.remove(at)?;
            self.ahead -= u128::from(waiter.cost);
            self.shorten(queueing, state, waiter.cost);
            if let Some(behind) = self.waiting.get_mut(at) {
                // It is recomputed at the next poll.
                behind.wake_at = Nanos::ZERO;
                wake.extend(behind.waker.clone());
            }
            return waiter.waker;
        }
        let released = self.take_released(ticket);
        if let Some(undo) = self.undo.take_if(|undo| undo.ticket == ticket) {
            match undo.before {
                Some(before) => queueing.restore(state, before),
                None => queueing.take_back(state, undo.cost, undo.at),
            }
            self.is_stale = true;
        }
        if let Some(released) = released
            && released.decision.is_allowed()
        {
            queueing.end(state, released.cost);
        }
        None
    }

    /// Rejects all waiters. Released calls are admitted.
    pub(crate) fn close(&mut self, now: Nanos, refusal: Decision, wake: &mut Vec<Waker>) {
        for waiter in mem::take(&mut self.waiting) {
            wake.extend(self.reject(waiter.into(), refusal, now));
        }
        self.ahead = 0;
        self.tail = None;
    }

    /// Updates the projection after a waiter was removed, or discards it.
    fn shorten(&mut self, queueing: &dyn Queueing<S>, state: &S, cost: u64) {
        let now = queueing.time(state);
        // If time has passed for the waiters, the others are admitted sooner than at a fixed distance.
        self.tail.take_if(|tail| queueing.time(tail) > now || !queueing.unfollow(tail, cost));
    }

    fn take_released(&mut self, ticket: u64) -> Option<Released> {
        let at = self.released.binary_search_by_key(&ticket, |released| released.ticket).ok()?;
        self.released.remove(at)
    }

    fn find(&self, ticket: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }
}

/// Moves an instant back by `back`, as the clock was. `Nanos::MAX`, which means never, stays.
fn earlier(instant: Nanos, back: u64) -> Nanos {
    match instant {
        Nanos::MAX => Nanos::MAX,
        Nanos(instant) => Nanos(instant.saturating_sub(back)),
    }
}

/// Advances a projection to `now`. It may lie ahead of the clock, and must not take that for a clock that was
/// set back.
fn advance_projection<S>(queueing: &dyn Queueing<S>, tail: &mut S, now: Nanos) {
    if queueing.time(tail) < now {
        queueing.observe(tail, now);
    }
}
