//! What a line means to a call: whether it passes, waits or is refused, and what it is told.

use std::borrow::Cow;

use super::Queue;
use crate::algorithm::{QueueConfig, QueueOverflow, Queueing, Semaphore};
use crate::clock::Nanos;
use crate::decision::Decision;

/// How often it is tried out what time comes of another.
const MAX_ITERATIONS: usize = 8;

/// A line as one sees it who comes now.
#[derive(Debug)]
pub(crate) struct QueueView<'a, S> {
    line: &'a dyn Queueing<S>,
    state: &'a mut S,
    /// `None`: nobody waits.
    before: Option<Ahead<'a, S>>,
    /// All who wait, for whatever key.
    total: &'a Semaphore,
}

/// Those who stand before it.
#[derive(Debug)]
struct Ahead<'a, S> {
    queue: &'a Queue<S>,
    /// So many of the line are as good as gone.
    gone: usize,
    waiting: usize,
    /// What they cost.
    ahead: u128,
}

/// A call that comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) now: Nanos,
    pub(crate) cost: u64,
    pub(crate) priority: bool,
    /// Whether it may_wait: waits if there is a place.
    pub(crate) may_wait: bool,
    /// How long it waits at most, in nanoseconds, if the line is longer; `u64::MAX`: as long as it takes.
    pub(crate) max_wait: u64,
    /// Whether it has just been refused in another's stead: it is told of a place that is free, not of one to take
    /// from the next.
    pub(crate) dropped: bool,
}

impl Arrival {
    /// A call that may_wait: waits as long as the line lets it.
    pub(crate) fn new(now: Nanos, cost: u64) -> Self {
        Self { now, cost, priority: false, may_wait: true, max_wait: u64::MAX, dropped: false }
    }

    /// How long it waits in a line of that patience.
    pub(super) fn queue_config(&self, line: QueueConfig) -> u64 {
        self.max_wait.min(line.max_wait())
    }
}

/// What becomes of a call.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It passes at once, or is refused at once.
    Decided(Decision),
    Waits,
    /// It would wait, if there were a place.
    Full,
}

enum Course {
    Passes,
    Waits,
    Full,
    Refused,
}

impl<'a, S: Clone> QueueView<'a, S> {
    /// Nobody waits.
    pub(crate) fn empty(line: &'a dyn Queueing<S>, state: &'a mut S, total: &'a Semaphore) -> Self {
        Self { line, state, before: None, total }
    }

    /// Behind all of a line but so many, that are as good as gone. It must have been looked ahead.
    pub(super) fn behind(
        line: &'a dyn Queueing<S>,
        state: &'a mut S,
        queue: &'a Queue<S>,
        gone: usize,
    ) -> Self {
        let waiting = queue.waiting.len() - gone;
        let left = queue.waiting.iter().take(gone).map(|waiter| u128::from(waiter.cost)).sum::<u128>();
        let before = Ahead { queue, gone, waiting, ahead: queue.ahead - left };
        let before = Some(before).filter(|before| before.waiting > 0);
        Self { line, state, before, total: &queue.total }
    }

    /// As it was when so many stood in the line, and cost so much.
    pub(super) fn with(mut self, waiting: usize, ahead: u128) -> Self {
        if let Some(before) = &mut self.before {
            (before.waiting, before.ahead) = (waiting, ahead);
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_none()
    }

    /// The state as it will be when all before it have left.
    fn tail(&self) -> &S {
        self.before.as_ref().and_then(|before| before.queue.tail.as_ref()).unwrap_or(self.state)
    }

    /// Whether a call that would wait finds a place among all who do.
    fn may_wait(&self, arrival: Arrival) -> bool {
        arrival.may_wait && self.total.available() > 0
    }

    fn waiting(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.waiting as u64)
    }

    fn ahead(&self) -> u128 {
        self.before.as_ref().map_or(0, |before| before.ahead)
    }

    /// Decides on a call, taking its units if it passes.
    pub(crate) fn decide(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let decision = match self.course(arrival) {
            Course::Waits => return Fate::Waits,
            Course::Full => return Fate::Full,
            Course::Refused => return Fate::Decided(self.reject(arrival)),
            Course::Passes => match self.line.take(self.state, now, cost) {
                Some(decision) => self.behind_others(decision, now),
                None => {
                    if cost > 0 {
                        let seen = self.line.observe(self.state, now);
                        self.line.leave(self.state, seen, cost);
                    }
                    self.admitted_like(arrival)
                }
            },
        };
        Fate::Decided(self.line.answer(self.state, now, cost, true, decision))
    }

    /// What a call would be told, taking nothing.
    pub(crate) fn preview(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let decision = match self.course(arrival) {
            Course::Waits => return Fate::Waits,
            Course::Full => return Fate::Full,
            Course::Refused => self.rejection(arrival),
            Course::Passes => self.admitted_like(arrival),
        };
        Fate::Decided(self.line.answer(self.state, now, cost, false, decision))
    }

