//! Trips to the server: at most one at a time for a key. Calls that arrive meanwhile are decided together in the next, in the
//! order in which they arrived.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dashmap::Entry;
use tokio::runtime::Handle;

use super::error::RedisError;
use super::limit::Shared;
use super::link::{Answer, Key, Link, Verdict};
use super::operation::{Action, Operation, Outcome, Pending};
use super::plan::Plan;
use super::states::States;
use crate::algorithm::StoredAlgorithm;
use crate::clock::Nanos;

/// The most calls of one trip: a script blocks the server while it runs.
const MAX_BATCH: usize = 256;

/// The right to make trips for a key. There is one for each key in the table of flights.
struct Flight<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
    key: Arc<str>,
    number: u64,
    has_ended: bool,
}

/// The server of a trip.
#[derive(Clone, Copy)]
struct At<'a> {
    link: &'a Link,
    key: Key<'a>,
}

/// The calls that wait for the next trip of a key.
#[derive(Debug)]
pub(super) struct Waiting<A> {
    /// The number of the flight that makes it.
    flight: u64,
    /// The time at which the present trip ends at the latest, if the runtime of its task is driven.
    ends: Nanos,
    calls: Vec<Pending<A>>,
}

/// The result of a call, or an error that concerns all calls of a trip.
type Outcomes = Result<Vec<Outcome>, RedisError>;

impl<A: StoredAlgorithm> Shared<A> {
    /// Adds a call to the next trip of its key, which begins at once if there is none.
    pub(super) fn send(self: &Arc<Self>, key: &Arc<str>, call: Pending<A>, runtime: &Handle) {
        let number = self.flights_begun.fetch_add(1, Ordering::Relaxed);
        let (now, ends) = (self.links.any().now(), call.deadline);
        let batch = match self.flights.entry(Arc::clone(key)) {
            Entry::Occupied(mut waiting) => {
                let waiting = waiting.get_mut();
                waiting.calls.push(call);
                // A call lasts until its deadline, so this is twice that time.
                let patience = ends.saturating_since(now);
                if now <= waiting.ends.saturating_add(patience) {
                    return;
                }
                // The runtime of the flight is not driven, so this one takes over.
                waiting.flight = number;
                waiting.take_batch(Vec::new())
            }
            Entry::Vacant(place) => {
                drop(place.insert(Waiting { flight: number, ends, calls: Vec::new() }));
                vec![call]
            }
        };
        let flight = Flight { shared: Arc::clone(self), key: Arc::clone(key), number, has_ended: false };
        // If the runtime has ended, the task is dropped at once, and with it the flight.
        runtime.spawn(flight.run(batch));
    }
}

