//! The waiters of a key: their order, the times of their admissions, and what is remembered of the calls that have
//! left. Nothing here decides a call.
//!
//! A call that waits goes through these states. Every change happens while the key is locked:
//!
//! ```text
//!           join                    admit                    poll, or the drop of its future
//! arrives ───────► waiting (ticket) ───────► admitted ─────────────────────────────────────► gone
//!                     │  └─ displaced, closed ──► denied ──────────────────────────────────► gone
//!                     └─ the drop of its future, or `max_wait` at a poll: leaves, and those behind move up ──► gone
//! ```
//!
//! - Waiters are admitted in the order of their tickets. When is computed from the state, and not fixed at the arrival.
//! - Most accesses admit due waiters before and after their own change, so no operation between the two finds a waiter
//!   that is due. The end of a call, a reset and a lockout by hand admit after it only, and a peek never. So a
//!   queue advances even if its first waiter is not polled.
//! - An admitted waiter that is dropped before its poll gives its charge back, as long as `undo` is about it. Each
//!   other change of the state is a [`Schedule::change`] or calls `commit`, after which the latest admission stays. The
//!   end of a call leaves `undo` as it is.
//! - The *projection* is the state after all waiters were charged, each at its time. It is computed when needed, and
//!   used only after one of the two `ensure` methods. A new waiter is added to it in constant time.
//! - A waiter has one timer: see [`Schedule::next_timer`]. Wakers are collected, and run when no lock is held.

use std::collections::VecDeque;
use std::mem;
use std::ops::{Range, RangeInclusive};
use std::task::Waker;

use super::{Answered, Asked, LastAdmission, Newcomer, Projection, Queue, Schedule, Waiter, ready_at};
use crate::algorithm::{Algorithm, QueueConfig, QueueSlot, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::limiter::resets::ChargeTime;

/// The time after which other waiters admit the first one, because its future was not polled: three milliseconds. With
/// the tick of tokio's timer, it is less than the time by which an admission may be late without moving the schedule.
const GRACE: u64 = 3_000_000;

impl<A: Algorithm> Default for Queue<A> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            ahead: 0,
            projection: None,
            answered: VecDeque::new(),
            undo: None,
            latest_ticket: 0,
            replaced_at: 0,
            not_before: Nanos::ZERO,
            pause: None,
            is_delayed: false,
            is_untimed: false,
            is_overdue: false,
            ready_at: None,
            checked_at: None,
            seen: Nanos::ZERO,
        }
    }
}

impl<A: Algorithm> Queue<A> {
    /// Returns whether there are, at `now`, neither a pause, nor waiters, nor calls that have not learned that they
    /// were admitted or denied.
    pub(super) fn is_unused(&self, now: Nanos) -> bool {
        self.waiting.is_empty() && self.answered.is_empty() && !self.is_paused(now)
    }

    /// Returns whether the key is paused at `now`.
    pub(super) fn is_paused(&self, now: Nanos) -> bool {
        self.pause.is_some() && now < self.not_before
    }

    /// Returns the state ahead of the first waiter, at `now` or at the end of the pause.
    fn ahead_of_all(&self, base: &A, state: &A::State, now: Nanos) -> Projection<A::State> {
        let mut ahead = Projection { state: state.clone(), at: now, is_stale: false };
        if self.is_paused(now) {
            ahead.at = self.not_before;
            let _ = base.peek(&mut ahead.state, ahead.at, 0);
        }
        ahead
    }

    /// Returns the settings of the queue by `algorithm`. An algorithm without any queues no call, but it may have
    /// replaced one that has queued calls, such as a tuple one of whose windows has priority now. Whether the waits are
    /// known is then the same as before the replacement.
    pub(super) fn config(&self, algorithm: &A) -> QueueConfig {
        const NO_QUEUE: QueueConfig = QueueConfig::enabled(0);
        let no_queue = || if self.is_untimed { NO_QUEUE.untimed() } else { NO_QUEUE };
        algorithm.queue_config().unwrap_or_else(no_queue)
    }

