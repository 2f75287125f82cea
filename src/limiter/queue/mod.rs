//! The queue of one key: the waiters, their order, and their release.
//!
//! A queue is a list of waiters beside the key's state. It reads no clock and never sleeps. The operations on a queue
//! are the methods of [`KeyQueue`], which borrows the queue and the other parts of the locked key. They take the clock
//! reading as an argument, and append wakers to a list. The caller wakes these wakers once no lock is held.
//!
//! The time at which a waiter is released is computed from the schedule, and is not fixed when the waiter arrives. So a
//! waiter that is removed leaves no gap: the waiters behind it move up. Every access except a peek releases all due
//! waiters. So a queue advances even if the task of its first waiter is not polled, and a new call never waits behind a
//! call that is already due.
//!
//! Each waiter has one timer. The timer of the first waiter is set to the time of its release. A future that is kept and
//! not polled does not notice its timer, so the others fire early enough to release the waiters before them, too. The
//! timer of the second waiter is set [a little later](GRACE) than that of the first. The timer of any other waiter is
//! set to the half of the wait that is left, again and again. If a waiter finds that the first one was overdue, its next
//! timer is that of a second waiter. So behind `k` waiters that are not polled, a call waits at most half as long again
//! as it would otherwise, and is polled about `log2(k)` times if all are polled. Timers are not set again if waiters
//! before it are cancelled or units are refunded, so its timer may then be at half of the wait with which it was
//! queued.
//!
//! If it is unknown when calls will be released, as in a tuple with a [`Concurrency`](crate::algorithm::Concurrency),
//! the others set timers only while the time of the first waiter is known, because permits are free and it waits for
//! units. Each waiter then counts as one that waits as long as the first. The others are woken when that time becomes
//! known.
//!
//! One of the first two waiters is woken to set its timer again if the timer would fire too late. So is the waiter
//! directly behind a waiter that was cancelled, or denied at its maximum wait, and each waiter of a key that was reset,
//! or whose algorithm was replaced.
//!
//! Whether a new call's wait is short enough is computed on a *projection*: a copy of the state to which every waiter
//! ahead was charged at its scheduled time. Adding a new waiter to the projection takes constant time. Several events
//! can make the projection wrong: for example, a queued call is cancelled, a call that waits for a window is released
//! late, units are refunded, or the algorithm is replaced. The next call that needs the projection recomputes it, in
//! time proportional to the length of the queue.
//!
//! The projection charges one waiter after another. So for a queue with known waits, an algorithm needs only two
//! operations: to compute the time at which *one* call can be admitted, and to charge that call. By default, `peek` and
//! `check` do both. Of the methods and constants of [`Algorithm`], a queue uses:
//!
//! | for | |
//! |---|---|
//! | a call that arrives | `queue_config`, `check`, `peek`, and `report`, which may change what the queue has decided |
//! | the time at which a waiter is released | `ready_at` |
//! | a release | `admit_queued`. Before, `UNDO_BY_COPY` says whether to copy the state |
//! | a released call that is cancelled | `restore` of that copy, or `refund` with the time of the charge. Then `release` |
//! | the projection | `project`. If `ADDS_UP`, `refund` without the time of the charge removes a waiter from it |
//! | a waiter's units in the total of all keys | `for_each_total` |
//! | the key's time | `last_update` |
//!
//! Each waiter is released by the tier that its call chose. If the call chose no tier, the waiter is released by the
//! algorithm of the limiter, which is called `base`.
//!
//! # One judgement
//!
//! A call is judged once, by [`KeyQueue::try_admit`], on the state and the waiters that it finds. If the call may
//! wait, the result is a [`Judged`]. It is consumed while the key is still locked, when the call is queued or denied.
//! Only one call is judged again: a call that has displaced the oldest waiter, and then finds that calls of other keys
//! have taken what the oldest waiter has left.
//!
//! # What is remembered
//!
//! A queue remembers what it has computed from the state. The fields of [`Queue`] and [`Waiter`] say what each of these
//! values means, until when it is correct, and which methods may trust it. In short:
//!
//! - The waiters, their total cost and the tickets are always exact.
//! - Every method that takes a call, polls a waiter or removes one requires that due waiters were
//!   [released](KeyQueue::release) at the same clock reading. So none of the waiters that it finds is due.
//! - After any other change of the state than the release of a waiter, [`Queue::invalidate`] is called, or
//!   [`Queue::commit_release`] if the latest release cannot be undone after that change. Only [`KeyQueue::cancel`]
//!   keeps the projection when it undoes a release, as an approximate one.
//! - The projection is used only after [`KeyQueue::ensure_exact_projection`] or
//!   [`KeyQueue::ensure_approximate_projection`].
//!
//! A queue, its waiters and their view with the key are one file, because all of them read and change the same waiters
//! and the same projection.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::task::Waker;

use crate::algorithm::{Algorithm, QueueConfig, QueueOverflow, QueueSlot, Semaphore, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// The time after which other waiters release the first one, because its future was not polled: three milliseconds. With
/// the tick of tokio's timer, it is less than the time by which a release may be late without moving the schedule.
const GRACE: u64 = 3_000_000;

/// A call that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    now: Nanos,
    cost: u64,
    priority: bool,
    /// `true` if the call may be queued.
    may_wait: bool,
    /// The maximum wait that the call has set, in nanoseconds, or `u64::MAX`. The queue's own maximum applies as well.
    max_wait: u64,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum Fate {
    /// The call is allowed or denied immediately.
    Decided(Decision),
    /// The call cannot pass now, and waits if it finds a place.
    Waits(Judged),
}

/// The judgement on a call that cannot pass now, but may wait.
///
/// The queue takes this value instead of judging the call again. So the call is charged, or its denial is counted, at
/// most once. The judgement is true at the clock reading at which it was made, and until the state or the queue of the
/// key changes. So it must be used while the key stays locked, and at most once. That is why it cannot be copied.
#[derive(Debug)]
#[must_use = "the call is neither queued nor denied"]
pub(crate) struct Judged {
    arrival: Arrival,
    /// The decision of the algorithm, made without regard to the queue.
    decision: Decision,
    /// `true` if the queue of the key was full.
    is_full: bool,
}

/// The outcome that a call would have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preview {
    Admit(Decision),
    /// The call would be queued.
    Queue(Decision),
    Deny(Decision),
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

/// The waiters of one key, and the calls that were released or denied and whose futures have not been polled since.
#[derive(Debug)]
pub(crate) struct Queue<A: Algorithm> {
    /// The waiters, in the order of their tickets, in which they are released.
    waiting: VecDeque<Waiter<A>>,
    /// The total cost of all waiters.
    ahead: u128,
    /// The state after all waiters have been admitted. It is computed when it is needed, and discarded when the state
    /// changes other than by an admission from the queue. Always `None` if it is unknown when calls will be admitted.
    ///
    /// Only the two `ensure` methods make it ready for use. An approximate projection is enough for a call that may wait
    /// for any length of time or never fits, and for the decisions of released calls. Everything else needs an exact
    /// one.
    projection: Option<Projection<A::State>>,
    /// `true` if a waiter was released late or a release was undone. The projection is then approximate until it is
    /// recomputed.
    is_stale: bool,
    /// The calls that were released or denied, and whose futures have not been polled since, in the order of their
    /// tickets.
    released: VecDeque<Released<A>>,
    /// The latest release, while it can still be undone. Only `cancel` uses it, and only if the cancelled call is the
    /// one that was released.
    undo: Option<LastRelease<A::State>>,
    /// The latest ticket.
    next_ticket: u64,
    /// The time of the latest reset of the schedule. No waiter is charged at an earlier time.
    since: Nanos,
    /// `true` once a charge after the fact has delayed waiters whose waits are known. From then on, such a waiter is
    /// denied at its deadline. Before, the deadline is not reached, since it was compared with the wait at the arrival.
    is_delayed: bool,
    /// `true` if it was unknown, when the first of the waiters arrived, when calls would be released.
    is_untimed: bool,
    /// `true` if the first waiter was found overdue, and no waiter has set its timer since.
    is_overdue: bool,
    /// The time at which the first waiter is released, as computed at the last access, or [`Nanos::MAX`] if that time
    /// is unknown. `None` if it was not computed, or if the first waiter was removed since.
    ///
    /// `is_known_to_wait` trusts it only together with `checked_at`. `ask` trusts it because due waiters were released
    /// just before. `record_departure` and `simulate_due` do not trust it: they compare it with the time at which the
    /// waiter is really released.
    ready_at: Option<Nanos>,
    /// The latest clock reading at which `ready_at` was known to be correct. `None` if the state has changed since, or
    /// if the time of the release is unknown.
    ///
    /// If `ready_at` is known, too, no waiter is due at any reading from this one to `ready_at`, and `is_known_to_wait`
    /// then leaves the state as it is. So the state may have observed only an earlier reading than this one. A reading
    /// before this one means that the clock was set back, and `observe_checked` first advances the state.
    checked_at: Option<Nanos>,
    /// The key's time at the last access that advanced the state. If the key's time is earlier at the next one, the
    /// clock was set back, and `observe_time` moves the times of the waiters back as well.
    seen: Nanos,
}

/// A locked key with its queue, as a call finds it, and the algorithm of that call.
///
/// This value borrows all that an operation on a queue needs. The methods that judge a call also work for a key without
/// a queue. So a key gets a queue only when a call is queued. The methods of [`Queue`] change only what the queue
/// itself remembers.
#[derive(Debug)]
pub(crate) struct KeyQueue<'a, A: Algorithm> {
    /// The algorithm of the limiter, which releases the waiters that chose no tier.
    base: &'a A,
    /// The algorithm of the call: its tier, or otherwise the algorithm of the limiter.
    algorithm: &'a A,
    /// The queue configuration of `algorithm`. It has no places if `algorithm` queues no calls.
    config: QueueConfig,
    state: &'a mut A::State,
    /// The queue of the key. `None` if the key has none.
    queue: Option<QueueRef<'a, A>>,
    /// The count of the waiters of all keys, and its maximum.
    total: &'a Semaphore,
}

