//! What a line means to a call: whether it passes, waits or is refused, and what it is told.

use crate::algorithm::Line;
use crate::clock::Nanos;
use crate::decision::Decision;

/// A line as one sees it who comes now: how many wait, and at what cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    pub(super) waiting: u64,
    pub(super) ahead: u128,
    /// The units that must leave before there is a place for one who comes now, if there is none. In a line with so many places: before the one
    /// leaves who frees a place.
    pub(super) lead: u128,
}

/// A call that comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comer {
    pub(crate) now: Nanos,
    pub(crate) cost: u64,
    pub(crate) priority: bool,
}

enum Fate {
    Passes,
    Waits,
    Refused,
}

impl Outlook {
    /// Nobody waits.
    pub(crate) const EMPTY: Self = Self { waiting: 0, ahead: 0, lead: 0 };

    pub(crate) fn is_empty(self) -> bool {
        self.waiting == 0
    }

    /// Whether a call passes at once or is refused at once; `None` if it is to wait.
    pub(crate) fn decide<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Option<Decision> {
        let Comer { now, cost, .. } = comer;
        let decision = match self.fate(line, state, comer) {
            Fate::Passes => {
                if cost > 0 {
                    let seen = line.observe(state, now);
                    line.leave(state, seen, cost);
                }
                self.admitted(line, state, comer)
            }
            Fate::Waits => return None,
            Fate::Refused => self.refused(line, state, comer),
        };
        Some(line.answer(state, now, cost, true, decision))
    }

    /// What a call would be told, taking nothing; `None` if it would wait.
    pub(crate) fn foretell<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Option<Decision> {
        let decision = match self.fate(line, state, comer) {
            Fate::Passes => self.admitted(line, state, comer),
            Fate::Waits => return None,
            Fate::Refused => self.refused(line, state, comer),
        };
        Some(line.answer(state, comer.now, comer.cost, false, decision))
    }

    fn fate<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Fate {
        let Comer { now, cost, priority } = comer;
        line.observe(state, now);
        if cost > 0 && (line.bars(state) || !line.fits(state, cost)) {
            return Fate::Refused;
        }
        if cost == 0 || self.waiting == 0 && line.is_due(state, cost) {
            return Fate::Passes;
        }
        let place = match line.lends(state) {
            None => self.waiting < line.places(state),
            Some(units) => priority && self.ahead + u128::from(cost) <= u128::from(units),
        };
        match place && line.in_time(state, self.ahead, cost, now) {
            true => Fate::Waits,
            false => Fate::Refused,
        }
    }

    /// What a call is told where nobody can wait: it passes at once, or is refused.
    pub(crate) fn decide_at_once<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Decision {
        match self.decide(line, state, comer) {
            Some(decision) => decision,
            None => {
                let blocked = self.blocked(line, state, comer);
                line.answer(state, comer.now, comer.cost, true, blocked)
            }
        }
    }

    /// What `check` says while calls wait: nobody overtakes them.
    pub(crate) fn blocked<S>(self, line: &dyn Line<S>, state: &S, comer: Comer) -> Decision {
        let Comer { now, cost, .. } = comer;
        let until = line.fits(state, cost).then(|| line.turn(state, self.ahead, cost).since(now));
        Decision::deny(line.at_once(state), 0, until, line.reset(state, self.ahead, now))
    }

    pub(crate) fn admitted<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Decision {
        let reset = line.reset(state, self.ahead, comer.now);
        let remaining = self.remaining(line, state, comer);
        let decision = Decision::allow(Self::limit(line, state, comer), remaining, reset);
        match remaining {
            0 => decision.with_next(self.retry(line, state, Comer { cost: 1, ..comer })),
            _ => decision,
        }
    }

    fn refused<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Decision {
        let reset = line.reset(state, self.ahead, comer.now);
        let remaining = self.remaining(line, state, comer);
        let retry = line.fits(state, comer.cost).then(|| self.retry(line, state, comer));
        Decision::deny(Self::limit(line, state, comer), remaining, retry, reset)
    }

    /// What calls with priority may borrow.
    fn lent<S>(line: &dyn Line<S>, state: &S, comer: Comer) -> u64 {
        line.lends(state).filter(|_| comer.priority).unwrap_or(0)
    }

    fn limit<S>(line: &dyn Line<S>, state: &S, comer: Comer) -> u64 {
        line.capacity(state).saturating_add(Self::lent(line, state, comer))
    }

    fn remaining<S>(self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> u64 {
        let seen = line.observe(state, comer.now);
        let at_once = if self.waiting == 0 { line.passing(state, seen) } else { 0 };
        let taken = u64::try_from(self.ahead).unwrap_or(u64::MAX);
        let lent = Self::lent(line, state, comer).saturating_sub(taken);
        let places = line.places(state).saturating_sub(self.waiting).max(lent).saturating_add(at_once);
        // What passes at once does not wait, however far the clock is behind.
        places.min(line.room(state, self.ahead, comer.now).max(at_once))
    }

    /// When a newcomer finds a free place and a wait that is short enough.
    fn retry<S>(self, line: &dyn Line<S>, state: &S, comer: Comer) -> u64 {
        let Comer { now, cost, priority } = comer;
        let turn = line.turn(state, self.ahead, cost).since(now);
        match line.lends(state) {
            // Enough of those who wait have left.
            Some(units) if priority && cost <= units => line.turn(state, self.lead, 0).since(now),
            Some(_) => turn,
            None => {
                let early_enough = turn.saturating_sub(line.max_wait(state));
                let free = match line.places(state) {
                    places if self.waiting < places => 0,
                    // Without a place to wait in, it must be one's turn.
                    0 => turn,
                    // Whoever leaves after those, and that is mostly the first, frees one.
                    _ => line.turn(state, self.lead, 1).since(now),
                };
                early_enough.max(free)
            }
        }
    }
}