    /// Returns the time at which the waiter at the index `at` is denied, or [`Nanos::MAX`]. If its wait is known, it
    /// was compared with the maximum when the call arrived, and only a later charge or pause counts. By a replacement,
    /// it may wait longer.
    fn deadline(&self, base: &A, at: usize) -> Nanos {
        let waiter = &self.waiting[at];
        if self.is_delayed || !self.config(waiter.algorithm(base)).is_timed() {
            waiter.deadline
        } else {
            Nanos::MAX
        }
    }

    fn find(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    fn take_answered(&mut self, ticket: u64) -> Option<Answered<A>> {
        let at = self.answered.binary_search_by_key(&ticket, |answered| answered.ticket).ok()?;
        self.answered.remove(at)
    }

    /// Removes the calls with these tickets, without asking the algorithm, which has panicked.
    pub(super) fn forget(&mut self, tickets: &RangeInclusive<u64>) {
        self.waiting.retain(|waiter| !tickets.contains(&waiter.ticket));
        self.answered.retain(|answered| !tickets.contains(&answered.ticket));
        self.ahead = self.waiting.iter().map(|waiter| u128::from(waiter.cost)).sum();
        self.ready_at = None;
        self.commit();
    }

    /// Makes the latest admission final, and discards what was computed from the state, because the state has changed.
    pub(super) fn commit(&mut self) {
        self.undo = None;
        self.invalidate();
    }

    /// Discards what was computed from the state, because the state has changed. The latest admission can be undone.
    pub(super) fn invalidate(&mut self) {
        self.projection = None;
        self.checked_at = None;
    }

    /// Marks the projection as approximate.
    fn mark_stale(&mut self) {
        if let Some(projection) = &mut self.projection {
            projection.is_stale = true;
        }
    }

    /// Records the time at which the first waiter is admitted, as computed at `now`. Returns that time. If the time is
    /// unknown, returns [`Nanos::MAX`], and each access computes the time again.
    fn set_ready_at(&mut self, ready_at: Option<Nanos>, now: Nanos) -> Nanos {
        self.checked_at = ready_at.map(|_| now);
        *self.ready_at.insert(ready_at.unwrap_or(Nanos::MAX))
    }

    /// Records that the first waiter was admitted at `at`, by an access at `now`. If `at` is later than the computed
    /// time, the waiters behind it are delayed, and the projection is only approximate.
    fn record_departure(&mut self, now: Nanos, at: Nanos) {
        self.is_overdue |= self.ready_at.is_some_and(|ready_at| now >= ready_at.saturating_add(GRACE));
        if self.ready_at.is_none_or(|ready_at| at > ready_at) {
            self.mark_stale();
            // The schedule of a bucket or a `Smooth` has moved, which is rare. The decisions of the admitted calls must
            // be computed from the new schedule. A window charges each late call at `now`.
            if A::ADDS_UP || at != now {
                self.projection = None;
            }
        }
    }

    /// Updates the key's time to `seen`. If the clock was set back, moves the times of the waiters back as well.
    fn observe_time(&mut self, seen: Nanos) {
        if seen < self.seen {
            let back = self.seen.saturating_since(seen);
            for waiter in &mut self.waiting {
                waiter.arrived = waiter.arrived.min(seen);
                waiter.deadline = earlier(waiter.deadline, back);
                waiter.ready_at = earlier(waiter.ready_at, back);
                waiter.wake_at = earlier(waiter.wake_at, back);
            }
            self.not_before = self.not_before.min(seen).max(earlier(self.not_before, back));
            self.projection = None;
        }
        self.seen = seen;
    }

    /// Removes the waiter at the index `at`.
    fn remove(&mut self, base: &A, now: Nanos, at: usize) -> Option<Waiter<A>> {
        let waiter = self.waiting.remove(at)?;
        self.ahead -= u128::from(waiter.cost);
        if at == 0 {
            self.ready_at = None;
        }
        let algorithm = waiter.algorithm(base);
        self.projection.take_if(|projection| !projection.remove(algorithm, now, waiter.cost));
        Some(waiter)
    }
}

impl<A: Algorithm> Schedule<'_, A> {
    /// Adds a call behind all waiters, and returns its ticket. The projection must be up to date if the waits are
    /// known.
    pub(super) fn join(&mut self, call: Newcomer<'_, A>) -> u64 {
        let Self { base, state, queue, now, .. } = self;
        let now = *now;
        let Newcomer { tier, cost, max_wait, is_timed, slot, permit } = call;
        let algorithm = tier.unwrap_or(base);
        queue.latest_ticket += 1;
        let ready_at = match &mut queue.projection {
            Some(projection) => {
                if tier.is_some() {
                    // If the tier is new to the key, this call adds the tier to the state.
                    let _ = algorithm.ready_at(state, now, cost);
                }
                let ready_at = ready_at(algorithm, &mut projection.state, projection.at, cost);
                let arrived = now.min(algorithm.last_update(state)).max(queue.not_before);
                projection.add(algorithm, arrived, cost);
                ready_at
            }
            // The call is the first waiter, or it is unknown when calls will be admitted.
            None => algorithm.ready_at(state, now, cost),
        };
        if queue.waiting.is_empty() {
            queue.is_delayed = false;
            queue.is_untimed = !is_timed;
            queue.set_ready_at(ready_at, now);
            queue.seen = algorithm.last_update(state);
        }
        queue.ahead += u128::from(cost);
        queue.waiting.push_back(Waiter {
            ticket: queue.latest_ticket,
            cost,
            tier: tier.cloned().map(Box::new),
            arrived: now,
            deadline: now.saturating_add(max_wait),
            ready_at: ready_at.unwrap_or(Nanos::MAX),
            wake_at: Nanos::ZERO,
            waker: None,
            slot: Some(slot),
            permit,
        });
        queue.latest_ticket
    }