/// The part of a [`KeyQueue`] that only a key with a queue has. Most calls find no queue, and set none of these fields.
#[derive(Debug)]
struct QueueRef<'a, A: Algorithm> {
    queue: &'a mut Queue<A>,
    /// The algorithm that the call chose for itself: its tier.
    tier: Option<&'a A>,
    /// The wakers to wake once no lock is held, because a waker may run any code.
    wake: &'a mut Vec<Waker>,
}

/// The way in which a call that cannot pass now is handled.
enum Course {
    Waits,
    Full,
    /// The queues of all keys together are full.
    TotalFull,
    Denied,
}

/// A call in the queue.
#[derive(Debug)]
struct Waiter<A> {
    ticket: u64,
    cost: u64,
    /// The algorithm that the call chose for itself: its tier.
    tier: Option<Box<A>>,
    /// The clock reading at which the call was judged, or an earlier time if the clock was set back since.
    arrived: Nanos,
    /// The time at which the waiter has waited for its maximum wait. It is then denied if the time of its release is
    /// unknown, or if a charge after the fact has delayed it: see [`Queue::deadline`].
    deadline: Nanos,
    /// The time of the release as computed when the call was queued or polled, so it may be wrong by now. The timers of
    /// the waiter are set by it, but it never decides when the waiter is released.
    ready_at: Nanos,
    /// The time to which the waiter's timer is set, or to which it must be set at the next poll.
    wake_at: Nanos,
    waker: Option<Waker>,
    /// The call in the count of the waiters of all keys. Dropping this value lowers the count.
    _counted: QueueSlot,
    /// The units of the call in the totals of its algorithm. Dropping this permit subtracts them.
    permit: SharedPermit,
}

/// A waiter that was removed from the queue before its release. The count of the waiters of all keys, and the totals of
/// the algorithm, no longer include this waiter.
#[derive(Debug)]
struct Displaced<A> {
    ticket: u64,
    cost: u64,
    tier: Option<Box<A>>,
    arrived: Nanos,
    waker: Option<Waker>,
}

/// A queued call that was released or denied, and whose future has not been polled since.
#[derive(Debug)]
struct Released<A> {
    ticket: u64,
    cost: u64,
    tier: Option<Box<A>>,
    decision: Decision,
    /// The time at which the call was charged, if it was admitted.
    charged_at: Nanos,
    permit: SharedPermit,
}

/// The latest release, with the data that is needed to undo it.
#[derive(Debug)]
struct LastRelease<S> {
    ticket: u64,
    cost: u64,
    at: Nanos,
    /// The state before the release, if it was copied.
    before: Option<S>,
}

/// The state after every waiter has been admitted at its scheduled time.
#[derive(Clone, Debug)]
struct Projection<S> {
    state: S,
    /// The clock reading to pass to the algorithm as `now` together with this state.
    at: Nanos,
}

impl Arrival {
    /// Creates a call without priority that waits as long as the queue allows.
    pub(crate) fn new(now: Nanos, cost: u64) -> Self {
        Self { now, cost, priority: false, may_wait: true, max_wait: u64::MAX }
    }

    /// Sets whether the call has priority, whether it may be queued, and its maximum wait in nanoseconds.
    #[inline]
    pub(crate) fn with_options(self, priority: bool, may_wait: bool, max_wait: u64) -> Self {
        Self { priority, may_wait, max_wait, ..self }
    }

    /// Returns the same call, but one that may not be queued.
    #[inline]
    pub(crate) fn without_wait(self) -> Self {
        Self { may_wait: false, ..self }
    }

    #[inline]
    pub(crate) fn now(self) -> Nanos {
        self.now
    }

    #[inline]
    pub(crate) fn cost(self) -> u64 {
        self.cost
    }

    /// Returns the call's maximum wait in a queue with the configuration `queue`, in nanoseconds.
    fn max_wait(&self, queue: QueueConfig) -> u64 {
        self.max_wait.min(queue.max_wait())
    }

    /// Returns whether the call would be released within its maximum wait, or `true` if the wait is unknown. `config` is
    /// the queue configuration of `algorithm`. All calls ahead have been charged to `state`. `at` is the clock reading
    /// to pass to the algorithm as `now` together with `state`.
    fn is_in_time<A: Algorithm>(
        &self,
        algorithm: &A,
        config: QueueConfig,
        state: &mut A::State,
        at: Nanos,
    ) -> bool {
        let max_wait = self.max_wait(config);
        if max_wait == u64::MAX || !config.is_timed() {
            return true;
        }
        let latest = self.now.saturating_add(max_wait).min(Nanos(u64::MAX - 1));
        algorithm.ready_at(state, at, self.cost).is_some_and(|ready_at| ready_at <= latest)
    }
}

impl Preview {
    /// Returns the outcome of a call that would be decided at once, by this decision.
    pub(crate) fn of(decision: Decision) -> Self {
        match decision.is_allowed() {
            true => Self::Admit(decision),
            false => Self::Deny(decision),
        }
    }

