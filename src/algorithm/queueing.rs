use std::fmt::Debug;

use crate::algorithm::{QueueConfig, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// How calls wait for an algorithm.
///
/// A line knows no callers: it answers *when* a call may leave if nobody is before it. Who waits, and in what order,
/// is kept by the store; and how it looks to one who comes last is asked of the state as it will be when all others
/// have left.
pub trait Queueing<S>: Debug {
    /// How many calls may wait, and how long.
    fn queue_config(&self, state: &S) -> QueueConfig;

    /// How many calls of cost 1 an idle key lets in at one instant, those who then wait among them where they
    /// [count](Queueing::take).
    fn capacity(&self, state: &S) -> u64;

    /// How many calls of cost 1 an idle key lets in at one instant if nobody waits.
    fn at_once(&self, state: &S) -> u64;

    /// Which of several limits holds a call of `cost` back longest. For tuples.
    fn bottleneck(&self, _state: &S, _cost: u64) -> usize {
        0
    }

    /// Whether a call of that cost can ever leave.
    fn fits(&self, _state: &S, _cost: u64) -> bool {
        true
    }

    /// How many units those who wait may stand for, if only calls with priority may wait. `None`: all may, and
    /// there are [places](Queueing::queue_config) for so many.
    fn lends(&self, _state: &S) -> Option<u64> {
        None
    }

    /// Whether it is known when a call may leave. If not, calls leave when others are over, and a wait that was too
    /// long ends with a refusal.
    fn is_timed(&self) -> bool {
        true
    }

    /// Whether calls leave by a schedule of their own, however late they are let go.
    fn keeps_schedule(&self) -> bool {
        false
    }

    /// When a call of `cost` may leave, rounded up to the nanosecond.
    ///
    /// It may be in the past: then the call leaves at once. [`Nanos::MAX`]: beyond the end of time, or nobody knows.
    fn turn(&self, state: &S, cost: u64) -> Nanos;

    /// Whether the next call, of `cost`, may leave, at the state's own time. Known even at the end of time.
    fn is_due(&self, state: &S, cost: u64) -> bool;

    /// Lets the next call, of `cost`, that came at `arrived` leave if its turn has come by `now`; else tells the
    /// state what time it is.
    fn depart(&self, state: &mut S, now: Nanos, arrived: Nanos, cost: u64) -> Admission {
        // As it was foreseen: once it is later, the turn is now.
        let turn = self.turn(state, cost);
        let seen = self.observe(state, now);
        if !self.is_due(state, cost) {
            return Admission::NotReady;
        }
        let on_time = self.keeps_schedule() || turn >= seen;
        self.leave(state, arrived.min(seen), cost);
        if on_time { Admission::OnSchedule } else { Admission::Late }
    }

    /// Lets a call of `cost` that came at `arrived` leave at its turn, though the timer may have been late.
    fn leave(&self, state: &mut S, arrived: Nanos, cost: u64);

    /// Lets a call of `cost` leave at its turn, whenever that will be.
    fn follow(&self, state: &mut S, arrived: Nanos, cost: u64) {
        let turn = self.turn(state, cost).max(self.time(state));
        self.observe(state, turn);
        self.leave(state, arrived, cost);
    }

    /// Undoes what a call of `cost` that has [followed](Queueing::follow) others did, if that can be done for any of them.
    fn unfollow(&self, _state: &mut S, _cost: u64) -> bool {
        false
    }

    /// A place for a call of `cost` that joins the line, where those who wait count somewhere else, too. `None`:
    /// there is none.
    fn join(&self, _cost: u64) -> Option<SharedPermit> {
        Some(SharedPermit::default())
    }

    /// Takes the units of a call that may pass and tells of it, where the decision is that of the rule itself: those
    /// who wait do not count as admitted. `None`: it is made from what this line answers.
    fn take(&self, _state: &mut S, _now: Nanos, _cost: u64) -> Option<Decision> {
        None
    }

    /// What a look tells, as for [`take`](Queueing::take).
    fn look(&self, _state: &mut S, _now: Nanos, _cost: u64) -> Option<Decision> {
        None
    }

    /// How many calls of cost 1 would leave at once, one after another, if nobody waits.
    fn passing(&self, state: &S, seen: Nanos) -> u64;

    /// How many calls of cost 1 that come `now`, one after another, would wait no longer than `wait`. The number of
    /// places aside. Only where those who wait [count](Queueing::take).
    fn room(&self, _state: &S, _now: Nanos, _wait: u64) -> u64 {
        u64::MAX
    }

    /// Whether a call of `cost` that comes `now` would wait no longer than `wait`.
    fn in_time(&self, state: &S, cost: u64, now: Nanos, wait: u64) -> bool {
        let latest = now.saturating_add(wait).min(Nanos(u64::MAX - 1));
        wait == u64::MAX || !self.is_timed() || self.turn(state, cost) <= latest
    }

    /// How long until the key is as if never seen, in nanoseconds.
    fn reset(&self, state: &S, now: Nanos) -> u64 {
        self.turn(state, 1).saturating_since(now)
    }

    /// Whether calls are refused that would pass or wait otherwise. For [`Lockout`](crate::algorithm::Lockout).
    fn bars(&self, _state: &S) -> bool {
        false
    }

    /// What a call of `cost` is told, if nothing else stands against `decision`; whether that `counts` or is a look.
    /// For [`Lockout`](crate::algorithm::Lockout).
    fn answer(&self, _state: &mut S, _now: Nanos, _cost: u64, _counts: bool, decision: Decision) -> Decision {
        decision
    }

    /// Whether it may be one of several lines that a call waits in at once: it has no [`lends`](Queueing::lends),
    /// [`bars`](Queueing::bars) nor [`answer`](Queueing::answer) of its own.
    fn is_plain(&self) -> bool {
        true
    }

    /// What is kept of the state so that the latest release can be taken back: all of it, where that is cheap.
    fn keep(&self, state: &S) -> Option<S>;

    /// Takes a release back: the state is as it was `before`, but for what was counted since. For
    /// [`Lockout`](crate::algorithm::Lockout).
    fn restore(&self, state: &mut S, before: S) {
        *state = before;
    }

    /// Takes a release of `cost` at `released` back, where nothing was [kept](Queueing::keep).
    fn take_back(&self, _state: &mut S, _cost: u64, _released: Nanos) {}

    /// A call of `cost` was released, and given up before it was told: what it would have given back at its end goes
    /// back now, but for its [place](Queueing::join).
    fn end(&self, _state: &mut S, _cost: u64) {}

    /// The latest time that the state knows of.
    fn time(&self, state: &S) -> Nanos;

    /// Tells the state what time it is, and gives the time back as the state sees it.
    fn observe(&self, state: &mut S, now: Nanos) -> Nanos;
}

/// Whether a call has left its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its turn has not come.
    NotReady,
    /// The state is as one that [follows](Queueing::follow) would have left it.
    OnSchedule,
    /// It left later than at its turn, and others leave later for that.
    Late,
}
