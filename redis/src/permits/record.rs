//! A record of a key: a call of this process that holds a permit, or waits for one.

use tokio::sync::{oneshot, watch};

use crate::error::RedisError;
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;

/// The settings of all keys of a limiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) limit: u64,
    /// The time for which the server keeps a record after a renewal, in nanoseconds.
    pub(super) lease: u64,
    /// The deadline of calls, in nanoseconds.
    pub(super) deadline: u64,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) units: u64,
    /// The beginning of the last trip that has renewed the record, or that may have created it.
    pub(super) renewed: Nanos,
    /// `true` if units were released, and the server does not know this yet.
    pub(super) is_lowered: bool,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    Asking {
        call: Call,
        phase: Phase,
        /// The minimum fencing token of a valid message. A message with a smaller token is about a record that the
        /// server has lost.
        min_fence: u64,
    },
    /// The call holds a permit until the time in `valid_until`. If `is_forgotten`, the call has no permit object any
    /// more.
    Held {
        valid_until: watch::Sender<Nanos>,
        is_forgotten: bool,
        /// The time at which the process was informed of the grant.
        granted_at: Nanos,
    },
}

/// A call that has no permit yet.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) arrived: Nanos,
    /// The time until which the server must have replied.
    pub(super) deadline: Nanos,
    /// The time until which the call waits for a permit. `None` if the call does not wait.
    pub(super) latest: Option<Nanos>,
    pub(super) reply: Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No trip has contained an operation on the record yet.
    New,
    /// A trip may have created the record.
    Sent,
    /// The record waits in the queue of the server.
    Queued,
    /// The server has lost the record, which must be queued again.
    Lost,
}

/// The sender of the result of a call.
pub(super) type Reply = oneshot::Sender<Result<Acquired, RedisError>>;

/// The result of a call: the decision and, if the call was admitted, its permit.
#[derive(Debug)]
pub(super) struct Acquired {
    pub(super) decision: Decision,
    pub(super) permit: Option<Grant>,
}

/// A permit that the server has granted.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) fence: u64,
    /// The time until which the permit is valid. Each renewal postpones this time. The time is zero if the permit was
    /// lost.
    pub(super) valid_until: watch::Receiver<Nanos>,
}

/// A call that asks how many units are held, and how many calls wait.
#[derive(Debug)]
pub(super) struct Peek {
    pub(super) deadline: Nanos,
    /// The sender of the number of units that are held, and of the number of waiters.
    pub(super) reply: oneshot::Sender<Result<(u64, u64), RedisError>>,
}

impl Record {
    pub(super) fn new(units: u64, call: Call) -> Self {
        let stage = Stage::Asking { call, phase: Phase::New, min_fence: 0 };
        Self { units, renewed: Nanos::ZERO, is_lowered: false, stage }
    }

    /// Returns the phase of a call that has no permit yet.
    pub(super) fn phase(&self) -> Option<Phase> {
        match self.stage {
            Stage::Asking { phase, .. } => Some(phase),
            Stage::Held { .. } => None,
        }
    }

    /// Returns whether the call waits for a permit.
    pub(super) fn waits(&self) -> bool {
        matches!(self.phase(), Some(Phase::Queued | Phase::Lost))
    }

    /// Sends the result to the caller, or reports that the caller's permit was lost. A caller that is gone needs no
    /// result.
    pub(super) fn end(self, result: Result<Acquired, RedisError>) {
        match self.stage {
            Stage::Asking { call, .. } => drop(call.reply.send(result)),
            Stage::Held { valid_until, .. } => drop(valid_until.send(Nanos::ZERO)),
        }
    }
}

impl Rules {
    /// Returns the time for which a task may be late before another task replaces it, in nanoseconds.
    pub(super) fn patience(&self) -> u64 {
        (2 * self.deadline).clamp(self.lease / 8, self.lease / 4)
    }

    /// Returns the time until which this process may use a permit that was renewed by a trip that began at `sent`. The
    /// server keeps the record for longer, because the clocks of the server and of the process may run at different
    /// speeds.
    pub(super) fn valid_until(&self, sent: Nanos) -> Nanos {
        sent.saturating_add(self.lease - self.lease / 64)
    }

    /// Returns how many units are left for a new call. While other calls wait, no units are left.
    pub(super) fn left(&self, held: u64, waiting: u64) -> u64 {
        if waiting > 0 { 0 } else { self.limit.saturating_sub(held) }
    }

    /// Returns the decision on a call of `units` that gets no permit.
    pub(super) fn deny(&self, units: u64, held: u64, waiting: u64) -> Decision {
        Decision::deny(self.limit, self.left(held, waiting), None, 0).with_unknown_wait(units <= self.limit)
    }
}
