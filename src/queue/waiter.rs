//! The waiters of a queue, and the calls that have left it.

use std::task::Waker;

use crate::algorithm::{QueueSlot, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A call in the queue.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) arrived: Nanos,
    /// The time at which the waiter is rejected if the time of its release is unknown.
    pub(super) deadline: Nanos,
    pub(super) wake_at: Nanos,
    pub(super) waker: Option<Waker>,
    /// Its place among the waiters of all keys.
    pub(super) _slot: QueueSlot,
    /// Its place in what the algorithm counts across all keys.
    pub(super) place: SharedPermit,
}

impl Waiter {
    /// Returns the time from which on the waiter is owed a slot: its arrival or the start of the schedule, and
    /// not later than `seen`, should the clock have been set back.
    pub(super) fn eligible_since(&self, since: Nanos, seen: Nanos) -> Nanos {
        self.arrived.max(since).min(seen)
    }
}

/// A waiter that was removed from the queue before its release. Its places are free.
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

/// A call that was released or rejected and has not observed it yet.
#[derive(Debug)]
pub(super) struct Released {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) decision: Decision,
    /// The time at which the call was charged, if it was admitted.
    pub(super) charged_at: Nanos,
    pub(super) place: SharedPermit,
}

/// The last release, for undoing it.
#[derive(Debug)]
pub(super) struct LastRelease<S> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) at: Nanos,
    /// The state before the release, if it is kept.
    pub(super) before: Option<S>,
}

/// The outcome of a call that arrives at the queue.
#[derive(Debug)]
pub(crate) enum Enqueued {
    /// The call is allowed or denied immediately.
    Decided(Decision),
    /// The call waits under this ticket.
    Queued(u64),
}

/// The result of polling a waiter.
#[derive(Debug)]
pub(crate) enum PollTurn {
    /// The decision, and the time at which an admitted call was charged.
    Ready(Decision, Nanos),
    /// Not ready: poll again at that time, or when woken.
    NotBefore(Nanos),
}