    /// Admits all due waiters. Returns the index of the first of them among the answered calls, or
    /// `None` if no waiter was due. The decisions of the admitted calls have only their delays.
    pub(super) fn admit_due(&mut self) -> Option<usize> {
        let is_paused = self.observe_pause();
        if self.is_known_to_wait() {
            return None;
        }
        if is_paused {
            self.wake_head();
            return None;
        }
        let Self { base, state, queue, shared, wake, now } = self;
        let now = *now;
        // The key may have observed the clock since the last access to the queue. Only a reading before the key's
        // latest reading means that the clock was set back.
        queue.seen = queue.seen.max(base.last_update(state));
        let known = queue.answered.len();
        while let Some(first) = queue.waiting.front() {
            let cost = first.cost;
            let before = A::UNDO_BY_COPY.then(|| state.clone());
            let arrived = first.arrived.max(queue.not_before);
            let admitted = first.algorithm(base).admit_queued(state, now, arrived, cost);
            queue.observe_time(base.last_update(state));
            let Some(at) = admitted else { break };
            // If the first of them was admitted on time, the others were as well.
            if queue.answered.len() == known {
                queue.record_departure(now, at);
            }
            let Some(Waiter { ticket, tier, arrived, permit, waker, .. }) = queue.waiting.pop_front() else {
                break;
            };
            queue.ahead -= u128::from(cost);
            queue.undo = Some(LastAdmission { ticket, cost, at: queue.seen, before });
            let decision = Decision::allow(0, 0, 0).with_delay(now.saturating_since(arrived));
            // A late call is charged at its scheduled time, from which its units have been refilled.
            let last = base.last_update(state);
            let mut charged_at = shared.charge_time(if last <= now { at.min(now) } else { last });
            let algorithm = tier.as_deref().unwrap_or(base);
            // A look must not advance the state, which other waiters change at the times of their slots.
            let never_fits = || algorithm.peek(&mut state.clone(), now, cost).never_fits();
            if ticket <= queue.replaced_at && never_fits() {
                // It was charged less than its cost, so a settlement gives nothing back, as after a replacement.
                charged_at.resets = 0;
            }
            queue.answered.push_back(Answered { ticket, cost, tier, decision, charged_at, permit });
            wake.extend(waker);
        }
        let has_admitted = queue.answered.len() > known;
        self.wake_head();
        has_admitted.then_some(known)
    }

