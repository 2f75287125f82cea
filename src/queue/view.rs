//! The decision on a call that arrives at a queue: whether the call is admitted, queued or denied, and what is
//! reported.

use std::collections::VecDeque;

use super::arrival::{Arrival, Fate};
use super::waiter::{Projection, Waiter};
use super::{Queue, queue_config};
use crate::algorithm::{Algorithm, QueueConfig, QueueOverflow, Semaphore};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A queue as seen by a call that arrives now.
#[derive(Debug)]
pub(crate) struct QueueView<'a, A: Algorithm> {
    /// The algorithm of waiters that chose no tier.
    pub(super) base: &'a A,
    /// The algorithm of the call.
    pub(super) algorithm: &'a A,
    pub(super) config: QueueConfig,
    pub(super) state: &'a mut A::State,
    /// The waiters ahead. `None` if no waiter is ahead.
    pub(super) before: Option<Ahead<'a, A>>,
    /// The count of the waiters of all keys, and its maximum.
    pub(super) total: &'a Semaphore,
}

/// The waiters ahead of a call.
#[derive(Debug)]
pub(super) struct Ahead<'a, A: Algorithm> {
    pub(super) waiters: &'a VecDeque<Waiter<A>>,
    /// The time of the latest reset of the schedule.
    pub(super) since: Nanos,
    /// The state after all waiters have been admitted. `None` if it is unknown when they will be admitted.
    projection: Option<&'a mut Projection<A::State>>,
    /// The number of waiters at the front that are treated as released.
    pub(super) gone: usize,
    waiting: usize,
    /// The total cost of the waiters that are not treated as released.
    ahead: u128,
}

/// The way in which a call that cannot pass now is handled.
enum Course {
    Waits,
    Full,
    /// The queues of all keys together are full.
    TotalFull,
    Denied,
}

impl<'a, A: Algorithm> QueueView<'a, A> {
    /// Creates the view of an empty queue.
    #[inline]
    pub(crate) fn empty(
        algorithm: &'a A,
        config: QueueConfig,
        state: &'a mut A::State,
        total: &'a Semaphore,
    ) -> Self {
        Self { base: algorithm, algorithm, config, state, before: None, total }
    }

    /// Creates the view of a call that arrives behind all waiters, and that `algorithm` decides. The first `gone`
    /// waiters are treated as released. The projection must have been computed before.
    pub(super) fn behind(
        base: &'a A,
        algorithm: &'a A,
        state: &'a mut A::State,
        queue: &'a mut Queue<A>,
        gone: usize,
    ) -> Self {
        let Queue { waiting: waiters, ahead, projection, since, total, .. } = queue;
        let left = waiters.iter().take(gone).map(|waiter| u128::from(waiter.cost)).sum::<u128>();
        let (waiting, since, ahead) = (waiters.len() - gone, *since, *ahead - left);
        let before = Ahead { waiters, since, projection: projection.as_mut(), gone, waiting, ahead };
        let before = Some(before).filter(|before| before.waiting > 0);
        Self { base, algorithm, config: queue_config(algorithm), state, before, total }
    }

