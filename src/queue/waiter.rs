//! The waiters of a queue, and the calls that have left the queue.

use std::task::Waker;

use crate::algorithm::{Algorithm, QueueSlot, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A call in the queue.
#[derive(Debug)]
pub(super) struct Waiter<A> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    /// The algorithm that the call chose for itself: its tier.
    pub(super) tier: Option<Box<A>>,
    pub(super) arrived: Nanos,
    /// The time at which the waiter is denied, if the time of its release is unknown. Otherwise [`Nanos::MAX`].
    pub(super) deadline: Nanos,
    pub(super) wake_at: Nanos,
    pub(super) waker: Option<Waker>,
    /// The call in the count of the waiters of all keys. Dropping this value lowers the count.
    pub(super) _counted: QueueSlot,
    /// The units of the call in the totals of its algorithm. Dropping this permit subtracts them.
    pub(super) permit: SharedPermit,
}

impl<A> Waiter<A> {
    /// Returns the algorithm that releases the waiter: its tier, or otherwise the algorithm of the limiter.
    pub(super) fn algorithm<'a>(&'a self, base: &'a A) -> &'a A {
        self.tier.as_deref().unwrap_or(base)
    }

    /// Returns the earliest time at which the waiter can be charged: its arrival or, if that is later, `since`, the
    /// time of the latest reset of the schedule. The result is at most `seen`, the key's time, because the clock may
    /// have been set back.
    pub(super) fn eligible_since(&self, since: Nanos, seen: Nanos) -> Nanos {
        self.arrived.max(since).min(seen)
    }
}

/// A waiter that was removed from the queue before its release. The count of the waiters of all keys, and the totals of
/// the algorithm, no longer include this waiter.
#[derive(Debug)]
pub(super) struct Displaced<A> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) tier: Option<Box<A>>,
    pub(super) arrived: Nanos,
    pub(super) waker: Option<Waker>,
}

impl<A> From<Waiter<A>> for Displaced<A> {
    fn from(Waiter { ticket, cost, tier, arrived, waker, .. }: Waiter<A>) -> Self {
        Self { ticket, cost, tier, arrived, waker }
    }
}

/// A queued call that was released or denied, and whose future has not been polled since.
#[derive(Debug)]
pub(super) struct Released<A> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) tier: Option<Box<A>>,
    pub(super) decision: Decision,
    /// The time at which the call was charged, if it was admitted.
    pub(super) charged_at: Nanos,
    pub(super) permit: SharedPermit,
}

/// The latest release, with the data that is needed to undo it.
#[derive(Debug)]
pub(super) struct LastRelease<S> {
    pub(super) ticket: u64,
    pub(super) cost: u64,
    pub(super) at: Nanos,
    /// The state before the release, if it was copied.
    pub(super) before: Option<S>,
}

/// The state after every waiter has been admitted at its scheduled time.
#[derive(Clone, Debug)]
pub(super) struct Projection<S> {
    pub(super) state: S,
    /// The clock reading to pass to the algorithm as `now` together with this state.
    pub(super) at: Nanos,
}

impl<S> Projection<S> {
    /// Adds a waiter behind all others.
    pub(super) fn add<A: Algorithm<State = S>>(&mut self, algorithm: &A, arrived: Nanos, cost: u64) {
        self.at = algorithm.project(&mut self.state, self.at, arrived, cost).max(self.at);
    }

    /// Removes a waiter if possible, and returns whether the waiter was removed. A waiter can be removed only if the
    /// charges of the algorithm [add up](Algorithm::ADDS_UP) and the projection is not ahead of the clock.
    pub(super) fn remove<A: Algorithm<State = S>>(&mut self, algorithm: &A, now: Nanos, cost: u64) -> bool {
        let is_possible = A::ADDS_UP && self.at <= now;
        if is_possible {
            algorithm.refund(&mut self.state, self.at, cost);
        }
        is_possible
    }
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
    /// The call is not ready. Poll it again at this time, or when it is woken.
    NotBefore(Nanos),
}