    /// Begins a pause until `end`, or ends the pause if there is no `slot`.
    pub(super) fn set_pause(&mut self, end: Nanos, slot: Option<QueueSlot>) {
        self.queue.invalidate();
        (self.queue.not_before, self.queue.pause) = (end, slot);
        self.record_delay();
    }

    /// Lets the state of a paused key follow the clock, and ends the pause if it is over. No waiter is then charged
    /// before the end of the pause. Returns whether the key is paused.
    pub(super) fn observe_pause(&mut self) -> bool {
        if self.queue.pause.is_none() {
            return false;
        }
        self.observe_checked();
        let Self { base, state, queue, now, .. } = self;
        // Otherwise `is_known_to_wait` would observe the later reading once more, and the pause would lose as much
        // again.
        queue.checked_at.take_if(|checked_at| *now < *checked_at);
        queue.seen = queue.seen.max(base.last_update(state));
        let _ = base.peek(state, (*now).min(queue.not_before.max(queue.seen)), 0);
        queue.observe_time(base.last_update(state));
        let is_paused = queue.is_paused(*now);
        if !is_paused {
            queue.pause = None;
            queue.invalidate();
        }
        is_paused
    }

    /// Returns whether an earlier access has computed that no waiter is due now.
    ///
    /// If the result is `true`, only the queue records the reading `now`, and the state is not advanced to it.
    #[inline]
    fn is_known_to_wait(&mut self) -> bool {
        let (Some(checked_at), Some(ready_at)) = (self.queue.checked_at, self.queue.ready_at) else {
            return false;
        };
        self.observe_checked();
        let is_known = checked_at <= self.now && self.now < ready_at;
        self.queue.checked_at = is_known.then_some(self.now);
        is_known
    }

    /// Advances the state to the latest reading that only the queue has recorded, if the clock was set back since.
    fn observe_checked(&mut self) {
        if let Some(checked_at) = self.queue.checked_at.filter(|checked_at| self.now < *checked_at) {
            let _ = self.base.peek(self.state, checked_at, 0);
        }
    }

    /// Returns whether the clock is behind the latest reading of the key.
    pub(super) fn is_set_back(&self) -> bool {
        self.now < self.base.last_update(self.state).max(self.queue.checked_at.unwrap_or(Nanos::ZERO))
    }

    /// Advances the state to `now` if the waiter at the index `at`, which leaves, is the first. Otherwise a tuple would
    /// date the admission of the waiter behind it to a time at which that one was not the first yet.
    fn observe_first(&mut self, at: usize) {
        if at == 0 {
            let _ = self.base.peek(self.state, self.now, 0);
        }
    }

    /// Simulates the admission of all due waiters. The state must be a copy of the key's state. Returns the number of
    /// due waiters.
    pub(super) fn simulate_due(&mut self) -> usize {
        self.observe_checked();
        let Self { base, state, queue, now, .. } = self;
        if queue.is_paused(*now) {
            return 0;
        }
        let mut count = 0;
        let mut is_late = false;
        for waiter in &queue.waiting {
            let arrived = waiter.arrived.max(queue.not_before);
            let admitted = waiter.algorithm(base).admit_queued(state, *now, arrived, waiter.cost);
            let Some(at) = admitted else { break };
            is_late |= count == 0 && queue.ready_at.is_none_or(|ready_at| at > ready_at);
            count += 1;
        }
        if is_late {
            queue.mark_stale();
        }
        count
    }

