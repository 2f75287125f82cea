//! The decisions on calls: what a call gets that arrives at a locked key, polls there, or only looks.
//!
//! A call is judged once, by [`Key::try_admit`], on the state and the waiters that it finds. The result is a [`Fate`],
//! which is used while the key is still locked. So the call is charged, or its denial is counted, at most once. Only
//! one call is judged again: a call that has displaced the oldest waiter, and then finds that calls of other keys have
//! taken what the oldest waiter has left.

use std::mem;
use std::ops::RangeInclusive;
use std::task::Waker;

use super::{Asked, Key, Newcomer, Projection, Waiter, ready_at};
use crate::algorithm::{Algorithm, QueueConfig, QueueOverflow, SharedPermit, limit_of_new_key};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::limiter::attempt::Attempt;
use crate::limiter::options::OnClose;
use crate::limiter::resets::ChargeTime;

/// A call that arrives at a key.
#[derive(Clone, Copy)]
struct Arrival {
    cost: u64,
    priority: bool,
    /// `true` if the call may be queued.
    may_wait: bool,
    /// The maximum wait, by the call and by the queue, in nanoseconds, or `u64::MAX`.
    max_wait: u64,
    /// The settings of the queue, by the algorithm of the call. It has no places if the algorithm queues no calls.
    queue: QueueConfig,
    /// The number of the waiters of other keys. It is read once, so that all of the judgement is by the same number.
    others: u64,
}

/// The judgement on a call.
enum Fate {
    /// The call is allowed or denied immediately.
    Decided(Decision),
    /// The call waits if it finds a place. The decision is that of the algorithm, made without regard to the queue.
    Waits(Decision),
    /// The call would wait, but the queue is full.
    Full(Decision),
}

/// The outcome that a call would have.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) enum Preview {
    Admit(Decision),
    /// The call would be queued.
    Queue(Decision),
    Deny(Decision),
}

/// The outcome of a call that arrives at the queue.
#[derive(Debug)]
pub(in crate::limiter) enum Enqueued {
    /// The call is allowed or denied immediately.
    Decided(Decision),
    /// The call waits under this ticket.
    Queued(u64),
}

/// A call that enters the queue or leaves it. If the algorithm panics meanwhile, the call is removed from the queue,
/// since nobody knows its ticket then.
struct Moving<'k, 'a, A: Algorithm> {
    key: &'k mut Key<'a, A>,
    /// The ticket of the call, or those that it may get.
    tickets: RangeInclusive<u64>,
}

/// The result of polling a waiter.
#[derive(Debug)]
pub(in crate::limiter) enum PollTurn {
    /// The decision, and when an admitted call was charged.
    Ready(Decision, ChargeTime),
    /// The call is not ready. Poll it again at this time, or when it is woken.
    Waits(Nanos),
}

impl Arrival {
    fn new<A: Algorithm>(call: Attempt<'_, A>, queue: QueueConfig, others: u64) -> Self {
        Self {
            cost: call.cost(),
            priority: call.has_priority(),
            may_wait: call.may_wait() || queue.holds_requests(),
            max_wait: call.options.max_wait.min(queue.max_wait()),
            queue,
            others,
        }
    }

    /// Returns whether a call that arrives at `now` would be admitted within its maximum wait, or `true` if the wait is
    /// unknown. All calls ahead have been charged to `state`. `at` is the clock reading for that state.
    fn is_in_time<A: Algorithm>(&self, algorithm: &A, now: Nanos, state: &mut A::State, at: Nanos) -> bool {
        if self.max_wait == u64::MAX || !self.queue.is_timed() {
            return true;
        }
        let latest = now.saturating_add(self.max_wait).min(Nanos(u64::MAX - 1));
        ready_at(algorithm, state, at, self.cost).is_some_and(|ready_at| ready_at <= latest)
    }

    /// Returns whether the call has a place in the queue while no other call waits.
    fn has_queue(&self) -> bool {
        (self.priority || !self.queue.is_priority_only()) && self.queue.has_place(0, 0, self.cost)
    }

    /// Returns whether the call displaces the oldest waiter if the queue is full.
    fn drops_oldest(&self) -> bool {
        self.queue.overflow() == QueueOverflow::DropOldest && !self.queue.is_priority_only()
    }
}

