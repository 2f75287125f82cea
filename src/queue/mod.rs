//! Who waits for one key, in what order, and who may go.
//!
//! A line is a list of waiters beside the key's state. It reads no clock and sleeps nowhere: whoever touches it
//! brings the time, and takes away the wakers to wake once the locks are released.
//!
//! Turns are computed from the schedule each time, not handed out. So a waiter that leaves takes nothing with it:
//! those behind stand further forward. Any touch releases everyone whose turn has come; so a line moves on though its
//! first waiter's task is not polled, and a newcomer never sees a place as taken that is free by the schedule.
//!
//! Each waiter has one alarm. The first one's is its turn. The others' is their turn as it stood when they came,
//! which is never too early; a waiter that becomes the first, or whose neighbour in front gives up, is woken once, to
//! set its alarm again.
//!
//! Whether a newcomer's wait is short enough is asked of the state as it will be when all before it have left, the
//! *tail*: each of them is let leave at its turn, in thought. A newcomer adds itself to that, which is constant time;
//! after something unforeseen (a call gave up, a timer was late for a window, the rule was changed) it is thought
//! through anew by the next who asks, in proportion to the line. So any rule that can say when *one* call may leave
//! can have a line, and what is told is exact whatever the calls cost.

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

/// The waiters of one key, and those released but not yet told.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    /// All who wait, for whatever key.
    total: Semaphore,
    waiting: VecDeque<Waiter>,
    /// The cost of all who wait.
    ahead: u128,
    /// The state as it will be when all who wait have left, each at its turn; once somebody has asked for it, and as
    /// long as nothing else happens.
    tail: Option<S>,
    /// Somebody has left late, or has not left after all: the tail is not far from what it would be, reckoned anew.
    is_stale: bool,
    /// In the order of their tickets.
    released: VecDeque<Released>,
    /// The latest release, as long as nothing was admitted after it.
    undo: Option<LastRelease<S>>,
    next_ticket: u64,
    /// When the schedule began anew: no slot before it is owed to anyone.
    since: Nanos,
    /// The key's time, when somebody last looked.
    seen: Nanos,
}

impl<S> Queue<S> {
    /// A line in which nobody waits, of those who belong to that crowd.
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

    /// How many calls this line still has to do with.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.released.len()
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many wait, those who might leave among them.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Something was admitted past the line: the latest release can no longer be taken back.
    pub(crate) fn commit_release(&mut self) {
        self.undo = None;
        self.tail = None;
    }

    /// The state goes by another rule, or no longer does: what was foreseen does not hold.
    pub(crate) fn invalidate(&mut self) {
        self.tail = None;
    }

    /// A call of `cost` is over, and its key holds that much less: now, and when all have left.
    pub(crate) fn end(&mut self, line: &dyn Queueing<S>, cost: u64) {
        match &mut self.tail {
            Some(tail) if !line.is_timed() => line.end(tail, cost),
            _ => self.tail = None,
        }
    }

    /// The state was made new: the first may leave now, and the others after it.
    pub(crate) fn reset_schedule(&mut self, now: Nanos) {
        self.commit_release();
        self.since = now;
    }
}