    /// Computes the time at which the first waiter is admitted. Wakes each waiter with a timer that is set to a later
    /// time than it must be: one of the first two, or any waiter of an untimed queue.
    pub(super) fn wake_head(&mut self) {
        let Self { base, state, queue, wake, now, .. } = self;
        let Some(first) = queue.waiting.front() else { return };
        let algorithm = first.algorithm(base);
        let ready_at = if queue.is_paused(*now) {
            ready_at(algorithm, &mut state.clone(), queue.not_before, first.cost)
        } else {
            algorithm.ready_at(state, *now, first.cost)
        };
        let ready_at = queue.set_ready_at(ready_at, *now);
        queue.observe_time(base.last_update(state));
        for (waiter, latest) in queue.waiting.iter_mut().zip([ready_at, ready_at.saturating_add(GRACE)]) {
            if waiter.wake_at > latest {
                waiter.wake_at = latest;
                wake.extend(waiter.waker.clone());
            }
        }
        if ready_at < Nanos::MAX && !queue.config(base).is_timed() {
            // The others have set no timers while it was unknown when the first is admitted.
            for waiter in queue.waiting.iter_mut().skip(2).filter(|other| other.wake_at >= other.deadline) {
                waiter.wake_now(wake);
            }
        }
    }

    /// Changes the state other than by the admission of a waiter, and makes the latest one final.
    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut A::State) -> R) -> R {
        self.queue.commit();
        change(self.state)
    }

    /// Records that a charge after the fact, or a pause, may have delayed all waiters, whose deadlines apply from now
    /// on.
    pub(super) fn record_delay(&mut self) {
        let Self { queue, wake, .. } = self;
        if queue.is_delayed {
            return;
        }
        queue.is_delayed = !queue.waiting.is_empty();
        // A replacement may have moved timers behind the deadlines.
        for waiter in queue.waiting.iter_mut().filter(|waiter| waiter.wake_at > waiter.deadline) {
            waiter.wake_now(wake);
        }
    }

    /// Computes when each waiter is admitted, and wakes all waiters, because the state was reset, or converted to
    /// another algorithm, so that all timers are wrong.
    pub(super) fn reschedule(&mut self) {
        let Self { base, state, queue, wake, now, .. } = self;
        let mut ahead = queue.ahead_of_all(base, state, *now);
        let seen = base.last_update(state);
        for waiter in &mut queue.waiting {
            let arrived = waiter.eligible_from(queue.not_before, seen);
            let algorithm = waiter.tier.as_deref().unwrap_or(base);
            let ready_at = ready_at(algorithm, &mut ahead.state, ahead.at, waiter.cost);
            waiter.ready_at = ready_at.unwrap_or(Nanos::MAX);
            ahead.add(algorithm, arrived, waiter.cost);
            waiter.wake_now(wake);
        }
    }

    /// Polls a waiter. Returns `None` if the call is not in the queue.
    pub(super) fn ask(&mut self, ticket: u64, waker: &Waker) -> Option<Asked<A>> {
        let Self { base, queue, now, .. } = self;
        let now = *now;
        if let Some(answered) = queue.take_answered(ticket) {
            queue.undo.take_if(|undo| undo.ticket == ticket);
            if answered.decision.is_allowed() {
                answered.permit.forget();
            }
            return Some(Asked::Ready(answered.decision, answered.charged_at));
        }
        let at = queue.find(ticket)?;
        let deadline = queue.deadline(base, at);
        if deadline <= now && deadline < Nanos::MAX {
            return self.leave(at).map(Asked::Late);
        }
        // Waiters behind the second keep their timers until they fire.
        if at <= 1 || queue.waiting[at].wake_at <= queue.seen.max(now) {
            let wake_at = self.next_timer(at).min(deadline);
            self.queue.waiting[at].wake_at = wake_at;
        }
        let waiter = &mut self.queue.waiting[at];
        let spare = match &waiter.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => waiter.waker.replace(waker.clone()),
        };
        Some(Asked::Waits(waiter.wake_at, spare))
    }

    /// Returns the time to which the waiter at the index `at` sets its timer. The first waiter is not due.
    ///
    /// The timer of the first waiter is set to the time of its admission. A future that is kept and not polled does not
    /// notice its timer, so the others admit the waiters before them, too. The timer of the second waiter is set [a
    /// little later](GRACE) than that of the first. The timer of any other waiter is set to the half of the wait that
    /// is left, again and again. So behind `k` waiters that are not polled, a call waits at most half as long again as
    /// it would otherwise, and is polled about `log2(k)` times if all are polled. If the first one was found overdue,
    /// the next timer is that of a second waiter.
    ///
    /// If it is unknown when calls will be admitted, the others set timers only while the time of the first is known.
    /// Each then counts as one that waits as long as the first.
    fn next_timer(&mut self, at: usize) -> Nanos {
        let Self { base, queue, now, .. } = self;
        let first = queue.ready_at.unwrap_or(Nanos::MAX);
        let now = queue.seen.max(*now);
        let is_overdue = mem::take(&mut queue.is_overdue);
        if at == 0 {
            return first;
        }
        let second = first.saturating_add(GRACE);
        let mut ready_at = queue.waiting[at].ready_at;
        if is_overdue || at == 1 && ready_at <= now {
            return second;
        }
        if !queue.config(base).is_timed() {
            let half = first.saturating_since(now) / 2;
            return second.max(now.saturating_add(half.saturating_mul(at as u64 + 1)));
        }
        if ready_at <= now {
            // The waiters before it are late, for example because units were charged after the fact.
            let mut ahead = self.after(now, 0..at);
            let waiter = &mut self.queue.waiting[at];
            let algorithm = waiter.algorithm(self.base);
            let turn = super::ready_at(algorithm, &mut ahead.state, ahead.at, waiter.cost);
            ready_at = turn.unwrap_or(Nanos::MAX);
            waiter.ready_at = ready_at;
        }
        // No waiter can be overdue before the timer of the second waiter fires.
        let half = if at == 1 { Nanos::ZERO } else { now.saturating_add(ready_at.saturating_since(now) / 2) };
        ready_at.min(half.max(second))
    }

    /// Cancels a waiter that waits, or that was admitted and whose future was not polled since. The charge of an
    /// admitted waiter is undone, unless another call was admitted since, or the state was changed in another way, such
    /// as by a refund. With an algorithm that [needs a release](Algorithm::NEEDS_RELEASE), its units are released in
    /// any case.
    ///
    /// Returns the waker of the call, which must be dropped while no lock is held.
    pub(super) fn cancel(&mut self, ticket: u64) -> Option<Waker> {
        if let Some(at) = self.queue.find(ticket) {
            return self.leave(at)?.waker;
        }
        let Self { base, state, queue, .. } = self;
        let answered = queue.take_answered(ticket)?;
        let algorithm = answered.tier.as_deref().unwrap_or(base);
        if let Some(undo) = queue.undo.take_if(|undo| undo.ticket == ticket) {
            match undo.before {
                Some(before) => algorithm.restore(state, before),
                None => algorithm.refund(state, algorithm.last_update(state), undo.cost, Some(undo.at)),
            }
            queue.mark_stale();
            queue.checked_at = None;
        }
        if answered.decision.is_allowed() {
            // The units of the call are subtracted from the totals when `answered.permit` is dropped.
            algorithm.release(state, algorithm.last_update(state), answered.cost);
            queue.checked_at = None;
        }
        None
    }

    /// Removes the waiter at the index `at`, and wakes the waiter behind it, which may now be admitted earlier.
    fn leave(&mut self, at: usize) -> Option<Waiter<A>> {
        let waiter = self.queue.remove(self.base, self.now, at)?;
        self.observe_first(at);
        let Self { queue, wake, .. } = self;
        if let Some(behind) = queue.waiting.get_mut(at) {
            // The time is recomputed at the next poll.
            behind.wake_now(wake);
        }
        Some(waiter)
    }

    /// Removes and returns the oldest waiter, which leaves the counts of the waiters of all keys and of its algorithm.
    /// `projection` is that [without it](Self::without_oldest), if waits are known.
    pub(super) fn displace(&mut self, projection: Option<Projection<A::State>>) -> Option<Waiter<A>> {
        self.observe_first(0);
        let queue = &mut *self.queue;
        if projection.is_some() {
            queue.projection = projection;
        }
        let mut oldest = queue.waiting.pop_front()?;
        oldest.give_up_places();
        queue.ready_at = None;
        queue.ahead -= u128::from(oldest.cost);
        Some(oldest)
    }

    /// Returns the state after all waiters but the oldest have been admitted.
    pub(super) fn without_oldest(&self) -> Option<Projection<A::State>> {
        let Self { base, queue, now, .. } = self;
        let oldest = queue.waiting.front()?;
        let mut projection = queue.projection.clone().filter(|projection| !projection.is_stale);
        let known =
            projection.take_if(|projection| projection.remove(oldest.algorithm(base), *now, oldest.cost));
        known.or_else(|| Some(self.after(*now, 1..queue.waiting.len())))
    }

    /// Keeps the denial of a waiter that was removed, for the next poll of its future.
    pub(super) fn deny(&mut self, waiter: Waiter<A>, denial: Decision) {
        let Waiter { ticket, cost, tier, arrived, waker, .. } = waiter;
        let decision = denial.with_delay(self.now.saturating_since(arrived));
        let permit = SharedPermit::default();
        self.wake.extend(waker);
        let charged_at = ChargeTime::default();
        let denied = Answered { ticket, cost, tier, decision, charged_at, permit };
        self.queue.answered.push_back(denied);
    }

    /// Replaces the denial of a waiter that was [denied](Self::deny), whose delay it keeps.
    pub(super) fn deny_again(&mut self, ticket: u64, denial: Decision) {
        let answered = &mut self.queue.answered;
        if let Ok(at) = answered.binary_search_by_key(&ticket, |answered| answered.ticket) {
            let decision = &mut answered[at].decision;
            *decision = denial.with_delay(Nanos::from(decision.delay()).0);
        }
    }

    /// Denies all waiters. Calls that were admitted before stay admitted.
    pub(super) fn close(&mut self, denial: Decision) {
        for waiter in mem::take(&mut self.queue.waiting) {
            self.deny(waiter, denial);
        }
        self.queue.ahead = 0;
        self.queue.projection = None;
        self.queue.pause = None;
    }

    /// Makes sure that there is an exact projection if there are waiters whose wait is known. A newly computed
    /// projection leaves out the first `gone` waiters.
    pub(super) fn ensure_exact_projection(&mut self, gone: usize) {
        self.queue.projection.take_if(|projection| projection.is_stale);
        self.ensure_approximate_projection(gone);
    }

    /// Makes sure that there is a projection if there are waiters whose wait is known, or if the key is paused and has
    /// no waiters. The projection may be approximate. A newly computed projection leaves out the first `gone` waiters.
    pub(super) fn ensure_approximate_projection(&mut self, gone: usize) {
        let is_timed = self.queue.config(self.base).is_timed();
        let count = self.queue.waiting.len();
        let is_known = if count > 0 { is_timed } else { self.queue.is_paused(self.now) };
        match &mut self.queue.projection {
            _ if !is_known => self.queue.projection = None,
            Some(projection) => projection.at = projection.at.max(self.now),
            None => self.queue.projection = Some(self.after(self.now, gone..count)),
        }
    }

    /// Returns the time, in nanoseconds from now, until enough waiters have been admitted for `is_place` to return
    /// true. The arguments of `is_place` are the number and the total cost of the remaining waiters.
    pub(super) fn time_until_place(&self, is_place: impl Fn(u64, u128) -> bool) -> u64 {
        let Self { base, state, queue, now, .. } = self;
        let mut waiting = queue.waiting.len() as u64;
        let mut ahead = queue.ahead;
        if is_place(waiting, ahead) {
            return 0;
        }
        let mut tail = self.after(*now, 0..0);
        let seen = base.last_update(state);
        for waiter in &queue.waiting {
            let algorithm = waiter.algorithm(base);
            let turn = ready_at(algorithm, &mut tail.state, tail.at, waiter.cost).unwrap_or(Nanos::MAX);
            waiting -= 1;
            ahead -= u128::from(waiter.cost);
            if is_place(waiting, ahead) {
                return turn.saturating_since(*now);
            }
            tail.add(algorithm, waiter.eligible_from(queue.not_before, seen), waiter.cost);
        }
        0
    }

    /// Returns the state after the waiters in the range `part` have been admitted, each at its scheduled time.
    fn after(&self, now: Nanos, part: Range<usize>) -> Projection<A::State> {
        let Self { base, state, queue, .. } = self;
        let mut projection = queue.ahead_of_all(base, state, now);
        let seen = base.last_update(state);
        for waiter in queue.waiting.range(part) {
            let arrived = waiter.eligible_from(queue.not_before, seen);
            projection.add(waiter.algorithm(base), arrived, waiter.cost);
        }
        projection
    }
}

