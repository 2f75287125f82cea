//! Those in a line, and those who have left it.

use std::task::Waker;

use crate::algorithm::{Place, Standing};
use crate::clock::Nanos;
use crate::decision::Decision;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) arrived: Nanos,
    /// When it is refused, if nobody knows when it may leave.
    pub(super) until: Nanos,
    pub(super) alarm: Nanos,
    pub(super) waker: Option<Waker>,
    /// Among those who wait.
    pub(super) _standing: Standing,
    /// Among those whom the rule counts.
    pub(super) place: Place,
}

impl Waiter {
    /// From when on it is owed a slot: since it came or the schedule began anew, and not later than now, should the
    /// clock have been set back.
    pub(super) fn owed_from(&self, since: Nanos, seen: Nanos) -> Nanos {
        self.arrived.max(since).min(seen)
    }
}

/// One that has left the line without its turn. Its places are free.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) arrived: Nanos,
    pub(super) waker: Option<Waker>,
}

impl From<Waiter> for Gone {
    fn from(Waiter { ticket, cost, arrived, waker, .. }: Waiter) -> Self {
        Self { ticket, cost, arrived, waker }
    }
}

#[derive(Debug)]
pub(super) struct Released {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) decision: Decision,
    /// When it was charged, if it was let in.
    pub(super) charged_at: Nanos,
    pub(super) place: Place,
}

#[derive(Debug)]
pub(super) struct Undo<S> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) at: Nanos,
    /// The state before, if it is kept.
    pub(super) before: Option<S>,
}

/// What became of a call that came to the line.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It may pass at once, or is refused at once.
    Decided(Decision),
    /// It waits, under this ticket.
    Waits(u64),
}

/// What a waiter is told that asks for its turn.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The decision, and of a call that is let in when it was charged.
    Now(Decision, Nanos),
    /// Not yet: ask again then, or when woken.
    At(Nanos),
}
