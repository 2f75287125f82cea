//! Decides what a queue means to a call: whether it is admitted, queued or denied, and what it reports.

use std::borrow::Cow;

use super::Queue;
use crate::algorithm::{QueueConfig, QueueOverflow, Queueing, Semaphore};
use crate::clock::Nanos;
use crate::decision::Decision;

/// The maximum number of iterations of the fixed-point search in `retry_by_eviction`.
const MAX_ITERATIONS: usize = 8;

/// A queue as seen by a call that arrives now.
#[derive(Debug)]
pub(crate) struct QueueView<'a, S> {
    queueing: &'a dyn Queueing<S>,
    state: &'a mut S,
    /// The waiters ahead; `None` if there are none.
    before: Option<Ahead<'a, S>>,
    /// The waiters of all keys.
    total: &'a Semaphore,
}

/// The waiters ahead of a call.
#[derive(Debug)]
struct Ahead<'a, S> {
    queue: &'a Queue<S>,
    /// The number of waiters at the front that are treated as released.
    gone: usize,
    waiting: usize,
    /// The total cost of the others.
    ahead: u128,
}

/// A call that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) now: Nanos,
    pub(crate) cost: u64,
    pub(crate) priority: bool,
    /// `true` if the call waits when the queue has a free place.
    pub(crate) may_wait: bool,
    /// The maximum wait of the call itself in nanoseconds, which the queue may shorten; `u64::MAX` if there is
    /// none.
    pub(crate) max_wait: u64,
    /// Set for a waiter evicted by a newer call: its `retry_after` waits for a free place instead of evicting
    /// again.
    pub(crate) dropped: bool,
}

impl Arrival {
    /// Creates a call that waits as long as the queue lets it.
    pub(crate) fn new(now: Nanos, cost: u64) -> Self {
        Self { now, cost, priority: false, may_wait: true, max_wait: u64::MAX, dropped: false }
    }

    /// Returns the call's maximum wait in a queue with that configuration, in nanoseconds.
    pub(super) fn queue_config(&self, queue: QueueConfig) -> u64 {
        self.max_wait.min(queue.max_wait())
    }
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum Fate {
    /// The call is allowed or denied immediately.
    Decided(Decision),
    Waits,
    /// The call would wait if there were a free place.
    Full,
}

enum Course {
    Passes,
    Waits,
    Full,
    Refused,
}

impl<'a, S: Clone> QueueView<'a, S> {
    /// Creates the view of an empty queue.
    pub(crate) fn empty(queueing: &'a dyn Queueing<S>, state: &'a mut S, total: &'a Semaphore) -> Self {
        Self { queueing, state, before: None, total }
    }

    /// Creates the view of a call behind all waiters but the first `gone`, which are treated as released. The
    /// projection must exist.
    pub(super) fn behind(
        queueing: &'a dyn Queueing<S>,
        state: &'a mut S,
        queue: &'a Queue<S>,
        gone: usize,
    ) -> Self {
        let waiting = queue.waiting.len() - gone;
        let left = queue.waiting.iter().take(gone).map(|waiter| u128::from(waiter.cost)).sum::<u128>();
        let before = Ahead { queue, gone, waiting, ahead: queue.ahead - left };
        let before = Some(before).filter(|before| before.waiting > 0);
        Self { queueing, state, before, total: &queue.total }
    }

    /// Replaces the number of waiters and their total cost with earlier ones.
    pub(super) fn with(mut self, waiting: usize, ahead: u128) -> Self {
        if let Some(before) = &mut self.before {
            (before.waiting, before.ahead) = (waiting, ahead);
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_none()
    }

    /// Returns the state after all waiters ahead have been admitted.
    fn tail(&self) -> &S {
        self.before.as_ref().and_then(|before| before.queue.tail.as_ref()).unwrap_or(self.state)
    }

    /// Returns whether the call may wait and the total of all keys has a free place.
    fn may_wait(&self, arrival: Arrival) -> bool {
        arrival.may_wait && self.total.available() > 0
    }

    fn waiting(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.waiting as u64)
    }

    fn ahead(&self) -> u128 {
        self.before.as_ref().map_or(0, |before| before.ahead)
    }

    /// Decides a call, and charges its units if it is allowed.
    pub(crate) fn decide(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let decision = match self.course(arrival) {
            Course::Waits => return Fate::Waits,
            Course::Full => return Fate::Full,
            Course::Refused => return Fate::Decided(self.reject(arrival)),
            Course::Passes => match self.queueing.take(self.state, now, cost) {
                Some(decision) => self.behind_others(decision, now),
                None => {
                    if cost > 0 {
                        let seen = self.queueing.observe(self.state, now);
                        self.queueing.leave(self.state, seen, cost);
                    }
                    self.admitted_like(arrival)
                }
            },
        };
        Fate::Decided(self.queueing.answer(self.state, now, cost, true, decision))
    }

