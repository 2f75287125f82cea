//! Calls that arrive at a queue, and their outcome.

use super::queue_config;
use crate::algorithm::{Algorithm, QueueConfig};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A call that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) now: Nanos,
    pub(crate) cost: u64,
    pub(crate) priority: bool,
    /// `true` if the call may be queued.
    pub(crate) may_wait: bool,
    /// The maximum wait that the call has set, in nanoseconds, or `u64::MAX`. The queue's own maximum applies as well.
    pub(crate) max_wait: u64,
    /// `true` for a waiter that a newer call has displaced. The `retry_after` of the waiter's denial is the time until
    /// a place is free, not the time until the call could displace another waiter.
    pub(crate) dropped: bool,
}

impl Arrival {
    /// Creates a call without priority that waits as long as the queue allows.
    pub(crate) fn new(now: Nanos, cost: u64) -> Self {
        Self { now, cost, priority: false, may_wait: true, max_wait: u64::MAX, dropped: false }
    }

    /// Returns the call's maximum wait in a queue with the configuration `queue`, in nanoseconds.
    pub(super) fn max_wait(&self, queue: QueueConfig) -> u64 {
        self.max_wait.min(queue.max_wait())
    }

    /// Returns whether the call would be released within its maximum wait, or `true` if the wait is unknown. All calls
    /// ahead have been charged to `state`. `at` is the clock reading to pass to the algorithm as `now` together with
    /// `state`.
    pub(super) fn is_in_time<A: Algorithm>(&self, algorithm: &A, state: &mut A::State, at: Nanos) -> bool {
        let config = queue_config(algorithm);
        let max_wait = self.max_wait(config);
        if max_wait == u64::MAX || !config.is_timed() {
            return true;
        }
        if config.is_counted() {
            return capacity(algorithm, state, at, self.now, max_wait) > 0;
        }
        let latest = self.now.saturating_add(max_wait).min(Nanos(u64::MAX - 1));
        algorithm.ready_at(state, at, self.cost).is_some_and(|ready_at| ready_at <= latest)
    }
}

/// Returns how many calls of cost 1 that arrive at `now` would wait at most `max_wait` nanoseconds. All calls ahead
/// have been charged to `state`. `at` is the clock reading that the algorithm must receive together with `state`. It
/// may be later than the arrival of the calls.
pub(super) fn capacity<A: Algorithm>(
    algorithm: &A,
    state: &mut A::State,
    at: Nanos,
    now: Nanos,
    max_wait: u64,
) -> u64 {
    if max_wait == u64::MAX {
        return algorithm.queue_capacity(state, at, max_wait);
    }
    let latest = now.saturating_add(max_wait);
    match latest < at {
        true => 0,
        false => algorithm.queue_capacity(state, at, latest.saturating_since(at)),
    }
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum Fate {
    /// The call is allowed or denied immediately.
    Decided(Decision),
    Waits,
    /// The call would wait if there were a free place.
    Full,
}