impl<A> Waiter<A> {
    /// Returns the algorithm that admits the waiter: its tier, or otherwise the algorithm of the limiter.
    fn algorithm<'a>(&'a self, base: &'a A) -> &'a A {
        self.tier.as_deref().unwrap_or(base)
    }

    /// Returns the maximum time for which the waiter waits, in nanoseconds, or `u64::MAX`.
    pub(super) fn max_wait(&self) -> u64 {
        match self.deadline {
            Nanos::MAX => u64::MAX,
            deadline => deadline.saturating_since(self.arrived),
        }
    }

    /// Gives up the places of the call in the counts of the waiters of all keys and of its algorithm.
    pub(super) fn give_up_places(&mut self) {
        self.slot = None;
        self.permit = SharedPermit::default();
    }

    /// Returns the earliest time at which the waiter can be charged: its arrival, but at most `seen`, the key's time,
    /// because the clock may have been set back. Returns `not_before`, that of the queue, if it is later.
    fn eligible_from(&self, not_before: Nanos, seen: Nanos) -> Nanos {
        self.arrived.min(seen).max(not_before)
    }

    /// Lets the waiter set its timer again.
    fn wake_now(&mut self, wake: &mut Vec<Waker>) {
        self.wake_at = Nanos::ZERO;
        wake.extend(self.waker.clone());
    }
}

impl<S> Projection<S> {
    /// Adds a waiter behind all others.
    fn add<A: Algorithm<State = S>>(&mut self, algorithm: &A, arrived: Nanos, cost: u64) {
        self.at = algorithm.project(&mut self.state, self.at, arrived, cost).max(self.at);
    }

    /// Removes a waiter if possible, and returns whether the waiter was removed. A waiter can be removed only if the
    /// charges of the algorithm [add up](Algorithm::ADDS_UP), the projection is not ahead of the clock, and the whole
    /// cost was charged.
    fn remove<A: Algorithm<State = S>>(&mut self, algorithm: &A, now: Nanos, cost: u64) -> bool {
        // A call that costs more than the algorithm's limit was charged only as much as the limit.
        let fits = |state: &mut S| !algorithm.peek(state, self.at, cost).never_fits();
        let is_possible = A::ADDS_UP && self.at <= now && fits(&mut self.state);
        if is_possible {
            algorithm.refund(&mut self.state, self.at, cost, None);
        }
        is_possible
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
