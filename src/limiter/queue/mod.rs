//! A locked key, with its state and its queue.
//!
//! [`Key`] is all that an operation on a key may read or change. It is split by what the operations are about:
//!
//! - this file: changes after the fact, such as charges, refunds and resets, and the end of calls;
//! - [`answer`]: the decisions on calls, and the denials;
//! - [`schedule`]: the waiters, and when they are admitted.
//!
//! For a queue with known waits, an algorithm needs only two operations: to compute the time at which *one* call can be
//! admitted, and to charge that call. By default, `peek` and `check` do both. Of the methods and constants of
//! [`Algorithm`], a queue uses:
//!
//! | for | |
//! |---|---|
//! | a call that arrives | `queue_config`, `check`, `peek`, and `report`, which may change what the queue has decided |
//! | the time at which a waiter is admitted | `ready_at` |
//! | an admission of a waiter | `admit_queued`. Before, `UNDO_BY_COPY` says whether to copy the state |
//! | an admitted waiter that is cancelled | `restore` of that copy, or `refund` with the time of the charge. Then `release` |
//! | the projection | `project`. If `ADDS_UP`, `refund` without the time of the charge removes a waiter from it |
//! | a waiter's units in the total of all keys | `for_each_total` |
//! | the key's time | `last_update` |

mod answer;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use super::attempt::Attempt;
use super::fingerprint::{Fingerprint, IdentityBuildHasher};
use super::resets::{ChargeTime, Resets};
use super::{Access, ShardConfig, Shared};
use crate::algorithm::{Algorithm, Lockout, QueueSlot, SharedPermit, limit_of_new_key};
use crate::clock::Nanos;
use crate::decision::Decision;

pub(super) use answer::{Enqueued, PollTurn, Preview, check_to_queue};

/// A locked key: all that an operation on the key may read or change.
pub(super) struct Key<'a, A: Algorithm> {
    config: &'a ShardConfig<A>,
    /// The algorithm that the call chose. `None` if the call uses the limiter's algorithm.
    tier: Option<&'a A>,
    state: &'a mut A::State,
    queue: Option<&'a mut Queue<A>>,
    /// The place in which the key gets a queue, if it has none.
    vacant: Option<(Fingerprint, &'a mut Option<Box<Rare<A>>>)>,
    shared: &'a Shared,
    /// The wakers to wake, and to drop, once no lock is held, because a waker may run any code.
    wake: &'a mut Vec<Waker>,
    now: Nanos,
}

/// The part that few shards need: the queues of their keys, and the latest resets.
#[derive(Debug)]
pub(super) struct Rare<A: Algorithm> {
    pub(super) queues: HashMap<Fingerprint, Queue<A>, IdentityBuildHasher>,
    pub(super) resets: Resets,
    /// The latest ticket of the queues that were removed. No ticket of a key is given twice, because a call that has
    /// panicked may have one longer than its key has a queue.
    latest_ticket: u64,
}

/// The waiters of one key, and the calls that were admitted or denied and whose futures have not been polled since.
#[derive(Debug)]
pub(super) struct Queue<A: Algorithm> {
    /// The waiters, in the order of their tickets, in which they are admitted.
    waiting: VecDeque<Waiter<A>>,
    /// The total cost of all waiters.
    ahead: u128,
    /// `None` if it is not computed, or if it is unknown when calls will be admitted.
    projection: Option<Projection<A::State>>,
    /// The calls that were admitted or denied, and whose futures have not been polled since, in the order of their
    /// tickets.
    answered: VecDeque<Answered<A>>,
    /// The latest admission of a waiter, while it can still be undone.
    undo: Option<LastAdmission<A::State>>,
    /// The latest ticket.
    latest_ticket: u64,
    /// The latest ticket when the algorithm was last replaced. Waiters up to it may cost more than the algorithm ever
    /// has available.
    replaced_at: u64,
    /// The time of the latest reset of the key, or the end of its pause if there is one. No waiter is charged at an
    /// earlier time.
    not_before: Nanos,
    /// The place of the key in the count of paused keys, from the beginning of a pause until an access finds that it is
    /// over.
    pause: Option<QueueSlot>,
    /// `true` once a charge after the fact, or a pause, has delayed waiters whose waits are known: they are denied at
    /// their deadlines.
    is_delayed: bool,
    /// `true` if it was unknown, when the first of the waiters arrived, when calls would be admitted.
    is_untimed: bool,
    /// `true` if the first waiter was found overdue, and no waiter has set its timer since.
    is_overdue: bool,
    /// The time at which the first waiter is admitted, as computed at the last access, or [`Nanos::MAX`] if that time
    /// is unknown. `None` if the first waiter was removed since.
    ready_at: Option<Nanos>,
    /// The latest reading from which until `ready_at` no waiter is due. `None` if the state has changed since. The
    /// state may not have observed this reading: see [`observe_checked`](Schedule::observe_checked).
    checked_at: Option<Nanos>,
    /// The key's time at the last access that advanced the state. If it is earlier at the next, the clock was set back.
    seen: Nanos,
}

