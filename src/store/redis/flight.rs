//! Trips to the server: at most one at a time for a key. Calls that arrive during a trip are decided together in the
//! next trip, in the order in which they arrived.

use std::mem;
use std::sync::Arc;

use dashmap::Entry;
use tokio::runtime::Handle;

use super::error::RedisError;
use super::limit::Shared;
use super::link::{Answer, Verdict};
use super::operation::{Action, Operation, Outcome, Pending};
use super::plan::Plan;
use crate::algorithm::StoredAlgorithm;
use crate::clock::Nanos;

/// The maximum number of calls of one trip, because a script blocks the server while it runs.
const MAX_BATCH: usize = 256;

/// The right to make trips for a key. Each key in the table of flights has one flight.
struct Flight<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
    key: Arc<str>,
    has_ended: bool,
}

/// The result of a call, or an error that concerns all calls of a trip.
type Outcomes = Result<Vec<Outcome>, RedisError>;

impl<A: StoredAlgorithm> Shared<A> {
    /// Adds a call to the next trip of its key. If no trip is under way, one begins at once.
    pub(super) fn send(self: &Arc<Self>, key: &Arc<str>, call: Pending<A>, runtime: &Handle) {
        match self.flights.entry(Arc::clone(key)) {
            Entry::Occupied(mut waiting) => return waiting.get_mut().push(call),
            Entry::Vacant(place) => drop(place.insert(Vec::new())),
        }
        let flight = Flight { shared: Arc::clone(self), key: Arc::clone(key), has_ended: false };
        // If the runtime has ended, the task is dropped at once, and the flight with it.
        runtime.spawn(flight.run(vec![call]));
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

    /// Returns the calls of the next trip: first `undone`, which undoes the charges of calls that were dropped, then
    /// the calls that have arrived meanwhile. Ends the flight if there are none.
    fn next(&mut self, undone: Vec<Operation<A>>) -> Option<Vec<Pending<A>>> {
        let deadline = self.shared.link.deadline();
        let undo = |operation| Pending { operation, deadline, reply: None };
        let mut batch: Vec<_> = undone.into_iter().map(undo).collect();
        let Entry::Occupied(mut waiting) = self.shared.flights.entry(Arc::clone(&self.key)) else {
            unreachable!("only the flight removes its key");
        };
        let rest = waiting.get().len().min(MAX_BATCH);
        let later = waiting.get_mut().split_off(rest);
        batch.extend(mem::replace(waiting.get_mut(), later));
        if batch.is_empty() {
            waiting.remove();
            self.has_ended = true;
            return None;
        }
        Some(batch)
    }

    /// Decides the calls. Returns the operations that undo the charges of calls that their callers have dropped.
    async fn trip(&self, mut batch: Vec<Pending<A>>) -> Vec<Operation<A>> {
        let shared = &*self.shared;
        let link = &*shared.link;
        loop {
            let now = link.now();
            // Calls that were cancelled, or whose deadline has passed, are not charged.
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
            let decided = link.until(last, self.decide(&plan, &batch, first)).await;
            let outcomes = match decided {
                Some(Ok(Some(outcomes))) => Ok(outcomes),
                // By the server's clock, the deadline of one call had passed, so the server has done nothing.
                Some(Ok(None)) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Some(Err(error)) => Err(error),
                None => Err(link.failed(link.deadline_error())),
            };
            return self.answer(&plan, batch, outcomes);
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

    /// Decides the calls in one trip or in two. Returns `None` if it was later than `not_after` by the server's clock.
    async fn decide(
        &self,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let link = &*self.shared.link;
        let sent = link.now();
        let costs: Vec<u64> = match batch.iter().all(|call| call.operation.is_plain_check()) {
            true => batch.iter().map(|call| call.operation.cost).collect(),
            false => Vec::new(),
        };
        let script = plan.script(&costs).filter(|_| !costs.is_empty());
        let found = match script {
            Some((script, arguments)) => link.eval(script, &self.key, not_after, arguments).await?,
            None => link.read(&self.key, not_after).await?.into_other(),
        };
        match found.verdict {
            Verdict::Done => {
                // The script has made the same decisions on the state that it returned.
                let (outcomes, state, _) = apply(plan, &found, batch)?;
                self.remember(plan, state, &found, sent, &outcomes);
                Ok(Some(outcomes))
            }
            Verdict::Other => self.compare_and_set(plan, batch, not_after, found, sent).await,
            Verdict::Late => Ok(None),
        }
    }

    async fn compare_and_set(
        &self,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
        mut found: Answer,
        mut sent: Nanos,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let link = &*self.shared.link;
        loop {
            if found.is_late() {
                return Ok(None);
            }
            let (outcomes, mut state, must_write) = apply(plan, &found, batch)?;
            let now = found.now;
            let after = match plan.algorithm.is_fresh(&state, now) {
                true => String::new(),
                false => plan.encode(&state),
            };
            if must_write && after != found.text {
                let ttl = plan.time_to_live(&mut state, now);
                let swap_sent = link.now();
                let swapped = link.swap(&self.key, not_after, &found.text, &after, ttl).await?;
                match swapped.verdict {
                    Verdict::Done => {}
                    // Another process has written a state meanwhile, so the calls are decided again, on that state.
                    Verdict::Other => {
                        (found, sent) = (swapped, swap_sent);
                        continue;
                    }
                    Verdict::Late => return Ok(None),
                }
            }
            self.remember(plan, state, &found, sent, &outcomes);
            return Ok(Some(outcomes));
        }
    }

    fn remember(
        &self,
        plan: &Arc<Plan<A>>,
        state: A::State,
        found: &Answer,
        sent: Nanos,
        outcomes: &[Outcome],
    ) {
        if outcomes.iter().any(|outcome| !outcome.decision.is_allowed()) {
            self.shared.denials.remember(&self.key, plan, state, found.now, sent);
        }
    }
}

/// Applies the calls in order to the state in `found`. Returns the outcomes, the state, and whether it must be written.
fn apply<A: StoredAlgorithm>(
    plan: &Plan<A>,
    found: &Answer,
    batch: &[Pending<A>],
) -> Result<(Vec<Outcome>, A::State, bool), RedisError> {
    let mut state = plan.decode(&found.text, found.now)?;
    let mut must_write = false;
    let apply = |call: &Pending<A>| {
        let (outcome, changed) = call.operation.apply(&plan.algorithm, &mut state, found.now);
        must_write |= changed;
        outcome
    };
    let outcomes = batch.iter().map(apply).collect();
    Ok((outcomes, state, must_write))
}

impl Answer {
    fn is_late(&self) -> bool {
        self.verdict == Verdict::Late
    }

    /// Converts the answer of a read to that of a script that did nothing, so that compare-and-set follows.
    fn into_other(self) -> Self {
        if self.is_late() { self } else { Self { verdict: Verdict::Other, ..self } }
    }
}

/// If the task panics, or is dropped with its runtime, the calls that wait get an error, and the key can be used again.
impl<A: StoredAlgorithm> Drop for Flight<A> {
    fn drop(&mut self) {
        if !self.has_ended {
            let _waiting = self.shared.flights.remove(&self.key);
        }
    }
}
