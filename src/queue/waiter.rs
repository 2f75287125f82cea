//! Those in a line, and those who have left it.

use std::task::Waker;

use crate::algorithm::{QueueSlot, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) arrived: Nanos,
    /// When it is refused, if nobody knows when it may leave.
    pub(super) deadline: Nanos,
    pub(super) wake_at: Nanos,
    pub(super) waker: Option<Waker>,
    /// Among those who wait.
    pub(super) _slot: QueueSlot,
    /// Among those whom the rule counts.
    pub(super) place: SharedPermit,
}

impl Waiter {
    /// From when on it is owed a slot: since it came or the schedule began anew, and not later than now, should the
    /// clock have been set back.
    pub(super) fn eligible_since(&self, since: Nanos, seen: Nanos) -> Nanos {
        self.arrived.max(since).min(seen)
    }
}

/// One that has left the line without its turn. Its places are free.
#[derive(Debug)]
pub(super) struct Evicted {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) arrived: Nanos,
    pub(super) waker: Option<Waker>,
}

impl From<Waiter> for Evicted {
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
    pub(super) place: SharedPermit,
}

#[derive(Debug)]
pub(super) struct LastRelease<S> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) at: Nanos,
    /// The state before, if it is kept.
    pub(super) before: Option<S>,
}

/// What became of a call that came to the line.
#[derive(Debug)]
pub(crate) enum Enqueued {
    /// It may pass at once, or is refused at once.
    Decided(Decision),
    /// It waits, under this ticket.
    Queued(u64),
}

/// What a waiter is told that asks for its turn.
#[derive(Debug)]
pub(crate) enum PollTurn {
    /// The decision, and of a call that is let in when it was charged.
    Ready(Decision, Nanos),
    /// Not yet: ask again then, or when woken.
    NotBefore(Nanos),
}