/// A call in the queue.
#[derive(Debug)]
struct Waiter<A> {
    ticket: u64,
    cost: u64,
    /// The algorithm that the call chose for itself.
    tier: Option<Box<A>>,
    /// The clock reading at which the call was judged, or an earlier time if the clock was set back since.
    arrived: Nanos,
    /// The time at which the waiter has waited for its maximum wait: see [`Queue::deadline`].
    deadline: Nanos,
    /// The time of the admission as computed when the call was queued or polled. The timers of the waiter are set by
    /// it, but it never decides when the waiter is admitted.
    ready_at: Nanos,
    /// The time to which the waiter's timer is set, or to which it must be set at the next poll.
    wake_at: Nanos,
    waker: Option<Waker>,
    /// The call in the count of the waiters of all keys. Dropping this value lowers the count.
    slot: Option<QueueSlot>,
    /// The units of the call in the totals of its algorithm. Dropping this permit subtracts them.
    permit: SharedPermit,
}

/// A queued call that was admitted or denied, and whose future has not been polled since.
#[derive(Debug)]
struct Answered<A> {
    ticket: u64,
    cost: u64,
    tier: Option<Box<A>>,
    decision: Decision,
    /// When the call was charged, if it was admitted.
    charged_at: ChargeTime,
    permit: SharedPermit,
}

/// The latest admission of a waiter, with the data that is needed to undo it.
#[derive(Debug)]
struct LastAdmission<S> {
    ticket: u64,
    cost: u64,
    at: Nanos,
    /// The state before the admission, if it was copied.
    before: Option<S>,
}

/// The state after every waiter has been admitted at its scheduled time.
#[derive(Clone, Debug)]
struct Projection<S> {
    state: S,
    /// The clock reading to pass to the algorithm as `now` together with this state.
    at: Nanos,
    /// `true` if a waiter was admitted late or an admission was undone since. It is then good enough only for a call
    /// that may wait for any time or never fits, and for the decisions of admitted calls.
    is_stale: bool,
}

/// A call that is about to wait, and has its places in the counts of the waiters of all keys and of its algorithm.
struct Newcomer<'a, A> {
    tier: Option<&'a A>,
    cost: u64,
    /// The maximum time for which the call waits, in nanoseconds.
    max_wait: u64,
    is_timed: bool,
    slot: QueueSlot,
    permit: SharedPermit,
}

/// The answer to the poll of a waiter's future.
enum Asked<A> {
    /// The decision, and when an admitted call was charged.
    Ready(Decision, ChargeTime),
    /// The call has waited for its maximum wait, and has left the queue.
    Late(Waiter<A>),
    /// The call waits. Poll it again at this time, or when it is woken. The waker is no longer needed.
    Waits(Nanos, Option<Waker>),
}

/// The queue of a locked key, with its state.
struct Schedule<'a, A: Algorithm> {
    /// The algorithm of the limiter, which admits the waiters that chose no tier.
    base: &'a A,
    state: &'a mut A::State,
    queue: &'a mut Queue<A>,
    shared: &'a Shared,
    /// The wakers to wake, and to drop, once no lock is held, because a waker may run any code.
    wake: &'a mut Vec<Waker>,
    now: Nanos,
}

impl<A: Algorithm> Default for Rare<A> {
    fn default() -> Self {
        Self { queues: HashMap::default(), resets: Resets::default(), latest_ticket: 0 }
    }
}

impl<A: Algorithm> Rare<A> {
    /// Returns whether the key must keep its queue. Removes the queue of a key whose pause is over.
    pub(super) fn needs_queue(&mut self, id: Fingerprint, now: Nanos) -> bool {
        let is_unused = self.queues.get(&id).map(|queue| queue.is_unused(now));
        if is_unused == Some(true) {
            self.remove_queue(id);
        }
        is_unused == Some(false)
    }

    /// Removes the queue of a key, if it has one.
    pub(super) fn remove_queue(&mut self, id: Fingerprint) {
        if let Some(queue) = self.queues.remove(&id) {
            self.latest_ticket = self.latest_ticket.max(queue.latest_ticket);
        }
    }
}

