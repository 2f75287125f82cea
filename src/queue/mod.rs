//! The queue of one key: the waiters, their order, and their release.
//!
//! A queue is a list of waiters beside the key's state. It reads no clock and never sleeps. Its methods take the clock
//! reading as an argument, and return wakers. The caller of a method wakes these wakers once no lock is held.
//!
//! The time at which a waiter is released is computed from the schedule, and is not fixed when the waiter arrives. So a
//! waiter that is removed leaves no gap: the waiters behind it move up. Every access except a peek releases all due
//! waiters. So a queue advances even if the task of its first waiter is not polled, and a new call never waits behind a
//! call that is already due.
//!
//! Each waiter has one timer. The timer of the first waiter is set to the time of its release. The timer of any other
//! waiter is set to the time of release that was computed when the waiter arrived. If such a timer fires too early, for
//! example because the algorithm was replaced, the waiter sets its timer again. A waiter that becomes the first is
//! woken to set its timer again if the timer would fire too late. The waiter directly behind a cancelled waiter is
//! always woken, so that it sets its timer again.
//!
//! Whether a new call's wait is short enough is computed on a *projection*: a copy of the state to which every waiter
//! ahead was charged at its scheduled time. Adding a new waiter to the projection takes constant time. Several events
//! can make the projection wrong: for example, a queued call is cancelled, a call that waits for a window is released
//! late, units are refunded, or the algorithm is replaced. The next call that needs the projection recomputes it, in
//! time proportional to the length of the queue.
//!
//! The projection charges one waiter after another. So for a queue with known waits, an algorithm needs only two
//! operations: to compute the time at which *one* call can be admitted, and to charge that call.
//!
//! Each waiter is released by the tier that its call chose. If the call chose no tier, the waiter is released by the
//! algorithm of the limiter, which is passed as `base`.

mod arrival;
mod cancel;
mod counted;
mod enqueue;
mod release;
mod retry;
#[cfg(test)]
mod tests;
mod view;
mod waiter;

use std::collections::VecDeque;
use std::ops::Range;

use self::waiter::{LastRelease, Projection, Released, Waiter};
use crate::algorithm::{Algorithm, QueueConfig, Semaphore};
use crate::clock::Nanos;

pub(crate) use arrival::{Arrival, Fate};
pub(crate) use view::QueueView;
pub(crate) use waiter::{Enqueued, PollTurn};

/// The waiters of one key, and the calls that were released or denied and whose futures have not been polled since.
#[derive(Debug)]
pub(crate) struct Queue<A: Algorithm> {
    /// The count of the waiters of all keys, and its maximum.
    total: Semaphore,
    waiting: VecDeque<Waiter<A>>,
    /// The total cost of all waiters.
    ahead: u128,
    /// The state after all waiters have been admitted. It is computed when it is needed, and discarded when the state
    /// changes other than by an admission from the queue. Always `None` if it is unknown when calls will be admitted.
    projection: Option<Projection<A::State>>,
    /// `true` if a waiter was released late or a release was undone. The projection is then approximate until it is
    /// recomputed.
    is_stale: bool,
    /// The calls that were released or denied, and whose futures have not been polled since, in the order of their
    /// tickets.
    released: VecDeque<Released<A>>,
    /// The latest release, while it can still be undone.
    undo: Option<LastRelease<A::State>>,
    next_ticket: u64,
    /// The time of the latest reset of the schedule. No waiter is charged at an earlier time.
    since: Nanos,
    /// The time at which the first waiter is released, as computed at the last access. `None` if it was not computed.
    ready_at: Option<Nanos>,
    /// The latest clock reading at which `ready_at` was known to be correct. `None` if the state has changed since.
    checked_at: Option<Nanos>,
    /// The key's time at the last access.
    seen: Nanos,
}

