//! What a line means to a call: whether it passes, waits or is refused, and what it is told.

use crate::algorithm::Line;
use crate::clock::Nanos;
use crate::decision::Decision;

/// A line as one sees it who comes now: how many wait, and at what cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    pub(super) waiting: u64,
    pub(super) ahead: u128,
}

enum Fate {
    Passes,
    Waits,
    Refused,
}

impl Outlook {
    /// Nobody waits.
    pub(crate) const EMPTY: Self = Self { waiting: 0, ahead: 0 };

    pub(crate) fn is_empty(self) -> bool {
        self.waiting == 0
    }

    /// Whether a call passes at once or is refused at once; `None` if it is to wait.
    pub(crate) fn decide<S>(
        self,
        line: &dyn Line<S>,
        state: &mut S,
        now: Nanos,
        cost: u64,
    ) -> Option<Decision> {
        let decision = match self.fate(line, state, now, cost) {
            Fate::Passes => {
                if cost > 0 {
                    let seen = line.observe(state, now);
                    line.leave(state, seen, cost);
                }
                self.admitted(line, state, now)
            }
            Fate::Waits => return None,
            Fate::Refused => self.refused(line, state, now),
        };
        Some(line.answer(state, now, cost, true, decision))
    }

    /// What a call of that cost would be told, taking nothing; `None` if it would wait.
    pub(crate) fn foretell<S>(
        self,
        line: &dyn Line<S>,
        state: &mut S,
        now: Nanos,
        cost: u64,
    ) -> Option<Decision> {
        let decision = match self.fate(line, state, now, cost) {
            Fate::Passes => self.admitted(line, state, now),
            Fate::Waits => return None,
            Fate::Refused => self.refused(line, state, now),
        };
        Some(line.answer(state, now, cost, false, decision))
    }

    fn fate<S>(self, line: &dyn Line<S>, state: &mut S, now: Nanos, cost: u64) -> Fate {
        line.observe(state, now);
        if cost > 0 && line.bars(state) {
            return Fate::Refused;
        }
        if cost == 0 || self.waiting == 0 && line.is_due(state) {
            return Fate::Passes;
        }
        let turn = line.turn(state, self.ahead);
        let patient = line.max_wait() == u64::MAX || turn < Nanos::MAX && turn.since(now) <= line.max_wait();
        let waits = self.waiting < line.places() && patient;
        if waits { Fate::Waits } else { Fate::Refused }
    }

    /// What a call is told where nobody can wait: it passes at once, or is refused.
    pub(crate) fn decide_at_once<S>(
        self,
        line: &dyn Line<S>,
        state: &mut S,
        now: Nanos,
        cost: u64,
    ) -> Decision {
        match self.decide(line, state, now, cost) {
            Some(decision) => decision,
            None => {
                let blocked = self.blocked(line, state, now);
                line.answer(state, now, cost, true, blocked)
            }
        }
    }

    /// What `check` says while calls wait: nobody overtakes them.
    pub(crate) fn blocked<S>(self, line: &dyn Line<S>, state: &S, now: Nanos) -> Decision {
        let until = line.turn(state, self.ahead).since(now);
        Decision::deny(1, 0, Some(until), line.reset(state, self.ahead, now))
    }

    pub(crate) fn admitted<S>(self, line: &dyn Line<S>, state: &mut S, now: Nanos) -> Decision {
        let reset = line.reset(state, self.ahead, now);
        let remaining = self.remaining(line, state, now);
        let decision = Decision::allow(line.capacity(), remaining, reset);
        match remaining {
            0 => decision.with_next(self.retry(line, state, now)),
            _ => decision,
        }
    }

    fn refused<S>(self, line: &dyn Line<S>, state: &mut S, now: Nanos) -> Decision {
        let reset = line.reset(state, self.ahead, now);
        let remaining = self.remaining(line, state, now);
        Decision::deny(line.capacity(), remaining, Some(self.retry(line, state, now)), reset)
    }

    fn remaining<S>(self, line: &dyn Line<S>, state: &mut S, now: Nanos) -> u64 {
        let seen = line.observe(state, now);
        let at_once = if self.waiting == 0 { line.passing(state, seen) } else { 0 };
        let places = line.places().saturating_sub(self.waiting).saturating_add(at_once);
        places.min(line.room(state, self.ahead, now))
    }

    /// When a newcomer finds a free place and a wait that is short enough.
    fn retry<S>(self, line: &dyn Line<S>, state: &S, now: Nanos) -> u64 {
        let turn = line.turn(state, self.ahead);
        let early_enough = turn.since(now).saturating_sub(line.max_wait());
        let free = match (self.waiting < line.places(), self.waiting) {
            (true, _) => 0,
            // Without a place to wait in, it must be one's turn.
            (false, 0) => turn.since(now),
            // The first to leave frees one.
            (false, _) => line.turn(state, 0).since(now),
        };
        early_enough.max(free)
    }
}