impl<S: Clone> Queue<S> {
    /// How the line looks to one who comes now. Those whose turn has come must have been [released](Queue::release).
    pub(crate) fn view<'a>(
        &'a mut self,
        line: &'a dyn Queueing<S>,
        state: &'a mut S,
        now: Nanos,
    ) -> QueueView<'a, S> {
        self.view_after(line, state, now, 0)
    }

    /// How it will look when so many of those in front have left; the state knows of that.
    pub(crate) fn view_after<'a>(
        &'a mut self,
        line: &'a dyn Queueing<S>,
        state: &'a mut S,
        now: Nanos,
        gone: usize,
    ) -> QueueView<'a, S> {
        self.ensure_exact_projection(line, state, now, gone);
        QueueView::behind(line, state, self, gone)
    }

    /// Lets everyone whose turn has come leave in thought, from `state`, a copy; how many that are.
    pub(crate) fn simulate_due(&mut self, line: &dyn Queueing<S>, state: &mut S, now: Nanos) -> usize {
        let mut left = 0;
        for waiter in &self.waiting {
            match line.depart(state, now, waiter.arrived.max(self.since), waiter.cost) {
                Admission::NotReady => break,
                Admission::OnSchedule => {}
                Admission::Late => self.is_stale = true,
            }
            left += 1;
        }
        let seen = line.observe(state, now);
        if seen < self.seen {
            self.tail = None;
        }
        left
    }

    /// Sees to it that there is a tail, and that it is exact, where so many of the line are as good as gone.
    fn ensure_exact_projection(&mut self, line: &dyn Queueing<S>, state: &S, now: Nanos, gone: usize) {
        if self.is_stale {
            self.tail = None;
        }
        self.ensure_approximate_projection(line, state, now, gone);
    }

    /// Sees to it that there is a tail.
    fn ensure_approximate_projection(&mut self, line: &dyn Queueing<S>, state: &S, now: Nanos, gone: usize) {
        match &mut self.tail {
            _ if self.waiting.is_empty() => (self.tail, self.is_stale) = (None, false),
            Some(tail) => advance_projection(line, tail, now),
            None => {
                self.tail = Some(self.after(line, state, gone..self.waiting.len()));
                self.is_stale = false;
            }
        }
    }

    /// The state after those in that part of the line have left, each at its turn.
    fn after(&self, line: &dyn Queueing<S>, state: &S, part: std::ops::Range<usize>) -> S {
        let (mut state, seen) = (state.clone(), line.time(state));
        for waiter in self.waiting.range(part) {
            line.follow(&mut state, waiter.eligible_since(self.since, seen), waiter.cost);
        }
        state
    }

    /// Releases everyone whose turn has come.
    pub(crate) fn release(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        wake: &mut Vec<Waker>,
    ) {
        let known = self.released.len();
        let mut remaining = Vec::new();
        while let Some(first) = self.waiting.front() {
            let (before, cost) = (line.keep(state), first.cost);
            let departure = line.depart(state, now, first.arrived.max(self.since), cost);
            self.observe_time(line.time(state));
            if departure == Admission::NotReady {
                break;
            }
            match departure {
                // The schedule has moved, which is rare: those who leave are answered by the new one.
                Admission::Late if line.keeps_schedule() => self.tail = None,
                Admission::Late => self.is_stale = true,
                Admission::OnSchedule | Admission::NotReady => {}
            }
            let Some(Waiter { ticket, arrived, place, waker, .. }) = self.waiting.pop_front() else { break };
            self.ahead -= u128::from(cost);
            self.undo = Some(LastRelease { ticket, cost, at: self.seen, before });
            remaining.push((self.waiting.len(), self.ahead));
            let decision = Decision::allow(0, 0, 0).with_delay(now.saturating_since(arrived));
            // A bucket need not bring its state up to now for that.
            let charged_at = now.max(self.seen);
            self.released.push_back(Released { ticket, cost, decision, charged_at, place });
            wake.extend(waker);
        }
        let seen = line.observe(state, now);
        self.observe_time(seen);
        wake.extend(self.head_waker(line, state));
        if !remaining.is_empty() {
            self.decide_released(line, state, now, known, &remaining);
        }
    }

    /// The key's time has come so far; or it was set back, and nobody came later than now.
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

    /// What those are told who were just released: each with so many left in the line. Until the key is as if never
    /// seen, that is told by the tail as it is, exact or not: the line is not thought through for each who leaves it.
    fn decide_released(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        known: usize,
        remaining: &[(usize, u128)],
    ) {
        self.ensure_approximate_projection(line, state, now, 0);
        let mut reported = Vec::with_capacity(remaining.len());
        for (waiting, ahead) in remaining {
            let mut view = QueueView::behind(line, state, self, 0).with(*waiting, *ahead);
            let decision = view.admission(now, false);
            // As one that costs nothing more: it passes, whatever is barred meanwhile.
            reported.push(line.answer(state, now, 0, false, decision));
        }
        for (released, decision) in self.released.iter_mut().skip(known).zip(reported) {
            let delay = released.decision.delay();
            released.decision = decision.with_delay(Nanos::from(delay).0);
        }
    }

    /// A call comes. Those whose turn has come must have been [released](Queue::release).
    pub(crate) fn try_enqueue(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Enqueued {
        let Arrival { now, cost, .. } = arrival;
        let patience = line.queue_config(state);
        let has_place = (self.waiting.len() as u64) < patience.places() && self.total.available() > 0;
        let waits =
            arrival.may_wait && line.fits(state, cost) && !line.bars(state) && line.lends(state).is_none();
        match waits && has_place && arrival.queue_config(patience) == u64::MAX {
            // It waits, however long that is.
            true => self.ensure_approximate_projection(line, state, now, 0),
            false => self.ensure_exact_projection(line, state, now, 0),
        }
        let mut view = QueueView::behind(line, state, self, 0);
        match view.decide(arrival) {
            Fate::Decided(decision) => {
                if decision.is_allowed() && cost > 0 {
                    self.commit_release();
                }
                Enqueued::Decided(decision)
            }
            Fate::Full if view.drops_oldest() => self.evict_and_enqueue(line, state, arrival, wake),
            Fate::Full => Enqueued::Decided(view.reject(arrival)),
            Fate::Waits => self.join(line, state, arrival),
        }
    }

    /// A call joins a line that is full, and the one that has waited longest is refused; if the call can then wait.
    fn evict_and_enqueue(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Enqueued {
        let now = arrival.now;
        let Some(oldest) = self.pop_oldest_if(line, state, arrival) else {
            return Enqueued::Decided(self.view(line, state, now).reject(arrival));
        };
        let (deadline, wake_at) = (oldest.deadline, oldest.wake_at);
        let oldest = Evicted::from(oldest);
        let entered = self.join(line, state, arrival);
        let Enqueued::Queued(_) = entered else {
            // There was no room in what all keys share, though a place was free.
            if let Some((slot, place)) = self.total.try_acquire_one().zip(line.join(oldest.cost)) {
                let Evicted { ticket, cost, arrived, waker } = oldest;
                let waiter = Waiter { ticket, cost, arrived, deadline, wake_at, waker, _slot: slot, place };
                self.ahead += u128::from(cost);
                self.waiting.push_front(waiter);
                self.tail = None;
                return entered;
            }
            wake.extend(self.reject_evicted(line, state, oldest, now));
            return entered;
        };
        wake.extend(self.reject_evicted(line, state, oldest, now));
        wake.extend(self.head_waker(line, state));
        entered
    }

    /// One that was dropped is told of a place that is free.
    fn reject_evicted(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        gone: Evicted,
        now: Nanos,
    ) -> Option<Waker> {
        let arrival = Arrival { dropped: true, ..Arrival::new(now, gone.cost) };
        let refusal = self.view(line, state, now).reject(arrival);
        self.reject(gone, refusal, now)
    }

    /// A call joins the line, if there is a place in the crowd.
    fn join(&mut self, line: &dyn Queueing<S>, state: &mut S, arrival: Arrival) -> Enqueued {
        let Arrival { now, cost, .. } = arrival;
        let Some((slot, place)) = self.total.try_acquire_one().zip(line.join(cost)) else {
            // As one that does not wait: nobody knows which line moves first.
            let arrival = Arrival { may_wait: false, ..arrival };
            return Enqueued::Decided(self.view(line, state, now).reject(arrival));
        };
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let tail = self.tail.get_or_insert_with(|| state.clone());
        let wake_at = line.turn(tail, cost);
        let deadline = if line.is_timed() {
            Nanos::MAX
        } else {
            now.saturating_add(arrival.queue_config(line.queue_config(state)))
        };
        line.follow(tail, now.min(line.time(state)), cost);
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

    /// Takes the one that has waited longest out of the line, if the newcomer can then wait in its stead.
    fn pop_oldest_if(&mut self, line: &dyn Queueing<S>, state: &S, arrival: Arrival) -> Option<Waiter> {
        let Arrival { now, cost, .. } = arrival;
        let oldest = self.waiting.front()?;
        let mut tail = self.tail.clone().filter(|_| !self.is_stale);
        let now_seen = line.time(state);
        let is_shorter = |tail: &mut S| line.time(tail) <= now_seen && line.unfollow(tail, oldest.cost);
        let tail = match tail.take_if(is_shorter) {
            Some(tail) => tail,
            None => self.after(line, state, 1..self.waiting.len()),
        };
        if !line.in_time(&tail, cost, now, arrival.queue_config(line.queue_config(state))) {
            return None;
        }
        self.tail = Some(tail);
        self.ahead -= u128::from(oldest.cost);
        self.waiting.pop_front()
    }

    /// Whoever is the first, if its turn has moved up.
    fn head_waker(&self, line: &dyn Queueing<S>, state: &S) -> Option<Waker> {
        let first = self.waiting.front()?;
        first.waker.clone().filter(|_| first.wake_at > line.turn(state, first.cost))
    }

    /// One that has waited is told that it is refused. Gives back whom to wake.
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

    /// A waiter asks for its turn. Those whose turn has come must have been [released](Queue::release).
    ///
    /// Gives back a waker that is no longer needed, to be dropped when no lock is held: dropping one may run anything.
    pub(crate) fn ask(
        &mut self,
        line: &dyn Queueing<S>,
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
        let seen = line.observe(state, now);
        let Ok(at) = self.find(ticket) else { unreachable!("a waiter is in its line until it is released") };
        if self.waiting[at].deadline <= now && !line.is_timed() {
            return self.time_out(line, state, now, at);
        }
        // The others keep theirs, unless it has rung too early: the rule was replaced.
        if at == 0 || self.waiting[at].wake_at <= seen {
            let turn = match at {
                0 => line.turn(state, self.waiting[at].cost),
                _ => line.turn(&self.after(line, state, 0..at), self.waiting[at].cost),
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

    /// It has waited as long as it may.
    fn time_out(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        now: Nanos,
        at: usize,
    ) -> (PollTurn, Option<Waker>) {
        let Some(waiter) = self.waiting.remove(at) else { unreachable!("it was found") };
        self.ahead -= u128::from(waiter.cost);
        self.shorten(line, state, waiter.cost);
        let arrival = Arrival { may_wait: false, ..Arrival::new(now, waiter.cost) };
        let decision =
            self.view(line, state, now).reject(arrival).with_delay(now.saturating_since(waiter.arrived));
        (PollTurn::Ready(decision, now), waiter.waker)
    }

    /// A waiter gives up, or one that was released and never told. Its units go back if nothing was admitted after it.
    ///
    /// Gives back its waker, to be dropped when no lock is held.
    pub(crate) fn cancel(
        &mut self,
        line: &dyn Queueing<S>,
        state: &mut S,
        ticket: u64,
        wake: &mut Vec<Waker>,
    ) -> Option<Waker> {
        if let Ok(at) = self.find(ticket) {
            let waiter = self.waiting.remove(at)?;
            self.ahead -= u128::from(waiter.cost);
            self.shorten(line, state, waiter.cost);
            if let Some(behind) = self.waiting.get_mut(at) {
                // To be reckoned anew when it asks.
                behind.wake_at = Nanos::ZERO;
                wake.extend(behind.waker.clone());
            }
            return waiter.waker;
        }
        let released = self.take_released(ticket);
        if let Some(undo) = self.undo.take_if(|undo| undo.ticket == ticket) {
            match undo.before {
                Some(before) => line.restore(state, before),
                None => line.take_back(state, undo.cost, undo.at),
            }
            self.is_stale = true;
        }
        if let Some(released) = released
            && released.decision.is_allowed()
        {
            line.end(state, released.cost);
        }
        None
    }

    /// Refuses everyone who waits. Those who were released leave.
    pub(crate) fn close(&mut self, now: Nanos, refusal: Decision, wake: &mut Vec<Waker>) {
        for waiter in mem::take(&mut self.waiting) {
            wake.extend(self.reject(waiter.into(), refusal, now));
        }
        self.ahead = 0;
        self.tail = None;
    }

    /// A call that waited has left: what was foreseen is corrected, or to be reckoned anew.
    fn shorten(&mut self, line: &dyn Queueing<S>, state: &S, cost: u64) {
        let now = line.time(state);
        // Where time has passed for those who wait, the others leave sooner than at a fixed distance.
        self.tail.take_if(|tail| line.time(tail) > now || !line.unfollow(tail, cost));
    }

    fn take_released(&mut self, ticket: u64) -> Option<Released> {
        let at = self.released.binary_search_by_key(&ticket, |released| released.ticket).ok()?;
        self.released.remove(at)
    }

    fn find(&self, ticket: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }
}

/// What was to come at an instant comes then as before, though the clock was set back; what does not come does not.
fn earlier(instant: Nanos, back: u64) -> Nanos {
    match instant {
        Nanos::MAX => Nanos::MAX,
        Nanos(instant) => Nanos(instant.saturating_sub(back)),
    }
}

/// A tail may lie ahead of the clock: it must not take that for a clock that was set back.
fn advance_projection<S>(line: &dyn Queueing<S>, tail: &mut S, now: Nanos) {
    if line.time(tail) < now {
        line.observe(tail, now);
    }
}
