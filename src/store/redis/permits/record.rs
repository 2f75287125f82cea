//! A record of a key: a call of this process that holds a permit, or waits for one.

use tokio::sync::{oneshot, watch};

use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::redis::error::RedisError;

/// The settings of all keys of a limiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) limit: u64,
    /// For how long a record lives after it was renewed, in nanoseconds.
    pub(super) lease: u64,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) units: u64,
    pub(super) arrived: Nanos,
    /// The time at which the last trip began that has renewed the record, or that may have created it.
    pub(super) renewed: Nanos,
    /// `true` if the record has fewer units than the server knows.
    pub(super) is_lowered: bool,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The call is not decided yet.
    New { may_wait: bool, deadline: Nanos, is_sent: bool, reply: Reply },
    /// The call waits for a permit. If the server has lost the record, the call is queued again.
    Waiting { is_lost: bool, reply: Reply },
    /// The call holds a permit until the time that `valid_until` has. If `is_forgotten`, the call has no permit object.
    Held { valid_until: watch::Sender<Nanos>, is_forgotten: bool },
}

/// Where the result of a call is sent.
pub(super) type Reply = oneshot::Sender<Result<Acquired, RedisError>>;

/// The result of a call: the decision and, if the call was admitted, its permit.
#[derive(Debug)]
pub(super) struct Acquired {
    pub(super) decision: Decision,
    pub(super) permit: Option<Grant>,
}

/// A permit as the server has granted it.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) fence: u64,
    /// The time until which the permit is valid, unless it is renewed. Zero if the permit was lost.
    pub(super) valid_until: watch::Receiver<Nanos>,
}

/// A call that asks for the units that are held.
#[derive(Debug)]
pub(super) struct Peek {
    pub(super) deadline: Nanos,
    /// Gets the units that are held, and the number of waiters.
    pub(super) reply: oneshot::Sender<Result<(u64, u64), RedisError>>,
}

impl Rules {
    /// Returns the time until which this process may use a permit that was renewed by a trip that began at `sent`. The
    /// server keeps the record for longer, because the clocks of the server and of the process may run at different
    /// speeds.
    pub(super) fn valid_until(&self, sent: Nanos) -> Nanos {
        sent.saturating_add(self.lease - self.lease / 64)
    }

    /// Returns the decision on a call of `units` that gets no permit.
    pub(super) fn deny(&self, units: u64, held: u64, waiting: u64) -> Decision {
        let left = if waiting > 0 { 0 } else { self.limit.saturating_sub(held) };
        Decision::deny(self.limit, left, None, 0).with_unknown_wait(units <= self.limit)
    }
}