    pub(crate) fn decision(self) -> Decision {
        let (Self::Admit(decision) | Self::Queue(decision) | Self::Deny(decision)) = self;
        decision
    }
}

impl<A: Algorithm> Default for Queue<A> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            ahead: 0,
            projection: None,
            is_stale: false,
            released: VecDeque::new(),
            undo: None,
            next_ticket: 0,
            since: Nanos::ZERO,
            is_delayed: false,
            is_untimed: false,
            is_overdue: false,
            ready_at: None,
            checked_at: None,
            seen: Nanos::ZERO,
        }
    }
}

impl<A: Algorithm> Queue<A> {
    /// Returns the number of waiters and of released calls whose futures have not been polled since their release.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.released.len()
    }

    /// Makes the latest release final, because the state was changed other than by a release: for example, by a refund,
    /// or by a call that was admitted at once.
    fn commit_release(&mut self) {
        self.undo = None;
        self.invalidate();
    }

    /// Returns the queue configuration of `algorithm`. An algorithm without one queues no call, but it may have replaced
    /// an algorithm that has queued calls: for example, a tuple one of whose windows has priority now. Whether the waits
    /// are known is then the same as before the replacement.
    fn config(&self, algorithm: &A) -> QueueConfig {
        const NO_QUEUE: QueueConfig = QueueConfig::enabled(0);
        let no_queue = || if self.is_untimed { NO_QUEUE.untimed() } else { NO_QUEUE };
        algorithm.queue_config().unwrap_or_else(no_queue)
    }

    /// Returns the time at which the waiter at the index `at` is denied, or [`Nanos::MAX`].
    fn deadline(&self, base: &A, at: usize) -> Nanos {
        let waiter = &self.waiting[at];
        match self.is_delayed || !self.config(waiter.algorithm(base)).is_timed() {
            true => waiter.deadline,
            false => Nanos::MAX,
        }
    }

    /// Returns the time to which the waiter at the index `at` sets its timer. The first waiter is not due.
    fn next_timer(&mut self, base: &A, state: &A::State, now: Nanos, at: usize) -> Nanos {
        let (first, now) = (self.ready_at.unwrap_or(Nanos::MAX), self.seen.max(now));
        let is_overdue = mem::take(&mut self.is_overdue);
        if at == 0 {
            return first;
        }
        let (second, mut ready_at) = (first.saturating_add(GRACE), self.waiting[at].ready_at);
        if is_overdue || at == 1 && ready_at <= now {
            return second;
        }
        if !self.config(base).is_timed() {
            // Each call counts as one that waits as long as the first. Often, it is unknown how long the first waits.
            let half = first.saturating_since(now) / 2;
            return second.max(now.saturating_add(half.saturating_mul(at as u64 + 1)));
        }
        if ready_at <= now {
            // The waiters before it are late, for example because units were charged after the fact.
            let mut ahead = self.after(base, state, now, 0..at);
            let waiter = &mut self.waiting[at];
            let turn = waiter.algorithm(base).ready_at(&mut ahead.state, ahead.at, waiter.cost);
            ready_at = turn.unwrap_or(Nanos::MAX).max(ahead.at);
            waiter.ready_at = ready_at;
        }
        // No waiter can be overdue before the timer of the second waiter fires.
        let half = if at == 1 { Nanos::ZERO } else { now.saturating_add(ready_at.saturating_since(now) / 2) };
        ready_at.min(half.max(second))
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

    /// Advances the state to the latest reading that only the queue has recorded, if the clock was set back since.
    fn observe_checked(&self, base: &A, state: &mut A::State, now: Nanos) {
        if let Some(checked_at) = self.checked_at.filter(|checked_at| now < *checked_at) {
            let _ = base.peek(state, checked_at, 0);
        }
    }

    /// Records the time at which the first waiter is released, as computed at `now`. Returns that time. If the time is
    /// unknown, returns [`Nanos::MAX`], and each access computes the time again.
    fn set_ready_at(&mut self, ready_at: Option<Nanos>, now: Nanos) -> Nanos {
        self.checked_at = ready_at.map(|_| now);
        *self.ready_at.insert(ready_at.unwrap_or(Nanos::MAX))
    }

    /// Records that the first waiter was released at `at`, by an access at `now`. If `at` is later than the computed
    /// time, the waiters behind the released waiter are delayed, and the projection is only approximate. If no time was
    /// computed, the projection also counts as approximate.
    fn record_departure(&mut self, now: Nanos, at: Nanos) {
        self.is_overdue |= self.ready_at.is_some_and(|ready_at| now >= ready_at.saturating_add(GRACE));
        if self.ready_at.is_none_or(|ready_at| at > ready_at) {
            self.is_stale = true;
            // The schedule of a bucket or a `Smooth` has moved, which is rare. The decisions of the released calls must
            // be computed from the new schedule. A window charges each late call at `now`.
            if A::ADDS_UP || at != now {
                self.projection = None;
            }
        }
    }

    /// Updates the key's time to `seen`. If the clock was set back, moves the times of the waiters back as well.
    fn observe_time(&mut self, seen: Nanos) {
        if seen < self.seen {
            let back = self.seen.saturating_since(seen);
            for waiter in &mut self.waiting {
                waiter.arrived = waiter.arrived.min(seen);
                waiter.deadline = earlier(waiter.deadline, back);
                waiter.ready_at = earlier(waiter.ready_at, back);
                waiter.wake_at = earlier(waiter.wake_at, back);
            }
            self.since = self.since.min(seen);
            self.projection = None;
        }
        self.seen = seen;
    }

    fn take_released(&mut self, ticket: u64) -> Option<Released<A>> {
        let at = self.released.binary_search_by_key(&ticket, |released| released.ticket).ok()?;
        self.released.remove(at)
    }

    /// Removes the waiter at the index `at`.
    fn remove(&mut self, base: &A, now: Nanos, at: usize) -> Option<Waiter<A>> {
        let waiter = self.waiting.remove(at)?;
        self.ahead -= u128::from(waiter.cost);
        if at == 0 {
            self.ready_at = None;
        }
        let algorithm = waiter.algorithm(base);
        self.projection.take_if(|projection| !projection.remove(algorithm, now, waiter.cost));
        Some(waiter)
    }

    /// Records the denial of a waiter, which the next poll of the waiter returns. Returns the waker of the waiter.
    fn reject(&mut self, displaced: Displaced<A>, denial: Decision, now: Nanos) -> Option<Waker> {
        let Displaced { ticket, cost, tier, arrived, waker } = displaced;
        let decision = denial.with_delay(now.saturating_since(arrived));
        let permit = SharedPermit::default();
        self.released.push_back(Released { ticket, cost, tier, decision, charged_at: now, permit });
        waker
    }
}

impl<'a, A: Algorithm> KeyQueue<'a, A> {
    /// Creates the view of a key without a queue, for a call that `algorithm` decides.
    #[inline]
    pub(crate) fn without_queue(
        algorithm: &'a A,
        config: QueueConfig,
        state: &'a mut A::State,
        total: &'a Semaphore,
    ) -> Self {
        Self { base: algorithm, algorithm, config, state, queue: None, total }
    }

    /// Creates the view of a key with a queue. The call uses the algorithm `tier` if it chose one, and `base`, the
    /// algorithm of the limiter, otherwise. Wakers are appended to `wake`.
    #[inline]
    pub(crate) fn new(
        base: &'a A,
        tier: Option<&'a A>,
        state: &'a mut A::State,
        queue: &'a mut Queue<A>,
        total: &'a Semaphore,
        wake: &'a mut Vec<Waker>,
    ) -> Self {
        let algorithm = tier.unwrap_or(base);
        let config = queue.config(algorithm);
        let queue = Some(QueueRef { queue, tier, wake });
        Self { base, algorithm, config, state, queue, total }
    }