impl Preview {
    /// Returns the outcome of a call that would be decided at once, by this decision.
    pub(in crate::limiter) fn of(decision: Decision) -> Self {
        if decision.is_allowed() { Self::Admit(decision) } else { Self::Deny(decision) }
    }

    pub(in crate::limiter) fn decision(self) -> Decision {
        let (Self::Admit(decision) | Self::Queue(decision) | Self::Deny(decision)) = self;
        decision
    }
}

/// Calls that arrive or look, and the polls and drops of calls that wait.
impl<A: Algorithm> Key<'_, A> {
    /// Charges `cost` units if they are available and no call is queued. Otherwise denies the call. Always allows a
    /// cost of 0. A closed limiter charges nothing, and its [`OnClose`] decides.
    #[inline]
    pub(in crate::limiter) fn check(&mut self, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(cost) {
            return decision;
        }
        if self.queue.is_none() {
            return self.algorithm().check(self.state, self.now, cost);
        }
        self.admit_due();
        let decision = self.check_queue(cost);
        self.admit_due();
        decision
    }

    fn check_queue(&mut self, cost: u64) -> Decision {
        if self.is_held() && cost > 0 {
            return self.deny_behind_queue(cost, 0, true);
        }
        let decision = self.algorithm().check(self.state, self.now, cost);
        if cost > 0 && decision.is_allowed() {
            self.commit();
        }
        self.ensure_exact_projection(0);
        self.admitted(decision)
    }

    /// Returns a decision that tells whether [`check`](Key::check) would admit a call now. Charges nothing, and admits
    /// no waiter.
    pub(in crate::limiter) fn peek(&mut self, cost: u64) -> Decision {
        if let Some(decision) = self.closed_decision(cost) {
            return decision;
        }
        if self.queue.is_none() {
            return self.algorithm().peek(self.state, self.now, cost);
        }
        let mut kept = None;
        if let Some(mut schedule) = self.schedule() {
            schedule.observe_pause();
            if schedule.is_set_back() {
                // Only the copy observes that the clock was set back. The key never does if the clock is set again.
                kept = Some(schedule.queue.projection.take());
            }
        }
        let mut copy = self.state.clone();
        let tier = self.tier;
        let decision = self.alike(Some(&mut copy), tier).peek_copy(cost);
        if let (Some(queue), Some(kept)) = (&mut self.queue, kept) {
            queue.projection = kept;
        }
        decision
    }

    /// Returns the decision of [`peek`](Key::peek). The state is a copy of the key's state.
    fn peek_copy(&mut self, cost: u64) -> Decision {
        let gone = self.schedule().map_or(0, |mut schedule| schedule.simulate_due());
        let is_held = self.is_paused() || self.waiting() > gone as u64;
        if is_held && cost > 0 {
            return self.deny_behind_queue(cost, gone, false);
        }
        let decision = self.algorithm().peek(self.state, self.now, cost);
        if !is_held {
            return decision;
        }
        self.ensure_exact_projection(gone);
        self.admitted(decision)
    }

    /// Charges the call, queues it, or denies it. A closed limiter neither charges nor queues, and its [`OnClose`]
    /// decides. `judged` is the denial by [`check_to_queue`], if it was made already.
    pub(in crate::limiter) fn acquire(&mut self, call: Attempt<'_, A>, judged: Option<Decision>) -> Enqueued {
        if let Some(decision) = self.closed_decision(call.cost()) {
            return Enqueued::Decided(decision);
        }
        self.admit_due();
        let Some(queue) = self.queue_to_enter() else {
            return Enqueued::Decided(self.check(call.cost()));
        };
        let latest = self.queue.as_ref().map_or(0, |queue| queue.latest_ticket);
        let arrival = Arrival::new(call, queue, self.others());
        let moving = Moving { key: self, tickets: latest + 1..=u64::MAX };
        let entered = moving.key.enter(&arrival, judged);
        moving.key.admit_due();
        mem::forget(moving);
        entered
    }

    /// Returns the outcome that [`acquire`](Key::acquire) would have. Charges nothing. Admits due waiters, as `acquire`
    /// does.
    pub(in crate::limiter) fn preview(&mut self, call: Attempt<'_, A>) -> Preview {
        if let Some(decision) = self.closed_decision(call.cost()) {
            return Preview::of(decision);
        }
        self.admit_due();
        let Some(queue) = self.queue_to_enter() else {
            return Preview::of(self.algorithm().peek(self.state, self.now, call.cost()));
        };
        self.ensure_exact_projection(0);
        let arrival = &Arrival::new(call, queue, self.others());
        match self.preview_fate(arrival) {
            Fate::Decided(decision) => Preview::of(decision),
            Fate::Full(decision) if !arrival.drops_oldest() || self.after_oldest(arrival).is_none() => {
                Preview::of(self.denial(decision, arrival, false).with_queue_full())
            }
            // If the queue is full, the call would be queued, and the oldest waiter would be dropped from the queue.
            Fate::Waits(_) | Fate::Full(_) => Preview::Queue(self.admission()),
        }
    }

    /// Admits all due waiters, and decides what they are told.
    #[inline]
    pub(in crate::limiter) fn admit_due(&mut self) {
        if let Some(mut schedule) = self.schedule()
            && let Some(first) = schedule.admit_due()
        {
            self.decide_admitted(first);
        }
    }

    /// Polls a waiter. Also returns a waker that is no longer needed, which must be dropped while no lock is held,
    /// because dropping a waker may run any code.
    pub(in crate::limiter) fn poll(&mut self, ticket: u64, waker: &Waker) -> (PollTurn, Option<Waker>) {
        self.admit_due();
        let Some(asked) = self.schedule().and_then(|mut schedule| schedule.ask(ticket, waker)) else {
            unreachable!(
                "a call stays in its queue until it is ready, and a key with a queue is never evicted"
            )
        };
        match asked {
            Asked::Ready(decision, charged_at) => (PollTurn::Ready(decision, charged_at), None),
            Asked::Waits(wake_at, spare) => (PollTurn::Waits(wake_at), spare),
            Asked::Late(mut waiter) => {
                waiter.give_up_places();
                // The denial describes the key after the admission of those behind.
                self.admit_due();
                let denial = self.deny_waiter(waiter.cost, waiter.tier.as_deref(), waiter.max_wait());
                let decision = denial.with_delay(self.now.saturating_since(waiter.arrived));
                (PollTurn::Ready(decision, ChargeTime::default()), waiter.waker.take())
            }
        }
    }

    /// Cancels a waiter. Returns its waker, which must be dropped while no lock is held. Due waiters are admitted
    /// first, and if one is, the charge of this call, if it was admitted before, is final.
    pub(in crate::limiter) fn cancel(&mut self, ticket: u64) -> Option<Waker> {
        let moving = Moving { key: self, tickets: ticket..=ticket };
        moving.key.admit_due();
        let waker = moving.key.schedule()?.cancel(ticket);
        moving.key.admit_due();
        mem::forget(moving);
        waker
    }

    /// Returns the decision on a call if the limiter is closed and `cost` is above 0. Otherwise returns `None`.
    fn closed_decision(&mut self, cost: u64) -> Option<Decision> {
        if !self.config.closed || cost == 0 {
            return None;
        }
        Some(match self.shared.on_close {
            OnClose::Reject => Decision::closed(limit_of_new_key(self.algorithm())),
            OnClose::Allow => self.algorithm().peek(self.state, self.now, 0),
        })
    }
}