impl<A> Waiting<A> {
    /// Adds the calls of the next trip to a batch, and takes over its end.
    fn take_batch(&mut self, mut batch: Vec<Pending<A>>) -> Vec<Pending<A>> {
        let later = self.calls.split_off(self.calls.len().min(MAX_BATCH));
        batch.extend(mem::replace(&mut self.calls, later));
        self.ends = batch.iter().map(|call| call.deadline).max().unwrap_or(self.ends);
        batch
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

    /// Returns the calls that have arrived meanwhile, after those that undo dropped calls. Ends the flight if there are none.
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

    /// Decides the calls. Returns the operations that undo what was charged to callers that have dropped their calls.
    async fn trip(&self, mut batch: Vec<Pending<A>>) -> Vec<Operation<A>> {
        let shared = &*self.shared;
        let mut route = shared.links.route(&self.key);
        loop {
            let link = &*route.link;
            let now = link.now();
            // Calls that were cancelled or whose time is over are not charged.
            batch.retain(|call| !call.is_cancelled());
            for call in batch.extract_if(.., |call| call.deadline <= now) {
                let _ = call.answer(Err(link.deadline_error()));
            }
            let (Some(first), Some(last)) =
                (batch.iter().map(|call| call.deadline).min(), batch.iter().map(|call| call.deadline).max())
            else {
                return Vec::new();
            };
            let (plan, connection) = (shared.plan(), link.connection());
            let at = At { link, key: Key { text: &self.key, is_asking: route.is_asking } };
            let decided = link.until(last, self.decide(at, &plan, &batch, first)).await;
            let outcomes = match decided {
                Some(Ok(Some(outcomes))) => Ok(outcomes),
                // The server found that the time of one call was over, and has done nothing.
                Some(Ok(None)) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Some(Err(error)) => match shared.links.redirect(&route, &error) {
                    // Nothing was changed, so the calls are decided there from the beginning.
                    Some(next) => match next.link.breaker.admit(now) {
                        Ok(()) => {
                            link.sleep_until(now.saturating_add(next.pause())).await;
                            route = next;
                            continue;
                        }
                        Err(open) => Err(open),
                    },
                    None => Err(error),
                },
                None => Err(link.failed(link.deadline_error(), connection)),
            };
            if let Err(error) = &outcomes {
                shared.links.find_masters_after(error);
            }
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

    /// Decides the calls in one trip, or in two. Returns `None` if the server found that it is later than `not_after`.
    async fn decide(
        &self,
        at: At<'_>,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let At { link, key } = at;
        let sent = link.now();
        let costs: Vec<u64> = match batch.iter().all(|call| call.operation.is_plain_check()) {
            true => batch.iter().map(|call| call.operation.cost).collect(),
            false => Vec::new(),
        };
        let script = plan.script(&costs).filter(|_| !costs.is_empty());
        let found = match script {
            Some((script, arguments)) => link.eval(script, key, not_after, arguments).await?,
            None => link.read(key, not_after).await?.into_other(),
        };
        match found.verdict {
            Verdict::Done => {
                // The script has decided these calls as they are decided here, on the state that it found.
                let (outcomes, mut state, has_written) = apply(plan, &found, batch)?;
                match has_written {
                    true => link.breaker.wrote(),
                    false => self.probe(at, plan, &mut state, &found, not_after).await,
                }
                self.remember(plan, state, &found, sent, &outcomes);
                Ok(Some(outcomes))
            }
            Verdict::Other => self.compare_and_set(at, plan, batch, not_after, found, sent).await,
            Verdict::Late => Ok(None),
        }
    }

    async fn compare_and_set(
        &self,
        at: At<'_>,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
        mut found: Answer,
        mut sent: Nanos,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let At { link, key } = at;
        loop {
            if found.is_late() {
                return Ok(None);
            }
            let (outcomes, mut state, must_write) = apply(plan, &found, batch)?;
            let now = found.now;
            let after = state.write(plan, now).unwrap_or_default();
            if !(must_write && after != found.text) {
                self.probe(at, plan, &mut state, &found, not_after).await;
            } else {
                let ttl = state.time_to_live(&plan.algorithm, now);
                let asked = link.now();
                let swapped = link.swap(key, not_after, &found.text, &after, ttl).await?;
                match swapped.verdict {
                    // A full server still deletes.
                    Verdict::Done if after.is_empty() => {}
                    Verdict::Done => link.breaker.wrote(),
                    // Another process was quicker: again, with what it wrote.
                    Verdict::Other => {
                        (found, sent) = (swapped, asked);
                        continue;
                    }
                    Verdict::Late => return Ok(None),
                }
            }
            self.remember(plan, state, &found, sent, &outcomes);
            return Ok(Some(outcomes));
        }
    }

    /// Writes the state as it is, if only a trip that writes can close the circuit breaker. The calls are decided already.
    async fn probe(
        &self,
        at: At<'_>,
        plan: &Plan<A>,
        state: &mut States<A>,
        found: &Answer,
        not_after: Nanos,
    ) {
        let At { link, key } = at;
        if found.text.is_empty() || !link.breaker.needs_write() {
            return;
        }
        let ttl = state.time_to_live(&plan.algorithm, found.now);
        let written = link.swap(key, not_after, &found.text, &found.text, ttl).await;
        if written.is_ok_and(|answer| answer.verdict == Verdict::Done) {
            link.breaker.wrote();
        }
    }

    fn remember(
        &self,
        plan: &Arc<Plan<A>>,
        state: States<A>,
        found: &Answer,
        sent: Nanos,
        outcomes: &[Outcome],
    ) {
        if outcomes.iter().any(|outcome| !outcome.decision.is_allowed()) {
            self.shared.denials.remember(&self.key, plan, state.own, found.now, sent);
        }
    }
}

/// Applies the calls to the state that was found, in order. Returns the outcomes, the state and whether it must be written.
fn apply<A: StoredAlgorithm>(
    plan: &Plan<A>,
    found: &Answer,
    batch: &[Pending<A>],
) -> Result<(Vec<Outcome>, States<A>, bool), RedisError> {
    let mut state = plan.decode(&found.text, found.now)?;
    let mut must_write = false;
    let apply = |call: &Pending<A>| {
        let (outcome, changed) = call.operation.apply(&plan.algorithm, &mut state.own, found.now);
        state.follow(&call.operation, &outcome, changed);
        must_write |= changed;
        outcome
    };
    let outcomes = batch.iter().map(apply).collect();
    Ok((outcomes, state, must_write))
}

/// If the task is dropped with its runtime, or panics, the calls that wait get an error, and the key can be used again.
impl<A: StoredAlgorithm> Drop for Flight<A> {
    fn drop(&mut self) {
        if !self.has_ended {
            let is_own = |_: &Arc<str>, waiting: &Waiting<A>| waiting.flight == self.number;
            let _waiting = self.shared.flights.remove_if(&self.key, is_own);
        }
    }
}