    fn reborrow(&mut self) -> KeyQueue<'_, A> {
        let queue = match &mut self.queue {
            Some(own) => Some(QueueRef { queue: own.queue, wake: own.wake, ..*own }),
            None => None,
        };
        KeyQueue { state: self.state, queue, ..*self }
    }

    /// Returns the same key, for a decision on a waiter of the tier `tier`.
    fn decided_by<'b>(&'b mut self, tier: Option<&'b A>) -> KeyQueue<'b, A> {
        let algorithm = tier.unwrap_or(self.base);
        let config = self.queue.as_ref().map_or(self.config, |own| own.queue.config(algorithm));
        KeyQueue { algorithm, config, ..self.reborrow() }
    }

    /// Computes when each waiter is released, and wakes all waiters, because the state was reset, or converted to another
    /// algorithm, so that all timers are wrong.
    pub(crate) fn reschedule(&mut self, now: Nanos) {
        let Self { base, state, queue: Some(QueueRef { queue, wake, .. }), .. } = self else { return };
        let (mut ahead, seen) = (Projection { state: state.clone(), at: now }, base.last_update(state));
        for waiter in &mut queue.waiting {
            let arrived = waiter.eligible_since(queue.since, seen);
            let algorithm = waiter.tier.as_deref().unwrap_or(base);
            let ready_at = algorithm.ready_at(&mut ahead.state, ahead.at, waiter.cost);
            (waiter.ready_at, waiter.wake_at) = (ready_at.unwrap_or(Nanos::MAX).max(ahead.at), Nanos::ZERO);
            ahead.add(algorithm, arrived, waiter.cost);
            wake.extend(waiter.waker.clone());
        }
    }

    /// Changes the state other than by a release, and makes the latest release final.
    pub(crate) fn change_state(&mut self, change: impl FnOnce(&mut A::State)) {
        change(self.state);
        self.commit_release();
    }

    /// Charges the state by `charge`, after the fact, which may delay all waiters. Returns how many units were charged.
    pub(crate) fn charge(&mut self, charge: impl FnOnce(&mut A::State) -> u64) -> u64 {
        self.commit_release();
        let charged = charge(self.state);
        if let Some(QueueRef { queue, wake, .. }) = &mut self.queue
            && charged > 0
            && !queue.is_delayed
        {
            queue.is_delayed = !queue.waiting.is_empty();
            // A replacement may have moved timers behind the deadlines, which apply from now on.
            for waiter in queue.waiting.iter_mut().filter(|waiter| waiter.wake_at > waiter.deadline) {
                waiter.wake_at = Nanos::ZERO;
                wake.extend(waiter.waker.clone());
            }
        }
        charged
    }

    fn commit_release(&mut self) {
        if let Some(QueueRef { queue, .. }) = &mut self.queue {
            queue.commit_release();
        }
    }

    /// Makes sure that there is an exact projection if there are waiters whose wait is known. A newly computed
    /// projection leaves out the first `gone` waiters.
    fn ensure_exact_projection(&mut self, now: Nanos, gone: usize) {
        if let Some(QueueRef { queue, .. }) = &mut self.queue
            && queue.is_stale
        {
            queue.projection = None;
        }
        self.ensure_approximate_projection(now, gone);
    }

    /// Makes sure that there is a projection if there are waiters whose wait is known. The projection may be
    /// approximate. A newly computed projection leaves out the first `gone` waiters.
    fn ensure_approximate_projection(&mut self, now: Nanos, gone: usize) {
        let Self { base, state, queue: Some(QueueRef { queue, .. }), .. } = self else { return };
        let is_timed = queue.config(base).is_timed();
        match &mut queue.projection {
            _ if queue.waiting.is_empty() => (queue.projection, queue.is_stale) = (None, false),
            Some(projection) => projection.at = projection.at.max(now),
            None if !is_timed => queue.is_stale = false,
            None => {
                queue.projection = Some(queue.after(base, state, now, gone..queue.waiting.len()));
                queue.is_stale = false;
            }
        }
    }
}