    /// Returns what a call would report, without charging anything.
    pub(crate) fn preview(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let decision = match self.course(arrival) {
            Course::Waits => return Fate::Waits,
            Course::Full => return Fate::Full,
            Course::Refused => self.rejection(arrival),
            Course::Passes => self.admitted_like(arrival),
        };
        Fate::Decided(self.queueing.answer(self.state, now, cost, false, decision))
    }

    fn course(&mut self, arrival: Arrival) -> Course {
        let Arrival { now, cost, .. } = arrival;
        let queueing = self.queueing;
        queueing.observe(self.state, now);
        if cost > 0 && (queueing.bars(self.state) || !queueing.fits(self.state, cost)) {
            return Course::Refused;
        }
        if cost == 0 || self.is_empty() && queueing.is_due(self.state, cost) {
            return Course::Passes;
        }
        let config = queueing.queue_config(self.state);
        if arrival.queue_config(config) == 0 && !queueing.is_timed() {
            // The wait is unknown and `max_wait` is zero.
            return Course::Refused;
        }
        let is_full = config.places() > 0 && self.waiting() >= config.places();
        if arrival.may_wait && is_full && queueing.lends(self.state).is_none() && self.drops_oldest() {
            // Whether it can then wait in time is checked later.
            return Course::Full;
        }
        if !self.may_wait(arrival) || !queueing.in_time(self.tail(), cost, now, arrival.queue_config(config))
        {
            return Course::Refused;
        }
        match queueing.lends(self.state) {
            None if self.waiting() < config.places() => Course::Waits,
            None if config.places() > 0 => Course::Full,
            Some(units) if arrival.priority && self.ahead() + u128::from(cost) <= u128::from(units) => {
                Course::Waits
            }
            _ => Course::Refused,
        }
    }

    /// Returns whether a new call evicts the oldest waiter if the queue is full.
    pub(crate) fn drops_oldest(&self) -> bool {
        self.queueing.queue_config(self.state).overflow() == QueueOverflow::DropOldest
    }

    /// Returns the decision for a call that would be denied.
    pub(crate) fn preview_rejection(&mut self, arrival: Arrival) -> Decision {
        let decision = self.rejection(arrival);
        self.queueing.answer(self.state, arrival.now, arrival.cost, false, decision)
    }

    /// Returns the decision for a call that is denied, and counts the denial.
    pub(crate) fn reject(&mut self, arrival: Arrival) -> Decision {
        let decision = self.rejection(arrival);
        self.queueing.answer(self.state, arrival.now, arrival.cost, true, decision)
    }

    /// Returns the decision for a call that does not wait while others do: it must not overtake them.
    pub(crate) fn deny_behind_queue(&self, arrival: Arrival) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let queueing = self.queueing;
        let fits = queueing.fits(self.state, cost);
        let until =
            (fits && queueing.is_timed()).then(|| queueing.turn(self.tail(), cost).saturating_since(now));
        Decision::deny(queueing.at_once(self.state), 0, until, queueing.reset(self.tail(), now))
            .with_unknown_wait(fits)
            .with_index(queueing.bottleneck(self.tail(), cost))
    }

    pub(crate) fn admission(&mut self, now: Nanos, priority: bool) -> Decision {
        self.admitted_like(Arrival { priority, ..Arrival::new(now, 1) })
    }

    /// Returns the decision for an admitted call. `remaining` counts calls with the same priority and maximum
    /// wait.
    fn admitted_like(&mut self, arrival: Arrival) -> Decision {
        let Arrival { now, priority, max_wait, .. } = arrival;
        if let Some(decision) = self.queueing.look(self.state, now, 0) {
            return self.behind_others(decision, now);
        }
        let arrival = Arrival { priority, max_wait, ..Arrival::new(now, 1) };
        let reset = self.queueing.reset(self.tail(), now);
        let remaining = self.remaining(arrival);
        let decision = Decision::allow(self.limit(arrival), remaining, reset);
        match remaining {
            0 => decision.with_next(self.retry(arrival)),
            _ => decision,
        }
    }

    /// Adapts the algorithm's own decision to the calls that wait.
    fn behind_others(&self, decision: Decision, now: Nanos) -> Decision {
        match self.is_empty() {
            true => decision,
            false => decision.with_remaining_zero().with_min_reset(self.queueing.reset(self.tail(), now)),
        }
    }