/// The judgement on a call. Due waiters have been admitted before.
impl<A: Algorithm> Key<'_, A> {
    /// Decides a new call, or queues it.
    fn enter(&mut self, arrival: &Arrival, judged: Option<Decision>) -> Enqueued {
        let queue = arrival.queue;
        let has_place = arrival.has_queue() && self.has_place(arrival) && !self.is_total_full(arrival);
        let waits = arrival.may_wait && has_place && arrival.max_wait == u64::MAX;
        if waits && !queue.is_exclusive() {
            // The call may wait for any length of time, or never fits. In both cases, the exact wait is not needed.
            self.ensure_approximate_projection();
        } else {
            self.ensure_exact_projection(0);
        }
        match self.try_admit(arrival, judged) {
            Fate::Decided(decision) => {
                if decision.is_allowed() && arrival.cost > 0 {
                    self.commit();
                }
                Enqueued::Decided(decision)
            }
            Fate::Waits(decision) => match self.join(arrival) {
                Some(ticket) => Enqueued::Queued(ticket),
                None => {
                    // It is unknown when another queue will admit a waiter. So the call is denied like a call that
                    // may not wait.
                    self.ensure_exact_projection(0);
                    let arrival = Arrival { may_wait: false, ..*arrival };
                    Enqueued::Decided(self.denial(decision, &arrival, true).with_queue_full())
                }
            },
            Fate::Full(decision) => match self.displace_oldest(arrival) {
                Some(oldest) => self.enter_in_place_of(oldest, arrival, decision),
                None => Enqueued::Decided(self.denial(decision, arrival, true).with_queue_full()),
            },
        }
    }

    /// Queues a call in the place of the oldest waiter, which is denied. If calls of other keys have taken what the
    /// oldest waiter has left, in the total of all keys or in one of the algorithm, denies both calls. `decision` is
    /// that of the algorithm on the call.
    fn enter_in_place_of(
        &mut self,
        mut oldest: Waiter<A>,
        arrival: &Arrival,
        decision: Decision,
    ) -> Enqueued {
        let (ticket, cost, tier) = (oldest.ticket, oldest.cost, oldest.tier.take());
        let max_wait = oldest.max_wait();
        // The waiter is answered at once, so that it learns its denial even if the algorithm panics.
        if let Some(mut schedule) = self.schedule() {
            let denial = Decision::deny(decision.limit(), 0, None, 0).with_queue_full();
            schedule.deny(oldest, denial.with_unknown_wait(true));
        }
        let entered = match self.join(arrival) {
            Some(ticket) => Enqueued::Queued(ticket),
            None => match self.enter(&Arrival { may_wait: false, ..*arrival }, None) {
                Enqueued::Decided(decision) => Enqueued::Decided(decision.with_queue_full()),
                queued => queued,
            },
        };
        // The denial describes the key after the admission of those behind.
        self.admit_due();
        let denial = self.deny_waiter(cost, tier.as_deref(), max_wait).with_queue_full();
        if let Some(mut schedule) = self.schedule() {
            schedule.deny_again(ticket, denial);
        }
        entered
    }

    /// Admits a call and charges its units, if the call may pass now. Otherwise returns what happens to the call.
    #[inline]
    fn try_admit(&mut self, arrival: &Arrival, judged: Option<Decision>) -> Fate {
        let cost = arrival.cost;
        let now = self.now;
        let algorithm = self.algorithm();
        let may_pass = cost == 0 || !self.is_held();
        let decision = judged.unwrap_or_else(|| {
            if may_pass {
                check_to_queue(algorithm, self.state, now, cost, arrival.queue)
            } else {
                algorithm.peek(self.state, now, cost)
            }
        });
        if may_pass && decision.is_allowed() {
            return Fate::Decided(self.admitted(decision));
        }
        self.fate(decision, arrival, true)
    }

    fn preview_fate(&mut self, arrival: &Arrival) -> Fate {
        let decision = self.algorithm().peek(self.state, self.now, arrival.cost);
        if decision.is_allowed() && (arrival.cost == 0 || !self.is_held()) {
            return Fate::Decided(self.admitted(decision));
        }
        self.fate(decision, arrival, false)
    }

    /// Returns what happens to a call that cannot pass now: the call waits, finds a full queue, or is denied for
    /// another reason. `decision` is what the algorithm decided without regard to the queue. `counts` is false for a
    /// preview.
    fn fate(&mut self, decision: Decision, arrival: &Arrival, counts: bool) -> Fate {
        let queue = arrival.queue;
        // If the wait is unknown, a maximum of zero is over at once.
        let has_no_time = arrival.max_wait == 0 && !queue.is_timed();
        if decision.is_barred() || decision.never_fits() || !arrival.may_wait || has_no_time {
            return Fate::Decided(self.denial(decision, arrival, counts));
        }
        let has_queue = arrival.has_queue();
        let is_full = !self.has_place(arrival);
        if has_queue && is_full && arrival.drops_oldest() {
            // Whether the call can then be admitted in time is checked later.
            return Fate::Full(decision);
        }
        let now = self.now;
        let algorithm = self.algorithm();
        let (tail, at) = self.tail();
        let is_in_time = arrival.is_in_time(algorithm, now, tail, at);
        // Calls with priority wait up to a total cost, and beyond that are denied as calls without priority are.
        let is_beyond = is_full && queue.is_priority_only();
        if !is_in_time || !has_queue || is_beyond {
            return Fate::Decided(self.denial(decision, arrival, counts));
        }
        let mut is_total_full = self.is_total_full(arrival);
        algorithm.for_each_total(&mut |total| is_total_full |= total.available() < arrival.cost);
        if is_total_full {
            Fate::Decided(self.denial(decision, arrival, counts).with_queue_full())
        } else if is_full {
            Fate::Full(decision)
        } else {
            Fate::Waits(decision)
        }
    }

    /// Adds a call behind all waiters, and returns its ticket. Returns `None` if `max_queued` calls are queued already,
    /// or if a total of the algorithm has too few units.
    fn join(&mut self, arrival: &Arrival) -> Option<u64> {
        let slot = self.shared.waiting.try_acquire_one()?;
        let permit = SharedPermit::try_acquire(self.algorithm(), arrival.cost)?;
        self.ensure_queue();
        let Arrival { cost, max_wait, queue, .. } = *arrival;
        let is_timed = queue.is_timed();
        let call = Newcomer { tier: self.tier, cost, max_wait, is_timed, slot, permit };
        self.schedule().map(|mut schedule| schedule.join(call))
    }

    /// Removes and returns the oldest waiter, if the new call can then be queued in its place.
    fn displace_oldest(&mut self, arrival: &Arrival) -> Option<Waiter<A>> {
        if !arrival.drops_oldest() {
            return None;
        }
        let projection = self.after_oldest(arrival)?;
        self.schedule()?.displace(projection)
    }

    /// Returns the projection without the oldest waiter, if the new call can then be queued in its place: its units fit
    /// into the totals of its algorithm, and it would be admitted within its maximum wait. If it is unknown when calls
    /// will be admitted, there is no projection.
    fn after_oldest(&mut self, arrival: &Arrival) -> Option<Option<Projection<A::State>>> {
        let now = self.now;
        let algorithm = self.algorithm();
        let schedule = self.schedule()?;
        let mut fits = true;
        algorithm.for_each_total(&mut |total| {
            // The oldest waiter may be of another tier, which counts in other totals.
            let freed = schedule.queue.waiting.front().map_or(0, |oldest| oldest.permit.units_in(total));
            fits &= total.len().saturating_sub(freed).saturating_add(arrival.cost) <= total.limit();
        });
        if !fits {
            return None;
        }
        if !arrival.queue.is_timed() {
            return Some(None);
        }
        let mut projection = schedule.without_oldest()?;
        let at = projection.at;
        arrival.is_in_time(algorithm, now, &mut projection.state, at).then_some(Some(projection))
    }
}

