//! What a line means to a call: whether it passes, waits or is refused, and what it is told.

use std::borrow::Cow;

use super::Queue;
use crate::algorithm::{Crowd, Line, Overflow, Patience};
use crate::clock::Nanos;
use crate::decision::Decision;

/// How often it is tried out what time comes of another.
const MOST_TRIES: usize = 8;

/// A line as one sees it who comes now.
#[derive(Debug)]
pub(crate) struct Outlook<'a, S> {
    line: &'a dyn Line<S>,
    state: &'a mut S,
    /// `None`: nobody waits.
    before: Option<Before<'a, S>>,
    /// All who wait, for whatever key.
    crowd: &'a Crowd,
}

/// Those who stand before it.
#[derive(Debug)]
struct Before<'a, S> {
    queue: &'a Queue<S>,
    /// So many of the line are as good as gone.
    gone: usize,
    waiting: usize,
    /// What they cost.
    ahead: u128,
}

/// A call that comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comer {
    pub(crate) now: Nanos,
    pub(crate) cost: u64,
    pub(crate) priority: bool,
    /// Whether it waits if there is a place.
    pub(crate) waits: bool,
    /// How long it waits at most, in nanoseconds, if the line is longer; `u64::MAX`: as long as it takes.
    pub(crate) patience: u64,
    /// Whether it has just been refused in another's stead: it is told of a place that is free, not of one to take
    /// from the next.
    pub(crate) dropped: bool,
}

impl Comer {
    /// A call that waits as long as the line lets it.
    pub(crate) fn new(now: Nanos, cost: u64) -> Self {
        Self { now, cost, priority: false, waits: true, patience: u64::MAX, dropped: false }
    }