    /// Sets the number and the total cost of the waiters ahead, to describe the queue as it was right after an earlier
    /// release.
    pub(super) fn with(mut self, waiting: usize, ahead: u128) -> Self {
        if let Some(before) = &mut self.before {
            (before.waiting, before.ahead) = (waiting, ahead);
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_none()
    }

    /// Returns the state after all waiters ahead have been released, and the clock reading to pass to the algorithm as
    /// `now` together with that state.
    pub(super) fn tail(&mut self, now: Nanos) -> (&mut A::State, Nanos) {
        match &mut self.before {
            Some(Ahead { projection: Some(projection), .. }) => {
                (&mut projection.state, projection.at.max(now))
            }
            _ => (self.state, now),
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.waiting as u64)
    }

    pub(super) fn ahead(&self) -> u128 {
        self.before.as_ref().map_or(0, |before| before.ahead)
    }

    /// Decides a call, and charges its units if it is allowed.
    #[inline]
    pub(crate) fn decide(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let algorithm = self.algorithm;
        let may_pass = cost == 0 || self.is_empty();
        // A check may count a denial even if the call can then be queued. So an algorithm with an exclusive queue
        // decides by `peek` first.
        let decision = match may_pass && !self.config.is_exclusive() {
            true => algorithm.check(self.state, now, cost),
            false => match algorithm.peek(self.state, now, cost) {
                peeked if may_pass && peeked.is_allowed() => algorithm.check(self.state, now, cost),
                peeked => peeked,
            },
        };
        if may_pass && decision.is_allowed() {
            return Fate::Decided(self.admitted(decision, arrival));
        }
        self.fate(decision, arrival, true)
    }

    /// Returns the outcome that a call would have, without charging anything.
    pub(crate) fn preview(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let decision = self.algorithm.peek(self.state, now, cost);
        if decision.is_allowed() && (cost == 0 || self.is_empty()) {
            return Fate::Decided(self.admitted(decision, arrival));
        }
        self.fate(decision, arrival, false)
    }

    /// Returns the outcome of a call that cannot pass now. `decision` is what the algorithm decided without regard to
    /// the queue. `counts` is false for a preview.
    fn fate(&mut self, decision: Decision, arrival: Arrival, counts: bool) -> Fate {
        match self.course(decision, arrival) {
            Course::Waits => Fate::Waits,
            Course::Full => Fate::Full,
            Course::Denied => Fate::Decided(self.reported_rejection(decision, arrival, counts)),
            Course::TotalFull => {
                Fate::Decided(self.reported_rejection(decision, arrival, counts).with_queue_full())
            }
        }
    }

    /// Returns what happens to a call that cannot pass now: the call waits, finds a full queue, or is denied for
    /// another reason. `decision` is what the algorithm decided without regard to the queue.
    fn course(&mut self, decision: Decision, arrival: Arrival) -> Course {
        let config = self.config;
        if decision.is_barred() || decision.never_fits() || !arrival.may_wait {
            return Course::Denied;
        }
        if arrival.max_wait(config) == 0 && !config.is_timed() {
            // The wait is unknown and `max_wait` is zero.
            return Course::Denied;
        }
        let is_full = config.places() > 0 && self.waiting() >= config.places();
        if is_full && self.drops_oldest() {
            // Whether the call can then be released in time is checked later.
            return Course::Full;
        }
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(arrival.now);
        if !arrival.is_in_time(algorithm, tail, at) {
            return Course::Denied;
        }
        let course = match config.priority_units() {
            None if self.waiting() < config.places() => Course::Waits,
            None if config.places() > 0 => Course::Full,
            Some(units)
                if arrival.priority && self.ahead() + u128::from(arrival.cost) <= u128::from(units) =>
            {
                Course::Waits
            }
            _ => Course::Denied,
        };
        match course {
            Course::Waits | Course::Full if self.total.available() == 0 => Course::TotalFull,
            course => course,
        }
    }

    /// Returns whether a new call displaces the oldest waiter if the queue is full.
    pub(crate) fn drops_oldest(&self) -> bool {
        self.config.overflow() == QueueOverflow::DropOldest
    }

    /// Returns the decision for a call that would be denied, without counting the denial.
    pub(crate) fn preview_rejection(&mut self, arrival: Arrival) -> Decision {
        let decision = self.algorithm.peek(self.state, arrival.now, arrival.cost);
        self.reported_rejection(decision, arrival, false)
    }

    /// Returns the decision for a call that is denied, and counts the denial.
    pub(crate) fn reject(&mut self, arrival: Arrival) -> Decision {
        let decision = self.algorithm.peek(self.state, arrival.now, arrival.cost);
        self.reported_rejection(decision, arrival, true)
    }

    /// Returns the denial of a call as the algorithm reports it. `counts` is false for a preview.
    fn reported_rejection(&mut self, decision: Decision, arrival: Arrival, counts: bool) -> Decision {
        let rejection = self.rejection(decision, arrival);
        self.algorithm.report(self.state, arrival.now, arrival.cost, counts, rejection)
    }

    /// Returns the denial of a call that may not wait, and must not overtake the waiters.
    pub(crate) fn deny_behind_queue(&mut self, arrival: Arrival) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let fits = !self.algorithm.peek(self.state, now, cost).never_fits();
        let retry = (fits && self.config.is_timed()).then(|| self.turn(now, cost));
        self.deny_behind_others(arrival, fits, retry)
    }

    fn deny_behind_others(&mut self, arrival: Arrival, fits: bool, retry: Option<u64>) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(now);
        let last = algorithm.peek(tail, at, cost);
        Decision::deny(last.limit(), 0, retry, reset_of(last, at, now))
            .with_unknown_wait(fits)
            .with_index(last.limit_index())
    }

    /// Returns the decision on a call of cost 1 that has just been admitted, at `now`.
    pub(crate) fn admission(&mut self, now: Nanos, priority: bool) -> Decision {
        let arrival = Arrival { priority, ..Arrival::new(now, 1) };
        let decision = self.algorithm.peek(self.state, now, 0);
        self.admitted(decision, arrival)
    }

    /// Returns the decision on an admitted call, adapted to the queue. `decision` is what the algorithm decided without
    /// regard to the queue. If `remaining` includes the places of the queue, it counts calls with the same priority and
    /// maximum wait.
    #[inline]
    fn admitted(&mut self, decision: Decision, arrival: Arrival) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        match self.counts_places(arrival) {
            true => {
                let counted = self.counted_admission(decision, arrival);
                self.algorithm.report(self.state, now, cost, false, counted)
            }
            false if self.is_empty() => decision,
            false => decision.with_remaining_zero().with_min_reset(self.reset(now)),
        }
    }

    /// Returns the decision on a denied call, adapted to the queue. `decision` is what the algorithm decided without
    /// regard to the queue.
    fn rejection(&mut self, decision: Decision, arrival: Arrival) -> Decision {
        let (fits, is_timed) = (!decision.never_fits(), self.config.is_timed());
        let retry = (fits && is_timed).then(|| self.retry(arrival));
        if self.counts_places(arrival) {
            return self.counted_denial(decision, arrival, retry).with_unknown_wait(fits);
        }
        match (self.is_empty(), is_timed) {
            (false, _) => self.deny_behind_others(arrival, fits, retry),
            (true, true) => decision.with_retry_after(retry),
            // The decision may have a `retry_after`: in a tuple, the limit whose waits are unknown may have room, so
            // that the decision reports the wait of another limit.
            (true, false) => decision,
        }
    }
}

/// Returns the time in nanoseconds from `now` until a key is fresh. `decision` was made on the key's state at the clock
/// reading `at`.
pub(super) fn reset_of(decision: Decision, at: Nanos, now: Nanos) -> u64 {
    at.saturating_add(Nanos::from(decision.reset_after()).0).saturating_since(now)
}