/// The answers that calls are given.
impl<A: Algorithm> Key<'_, A> {
    /// Decides the calls that were just admitted, which are those from the index `first` on. Each decision describes
    /// the key after all of these admissions. Its `reset_after` may come from an approximate projection, because the
    /// exact one is not recomputed for each admitted call.
    fn decide_admitted(&mut self, first: usize) {
        self.ensure_approximate_projection();
        let count = self.queue.as_ref().map_or(0, |queue| queue.answered.len());
        for at in first..count {
            let Some(queue) = &mut self.queue else { return };
            let tier = queue.answered[at].tier.take();
            let mut after = self.alike(None, tier.as_deref());
            let decision = after.admission();
            // The cost of 0 keeps the call allowed even if a lockout began while the call waited.
            let decision = after.algorithm().report(after.state, after.now, 0, false, decision);
            let Some(queue) = &mut self.queue else { return };
            let answered = &mut queue.answered[at];
            let delay = answered.decision.delay();
            answered.decision = decision.with_delay(Nanos::from(delay).0);
            answered.tier = tier;
        }
    }

    /// Returns the denial of a waiter that has left the queue, and counts it. Its `retry_after` is the time until the
    /// call could be queued again, for at most `max_wait` nanoseconds.
    fn deny_waiter(&mut self, cost: u64, tier: Option<&A>, max_wait: u64) -> Decision {
        let mut key = self.alike(None, tier);
        let Some(queue) = key.queue_config() else { unreachable!("a waiter has a queue") };
        let (max_wait, others) = (max_wait.min(queue.max_wait()), key.others());
        // If only calls with priority wait, the waiter had priority.
        let arrival = Arrival { cost, priority: true, may_wait: true, max_wait, queue, others };
        key.ensure_exact_projection(0);
        let decision = key.algorithm().peek(key.state, key.now, cost);
        key.denial(decision, &arrival, true)
    }

    /// Returns the denial of a call, as the algorithm reports it. `decision` is what the algorithm decided without
    /// regard to the queue. `counts` is false for a preview.
    fn denial(&mut self, decision: Decision, arrival: &Arrival, counts: bool) -> Decision {
        let fits = !decision.never_fits();
        let is_timed = arrival.queue.is_timed();
        // Without waiters, the end of a pause is known, even if the waits are not.
        let is_known = is_timed || self.is_paused() && self.waiting() == 0;
        let retry = if fits && is_known { self.retry(arrival) } else { None };
        let denial = if self.is_held() {
            self.deny_behind_others(arrival.cost, fits, retry)
        } else if is_timed {
            decision.with_retry_after(retry)
        } else {
            // The decision may have a `retry_after`: in a tuple, the limit whose waits are unknown may have room, so
            // that the decision reports the wait of another limit.
            decision
        };
        self.algorithm().report(self.state, self.now, arrival.cost, counts, denial)
    }

    /// Returns the denial of a call that may not wait, and must not overtake the waiters. The first `gone` waiters
    /// count as admitted. `counts` is false for a peek.
    fn deny_behind_queue(&mut self, cost: u64, gone: usize, counts: bool) -> Decision {
        let now = self.now;
        self.ensure_exact_projection(gone);
        let fits = !self.algorithm().peek(self.state, now, cost).never_fits();
        let is_timed = self.queue_config().is_some_and(|queue| queue.is_timed());
        let is_known = is_timed || self.is_paused() && self.waiting() <= gone as u64;
        let retry = if fits && is_known { self.turn(cost) } else { None };
        let denial = self.deny_behind_others(cost, fits, retry);
        self.algorithm().report(self.state, now, cost, counts, denial)
    }

    fn deny_behind_others(&mut self, cost: u64, fits: bool, retry: Option<u64>) -> Decision {
        let now = self.now;
        let algorithm = self.algorithm();
        let (tail, at) = self.tail();
        let last = algorithm.peek(tail, at, cost);
        Decision::deny(last.limit(), 0, retry, reset_of(last, at, now))
            .with_unknown_wait(fits)
            .with_index(last.limit_index())
            .with_paused(self.is_paused())
    }

    /// Returns the decision on a call that has just been admitted, or would be.
    fn admission(&mut self) -> Decision {
        let decision = self.algorithm().peek(self.state, self.now, 0);
        self.admitted(decision)
    }

    /// Returns the decision on an admitted call, adapted to the queue. `decision` is what the algorithm decided without
    /// regard to the queue.
    #[inline]
    fn admitted(&mut self, decision: Decision) -> Decision {
        if !self.is_held() {
            return decision;
        }
        let now = self.now;
        let algorithm = self.algorithm();
        let (tail, at) = self.tail();
        let reset = reset_of(algorithm.peek(tail, at, 0), at, now);
        decision.with_remaining(0).with_min_reset(reset)
    }

    /// Returns the time until a call of `cost` that arrives behind all waiters is admitted, in nanoseconds, if it is
    /// known.
    fn turn(&mut self, cost: u64) -> Option<u64> {
        let now = self.now;
        let algorithm = self.algorithm();
        let (tail, at) = self.tail();
        ready_at(algorithm, tail, at, cost).map(|ready_at| ready_at.saturating_since(now))
    }

    /// Returns the time until a denied call could be admitted or queued, in nanoseconds, if it is known.
    fn retry(&mut self, arrival: &Arrival) -> Option<u64> {
        let Arrival { cost, may_wait, max_wait, queue, others, .. } = *arrival;
        let turn = self.turn(cost)?;
        // It is unknown when calls of other keys are admitted, so the places of these calls count as taken.
        let limit = self.shared.waiting.limit();
        if !may_wait || others >= limit || !arrival.has_queue() || !queue.is_timed() {
            // The call must be admitted at once, or it is unknown when the waiters are admitted.
            return Some(turn);
        }
        // The call can be queued once enough waiters have been admitted.
        let is_place =
            |waiting, ahead| queue.has_place(waiting, ahead, cost) && others.saturating_add(waiting) < limit;
        let wait = self.schedule().map_or(0, |schedule| schedule.time_until_place(is_place));
        Some(wait.max(turn.saturating_sub(max_wait)))
    }
}