/// Calls that arrive at the queue. Due waiters must have been [released](KeyQueue::release) before, except for a peek.
impl<A: Algorithm> KeyQueue<'_, A> {
    /// Charges `cost` units if they are available and no call is queued. Otherwise denies the call.
    pub(crate) fn check(&mut self, now: Nanos, cost: u64) -> Decision {
        if !self.is_empty() && cost > 0 {
            return self.deny_behind_queue(Arrival::new(now, cost), 0, true);
        }
        let decision = self.algorithm.check(self.state, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.commit_release();
        }
        if self.is_empty() { decision } else { decision.with_remaining_zero() }
    }

    /// Returns a decision that tells whether [`check`](KeyQueue::check) would admit a call, after due waiters were
    /// released. Releases no waiter.
    pub(crate) fn peek(&mut self, now: Nanos, cost: u64) -> Decision {
        let mut copy = self.state.clone();
        let mut after = KeyQueue { state: &mut copy, ..self.reborrow() };
        let gone = after.simulate_due(now);
        match (after.waiting() > gone as u64, cost) {
            (false, _) => after.algorithm.peek(after.state, now, cost),
            (true, 0) => after.algorithm.peek(after.state, now, 0).with_remaining_zero(),
            (true, _) => after.deny_behind_queue(Arrival::new(now, cost), gone, false),
        }
    }

    /// Decides a new call, or queues it. The key must have a queue.
    pub(crate) fn try_enqueue(&mut self, arrival: Arrival) -> Enqueued {
        let (Arrival { now, cost, .. }, config) = (arrival, self.config);
        let has_place = self.waiting() < config.places() && self.total.available() > 0;
        let waits = arrival.may_wait && has_place && arrival.max_wait(config) == u64::MAX;
        match waits && !config.is_exclusive() {
            // The call may wait for any length of time, or never fits. In both cases, the exact wait is not needed.
            true => self.ensure_approximate_projection(now, 0),
            false => self.ensure_exact_projection(now, 0),
        }
        match self.try_admit(arrival) {
            Fate::Decided(decision) => {
                if decision.is_allowed() && cost > 0 {
                    self.commit_release();
                }
                Enqueued::Decided(decision)
            }
            Fate::Waits(judged) if judged.is_full => match self.drops_oldest() {
                true => self.displace_and_enqueue(judged),
                false => Enqueued::Decided(self.deny_full(judged)),
            },
            Fate::Waits(judged) => self.enqueue(judged),
        }
    }

    /// Queues the first call of a new queue, and releases due waiters. The call was judged to wait, with the same
    /// algorithms and the same state, while the key was locked and had no queue.
    pub(crate) fn enqueue_first(&mut self, judged: Judged) -> Enqueued {
        let now = judged.arrival.now;
        let enqueued = self.enqueue(judged);
        self.release(now);
        enqueued
    }

    /// Queues a call that was judged to wait. If the total of all keys or a total of the algorithm has too few units,
    /// denies the call.
    #[inline]
    fn enqueue(&mut self, judged: Judged) -> Enqueued {
        if let Some(ticket) = self.join(judged.arrival) {
            return Enqueued::Queued(ticket);
        }
        // It is unknown when another queue will release a waiter. So the call is denied like a call that may not wait.
        let judged = Judged { arrival: judged.arrival.without_wait(), ..judged };
        self.ensure_exact_projection(judged.arrival.now, 0);
        Enqueued::Decided(self.deny_full(judged))
    }

    /// Queues a call in a full queue, and denies the oldest waiter. If the new call could not be queued even without
    /// that waiter, denies the new call instead. If calls of other keys take what the oldest waiter has left, in the
    /// total of all keys or in one of the algorithm, denies both calls.
    fn displace_and_enqueue(&mut self, judged: Judged) -> Enqueued {
        let arrival = judged.arrival;
        let Some(oldest) = self.pop_oldest_if(arrival) else {
            return Enqueued::Decided(self.deny_full(judged));
        };
        // The oldest waiter leaves the totals here.
        let oldest = Displaced::from(oldest);
        let enqueued = match self.join(arrival) {
            Some(ticket) => Enqueued::Queued(ticket),
            None => self.try_enqueue(arrival.without_wait()),
        };
        self.reject_displaced(oldest, arrival.now);
        self.wake_head(arrival.now);
        match enqueued {
            Enqueued::Decided(decision) => Enqueued::Decided(decision.with_queue_full()),
            queued => queued,
        }
    }

    /// Denies a displaced waiter. The `retry_after` of its decision is the time until a place is free.
    fn reject_displaced(&mut self, displaced: Displaced<A>, now: Nanos) {
        let arrival = Arrival::new(now, displaced.cost);
        let denial = self.decided_by(displaced.tier.as_deref()).reject(arrival).with_queue_full();
        if let Some(QueueRef { queue, wake, .. }) = &mut self.queue {
            wake.extend(queue.reject(displaced, denial, now));
        }
    }

    /// Adds a call behind all waiters, and returns its ticket. Returns `None` if `max_queued` calls are queued already,
    /// or if a total of the algorithm has too few units. The projection must be up to date if the waits are known.
    fn join(&mut self, arrival: Arrival) -> Option<u64> {
        let Arrival { now, cost, .. } = arrival;
        let Self { algorithm, config, state, queue: Some(QueueRef { queue, tier, .. }), total, .. } = self
        else {
            return None;
        };
        let algorithm = *algorithm;
        let (slot, permit) = total.try_acquire_one().zip(SharedPermit::try_acquire(algorithm, cost))?;
        queue.next_ticket += 1;
        let ticket = queue.next_ticket;
        let ready_at = match &mut queue.projection {
            Some(projection) => {
                if tier.is_some() {
                    // If the tier is new to the key, this call adds the tier to the state.
                    let _ = algorithm.ready_at(state, now, cost);
                }
                let ready_at = algorithm.ready_at(&mut projection.state, projection.at, cost);
                projection.add(algorithm, now.min(algorithm.last_update(state)), cost);
                ready_at
            }
            // The call is the first waiter, or it is unknown when calls will be admitted.
            None => algorithm.ready_at(state, now, cost),
        };
        if queue.waiting.is_empty() {
            (queue.is_delayed, queue.is_untimed) = (false, !config.is_timed());
            queue.set_ready_at(ready_at, now);
            queue.seen = algorithm.last_update(state);
        }
        let deadline = now.saturating_add(arrival.max_wait(*config));
        queue.ahead += u128::from(cost);
        queue.waiting.push_back(Waiter {
            ticket,
            cost,
            tier: tier.cloned().map(Box::new),
            arrived: now,
            deadline,
            ready_at: ready_at.unwrap_or(Nanos::MAX),
            wake_at: Nanos::ZERO,
            waker: None,
            _counted: slot,
            permit,
        });
        Some(ticket)
    }

    /// Removes and returns the oldest waiter, if the new call can then be queued in its place.
    fn pop_oldest_if(&mut self, arrival: Arrival) -> Option<Waiter<A>> {
        if !self.fits_without_oldest(arrival) {
            return None;
        }
        let projection = match self.config.is_timed() {
            true => Some(self.without_oldest(arrival)?),
            false => None,
        };
        let QueueRef { queue, .. } = self.queue.as_mut()?;
        if projection.is_some() {
            queue.projection = projection;
        }
        let oldest = queue.waiting.pop_front()?;
        (queue.ready_at, queue.ahead) = (None, queue.ahead - u128::from(oldest.cost));
        Some(oldest)
    }

    /// Returns the state after all waiters but the oldest have been admitted, if the new call would then be released
    /// within its maximum wait. It must be known when calls will be released.
    fn without_oldest(&self, arrival: Arrival) -> Option<Projection<A::State>> {
        let Self { base, algorithm, state, queue: Some(QueueRef { queue, .. }), .. } = self else {
            return None;
        };
        let oldest = queue.waiting.front()?;
        let mut projection = queue.projection.clone().filter(|_| !queue.is_stale);
        let remove = |projection: &mut Projection<A::State>| {
            projection.remove(oldest.algorithm(base), arrival.now, oldest.cost)
        };
        let mut projection = match projection.take_if(remove) {
            Some(projection) => projection,
            None => queue.after(base, state, arrival.now, 1..queue.waiting.len()),
        };
        arrival
            .is_in_time(*algorithm, self.config, &mut projection.state, projection.at)
            .then_some(projection)
    }

    /// Returns whether a new call that finds the queue full can be queued in the place of the oldest waiter.
    fn may_displace(&self, arrival: Arrival) -> bool {
        self.fits_without_oldest(arrival)
            && (!self.config.is_timed() || self.without_oldest(arrival).is_some())
    }

    /// Returns whether the units of a new call fit into the totals of its algorithm without those of the oldest waiter.
    fn fits_without_oldest(&self, arrival: Arrival) -> bool {
        let oldest = self.queue.as_ref().and_then(|own| own.queue.waiting.front());
        let mut fits = true;
        self.algorithm.for_each_total(&mut |total| {
            // A waiter of another tier may count in other totals.
            let freed = oldest.map_or(0, |oldest| oldest.permit.units_in(total));
            fits &= total.len().saturating_sub(freed).saturating_add(arrival.cost) <= total.limit();
        });
        fits
    }
}