    fn rejection(&mut self, arrival: Arrival) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let fits = self.queueing.fits(self.state, cost);
        let retry = (fits && self.queueing.is_timed()).then(|| self.retry(arrival));
        if self.is_empty()
            && let Some(decision) = self.queueing.look(self.state, now, cost)
        {
            // Of several limits, one with unknown waits may have room: then the algorithm knows how long the
            // wait is.
            return if self.queueing.is_timed() { decision.with_retry_after(retry) } else { decision };
        }
        if self.queueing.look(self.state, now, 0).is_some() {
            return self.deny_behind_queue(arrival).with_retry_after(retry);
        }
        let reset = self.queueing.reset(self.tail(), now);
        Decision::deny(self.limit(arrival), self.remaining(arrival), retry, reset).with_unknown_wait(fits)
    }

    /// Returns the number of units that the call may borrow, by its priority.
    fn borrowable(&self, arrival: Arrival) -> u64 {
        self.queueing.lends(self.state).filter(|_| arrival.priority).unwrap_or(0)
    }

    fn limit(&self, arrival: Arrival) -> u64 {
        let most = self.queueing.at_once(self.state).saturating_add(self.total.limit());
        self.queueing.capacity(self.state).saturating_add(self.borrowable(arrival)).min(most)
    }

    fn remaining(&mut self, arrival: Arrival) -> u64 {
        let queueing = self.queueing;
        let seen = queueing.observe(self.state, arrival.now);
        let config = queueing.queue_config(self.state);
        let at_once = if self.is_empty() { queueing.passing(self.state, seen) } else { 0 };
        let taken = u64::try_from(self.ahead()).unwrap_or(u64::MAX);
        let borrowable = self.borrowable(arrival).saturating_sub(taken);
        let places = if queueing.lends(self.state).is_some() { 0 } else { config.places() };
        let places = places.saturating_sub(self.waiting()).max(borrowable);
        let places = places.min(self.total.available()).saturating_add(at_once);
        // A call that is admitted immediately does not wait, however far the clock is behind.
        places.min(queueing.room(self.tail(), arrival.now, arrival.queue_config(config)).max(at_once))
    }

    /// Returns the time until a new call finds a free place and a wait that is short enough, in nanoseconds.
    fn retry(&self, arrival: Arrival) -> u64 {
        let Arrival { now, cost, .. } = arrival;
        let config = self.queueing.queue_config(self.state);
        let turn = self.queueing.turn(self.tail(), cost).saturating_since(now);
        // The release of the calls for other keys is unknown: their places stay taken.
        let others = self.total.len().saturating_sub(self.waiting());
        if !arrival.may_wait || others >= self.total.limit() {
            return turn;
        }
        let has_room = |waiting: u64| others.saturating_add(waiting) < self.total.limit();
        match self.queueing.lends(self.state) {
            // Enough waiters have been released.
            Some(units) if arrival.priority && cost <= units => {
                let fits = |ahead: u128| ahead + u128::from(cost) <= u128::from(units);
                let free = self.time_until_slot(now, |waiting, ahead| fits(ahead) && has_room(waiting));
                free.max(turn.saturating_sub(arrival.queue_config(config)))
            }
            Some(_) => turn,
            // Without a place to wait in, the call must be due.
            None if config.places() == 0 => turn,
            None => {
                let early_enough = turn.saturating_sub(arrival.queue_config(config));
                let free =
                    self.time_until_slot(now, |waiting, _| waiting < config.places() && has_room(waiting));
                self.retry_by_eviction(arrival, free).unwrap_or(early_enough.max(free))
            }
        }
    }

    /// Returns the time until the wait fits the call's maximum if the oldest waiter were evicted. `None` if a
    /// place becomes `free` earlier.
    ///
    /// A waiter that the oldest has held back may be released as soon as the oldest is evicted: so the result
    /// depends on the time of the eviction, and is found by iteration.
    fn retry_by_eviction(&self, arrival: Arrival, free: u64) -> Option<u64> {
        let is_full = self.waiting() >= self.queueing.queue_config(self.state).places();
        let drops = is_full && self.drops_oldest() && !arrival.dropped && free > 0;
        let before = self.before.as_ref().filter(|_| drops)?;
        let others = before.gone + 1..before.queue.waiting.len();
        let mut at = 0;
        for _ in 0..MAX_ITERATIONS {
            let mut state = self.state.clone();
            self.queueing.observe(&mut state, arrival.now.saturating_add(at));
            let tail = before.queue.after(self.queueing, &state, others.clone());
            let turn = self.queueing.turn(&tail, arrival.cost).saturating_since(arrival.now);
            let early_enough =
                turn.saturating_sub(arrival.queue_config(self.queueing.queue_config(self.state)));
            match early_enough {
                _ if early_enough <= at => return Some(at),
                _ if early_enough >= free => return None,
                _ => at = early_enough,
            }
        }
        None
    }

    /// Returns the time until enough waiters have been released that there is a place.
    fn time_until_slot(&self, now: Nanos, is_place: impl Fn(u64, u128) -> bool) -> u64 {
        let (mut waiting, mut ahead) = (self.waiting(), self.ahead());
        let Some(before) = self.before.as_ref().filter(|_| !is_place(waiting, ahead)) else { return 0 };
        let Queue { waiting: waiters, since, .. } = before.queue;
        let (mut state, seen) = (Cow::Borrowed(&*self.state), self.queueing.time(self.state));
        for waiter in waiters.iter().skip(before.gone) {
            let turn = self.queueing.turn(&state, waiter.cost);
            (waiting, ahead) = (waiting - 1, ahead - u128::from(waiter.cost));
            if is_place(waiting, ahead) {
                return turn.saturating_since(now);
            }
            self.queueing.follow(state.to_mut(), waiter.eligible_since(*since, seen), waiter.cost);
        }
        0
    }
}
