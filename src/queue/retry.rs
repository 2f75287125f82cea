//! The times that a queue reports: the time until the key is fresh, and the time until a denied call could be admitted
//! or queued.

use super::arrival::Arrival;
use super::view::{QueueView, reset_of};
use super::waiter::Projection;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;

/// The maximum number of iterations of the fixed-point search in `retry_by_displacement`.
const MAX_ITERATIONS: usize = 8;

impl<A: Algorithm> QueueView<'_, A> {
    /// Returns the time until a call of `cost` that arrives behind all waiters is admitted, in nanoseconds.
    pub(super) fn turn(&mut self, now: Nanos, cost: u64) -> u64 {
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(now);
        algorithm.ready_at(tail, at, cost).unwrap_or(Nanos::MAX).saturating_since(now)
    }

    /// Returns the time until the key is fresh, in nanoseconds.
    pub(super) fn reset(&mut self, now: Nanos) -> u64 {
        let algorithm = self.algorithm;
        let (tail, at) = self.tail(now);
        reset_of(algorithm.peek(tail, at, 0), at, now)
    }

    /// Returns the time until a new call could be admitted or queued, in nanoseconds.
    pub(super) fn retry(&mut self, arrival: Arrival) -> u64 {
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
                let free = self.time_until_place(now, is_place);
                self.retry_by_displacement(arrival, free).unwrap_or(early_enough.max(free))
            }
        }
    }

    /// Returns the time until the call could displace the oldest waiter and then wait no longer than the call's
    /// maximum. `free` is the time until a place of the queue becomes free, in nanoseconds. Returns `None` if a place
    /// becomes free before the call could displace the oldest waiter, if the call can displace no waiter, or if no time
    /// was found.
    ///
    /// Waiters behind the oldest waiter may be released as soon as that waiter is displaced. So the wait depends on the
    /// time of the displacement, which is found by iteration.
    fn retry_by_displacement(&self, arrival: Arrival, free: u64) -> Option<u64> {
        let Arrival { now, cost, .. } = arrival;
        let is_full = self.waiting() >= self.config.places();
        let drops = is_full && self.drops_oldest() && !arrival.dropped && free > 0;
        let before = self.before.as_ref().filter(|_| drops)?;
        let mut at = 0;
        for _ in 0..MAX_ITERATIONS {
            let mut tail = Projection { state: self.state.clone(), at: now.saturating_add(at) };
            let _ = self.base.peek(&mut tail.state, tail.at, 0);
            let seen = self.base.last_update(&tail.state);
            for waiter in before.waiters.range(before.gone + 1..) {
                let arrived = waiter.eligible_since(before.since, seen);
                tail.add(waiter.algorithm(self.base), arrived, waiter.cost);
            }
            let turn = self.algorithm.ready_at(&mut tail.state, tail.at, cost).unwrap_or(Nanos::MAX);
            let early_enough = turn.saturating_since(now).saturating_sub(arrival.max_wait(self.config));
            match early_enough {
                _ if early_enough <= at => return Some(at),
                _ if early_enough >= free => return None,
                _ => at = early_enough,
            }
        }
        None
    }

    /// Returns the time until enough waiters have been released for `is_place` to return true, in nanoseconds. The
    /// arguments of `is_place` are the number and the total cost of the remaining waiters.
    fn time_until_place(&self, now: Nanos, is_place: impl Fn(u64, u128) -> bool) -> u64 {
        let (mut waiting, mut ahead) = (self.waiting(), self.ahead());
        let Some(before) = self.before.as_ref().filter(|_| !is_place(waiting, ahead)) else { return 0 };
        let mut tail = Projection { state: self.state.clone(), at: now };
        let seen = self.base.last_update(self.state);
        for waiter in before.waiters.range(before.gone..) {
            let algorithm = waiter.algorithm(self.base);
            let turn = algorithm.ready_at(&mut tail.state, tail.at, waiter.cost).unwrap_or(Nanos::MAX);
            (waiting, ahead) = (waiting - 1, ahead - u128::from(waiter.cost));
            if is_place(waiting, ahead) {
                return turn.saturating_since(now);
            }
            tail.add(algorithm, waiter.eligible_since(before.since, seen), waiter.cost);
        }
        0
    }
}