/// The release of due waiters.
impl<A: Algorithm> KeyQueue<'_, A> {
    /// Releases all due waiters.
    pub(crate) fn release(&mut self, now: Nanos) {
        if self.is_known_to_wait(now) {
            return;
        }
        let Self { base, state, queue: Some(QueueRef { queue, wake, .. }), .. } = self else { return };
        // The key may have observed the clock since the last access to the queue. Only a reading before the key's
        // latest reading means that the clock was set back.
        queue.seen = queue.seen.max(base.last_update(state));
        let known = queue.released.len();
        while let Some(first) = queue.waiting.front() {
            let cost = first.cost;
            let before = A::UNDO_BY_COPY.then(|| state.clone());
            let arrived = first.arrived.max(queue.since);
            let admitted = first.algorithm(base).admit_queued(state, now, arrived, cost);
            queue.observe_time(base.last_update(state));
            let Some(at) = admitted else { break };
            // If the first of the released waiters was released on time, the other waiters were as well.
            if queue.released.len() == known {
                queue.record_departure(now, at);
            }
            let Some(Waiter { ticket, tier, arrived, permit, waker, .. }) = queue.waiting.pop_front() else {
                break;
            };
            queue.ahead -= u128::from(cost);
            queue.undo = Some(LastRelease { ticket, cost, at: queue.seen, before });
            let decision = Decision::allow(0, 0, 0).with_delay(now.saturating_since(arrived));
            // A bucket may admit a call without advancing its state to `now`.
            let charged_at = now.max(queue.seen);
            queue.released.push_back(Released { ticket, cost, tier, decision, charged_at, permit });
            wake.extend(waker);
        }
        let has_released = queue.released.len() > known;
        self.wake_head(now);
        if has_released {
            self.decide_released(now, known);
        }
    }

    /// Returns whether an earlier access has computed that no waiter is due at `now`.
    ///
    /// If the result is `true`, only the queue records the reading `now`, and the state is not advanced to `now`. If
    /// the clock is later set back to before this reading, the state is advanced to this reading before it observes the
    /// earlier one.
    #[inline]
    fn is_known_to_wait(&mut self, now: Nanos) -> bool {
        let Self { base, state, queue: Some(QueueRef { queue, .. }), .. } = self else { return false };
        let (Some(checked_at), Some(ready_at)) = (queue.checked_at, queue.ready_at) else { return false };
        queue.observe_checked(base, state, now);
        let is_known = checked_at <= now && now < ready_at;
        queue.checked_at = is_known.then_some(now);
        is_known
    }

    /// Simulates the release of all due waiters. The state must be a copy of the key's state. Returns the number of due
    /// waiters.
    fn simulate_due(&mut self, now: Nanos) -> usize {
        let Self { base, state, queue: Some(QueueRef { queue, .. }), .. } = self else { return 0 };
        queue.observe_checked(base, state, now);
        let mut released = 0;
        let seen = queue.seen.max(base.last_update(state));
        for waiter in &queue.waiting {
            let arrived = waiter.arrived.max(queue.since);
            let admitted = waiter.algorithm(base).admit_queued(state, now, arrived, waiter.cost);
            let Some(at) = admitted else { break };
            queue.is_stale |= released == 0 && queue.ready_at.is_none_or(|ready_at| at > ready_at);
            released += 1;
        }
        if base.last_update(state) < seen {
            queue.projection = None;
        }
        released
    }

    /// Computes the time at which the first waiter is released. Wakes one of the first two waiters if its timer is set
    /// to a later time than it must be.
    fn wake_head(&mut self, now: Nanos) {
        let Self { base, state, queue: Some(QueueRef { queue, wake, .. }), .. } = self else { return };
        let Some(first) = queue.waiting.front() else { return };
        let ready_at = first.algorithm(base).ready_at(state, now, first.cost);
        let ready_at = queue.set_ready_at(ready_at, now);
        queue.observe_time(base.last_update(state));
        for (waiter, latest) in queue.waiting.iter_mut().zip([ready_at, ready_at.saturating_add(GRACE)]) {
            if waiter.wake_at > latest {
                waiter.wake_at = latest;
                wake.extend(waiter.waker.clone());
            }
        }
        if ready_at < Nanos::MAX && !queue.config(base).is_timed() {
            // The others have set no timers while it was unknown when the first is released.
            for waiter in queue.waiting.iter_mut().skip(2).filter(|other| other.wake_at >= other.deadline) {
                waiter.wake_at = Nanos::ZERO;
                wake.extend(waiter.waker.clone());
            }
        }
    }

    /// Computes the decisions of the calls that were just released, which are those behind the first `known` ones. Each
    /// decision describes the key after all of these releases. The `reset_after` of a decision may come from an
    /// approximate projection, because the exact projection is not recomputed for each released call.
    fn decide_released(&mut self, now: Nanos, known: usize) {
        self.ensure_approximate_projection(now, 0);
        let Some(QueueRef { queue, .. }) = &self.queue else { return };
        for at in known..queue.released.len() {
            let Some(QueueRef { queue, .. }) = &mut self.queue else { return };
            let tier = queue.released[at].tier.take();
            let mut after = self.decided_by(tier.as_deref());
            let decision = after.admission(now);
            // The cost of 0 keeps the call allowed even if a lockout began while the call waited.
            let decision = after.algorithm.report(after.state, now, 0, false, decision);
            let Some(QueueRef { queue, .. }) = &mut self.queue else { return };
            let released = &mut queue.released[at];
            let delay = released.decision.delay();
            released.decision = decision.with_delay(Nanos::from(delay).0);
            released.tier = tier;
        }
    }

    /// Polls a waiter. Due waiters must have been [released](KeyQueue::release). Returns `None` if the waiter is not in
    /// the queue.
    ///
    /// Also returns a waker that is no longer needed. This waker must be dropped while no lock is held, because
    /// dropping a waker may run any code.
    pub(crate) fn ask(
        &mut self,
        now: Nanos,
        ticket: u64,
        waker: &Waker,
    ) -> Option<(PollTurn, Option<Waker>)> {
        let Self { base, state, queue: Some(QueueRef { queue, .. }), .. } = self else { return None };
        if let Some(released) = queue.take_released(ticket) {
            queue.undo.take_if(|undo| undo.ticket == ticket);
            if released.decision.is_allowed() {
                released.permit.forget();
            }
            return Some((PollTurn::Ready(released.decision, released.charged_at), None));
        }
        let at = queue.find(ticket).ok()?;
        // `Nanos::MAX` means that the call has no deadline, because its maximum wait was checked when it was queued.
        let deadline = queue.deadline(base, at);
        if deadline <= now && deadline < Nanos::MAX {
            let waiter = self.leave(now, at)?;
            return Some((PollTurn::Ready(self.time_out(&waiter, now), now), waiter.waker));
        }
        // Waiters behind the second keep their timers until they fire.
        if at <= 1 || queue.waiting[at].wake_at <= queue.seen.max(now) {
            queue.waiting[at].wake_at = queue.next_timer(base, state, now, at).min(deadline);
        }
        let waiter = &mut queue.waiting[at];
        let spare = match &waiter.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => waiter.waker.replace(waker.clone()),
        };
        Some((PollTurn::NotBefore(waiter.wake_at), spare))
    }

    /// Returns the denial of a waiter that has reached its `max_wait`, and has left the queue.
    fn time_out(&mut self, waiter: &Waiter<A>, now: Nanos) -> Decision {
        let arrival = Arrival::new(now, waiter.cost).without_wait();
        let decision = self.decided_by(waiter.tier.as_deref()).reject(arrival);
        decision.with_delay(now.saturating_since(waiter.arrived))
    }
}

/// Waiters that leave the queue before their release, and releases that are undone.
impl<A: Algorithm> KeyQueue<'_, A> {
    /// Cancels a waiter, or a released call whose future was not polled since the release. The charge of a released
    /// call is undone, unless another call was admitted since the release, or the state was changed in another way,
    /// such as by a refund. With an algorithm that [needs a release](Algorithm::NEEDS_RELEASE), the units of an
    /// admitted call are released in any case.
    ///
    /// Returns the waker of the call, which must be dropped while no lock is held.
    pub(crate) fn cancel(&mut self, now: Nanos, ticket: u64) -> Option<Waker> {
        let Self { base, state, queue: Some(QueueRef { queue, .. }), .. } = self else { return None };
        if let Ok(at) = queue.find(ticket) {
            return self.leave(now, at)?.waker;
        }
        let released = queue.take_released(ticket)?;
        let algorithm = released.tier.as_deref().unwrap_or(base);
        if let Some(undo) = queue.undo.take_if(|undo| undo.ticket == ticket) {
            match undo.before {
                Some(before) => algorithm.restore(state, before),
                None => algorithm.refund(state, algorithm.last_update(state), undo.cost, Some(undo.at)),
            }
            (queue.is_stale, queue.checked_at) = (true, None);
        }
        if released.decision.is_allowed() {
            // The units of the call are subtracted from the totals when `released.permit` is dropped.
            algorithm.release(state, algorithm.last_update(state), released.cost);
            queue.checked_at = None;
        }
        None
    }

    /// Removes the waiter at the index `at`, and wakes the waiter behind it, which may now be released earlier.
    fn leave(&mut self, now: Nanos, at: usize) -> Option<Waiter<A>> {
        let Self { base, queue: Some(QueueRef { queue, wake, .. }), .. } = self else { return None };
        let waiter = queue.remove(base, now, at)?;
        if let Some(behind) = queue.waiting.get_mut(at) {
            // The time is recomputed at the next poll.
            behind.wake_at = Nanos::ZERO;
            wake.extend(behind.waker.clone());
        }
        Some(waiter)
    }

    /// Denies all waiters. Calls that were released before stay admitted.
    pub(crate) fn close(&mut self, now: Nanos, denial: Decision) {
        let Some(QueueRef { queue, wake, .. }) = &mut self.queue else { return };
        for waiter in mem::take(&mut queue.waiting) {
            wake.extend(queue.reject(waiter.into(), denial, now));
        }
        queue.ahead = 0;
        queue.projection = None;
    }
}

