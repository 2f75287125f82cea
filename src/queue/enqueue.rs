//! Calls that arrive at the queue.

use std::task::Waker;

use super::waiter::{Displaced, Projection, Waiter};
use super::{Arrival, Enqueued, Fate, Queue, QueueView, queue_config};
use crate::algorithm::{Algorithm, SharedPermit};
use crate::clock::Nanos;

impl<A: Algorithm> Queue<A> {
    /// Decides a new call, or queues it. The call uses the algorithm `tier` if it chose one, and `base` otherwise. Due
    /// waiters must have been [released](Queue::release) before.
    pub(crate) fn try_enqueue(
        &mut self,
        base: &A,
        tier: Option<&A>,
        state: &mut A::State,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Enqueued {
        let algorithm = tier.unwrap_or(base);
        let Arrival { now, cost, .. } = arrival;
        let config = queue_config(algorithm);
        let has_place = (self.waiting.len() as u64) < config.places() && self.total.available() > 0;
        let waits = arrival.may_wait && has_place && arrival.max_wait(config) == u64::MAX;
        match waits && !config.is_exclusive() {
            // The call may wait for any length of time, or never fits. In both cases, the exact wait is not needed.
            true => self.ensure_approximate_projection(base, state, now, 0),
            false => self.ensure_exact_projection(base, state, now, 0),
        }
        let mut view = QueueView::behind(base, algorithm, state, self, 0);
        match view.decide(arrival) {
            Fate::Decided(decision) => {
                if decision.is_allowed() && cost > 0 {
                    self.commit_release();
                }
                Enqueued::Decided(decision)
            }
            Fate::Full if view.drops_oldest() => self.displace_and_enqueue(base, tier, state, arrival, wake),
            Fate::Full => Enqueued::Decided(view.reject(arrival).with_queue_full()),
            Fate::Waits => self.join(base, tier, state, arrival),
        }
    }

    /// Queues a call in a full queue, and denies the oldest waiter. If the new call could not be queued even without
    /// that waiter, denies the new call instead. If calls of other keys use up the total of all keys while the oldest
    /// waiter is out of the queue, both calls may be denied.
    fn displace_and_enqueue(
        &mut self,
        base: &A,
        tier: Option<&A>,
        state: &mut A::State,
        arrival: Arrival,
        wake: &mut Vec<Waker>,
    ) -> Enqueued {
        let (now, algorithm) = (arrival.now, tier.unwrap_or(base));
        let Some(oldest) = self.pop_oldest_if(base, algorithm, state, arrival) else {
            let denial = self.view(base, algorithm, state, now).reject(arrival);
            return Enqueued::Decided(denial.with_queue_full());
        };
        let (deadline, wake_at) = (oldest.deadline, oldest.wake_at);
        let oldest = Displaced::from(oldest);
        let enqueued = self.join(base, tier, state, arrival);
        let Enqueued::Queued(_) = enqueued else {
            // This queue has a free place, but the total of all keys is full. The oldest waiter gets its place back, if
            // the total allows this.
            let permit = SharedPermit::try_acquire(oldest.tier.as_deref().unwrap_or(base), oldest.cost);
            if let Some((slot, permit)) = self.total.try_acquire_one().zip(permit) {
                let Displaced { ticket, cost, tier, arrived, waker } = oldest;
                let waiter =
                    Waiter { ticket, cost, tier, arrived, deadline, wake_at, waker, _counted: slot, permit };
                self.ahead += u128::from(cost);
                self.waiting.push_front(waiter);
                self.projection = None;
                return enqueued;
            }
            wake.extend(self.reject_displaced(base, state, oldest, now));
            return enqueued;
        };
        wake.extend(self.reject_displaced(base, state, oldest, now));
        wake.extend(self.head_waker(base, state, now));
        enqueued
    }

    /// Denies a displaced waiter. The `retry_after` of its decision is the time until a place is free.
    fn reject_displaced(
        &mut self,
        base: &A,
        state: &mut A::State,
        displaced: Displaced<A>,
        now: Nanos,
    ) -> Option<Waker> {
        let arrival = Arrival { dropped: true, ..Arrival::new(now, displaced.cost) };
        let algorithm = displaced.tier.as_deref().unwrap_or(base);
        let refusal = self.view(base, algorithm, state, now).reject(arrival).with_queue_full();
        self.reject(displaced, refusal, now)
    }

    /// Queues a call. Denies the call if `max_queued` calls are queued already, or if a total of the algorithm has too
    /// few units.
    fn join(&mut self, base: &A, tier: Option<&A>, state: &mut A::State, arrival: Arrival) -> Enqueued {
        let Arrival { now, cost, .. } = arrival;
        let algorithm = tier.unwrap_or(base);
        let Some((slot, permit)) =
            self.total.try_acquire_one().zip(SharedPermit::try_acquire(algorithm, cost))
        else {
            // It is unknown when another queue will release a waiter. So the call is denied like a call that may not
            // wait.
            let arrival = Arrival { may_wait: false, ..arrival };
            let denial = self.view(base, algorithm, state, now).reject(arrival);
            return Enqueued::Decided(denial.with_queue_full());
        };
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let ready_at = match &mut self.projection {
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
        if self.waiting.is_empty() {
            self.set_ready_at(ready_at, now);
            self.seen = algorithm.last_update(state);
        }
        let config = queue_config(algorithm);
        let deadline = match config.is_timed() {
            true => Nanos::MAX,
            false => now.saturating_add(arrival.max_wait(config)),
        };
        let (tier, wake_at) = (tier.cloned().map(Box::new), ready_at.unwrap_or(Nanos::MAX).min(deadline));
        self.ahead += u128::from(cost);
        self.waiting.push_back(Waiter {
            ticket,
            cost,
            tier,
            arrived: now,
            deadline,
            wake_at,
            waker: None,
            _counted: slot,
            permit,
        });
        Enqueued::Queued(ticket)
    }

    /// Removes and returns the oldest waiter, if the new call would then be released within its maximum wait, or if it
    /// is unknown when calls will be released. Does not check whether the total of all keys has a place for the new
    /// call.
    fn pop_oldest_if(
        &mut self,
        base: &A,
        algorithm: &A,
        state: &A::State,
        arrival: Arrival,
    ) -> Option<Waiter<A>> {
        let now = arrival.now;
        let oldest = self.waiting.front()?;
        if queue_config(algorithm).is_timed() {
            let mut projection = self.projection.clone().filter(|_| !self.is_stale);
            let remove = |projection: &mut Projection<A::State>| {
                projection.remove(oldest.algorithm(base), now, oldest.cost)
            };
            let mut projection = match projection.take_if(remove) {
                Some(projection) => projection,
                None => self.after(base, state, now, 1..self.waiting.len()),
            };
            if !arrival.is_in_time(algorithm, &mut projection.state, projection.at) {
                return None;
            }
            self.projection = Some(projection);
        }
        (self.ready_at, self.ahead) = (None, self.ahead - u128::from(oldest.cost));
        self.waiting.pop_front()
    }
}