    /// How long it waits in a line of that patience.
    pub(super) fn patience(&self, line: Patience) -> u64 {
        self.patience.min(line.max_wait())
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

impl<'a, S: Clone> Outlook<'a, S> {
    /// Nobody waits.
    pub(crate) fn alone(line: &'a dyn Line<S>, state: &'a mut S, crowd: &'a Crowd) -> Self {
        Self { line, state, before: None, crowd }
    }

    /// Behind all of a line but so many, that are as good as gone. It must have been looked ahead.
    pub(super) fn behind(line: &'a dyn Line<S>, state: &'a mut S, queue: &'a Queue<S>, gone: usize) -> Self {
        let waiting = queue.waiting.len() - gone;
        let left = queue.waiting.iter().take(gone).map(|waiter| u128::from(waiter.cost)).sum::<u128>();
        let before = Before { queue, gone, waiting, ahead: queue.ahead - left };
        let before = Some(before).filter(|before| before.waiting > 0);
        Self { line, state, before, crowd: &queue.crowd }
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
    fn may_wait(&self, comer: Comer) -> bool {
        comer.waits && self.crowd.room() > 0
    }

    fn waiting(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.waiting as u64)
    }

    fn ahead(&self) -> u128 {
        self.before.as_ref().map_or(0, |before| before.ahead)
    }

    /// Decides on a call, taking its units if it passes.
    pub(crate) fn decide(&mut self, comer: Comer) -> Fate {
        let Comer { now, cost, .. } = comer;
        let decision = match self.course(comer) {
            Course::Waits => return Fate::Waits,
            Course::Full => return Fate::Full,
            Course::Refused => return Fate::Decided(self.refuse(comer)),
            Course::Passes => match self.line.take(self.state, now, cost) {
                Some(decision) => self.among_others(decision, now),
                None => {
                    if cost > 0 {
                        let seen = self.line.observe(self.state, now);
                        self.line.leave(self.state, seen, cost);
                    }
                    self.admitted_like(comer)
                }
            },
        };
        Fate::Decided(self.line.answer(self.state, now, cost, true, decision))
    }

    /// What a call would be told, taking nothing.
    pub(crate) fn foretell(&mut self, comer: Comer) -> Fate {
        let Comer { now, cost, .. } = comer;
        let decision = match self.course(comer) {
            Course::Waits => return Fate::Waits,
            Course::Full => return Fate::Full,
            Course::Refused => self.refused(comer),
            Course::Passes => self.admitted_like(comer),
        };
        Fate::Decided(self.line.answer(self.state, now, cost, false, decision))
    }

    fn course(&mut self, comer: Comer) -> Course {
        let Comer { now, cost, .. } = comer;
        let line = self.line;
        line.observe(self.state, now);
        if cost > 0 && (line.bars(self.state) || !line.fits(self.state, cost)) {
            return Course::Refused;
        }
        if cost == 0 || self.is_empty() && line.is_due(self.state, cost) {
            return Course::Passes;
        }
        let patience = line.patience(self.state);
        if comer.patience(patience) == 0 && !line.is_timed() {
            // It would wait for what nobody knows, and not at all.
            return Course::Refused;
        }
        let is_full = patience.places() > 0 && self.waiting() >= patience.places();
        if comer.waits && is_full && line.lends(self.state).is_none() && self.drops_oldest() {
            // Whether it is then in time is another question.
            return Course::Full;
        }
        if !self.may_wait(comer) || !line.in_time(self.tail(), cost, now, comer.patience(patience)) {
            return Course::Refused;
        }
        match line.lends(self.state) {
            None if self.waiting() < patience.places() => Course::Waits,
            None if patience.places() > 0 => Course::Full,
            Some(units) if comer.priority && self.ahead() + u128::from(cost) <= u128::from(units) => {
                Course::Waits
            }
            _ => Course::Refused,
        }
    }

    /// Whether a newcomer has the oldest refused, where the line is full.
    pub(crate) fn drops_oldest(&self) -> bool {
        self.line.patience(self.state).overflow() == Overflow::DropOldest
    }

    /// What a call would be told that would be refused.
    pub(crate) fn would_refuse(&mut self, comer: Comer) -> Decision {
        let decision = self.refused(comer);
        self.line.answer(self.state, comer.now, comer.cost, false, decision)
    }

    /// What a call is told that is refused, and counts as refused.
    pub(crate) fn refuse(&mut self, comer: Comer) -> Decision {
        let decision = self.refused(comer);
        self.line.answer(self.state, comer.now, comer.cost, true, decision)
    }

    /// What a call that does not wait is told while others do: nobody overtakes them.
    pub(crate) fn blocked(&self, comer: Comer) -> Decision {
        let Comer { now, cost, .. } = comer;
        let line = self.line;
        let fits = line.fits(self.state, cost);
        let until = (fits && line.is_timed()).then(|| line.turn(self.tail(), cost).since(now));
        Decision::deny(line.at_once(self.state), 0, until, line.reset(self.tail(), now))
            .with_unknown_wait(fits)
            .with_index(line.bottleneck(self.tail(), cost))
    }

    pub(crate) fn admitted(&mut self, now: Nanos, priority: bool) -> Decision {
        self.admitted_like(Comer { priority, ..Comer::new(now, 1) })
    }

    /// The decision for a call that is let in. `remaining` counts calls with the same priority and patience.
    fn admitted_like(&mut self, comer: Comer) -> Decision {
        let Comer { now, priority, patience, .. } = comer;
        if let Some(decision) = self.line.look(self.state, now, 0) {
            return self.among_others(decision, now);
        }
        let comer = Comer { priority, patience, ..Comer::new(now, 1) };
        let reset = self.line.reset(self.tail(), now);
        let remaining = self.remaining(comer);
        let decision = Decision::allow(self.limit(comer), remaining, reset);
        match remaining {
            0 => decision.with_next(self.retry(comer)),
            _ => decision,
        }
    }

    /// The rule's own decision, where others wait.
    fn among_others(&self, decision: Decision, now: Nanos) -> Decision {
        match self.is_empty() {
            true => decision,
            false => decision.with_nothing_left().with_reset_of(self.line.reset(self.tail(), now)),
        }
    }

    fn refused(&mut self, comer: Comer) -> Decision {
        let Comer { now, cost, .. } = comer;
        let fits = self.line.fits(self.state, cost);
        let retry = (fits && self.line.is_timed()).then(|| self.retry(comer));
        if self.is_empty()
            && let Some(decision) = self.line.look(self.state, now, cost)
        {
            // Of several limits, one that nobody can time may have room: then the rule knows how long.
            return if self.line.is_timed() { decision.with_retry_of(retry) } else { decision };
        }
        if self.line.look(self.state, now, 0).is_some() {
            return self.blocked(comer).with_retry_of(retry);
        }
        let reset = self.line.reset(self.tail(), now);
        Decision::deny(self.limit(comer), self.remaining(comer), retry, reset).with_unknown_wait(fits)
    }

    /// What calls with priority may borrow.
    fn lent(&self, comer: Comer) -> u64 {
        self.line.lends(self.state).filter(|_| comer.priority).unwrap_or(0)
    }

    fn limit(&self, comer: Comer) -> u64 {
        let most = self.line.at_once(self.state).saturating_add(self.crowd.most());
        self.line.capacity(self.state).saturating_add(self.lent(comer)).min(most)
    }

    fn remaining(&mut self, comer: Comer) -> u64 {
        let line = self.line;
        let seen = line.observe(self.state, comer.now);
        let patience = line.patience(self.state);
        let at_once = if self.is_empty() { line.passing(self.state, seen) } else { 0 };
        let taken = u64::try_from(self.ahead()).unwrap_or(u64::MAX);
        let lent = self.lent(comer).saturating_sub(taken);
        let places = if line.lends(self.state).is_some() { 0 } else { patience.places() };
        let places = places.saturating_sub(self.waiting()).max(lent);
        let places = places.min(self.crowd.room()).saturating_add(at_once);
        // What passes at once does not wait, however far the clock is behind.
        places.min(line.room(self.tail(), comer.now, comer.patience(patience)).max(at_once))
    }

    /// When a newcomer finds a free place and a wait that is short enough.
    fn retry(&self, comer: Comer) -> u64 {
        let Comer { now, cost, .. } = comer;
        let patience = self.line.patience(self.state);
        let turn = self.line.turn(self.tail(), cost).since(now);
        // When calls for other keys leave is not known: their places stay taken.
        let others = self.crowd.len().saturating_sub(self.waiting());
        if !comer.waits || others >= self.crowd.most() {
            return turn;
        }
        let has_room = |waiting: u64| others.saturating_add(waiting) < self.crowd.most();
        match self.line.lends(self.state) {
            // Enough of those who wait have left.
            Some(units) if comer.priority && cost <= units => {
                let fits = |ahead: u128| ahead + u128::from(cost) <= u128::from(units);
                let free = self.freed(now, |waiting, ahead| fits(ahead) && has_room(waiting));
                free.max(turn.saturating_sub(comer.patience(patience)))
            }
            Some(_) => turn,
            // Without a place to wait in, it must be one's turn.
            None if patience.places() == 0 => turn,
            None => {
                let early_enough = turn.saturating_sub(comer.patience(patience));
                let free = self.freed(now, |waiting, _| waiting < patience.places() && has_room(waiting));
                self.instead_of_the_oldest(comer, free).unwrap_or(early_enough.max(free))
            }
        }
    }

    /// When it would wait a time that is short enough, were the oldest refused in its stead, where that is done; if
    /// that is before a place is `free`.
    ///
    /// Whom the oldest has held back may leave as soon as it is dropped: so it matters when that is, and is tried out.
    fn instead_of_the_oldest(&self, comer: Comer, free: u64) -> Option<u64> {
        let is_full = self.waiting() >= self.line.patience(self.state).places();
        let drops = is_full && self.drops_oldest() && !comer.dropped && free > 0;
        let before = self.before.as_ref().filter(|_| drops)?;
        let others = before.gone + 1..before.queue.waiting.len();
        let mut at = 0;
        for _ in 0..MOST_TRIES {
            let mut state = self.state.clone();
            self.line.observe(&mut state, comer.now.after(at));
            let tail = before.queue.after(self.line, &state, others.clone());
            let turn = self.line.turn(&tail, comer.cost).since(comer.now);
            let early_enough = turn.saturating_sub(comer.patience(self.line.patience(self.state)));
            match early_enough {
                _ if early_enough <= at => return Some(at),
                _ if early_enough >= free => return None,
                _ => at = early_enough,
            }
        }
        None
    }

    /// When so many have left that there is a place.
    fn freed(&self, now: Nanos, is_place: impl Fn(u64, u128) -> bool) -> u64 {
        let (mut waiting, mut ahead) = (self.waiting(), self.ahead());
        let Some(before) = self.before.as_ref().filter(|_| !is_place(waiting, ahead)) else { return 0 };
        let Queue { waiting: waiters, since, .. } = before.queue;
        let (mut state, seen) = (Cow::Borrowed(&*self.state), self.line.time(self.state));
        for waiter in waiters.iter().skip(before.gone) {
            let turn = self.line.turn(&state, waiter.cost);
            (waiting, ahead) = (waiting - 1, ahead - u128::from(waiter.cost));
            if is_place(waiting, ahead) {
                return turn.since(now);
            }
            self.line.follow(state.to_mut(), waiter.owed_from(*since, seen), waiter.cost);
        }
        0
    }
}