/// The judgement on a call.
impl<A: Algorithm> KeyQueue<'_, A> {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.as_ref().is_none_or(|own| own.queue.waiting.is_empty())
    }

    /// Returns the state after all waiters ahead have been released, and the clock reading to pass to the algorithm as
    /// `now` together with that state.
    fn tail(&mut self, now: Nanos) -> (&mut A::State, Nanos) {
        match &mut self.queue {
            Some(QueueRef { queue: Queue { projection: Some(projection), .. }, .. }) => {
                (&mut projection.state, projection.at.max(now))
            }
            _ => (self.state, now),
        }
    }

    /// Returns the number of the waiters ahead.
    fn waiting(&self) -> u64 {
        self.queue.as_ref().map_or(0, |own| own.queue.waiting.len() as u64)
    }

    /// Returns the total cost of the waiters ahead.
    fn ahead(&self) -> u128 {
        self.queue.as_ref().map_or(0, |own| own.queue.ahead)
    }

    /// Admits a call and charges its units, if the call may pass now. Otherwise returns what happens to the call.
    #[inline]
    pub(crate) fn try_admit(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let algorithm = self.algorithm;
        let may_pass = cost == 0 || self.is_empty();
        // A check may count a denial even if the call can then be queued. So an algorithm with an exclusive queue
        // decides by `peek` first.
        let decision = match may_pass && !self.config.is_exclusive() {
            true => algorithm.check(self.state, now, cost),
            false => match algorithm.peek(self.state, now, cost) {
                peeked if may_pass && peeked.is_allowed() => algorithm.check(self.state, now, cost),
                peeked => peeked,
            },
        };
        if may_pass && decision.is_allowed() {
            return Fate::Decided(self.admitted(decision, now));
        }
        self.fate(decision, arrival, true)
    }

    /// Returns the outcome that a call would have, without charging anything. Due waiters must have been
    /// [released](KeyQueue::release) before.
    pub(crate) fn preview(&mut self, arrival: Arrival) -> Preview {
        let now = arrival.now;
        self.ensure_exact_projection(now, 0);
        match self.preview_fate(arrival) {
            Fate::Decided(decision) => Preview::of(decision),
            Fate::Waits(judged) if judged.is_full && !(self.drops_oldest() && self.may_displace(arrival)) => {
                Preview::of(self.reported_rejection(judged.decision, arrival, false).with_queue_full())
            }
            // If the queue is full, the call would be queued, and the oldest waiter would be dropped from the queue.
            Fate::Waits(_) => Preview::Queue(self.admission(now)),
        }
    }

    fn preview_fate(&mut self, arrival: Arrival) -> Fate {
        let Arrival { now, cost, .. } = arrival;
        let decision = self.algorithm.peek(self.state, now, cost);
        if decision.is_allowed() && (cost == 0 || self.is_empty()) {
            return Fate::Decided(self.admitted(decision, now));
        }
        self.fate(decision, arrival, false)
    }

    /// Returns the outcome of a call that cannot pass now. `decision` is what the algorithm decided without regard to
    /// the queue. `counts` is false for a preview.
    fn fate(&mut self, decision: Decision, arrival: Arrival, counts: bool) -> Fate {
        match self.course(decision, arrival) {
            Course::Waits => Fate::Waits(Judged { arrival, decision, is_full: false }),
            Course::Full => Fate::Waits(Judged { arrival, decision, is_full: true }),
            Course::Denied => Fate::Decided(self.reported_rejection(decision, arrival, counts)),
            Course::TotalFull => {
                Fate::Decided(self.reported_rejection(decision, arrival, counts).with_queue_full())
            }
        }
    }

    /// Returns what happens to a call that cannot pass now: the call waits, finds a full queue, or is denied for
    /// another reason. `decision` is what the algorithm decided without regard to the queue.
    fn course(&mut self, decision: Decision, arrival: Arrival) -> Course {
        let config = self.config;
        if decision.is_barred() || decision.never_fits() || !arrival.may_wait {
            return Course::Denied;
        }
        if arrival.max_wait(config) == 0 && !config.is_timed() {
            // The wait is unknown and `max_wait` is zero.
            return Course::Denied;
        }
        let waiting = self.waiting();
        let is_full = config.places() > 0 && waiting >= config.places();
        if is_full && self.drops_oldest() {
            // Whether the call can then be released in time is checked later.
            return Course::Full;
        }
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(arrival.now);
        if !arrival.is_in_time(algorithm, config, tail, at) {
            return Course::Denied;
        }
        let course = match config.priority_units() {
            None if waiting < config.places() => Course::Waits,
            None if config.places() > 0 => Course::Full,
            Some(units)
                if arrival.priority && self.ahead() + u128::from(arrival.cost) <= u128::from(units) =>
            {
                Course::Waits
            }
            _ => Course::Denied,
        };
        let mut is_full = self.total.available() == 0;
        algorithm.for_each_total(&mut |total| is_full |= total.available() < arrival.cost);
        match course {
            Course::Waits | Course::Full if is_full => Course::TotalFull,
            course => course,
        }
    }

    /// Returns whether a new call displaces the oldest waiter if the queue is full.
    fn drops_oldest(&self) -> bool {
        self.config.overflow() == QueueOverflow::DropOldest
    }

    /// Returns the decision for a call that was judged to wait, but finds no place, and counts the denial.
    fn deny_full(&mut self, judged: Judged) -> Decision {
        let Judged { arrival, decision, .. } = judged;
        self.reported_rejection(decision, arrival, true).with_queue_full()
    }

    /// Returns the decision for a call that was not judged yet, and is denied. Counts the denial.
    fn reject(&mut self, arrival: Arrival) -> Decision {
        self.ensure_exact_projection(arrival.now, 0);
        let decision = self.algorithm.peek(self.state, arrival.now, arrival.cost);
        self.reported_rejection(decision, arrival, true)
    }

    /// Returns the denial of a call as the algorithm reports it. `counts` is false for a preview.
    fn reported_rejection(&mut self, decision: Decision, arrival: Arrival, counts: bool) -> Decision {
        let rejection = self.rejection(decision, arrival);
        self.algorithm.report(self.state, arrival.now, arrival.cost, counts, rejection)
    }

    /// Returns the denial of a call that may not wait, and must not overtake the waiters. The first `gone` waiters
    /// count as released. `counts` is false for a peek.
    fn deny_behind_queue(&mut self, arrival: Arrival, gone: usize, counts: bool) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        self.ensure_exact_projection(now, gone);
        let fits = !self.algorithm.peek(self.state, now, cost).never_fits();
        let retry = (fits && self.config.is_timed()).then(|| self.turn(now, cost));
        let denial = self.deny_behind_others(arrival, fits, retry);
        self.algorithm.report(self.state, now, cost, counts, denial)
    }

    fn deny_behind_others(&mut self, arrival: Arrival, fits: bool, retry: Option<u64>) -> Decision {
        let Arrival { now, cost, .. } = arrival;
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(now);
        let last = algorithm.peek(tail, at, cost);
        Decision::deny(last.limit(), 0, retry, reset_of(last, at, now))
            .with_unknown_wait(fits)
            .with_index(last.limit_index())
    }

    /// Returns the decision on a call of cost 1 that has just been admitted, at `now`.
    fn admission(&mut self, now: Nanos) -> Decision {
        let decision = self.algorithm.peek(self.state, now, 0);
        self.admitted(decision, now)
    }

    /// Returns the decision on an admitted call, adapted to the queue. `decision` is what the algorithm decided without
    /// regard to the queue.
    #[inline]
    fn admitted(&mut self, decision: Decision, now: Nanos) -> Decision {
        match self.is_empty() {
            true => decision,
            false => decision.with_remaining_zero().with_min_reset(self.reset(now)),
        }
    }

    /// Returns the decision on a denied call, adapted to the queue. `decision` is what the algorithm decided without
    /// regard to the queue.
    fn rejection(&mut self, decision: Decision, arrival: Arrival) -> Decision {
        let (fits, is_timed) = (!decision.never_fits(), self.config.is_timed());
        let retry = (fits && is_timed).then(|| self.retry(arrival));
        match (self.is_empty(), is_timed) {
            (false, _) => self.deny_behind_others(arrival, fits, retry),
            (true, true) => decision.with_retry_after(retry),
            // The decision may have a `retry_after`: in a tuple, the limit whose waits are unknown may have room, so
            // that the decision reports the wait of another limit.
            (true, false) => decision,
        }
    }
}

