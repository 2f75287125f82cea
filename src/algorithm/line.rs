use std::fmt::Debug;

use crate::clock::Nanos;
use crate::decision::Decision;

/// How calls wait for an algorithm that queues.
///
/// A line knows no callers: it answers *when* a call may leave that has `ahead` units of cost before it. Who waits,
/// and in what order, is kept by the store.
pub trait Line<S>: Debug {
    /// How many calls may wait.
    fn places(&self, state: &S) -> u64;

    /// How long a call may wait, in nanoseconds. `u64::MAX`: as long as it takes.
    fn max_wait(&self, state: &S) -> u64;

    /// How many calls of cost 1 an idle key lets in at one instant: one, and those who wait.
    fn capacity(&self, state: &S) -> u64;

    /// How many calls of cost 1 an idle key lets in at one instant if nobody waits.
    fn at_once(&self, state: &S) -> u64;

    /// Whether a call of that cost can ever leave.
    fn fits(&self, _state: &S, _cost: u64) -> bool {
        true
    }

    /// How many units those who wait may stand for, if only calls with priority may wait. `None`: all may, and
    /// [`places`](Line::places) bounds them.
    fn lends(&self, _state: &S) -> Option<u64> {
        None
    }

    /// When a call of `cost` may leave that has `ahead` units before it, rounded up to the nanosecond.
    ///
    /// It may be in the past: then the call leaves at once. [`Nanos::MAX`]: beyond the end of time.
    fn turn(&self, state: &S, ahead: u128, cost: u64) -> Nanos;

    /// Whether the next call, of `cost`, may leave, at the state's own time. Known even at the end of time.
    fn is_due(&self, state: &S, cost: u64) -> bool;

    /// Lets a call of `cost` that came at `arrived` leave at its turn, though the timer may have been late.
    fn leave(&self, state: &mut S, arrived: Nanos, cost: u64);

    /// How many calls of cost 1 would leave at once, one after another, if nobody waits.
    fn passing(&self, state: &S, seen: Nanos) -> u64;

    /// How many calls of cost 1 that come `now`, one after another, would wait no longer than
    /// [`max_wait`](Line::max_wait), with `ahead` units before them. The number of places aside.
    fn room(&self, state: &S, ahead: u128, now: Nanos) -> u64 {
        if self.max_wait(state) == u64::MAX {
            return u64::MAX;
        }
        let latest = now.after(self.max_wait(state)).min(Nanos(u64::MAX - 1));
        // By halves: whoever comes later does not leave sooner.
        let (mut fit, mut beyond) = (0, u64::MAX);
        while fit < beyond {
            let middle = fit + (beyond - fit) / 2;
            match self.turn(state, ahead + u128::from(middle), 1) <= latest {
                true => fit = middle + 1,
                false => beyond = middle,
            }
        }
        fit
    }

    /// Whether a call of `cost` that comes `now`, with `ahead` units before it, would wait no longer than [`max_wait`](Line::max_wait).
    fn in_time(&self, state: &S, ahead: u128, cost: u64, now: Nanos) -> bool {
        let latest = now.after(self.max_wait(state)).min(Nanos(u64::MAX - 1));
        self.max_wait(state) == u64::MAX || self.turn(state, ahead, cost) <= latest
    }

    /// How long until the key is as if never seen, in nanoseconds, once those with `ahead` units have left.
    fn reset(&self, state: &S, ahead: u128, now: Nanos) -> u64 {
        self.turn(state, ahead, 1).since(now)
    }

    /// Whether calls are refused that would pass or wait otherwise. For [`Blocking`](crate::algorithm::Blocking).
    fn bars(&self, _state: &S) -> bool {
        false
    }

    /// What a call of `cost` is told, if nothing else stands against `decision`; whether that `counts` or is a look. For [`Blocking`](crate::algorithm::Blocking).
    fn answer(&self, _state: &mut S, _now: Nanos, _cost: u64, _counts: bool, decision: Decision) -> Decision {
        decision
    }

    /// What is kept of the state so that the latest release can be taken back: all of it, where that is cheap.
    fn keep(&self, state: &S) -> Option<S>;

    /// Takes a release back: the state is as it was `before`, but for what was counted since. For [`Blocking`](crate::algorithm::Blocking).
    fn restore(&self, state: &mut S, before: S) {
        *state = before;
    }

    /// Takes a release of `cost` at `released` back, where nothing was [kept](Line::keep).
    fn take_back(&self, _state: &mut S, _cost: u64, _released: Nanos) {}

    /// Tells the state what time it is, and gives the time back as the state sees it.
    fn observe(&self, state: &mut S, now: Nanos) -> Nanos;
}