impl<'a, A: Algorithm> Key<'a, A> {
    /// Runs `change` on a key with this state. `place` is its fingerprint, and where its shard has its queue, if any.
    #[inline(always)]
    pub(super) fn visit<R>(
        config: &ShardConfig<A>,
        state: &mut A::State,
        (id, rare): (Fingerprint, &mut Option<Box<Rare<A>>>),
        access: &mut Access<'_, A>,
        change: impl FnOnce(&mut Key<'_, A>) -> R,
    ) -> R {
        let Access { shared, tier, now, wake } = access;
        let has_queue = rare.as_ref().is_some_and(|rare| rare.queues.contains_key(&id));
        let (queue, vacant) = if has_queue {
            (rare.as_mut().and_then(|rare| rare.queues.get_mut(&id)), None)
        } else {
            (None, Some((id, &mut *rare)))
        };
        let mut key = Key { config, tier: *tier, state, queue, vacant, shared, wake, now: *now };
        let result = change(&mut key);
        if key.queue.is_some_and(|queue| queue.is_unused(key.now))
            && let Some(rare) = rare
        {
            rare.remove_queue(id);
        }
        result
    }

    /// Returns the same key with another state and another tier.
    fn alike<'b>(&'b mut self, state: Option<&'b mut A::State>, tier: Option<&'b A>) -> Key<'b, A> {
        let state = match state {
            Some(state) => state,
            None => self.state,
        };
        Key { tier, state, queue: self.queue.as_deref_mut(), vacant: None, wake: self.wake, ..*self }
    }

    /// Returns the algorithm of the limiter.
    fn base(&self) -> &'a A {
        &self.config.algorithm
    }

    /// Returns the algorithm of the call.
    pub(super) fn algorithm(&self) -> &'a A {
        self.tier.unwrap_or(&self.config.algorithm)
    }

    #[inline]
    fn schedule(&mut self) -> Option<Schedule<'_, A>> {
        let Self { config, state, queue, shared, wake, now, .. } = self;
        let queue = queue.as_deref_mut()?;
        Some(Schedule { base: &config.algorithm, state, queue, shared, wake, now: *now })
    }

    /// Returns the latest clock reading that the key has observed. Just after a call was admitted, this is the reading
    /// at which the call was charged.
    pub(super) fn last_update(&self) -> Nanos {
        self.algorithm().last_update(self.state)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.config.closed
    }

    /// Refunds up to `cost` units. If `charged_at` is known, undoes that charge, as far as it still counts.
    pub(super) fn refund(&mut self, cost: u64, charged_at: Option<Nanos>) {
        let algorithm = self.algorithm();
        let now = self.now;
        self.change(|state| algorithm.refund(state, now, cost, charged_at));
    }

    /// Charges `cost` units after the fact, even if they are not available, but only up to the maximum debt. Waiters
    /// are then admitted later. Returns how many units were charged. A closed limiter charges nothing.
    pub(super) fn charge(&mut self, cost: u64) -> u64 {
        if self.config.closed {
            return 0;
        }
        let algorithm = self.algorithm();
        let max_debt = self.shared.max_debt;
        let now = self.now;
        let charge = |state: &mut A::State| {
            if max_debt == 0 {
                // Without debt, a unit that is partly refilled stays, and a schedule moves only if its next time has
                // come.
                algorithm.charge_available(state, now, cost)
            } else {
                algorithm.charge(state, now, cost, max_debt)
            }
        };
        self.admit_due();
        let charged = match self.schedule() {
            None => charge(self.state),
            // While calls wait, no units are available.
            Some(schedule) if max_debt == 0 && !schedule.queue.waiting.is_empty() => 0,
            Some(mut schedule) => {
                let charged = schedule.change(charge);
                if charged > 0 {
                    schedule.record_delay();
                }
                charged
            }
        };
        self.admit_due();
        charged
    }

    /// Settles a call that was charged at `charged_at`, at its actual cost. Returns a decision that describes the key
    /// right after the settlement, and how many units were charged in addition.
    pub(super) fn settle(&mut self, call: Attempt<'_, A>, charged_at: Nanos, actual: u64) -> (Decision, u64) {
        let cost = call.cost();
        let now = self.now;
        let algorithm = self.algorithm();
        let mut charged = 0;
        if actual < cost {
            self.change(|state| algorithm.refund_settled(state, now, cost, actual, charged_at));
        } else if actual > cost {
            charged = self.charge(actual - cost);
        }
        let look = Attempt::new(0);
        let look = if call.has_priority() { look.with_priority() } else { look };
        (self.preview(look).decision(), charged)
    }

    /// Releases the `cost` units of a call that has ended, and then admits due waiters. The algorithm of the key is
    /// the one that admitted the call that has ended.
    pub(super) fn end(&mut self, cost: u64) {
        self.algorithm().release(self.state, self.now, cost);
        if let Some(queue) = &mut self.queue {
            queue.invalidate();
        }
        self.admit_due();
    }

    /// Admits due waiters, and denies all other waiters.
    pub(super) fn close(&mut self) {
        self.admit_due();
        let denial = Decision::closed(limit_of_new_key(self.algorithm()));
        if let Some(mut schedule) = self.schedule() {
            schedule.close(denial);
        }
    }

    /// Resets the key to the state `fresh`, except that calls in progress stay counted.
    pub(super) fn reset(&mut self, fresh: A::State) {
        let now = self.now;
        let algorithm = self.base();
        if let Some(queue) = &mut self.queue {
            queue.not_before = now;
            queue.pause = None;
        }
        self.change_and_reschedule(|state| {
            let held = algorithm.in_flight(state);
            *state = fresh;
            if held > 0 {
                let fresh = state.clone();
                let _ = algorithm.charge(state, now, held, 0);
                // Only the units of calls in progress stay charged.
                algorithm.restore(state, fresh);
            }
        });
    }

    /// Pauses the key for `duration` nanoseconds from now, instead of a pause that it may be in. Ends that pause if
    /// `duration` is 0. Returns whether the key is paused.
    pub(super) fn pause(&mut self, duration: u64) -> bool {
        self.admit_due();
        let (now, base, shared) = (self.now, self.base(), self.shared);
        let held = self.queue.as_mut().and_then(|queue| queue.pause.take());
        if held.is_none() && (duration == 0 || self.config.closed) {
            return false;
        }
        let Some(slot) = held.or_else(|| shared.paused.try_acquire_one()) else { return false };
        let _ = base.peek(self.state, now, 0);
        let seen = base.last_update(self.state).max(now);
        self.ensure_queue();
        let Some(mut schedule) = self.schedule() else { return false };
        schedule.set_pause(seen.saturating_add(duration), (duration > 0).then_some(slot));
        self.admit_and_reschedule();
        duration > 0
    }

    /// Gives the key a queue, if it has none.
    fn ensure_queue(&mut self) {
        if let Some((id, rare)) = self.vacant.take() {
            let rare = rare.get_or_insert_default();
            let queue = rare.queues.entry(id).or_default();
            queue.latest_ticket = rare.latest_ticket;
            self.queue = Some(queue);
        }
    }

    /// Returns whether the key is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.is_paused(self.now))
    }

    /// Converts the state from the algorithm `old`.
    pub(super) fn migrate(&mut self, old: &A) {
        let algorithm = self.base();
        let now = self.now;
        if let Some(queue) = &mut self.queue {
            queue.replaced_at = queue.latest_ticket;
        }
        self.change_and_reschedule(|state| algorithm.migrate(state, old, now));
    }

    /// Runs `change`, which resets the state or converts it to another algorithm. Earlier admissions then become final,
    /// due waiters are admitted, and the others are woken to set their timers again.
    fn change_and_reschedule(&mut self, change: impl FnOnce(&mut A::State)) {
        // No waiter is admitted here before the change. A replacement has admitted the due ones by the old algorithm.
        match self.schedule() {
            None => return change(self.state),
            Some(mut schedule) => schedule.change(change),
        }
        self.admit_and_reschedule();
    }

    fn admit_and_reschedule(&mut self) {
        self.admit_due();
        if let Some(mut schedule) = self.schedule() {
            schedule.reschedule();
        }
    }

    /// Runs `change` on the state, and admits due waiters before and after it.
    fn change(&mut self, change: impl FnOnce(&mut A::State)) {
        self.admit_due();
        match self.schedule() {
            None => change(self.state),
            Some(mut schedule) => schedule.change(change),
        }
        self.admit_due();
    }
}

impl<A: Algorithm> Key<'_, Lockout<A>> {
    /// Sets the rest of the key's lockout to `left` nanoseconds. Returns whether the key was locked out or had counted
    /// denials, and whether it is locked out now.
    pub(super) fn set_lockout(&mut self, left: u64) -> (bool, bool) {
        let algorithm = self.base();
        let now = self.now;
        let mut was_and_is_set = (false, false);
        self.change_and_reschedule(|state| was_and_is_set = algorithm.set_lockout(state, now, left));
        was_and_is_set
    }
}

/// Returns when a call of `cost` can be admitted on a state that belongs to the clock reading `at`: not before it. This
/// reading is the end of a pause, if the key is paused. Returns `None` if the time is unknown.
fn ready_at<A: Algorithm>(algorithm: &A, state: &mut A::State, at: Nanos, cost: u64) -> Option<Nanos> {
    algorithm.ready_at(state, at, cost).map(|ready_at| ready_at.max(at))
}