    fn course(&mut self, arrival: Arrival) -> Course {
        let Arrival { now, cost, .. } = arrival;
        let line = self.line;
        line.observe(self.state, now);
        if cost > 0 && (line.bars(self.state) || !line.fits(self.state, cost)) {
            return Course::Refused;
        }
        if cost == 0 || self.is_empty() && line.is_due(self.state, cost) {
            return Course::Passes;
        }
        let patience = line.queue_config(self.state);
        if arrival.queue_config(patience) == 0 && !line.is_timed() {
            // It would wait for what nobody knows, and not at all.
            return Course::Refused;
        }
        let is_full = patience.places() > 0 && self.waiting() >= patience.places();
        if arrival.may_wait && is_full && line.lends(self.state).is_none() && self.drops_oldest() {
            // Whether it is then in time is another question.
            return Course::Full;
        }
        if !self.may_wait(arrival) || !line.in_time(self.tail(), cost, now, arrival.queue_config(patience)) {
            return Course::Refused;
        }
        match line.lends(self.state) {
            None if self.waiting() < patience.places() => Course::Waits,
            None if patience.places() > 0 => Course::Full,
            Some(units) if arrival.priority && self.ahead() + u128::from(cost) <= u128::from(units) => {
                Course::Waits
            }
            _ => Course::Refused,
        }
    }

    /// Whether a newcomer has the oldest refused, where the line is full.
    pub(crate) fn drops_oldest(&self) -> bool {
        self.line.queue_config(self.state).overflow() == QueueOverflow::DropOldest
    }

    /// What a call would be told that would be refused.
    pub(crate) fn preview_rejection(&mut self, arrival: Arrival) -> Decision {
        let decision = self.rejection(arrival);
        self.line.answer(self.state, arrival.now, arrival.cost, false, decision)
    }

    /// What a call is told that is refused, and counts as refused.
    pub(crate) fn reject(&mut self, arrival: Arrival) -> Decision {
        let decision = self.rejection(arrival);
        self.line.answer(self.state, arrival.now, arrival.cost, true, decision)
    }