/// The times that a queue reports: the time until the key is fresh, and the time until a denied call could be admitted
/// or queued.
impl<A: Algorithm> KeyQueue<'_, A> {
    /// Returns the time until a call of `cost` that arrives behind all waiters is admitted, in nanoseconds.
    fn turn(&mut self, now: Nanos, cost: u64) -> u64 {
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(now);
        algorithm.ready_at(tail, at, cost).unwrap_or(Nanos::MAX).saturating_since(now)
    }

    /// Returns the time until the key is fresh, in nanoseconds.
    fn reset(&mut self, now: Nanos) -> u64 {
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(now);
        reset_of(algorithm.peek(tail, at, 0), at, now)
    }

    /// Returns the time until a new call could be admitted or queued, in nanoseconds.
    fn retry(&mut self, arrival: Arrival) -> u64 {
        let Arrival { now, cost, .. } = arrival;
        let config = self.config;
        let turn = self.turn(now, cost);
        // It is unknown when calls of other keys are released, so the places of these calls count as taken.
        let others = self.total.len().saturating_sub(self.waiting());
        let limit = self.total.limit();
        if !arrival.may_wait || others >= limit {
            return turn;
        }
        let has_room = |waiting: u64| others.saturating_add(waiting) < limit;
        let early_enough = turn.saturating_sub(arrival.max_wait(config));
        match config.priority_units() {
            // The call can be queued once enough waiters have been released.
            Some(units) if arrival.priority && cost <= units => {
                let fits = |ahead: u128| ahead + u128::from(cost) <= u128::from(units);
                let free = self.time_until_place(now, |waiting, ahead| fits(ahead) && has_room(waiting));
                free.max(early_enough)
            }
            Some(_) => turn,
            // The queue has no places, so the call must be admitted at once.
            None if config.places() == 0 => turn,
            None => {
                let is_place = |waiting, _| waiting < config.places() && has_room(waiting);
                self.time_until_place(now, is_place).max(early_enough)
            }
        }
    }

    /// Returns the time until enough waiters have been released for `is_place` to return true, in nanoseconds. The
    /// arguments of `is_place` are the number and the total cost of the remaining waiters.
    fn time_until_place(&self, now: Nanos, is_place: impl Fn(u64, u128) -> bool) -> u64 {
        let (mut waiting, mut ahead) = (self.waiting(), self.ahead());
        let Some(QueueRef { queue, .. }) = self.queue.as_ref().filter(|_| !is_place(waiting, ahead)) else {
            return 0;
        };
        let mut tail = Projection { state: self.state.clone(), at: now };
        let seen = self.base.last_update(self.state);
        for waiter in &queue.waiting {
            let algorithm = waiter.algorithm(self.base);
            let turn = algorithm.ready_at(&mut tail.state, tail.at, waiter.cost).unwrap_or(Nanos::MAX);
            (waiting, ahead) = (waiting - 1, ahead - u128::from(waiter.cost));
            if is_place(waiting, ahead) {
                return turn.saturating_since(now);
            }
            tail.add(algorithm, waiter.eligible_since(queue.since, seen), waiter.cost);
        }
        0
    }
}

impl<A> Waiter<A> {
    /// Returns the algorithm that releases the waiter: its tier, or otherwise the algorithm of the limiter.
    fn algorithm<'a>(&'a self, base: &'a A) -> &'a A {
        self.tier.as_deref().unwrap_or(base)
    }

    /// Returns the earliest time at which the waiter can be charged: its arrival or, if that is later, `since`, the
    /// time of the latest reset of the schedule. The result is at most `seen`, the key's time, because the clock may
    /// have been set back.
    fn eligible_since(&self, since: Nanos, seen: Nanos) -> Nanos {
        self.arrived.max(since).min(seen)
    }
}

impl<A> From<Waiter<A>> for Displaced<A> {
    fn from(Waiter { ticket, cost, tier, arrived, waker, .. }: Waiter<A>) -> Self {
        Self { ticket, cost, tier, arrived, waker }
    }
}

impl<S> Projection<S> {
    /// Adds a waiter behind all others.
    fn add<A: Algorithm<State = S>>(&mut self, algorithm: &A, arrived: Nanos, cost: u64) {
        self.at = algorithm.project(&mut self.state, self.at, arrived, cost).max(self.at);
    }

    /// Removes a waiter if possible, and returns whether the waiter was removed. A waiter can be removed only if the
    /// charges of the algorithm [add up](Algorithm::ADDS_UP), the projection is not ahead of the clock, and the whole
    /// cost was charged.
    fn remove<A: Algorithm<State = S>>(&mut self, algorithm: &A, now: Nanos, cost: u64) -> bool {
        // A call that costs more than the algorithm's limit was charged only as much as the limit.
        let fits = |state: &mut S| !algorithm.peek(state, self.at, cost).never_fits();
        let is_possible = A::ADDS_UP && self.at <= now && fits(&mut self.state);
        if is_possible {
            algorithm.refund(&mut self.state, self.at, cost, None);
        }
        is_possible
    }
}

/// Returns the time in nanoseconds from `now` until a key is fresh. `decision` was made on the key's state at the clock
/// reading `at`.
fn reset_of(decision: Decision, at: Nanos, now: Nanos) -> u64 {
    at.saturating_add(Nanos::from(decision.reset_after()).0).saturating_since(now)
}

/// Moves an instant back by `back`, the time by which the clock was set back. `Nanos::MAX` means never, and is returned
/// unchanged.
fn earlier(instant: Nanos, back: u64) -> Nanos {
    match instant {
        Nanos::MAX => Nanos::MAX,
        Nanos(instant) => Nanos(instant.saturating_sub(back)),
    }
}
