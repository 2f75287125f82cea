use std::fmt::Debug;

use crate::algorithm::{QueueConfig, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// The times at which an algorithm admits queued calls.
///
/// It computes when the next queued call can be admitted. The store keeps the waiters and their order; waits for later
/// calls are computed by simulating the calls ahead of them.
pub trait Queueing<S>: Debug {
    /// Returns how many calls may wait, and how long.
    fn queue_config(&self, state: &S) -> QueueConfig;

    /// Returns how many calls of cost 1 an idle key accepts at one instant, including those that are queued, where those
    /// [count](Queueing::take) as admitted.
    fn capacity(&self, state: &S) -> u64;

    /// Returns how many calls of cost 1 an idle key admits at one instant without queueing.
    fn at_once(&self, state: &S) -> u64;

    /// Returns the index of the limit that delays a call of `cost` longest. For tuples.
    fn bottleneck(&self, _state: &S, _cost: u64) -> usize {
        0
    }

    /// Returns whether a call of that cost can ever be admitted.
    fn fits(&self, _state: &S, _cost: u64) -> bool {
        true
    }

    /// Returns the maximum total cost of queued priority calls, if only calls with priority may be queued. `None` if any
    /// call may be: then the [capacity](Queueing::queue_config) bounds them.
    fn lends(&self, _state: &S) -> Option<u64> {
        None
    }

    /// Returns whether it is known when a call will be admitted. If not, calls are admitted when others end, and a wait
    /// that becomes too long ends with a refusal.
    fn is_timed(&self) -> bool {
        true
    }

    /// Returns whether calls are charged at their scheduled times, however late they are released.
    fn keeps_schedule(&self) -> bool {
        false
    }

    /// Returns the scheduled time of the next call, of `cost`, rounded up to the nanosecond.
    ///
    /// A time in the past means that the call is admitted at once, [`Nanos::MAX`] that the time is beyond the end of
    /// time or unknown.
    fn turn(&self, state: &S, cost: u64) -> Nanos;

    /// Returns whether the next call, of `cost`, can be admitted at the state's own time. Correct even at the end of
    /// time.
    fn is_due(&self, state: &S, cost: u64) -> bool;

    /// Admits the next call, of `cost`, that arrived at `arrived`, if it is ready by `now`. If not, it only advances the
    /// state to `now`.
    fn depart(&self, state: &mut S, now: Nanos, arrived: Nanos, cost: u64) -> Admission {
        // Computed before the state advances: after that, a time that has passed would read as now.
        let ready_at = self.turn(state, cost);
        let observed = self.observe(state, now);
        if !self.is_due(state, cost) {
            return Admission::NotReady;
        }
        let on_time = self.keeps_schedule() || ready_at >= observed;
        self.leave(state, arrived.min(observed), cost);
        if on_time { Admission::OnSchedule } else { Admission::Late }
    }

    /// Admits a call of `cost` that arrived at `arrived` at its scheduled time, though the timer may have been late.
    fn leave(&self, state: &mut S, arrived: Nanos, cost: u64);

    /// Simulates the admission of a call of `cost` at its scheduled time, which may be in the future.
    fn follow(&self, state: &mut S, arrived: Nanos, cost: u64) {
        let ready_at = self.turn(state, cost).max(self.time(state));
        self.observe(state, ready_at);
        self.leave(state, arrived, cost);
    }

    /// Undoes one [simulated admission](Queueing::follow) of `cost`, and returns whether it did. Only algorithms that
    /// can undo any of several simulated admissions support it.
    fn unfollow(&self, _state: &mut S, _cost: u64) -> bool {
        false
    }

    /// Reserves the share of a queued call of `cost` in the total of all keys, for algorithms whose queued calls count
    /// there. Returns `None` if the total is reached.
    fn join(&self, _cost: u64) -> Option<SharedPermit> {
        Some(SharedPermit::default())
    }

    /// Charges a call and returns the algorithm's own decision, for algorithms whose queued calls do not count as
    /// admitted. `None` if the decision is made from the other methods of this trait.
    fn take(&self, _state: &mut S, _now: Nanos, _cost: u64) -> Option<Decision> {
        None
    }

    /// Returns the algorithm's own decision of a peek. `None` as for [`take`](Queueing::take).
    fn look(&self, _state: &mut S, _now: Nanos, _cost: u64) -> Option<Decision> {
        None
    }

    /// Returns how many calls of cost 1 would be admitted at once, one after another, if none is queued.
    fn passing(&self, state: &S, observed: Nanos) -> u64;

    /// Returns how many calls of cost 1 that arrive at `now`, one after another, would wait no longer than `wait`,
    /// regardless of the queue's capacity. Only for algorithms whose queued calls [count](Queueing::take) as admitted.
    fn room(&self, _state: &S, _now: Nanos, _wait: u64) -> u64 {
        u64::MAX
    }

    /// Returns whether a call of `cost` that arrives at `now` would wait no longer than `wait`.
    fn in_time(&self, state: &S, cost: u64, now: Nanos, wait: u64) -> bool {
        let latest = now.saturating_add(wait).min(Nanos(u64::MAX - 1));
        wait == u64::MAX || !self.is_timed() || self.turn(state, cost) <= latest
    }

    /// Returns how long it takes until the key is fresh, in nanoseconds.
    fn reset(&self, state: &S, now: Nanos) -> u64 {
        self.turn(state, 1).saturating_since(now)
    }

    /// Returns whether calls are refused that would otherwise pass or wait. For
    /// [`Lockout`](crate::algorithm::Lockout).
    fn bars(&self, _state: &S) -> bool {
        false
    }

    /// Adjusts `decision` on a call of `cost` before it is returned. `counts` is false for a peek. For
    /// [`Lockout`](crate::algorithm::Lockout).
    fn answer(&self, _state: &mut S, _now: Nanos, _cost: u64, _counts: bool, decision: Decision) -> Decision {
        decision
    }

    /// Returns whether a call may wait in this queue and in others at once: it has no [`lends`](Queueing::lends),
    /// [`bars`](Queueing::bars) nor [`answer`](Queueing::answer) of its own.
    fn is_plain(&self) -> bool {
        true
    }

    /// Returns a snapshot of the state with which the latest release can be undone, if a snapshot is cheap.
    fn keep(&self, state: &S) -> Option<S>;

    /// Undoes a release: restores the state to the snapshot `before`, except for what was counted since. For
    /// [`Lockout`](crate::algorithm::Lockout).
    fn restore(&self, state: &mut S, before: S) {
        *state = before;
    }

    /// Undoes a release of `cost` at `released`, if there is no [snapshot](Queueing::keep).
    fn take_back(&self, _state: &mut S, _cost: u64, _released: Nanos) {}

    /// Ends a call of `cost` whose waiter was dropped before it observed its release. It gives back what the call would
    /// have given back at its end, except for its share of the [total](Queueing::join).
    fn end(&self, _state: &mut S, _cost: u64) {}

    /// Returns the latest time that the state has observed.
    fn time(&self, state: &S) -> Nanos;

    /// Advances the state to `now`, and returns the state's own time after that.
    fn observe(&self, state: &mut S, now: Nanos) -> Nanos;
}

/// The result of an attempt to admit the next queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The call is not ready.
    NotReady,
    /// The call was admitted, and the state is as the [simulation](Queueing::follow) left it.
    OnSchedule,
    /// The call was admitted later than scheduled, which delays those behind it.
    Late,
}