/// The queue, as far as the key has one.
impl<A: Algorithm> Key<'_, A> {
    /// Returns the settings of the key's queue by the algorithm of the call. Returns `None` if the key has no queue,
    /// and the algorithm queues no calls.
    fn queue_config(&self) -> Option<QueueConfig> {
        match &self.queue {
            Some(queue) => Some(queue.config(self.algorithm())),
            None => self.algorithm().queue_config(),
        }
    }

    /// Returns the settings of the queue for a call that arrives. Due waiters have been admitted before. Returns `None`
    /// if the algorithm queues no calls and the key is not held, even if a pause that is over has left it a queue: the
    /// algorithm alone then decides the call, and counts its denial.
    fn queue_to_enter(&self) -> Option<QueueConfig> {
        if self.is_held() { self.queue_config() } else { self.algorithm().queue_config() }
    }

    /// Returns whether no call may pass now, whatever the algorithm says.
    fn is_held(&self) -> bool {
        self.waiting() > 0 || self.is_paused()
    }

    /// Returns the number of the waiters.
    fn waiting(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.waiting.len() as u64)
    }

    /// Returns the number of the waiters of other keys.
    fn others(&self) -> u64 {
        self.shared.waiting.len().saturating_sub(self.waiting())
    }

    /// Returns whether the waiters of all keys leave no place to the call.
    fn is_total_full(&self, arrival: &Arrival) -> bool {
        arrival.others.saturating_add(self.waiting()) >= self.shared.waiting.limit()
    }

    /// Returns whether the key's queue has a place for the call. The total of all keys is another matter.
    fn has_place(&self, arrival: &Arrival) -> bool {
        let ahead = self.queue.as_ref().map_or(0, |queue| queue.ahead);
        arrival.queue.has_place(self.waiting(), ahead, arrival.cost)
    }

    /// Returns the state after all waiters have been admitted, and the clock reading for that state.
    fn tail(&mut self) -> (&mut A::State, Nanos) {
        if let Some(queue) = &mut self.queue
            && let Some(Projection { state, at, .. }) = &mut queue.projection
        {
            return (state, self.now.max(*at));
        }
        (self.state, self.now)
    }

    fn commit(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.commit();
        }
    }

    fn ensure_exact_projection(&mut self, gone: usize) {
        if let Some(mut schedule) = self.schedule() {
            schedule.ensure_exact_projection(gone);
        }
    }

    fn ensure_approximate_projection(&mut self) {
        if let Some(mut schedule) = self.schedule() {
            schedule.ensure_approximate_projection(0);
        }
    }
}

impl<A: Algorithm> Drop for Moving<'_, '_, A> {
    fn drop(&mut self) {
        if let Some(queue) = &mut self.key.queue {
            queue.forget(&self.tickets);
        }
    }
}

/// Decides a call without regard to the waiters, and charges it if it is admitted. A check may count a denial even if
/// the call can then be queued. So an algorithm with an exclusive queue decides by `peek` first.
#[inline]
pub(in crate::limiter) fn check_to_queue<A: Algorithm>(
    algorithm: &A,
    state: &mut A::State,
    now: Nanos,
    cost: u64,
    queue: QueueConfig,
) -> Decision {
    if queue.is_exclusive() {
        let peeked = algorithm.peek(state, now, cost);
        if !peeked.is_allowed() {
            return peeked;
        }
    }
    algorithm.check(state, now, cost)
}

/// Returns the time in nanoseconds from `now` until a key is fresh. `decision` was made on the key's state at the clock
/// reading `at`.
fn reset_of(decision: Decision, at: Nanos, now: Nanos) -> u64 {
    at.saturating_add(Nanos::from(decision.reset_after()).0).saturating_since(now)
}
