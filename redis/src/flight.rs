//! Trips to the server. A limiter makes at most one trip at a time for a key. Calls that arrive during a trip are
//! decided together in the next trip, in the order in which they arrived.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dashmap::Entry;
use tokio::runtime::Handle;

use super::error::RedisError;
use super::limit::Shared;
use super::link::{Keys, Link};
use super::links::Attempted;
use super::next_trip::{PolledFlight, Waiting};
use super::operation::{Action, Operation, Outcome, Pending};
use super::plan::Plan;
use tower_throttle::algorithm::StoredAlgorithm;

/// The trips for a key, which are made one after another. Each key in the table of flights has one flight.
pub(super) struct Flight<A: StoredAlgorithm> {
    pub(super) shared: Arc<Shared<A>>,
    pub(super) key: Arc<str>,
    pub(super) number: u64,
    has_ended: bool,
}

/// The server and the keys of a trip.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) link: &'a Link,
    pub(super) keys: Keys<'a>,
}

/// The results of all calls of a trip, or an error that applies to all of them.
type Outcomes = Result<Vec<Outcome>, RedisError>;

impl<A: StoredAlgorithm> Shared<A> {
    /// Adds a call to the next trip of its key, which a task makes.
    pub(super) fn send(self: &Arc<Self>, key: &Arc<str>, call: Pending<A>, runtime: &Handle) {
        if let Some(flight) = self.send_polled(key, call, runtime) {
            flight.spawn();
        }
    }

    /// Adds a call to the next trip of its key. If no trip is under way, returns a new flight, which makes the trip.
    /// The caller must poll or spawn that flight.
    pub(super) fn send_polled(
        self: &Arc<Self>,
        key: &Arc<str>,
        call: Pending<A>,
        runtime: &Handle,
    ) -> Option<PolledFlight> {
        let number = self.flights_begun.fetch_add(1, Ordering::Relaxed);
        let ends = call.deadline;
        let flight = |batch| {
            let flight = Flight { shared: Arc::clone(self), key: Arc::clone(key), number, has_ended: false };
            PolledFlight::new(flight.run(batch), runtime)
        };
        let present = match self.flights.entry(Arc::clone(key)) {
            Entry::Occupied(mut waiting) => {
                let waiting = waiting.get_mut();
                waiting.calls.push(call);
                // The present trip should have ended at `waiting.ends`. If it is still under way one deadline after
                // that time, its flight counts as abandoned.
                let now = self.links.any().now();
                if now > waiting.ends.saturating_add(ends.saturating_since(now)) {
                    // The runtime of the present flight is not driven, so a new flight takes over.
                    waiting.flight = number;
                    waiting.present = flight(waiting.take_batch(Vec::new()));
                }
                waiting.present.clone()
            }
            Entry::Vacant(place) => {
                let present = flight(vec![call]);
                let calls = Vec::new();
                drop(place.insert(Waiting { flight: number, ends, calls, present: present.clone() }));
                return Some(present);
            }
        };
        // The table of flights is unlocked here, since a flight that ends locks the table.
        present.spawn();
        None
    }
}

impl<A: StoredAlgorithm> Flight<A> {
    async fn run(mut self, mut batch: Vec<Pending<A>>) {
        loop {
            let undone = self.trip(batch).await;
            batch = match self.next(undone) {
                Some(next) => next,
                None => return,
            };
        }
    }

    /// Returns the calls of the next trip: first `undone`, the operations that undo the charges of dropped calls, then
    /// the calls that have waited longest for a trip, at most 256. If there are neither, ends the flight and returns
    /// `None`. If another flight has taken over, adds `undone` to the next trip of the key and returns `None`.
    fn next(&mut self, undone: Vec<Operation<A>>) -> Option<Vec<Pending<A>>> {
        let deadline = self.shared.links.any().deadline();
        let undo = |operation| Pending { operation, deadline, reply: None };
        let undone: Vec<_> = undone.into_iter().map(undo).collect();
        if let Entry::Occupied(mut waiting) = self.shared.flights.entry(Arc::clone(&self.key))
            && waiting.get().flight == self.number
        {
            let batch = waiting.get_mut().take_batch(undone);
            if batch.is_empty() {
                waiting.remove();
                self.has_ended = true;
                return None;
            }
            return Some(batch);
        }
        // Another flight has taken over.
        self.has_ended = true;
        for call in undone {
            self.shared.send(&self.key, call, &Handle::current());
        }
        None
    }

    /// Decides the calls of one trip. Returns the operations that undo the charges of calls that were dropped during
    /// the trip.
    async fn trip(&self, mut batch: Vec<Pending<A>>) -> Vec<Operation<A>> {
        let shared = &*self.shared;
        let mut route = shared.links.route(&self.key);
        loop {
            let link = &*route.link;
            let now = link.now();
            // Calls that were cancelled, or whose deadline has passed, are not sent.
            batch.retain(|call| !call.is_cancelled());
            for call in batch.extract_if(.., |call| call.deadline <= now) {
                let _ = call.answer(Err(link.deadline_error()));
            }
            let (Some(first), Some(last)) =
                (batch.iter().map(|call| call.deadline).min(), batch.iter().map(|call| call.deadline).max())
            else {
                return Vec::new();
            };
            let plan = shared.plan();
            let keys = Keys { texts: &[&*self.key], is_asking: route.is_asking };
            let attempted = {
                let decided = pin!(self.decide(At { link, keys }, &plan, &batch, first));
                shared.links.attempt(&route, last, decided).await
            };
            match attempted {
                Attempted::Over(outcomes) => return self.answer(&plan, batch, outcomes),
                Attempted::Again(next) => route = next,
            }
        }
    }

    fn answer(&self, plan: &Arc<Plan<A>>, batch: Vec<Pending<A>>, outcomes: Outcomes) -> Vec<Operation<A>> {
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                batch.into_iter().for_each(|call| {
                    let _ = call.answer(Err(error.clone()));
                });
                return Vec::new();
            }
        };
        let gives_units = |call: &Pending<A>| {
            matches!(
                call.operation.action,
                Action::Refund | Action::Reset | Action::Undo(_) | Action::GiveBack(_)
            )
        };
        if batch.iter().any(gives_units) {
            self.shared.denials.forget(&self.key);
        }
        debug_assert_eq!(batch.len(), outcomes.len(), "{plan:?}");
        batch.into_iter().zip(outcomes).filter_map(|(call, outcome)| call.answer(Ok(outcome))).collect()
    }
}

/// If the flight panics, or a runtime drops the flight, the calls that wait for its trips get an error, and the key can
/// be used again. If a flight panics while it is polled by the call that began it, that call panics.
impl<A: StoredAlgorithm> Drop for Flight<A> {
    fn drop(&mut self) {
        if !self.has_ended {
            let is_own = |_: &Arc<str>, waiting: &Waiting<A>| waiting.flight == self.number;
            let _waiting = self.shared.flights.remove_if(&self.key, is_own);
        }
    }
}