    /// What a call that does not wait is told while others do: nobody overtakes them.
    pub(crate) fn deny_behind_queue(&self, arrival: Arrival) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let line = self.line;
        let fits = line.fits(self.state, cost);
        let until = (fits && line.is_timed()).then(|| line.turn(self.tail(), cost).saturating_since(now));
        Decision::deny(line.at_once(self.state), 0, until, line.reset(self.tail(), now))
            .with_unknown_wait(fits)
            .with_index(line.bottleneck(self.tail(), cost))
    }

    pub(crate) fn admission(&mut self, now: Nanos, priority: bool) -> Decision {
        self.admitted_like(Arrival { priority, ..Arrival::new(now, 1) })
    }

    /// The decision for a call that is let in. `remaining` counts calls with the same priority and patience.
    fn admitted_like(&mut self, arrival: Arrival) -> Decision {
        let Arrival { now, priority, max_wait: patience, .. } = arrival;
        if let Some(decision) = self.line.look(self.state, now, 0) {
            return self.behind_others(decision, now);
        }
        let arrival = Arrival { priority, max_wait: patience, ..Arrival::new(now, 1) };
        let reset = self.line.reset(self.tail(), now);
        let remaining = self.remaining(arrival);
        let decision = Decision::allow(self.limit(arrival), remaining, reset);
        match remaining {
            0 => decision.with_next(self.retry(arrival)),
            _ => decision,
        }
    }

    /// The rule's own decision, where others wait.
    fn behind_others(&self, decision: Decision, now: Nanos) -> Decision {
        match self.is_empty() {
            true => decision,
            false => decision.with_remaining_zero().with_min_reset(self.line.reset(self.tail(), now)),
        }
    }

    fn rejection(&mut self, arrival: Arrival) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let fits = self.line.fits(self.state, cost);
        let retry = (fits && self.line.is_timed()).then(|| self.retry(arrival));
        if self.is_empty()
            && let Some(decision) = self.line.look(self.state, now, cost)
        {
            // Of several limits, one that nobody can time may have room: then the rule knows how long.
            return if self.line.is_timed() { decision.with_retry_after(retry) } else { decision };
        }
        if self.line.look(self.state, now, 0).is_some() {
            return self.deny_behind_queue(arrival).with_retry_after(retry);
        }
        let reset = self.line.reset(self.tail(), now);
        Decision::deny(self.limit(arrival), self.remaining(arrival), retry, reset).with_unknown_wait(fits)
    }

    /// What calls with priority may borrow.
    fn borrowable(&self, arrival: Arrival) -> u64 {
        self.line.lends(self.state).filter(|_| arrival.priority).unwrap_or(0)
    }

    fn limit(&self, arrival: Arrival) -> u64 {
        let most = self.line.at_once(self.state).saturating_add(self.total.limit());
        self.line.capacity(self.state).saturating_add(self.borrowable(arrival)).min(most)
    }

    fn remaining(&mut self, arrival: Arrival) -> u64 {
        let line = self.line;
        let seen = line.observe(self.state, arrival.now);
        let patience = line.queue_config(self.state);
        let at_once = if self.is_empty() { line.passing(self.state, seen) } else { 0 };
        let taken = u64::try_from(self.ahead()).unwrap_or(u64::MAX);
        let borrowable = self.borrowable(arrival).saturating_sub(taken);
        let places = if line.lends(self.state).is_some() { 0 } else { patience.places() };
        let places = places.saturating_sub(self.waiting()).max(borrowable);
        let places = places.min(self.total.available()).saturating_add(at_once);
        // What passes at once does not wait, however far the clock is behind.
        places.min(line.room(self.tail(), arrival.now, arrival.queue_config(patience)).max(at_once))
    }

    /// When a newcomer finds a free place and a wait that is short enough.
    fn retry(&self, arrival: Arrival) -> u64 {
        let Arrival { now, cost, .. } = arrival;
        let patience = self.line.queue_config(self.state);
        let turn = self.line.turn(self.tail(), cost).saturating_since(now);
        // When calls for other keys leave is not known: their places stay taken.
        let others = self.total.len().saturating_sub(self.waiting());
        if !arrival.may_wait || others >= self.total.limit() {
            return turn;
        }
        let has_room = |waiting: u64| others.saturating_add(waiting) < self.total.limit();
        match self.line.lends(self.state) {
            // Enough of those who wait have left.
            Some(units) if arrival.priority && cost <= units => {
                let fits = |ahead: u128| ahead + u128::from(cost) <= u128::from(units);
                let free = self.time_until_slot(now, |waiting, ahead| fits(ahead) && has_room(waiting));
                free.max(turn.saturating_sub(arrival.queue_config(patience)))
            }
            Some(_) => turn,
            // Without a place to wait in, it must be one's turn.
            None if patience.places() == 0 => turn,
            None => {
                let early_enough = turn.saturating_sub(arrival.queue_config(patience));
                let free =
                    self.time_until_slot(now, |waiting, _| waiting < patience.places() && has_room(waiting));
                self.retry_by_eviction(arrival, free).unwrap_or(early_enough.max(free))
            }
        }
    }

    /// When it would wait a time that is short enough, were the oldest refused in its stead, where that is done; if
    /// that is before a place is `free`.
    ///
    /// Whom the oldest has held back may leave as soon as it is dropped: so it matters when that is, and is tried out.
    fn retry_by_eviction(&self, arrival: Arrival, free: u64) -> Option<u64> {
        let is_full = self.waiting() >= self.line.queue_config(self.state).places();
        let drops = is_full && self.drops_oldest() && !arrival.dropped && free > 0;
        let before = self.before.as_ref().filter(|_| drops)?;
        let others = before.gone + 1..before.queue.waiting.len();
        let mut at = 0;
        for _ in 0..MAX_ITERATIONS {
            let mut state = self.state.clone();
            self.line.observe(&mut state, arrival.now.saturating_add(at));
            let tail = before.queue.after(self.line, &state, others.clone());
            let turn = self.line.turn(&tail, arrival.cost).saturating_since(arrival.now);
            let early_enough = turn.saturating_sub(arrival.queue_config(self.line.queue_config(self.state)));
            match early_enough {
                _ if early_enough <= at => return Some(at),
                _ if early_enough >= free => return None,
                _ => at = early_enough,
            }
        }
        None
    }

    /// When so many have left that there is a place.
    fn time_until_slot(&self, now: Nanos, is_place: impl Fn(u64, u128) -> bool) -> u64 {
        let (mut waiting, mut ahead) = (self.waiting(), self.ahead());
        let Some(before) = self.before.as_ref().filter(|_| !is_place(waiting, ahead)) else { return 0 };
        let Queue { waiting: waiters, since, .. } = before.queue;
        let (mut state, seen) = (Cow::Borrowed(&*self.state), self.line.time(self.state));
        for waiter in waiters.iter().skip(before.gone) {
            let turn = self.line.turn(&state, waiter.cost);
            (waiting, ahead) = (waiting - 1, ahead - u128::from(waiter.cost));
            if is_place(waiting, ahead) {
                return turn.saturating_since(now);
            }
            self.line.follow(state.to_mut(), waiter.eligible_since(*since, seen), waiter.cost);
        }
        0
    }
}