impl<A: Algorithm> Queue<A> {
    /// Creates an empty queue whose waiters count towards `total`.
    pub(crate) fn new(total: Semaphore) -> Self {
        Self {
            total,
            waiting: VecDeque::new(),
            ahead: 0,
            projection: None,
            is_stale: false,
            released: VecDeque::new(),
            undo: None,
            next_ticket: 0,
            since: Nanos::ZERO,
            ready_at: None,
            checked_at: None,
            seen: Nanos::ZERO,
        }
    }

    /// Returns the number of waiters and of released calls whose futures have not been polled since their release.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.released.len()
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of waiters, including those that are due.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Makes the latest release final, because the state was changed other than by a release: for example, by a refund,
    /// or by a call that was admitted at once.
    pub(crate) fn commit_release(&mut self) {
        self.undo = None;
        self.invalidate();
    }

    /// Discards the values that were computed from the state, because the state has changed.
    pub(crate) fn invalidate(&mut self) {
        (self.projection, self.checked_at) = (None, None);
    }

    /// Restarts the schedule at `now`, because the state was reset. The first waiter may be admitted now, and the other
    /// waiters after it.
    pub(crate) fn reset_schedule(&mut self, now: Nanos) {
        self.commit_release();
        self.since = now;
    }

    /// Returns the queue as seen by a call that arrives now, and that `algorithm` decides. Due waiters must have been
    /// [released](Queue::release) before.
    pub(crate) fn view<'a>(
        &'a mut self,
        base: &'a A,
        algorithm: &'a A,
        state: &'a mut A::State,
        now: Nanos,
    ) -> QueueView<'a, A> {
        self.view_after(base, algorithm, state, now, 0)
    }

    /// Returns the queue as seen by a call that arrives after the first `gone` waiters have been admitted. The cost of
    /// these waiters has been charged to `state` already.
    pub(crate) fn view_after<'a>(
        &'a mut self,
        base: &'a A,
        algorithm: &'a A,
        state: &'a mut A::State,
        now: Nanos,
        gone: usize,
    ) -> QueueView<'a, A> {
        self.ensure_exact_projection(base, state, now, gone);
        QueueView::behind(base, algorithm, state, self, gone)
    }

    /// Makes sure that there is an exact projection if there are waiters whose wait is known. A newly computed
    /// projection leaves out the first `gone` waiters.
    fn ensure_exact_projection(&mut self, base: &A, state: &A::State, now: Nanos, gone: usize) {
        if self.is_stale {
            self.projection = None;
        }
        self.ensure_approximate_projection(base, state, now, gone);
    }

    /// Makes sure that there is a projection if there are waiters whose wait is known. The projection may be
    /// approximate. A newly computed projection leaves out the first `gone` waiters.
    fn ensure_approximate_projection(&mut self, base: &A, state: &A::State, now: Nanos, gone: usize) {
        match &mut self.projection {
            _ if self.waiting.is_empty() => (self.projection, self.is_stale) = (None, false),
            Some(projection) => projection.at = projection.at.max(now),
            None if !queue_config(base).is_timed() => self.is_stale = false,
            None => {
                self.projection = Some(self.after(base, state, now, gone..self.waiting.len()));
                self.is_stale = false;
            }
        }
    }

    /// Returns the state after the waiters in the range `part` have been admitted, each at its scheduled time.
    fn after(&self, base: &A, state: &A::State, now: Nanos, part: Range<usize>) -> Projection<A::State> {
        let mut projection = Projection { state: state.clone(), at: now };
        let seen = base.last_update(state);
        for waiter in self.waiting.range(part) {
            let arrived = waiter.eligible_since(self.since, seen);
            projection.add(waiter.algorithm(base), arrived, waiter.cost);
        }
        projection
    }

    fn find(&self, ticket: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }
}

/// Returns the queue configuration of `algorithm`, which must have one.
fn queue_config<A: Algorithm>(algorithm: &A) -> QueueConfig {
    match algorithm.queue_config() {
        Some(config) => config,
        None => unreachable!("whether an algorithm queues does not change"),
    }
}
