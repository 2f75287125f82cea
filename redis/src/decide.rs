//! The decisions on a batch of calls: by a script, or by reading the state and writing the new state.

use std::sync::Arc;

use smallvec::SmallVec;

use super::answer::{Answer, Verdict};
use super::error::RedisError;
use super::flight::{At, Flight};
use super::link::Swap;
use super::operation::{Outcome, Pending};
use super::plan::Plan;
use super::states::States;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;

impl<A: StoredAlgorithm> Flight<A> {
    /// Decides the calls in one or more round trips. Returns `None` if the server's clock was already past `not_after`,
    /// so that nothing was changed.
    pub(super) async fn decide(
        &self,
        at: At<'_>,
        plan: &Arc<Plan<A>>,
        batch: &[Pending<A>],
        not_after: Nanos,
    ) -> Result<Option<Vec<Outcome>>, RedisError> {
        let At { link, keys } = at;
        let sent = link.now();
        let costs: SmallVec<[u64; 4]> = match batch.iter().all(|call| call.operation.is_plain_check()) {
            true => batch.iter().map(|call| call.operation.cost).collect(),
            false => SmallVec::new(),
        };
        let script = plan.script(&costs).filter(|_| !costs.is_empty());
        let found = match script {
            Some((script, pack)) => link.eval(script, keys, not_after, |_, last| pack(last)).await?,
            None => link.read(keys, not_after).await?.into_other(),
        };
        match found.verdict {
            Verdict::Done => {
                // The script has decided the calls from the state in `found`, with the same result as the algorithm. So
                // the decisions are computed here from that state.
                let (outcomes, mut state, has_written) = apply(plan, &found, batch)?;
                match has_written {
                    true => link.breaker.wrote(),
                    false => self.probe(at, plan, &mut state, &found, not_after).await,
                }
                self.remember(plan, state, &found, sent, &outcomes);
                Ok(Some(outcomes))
            }
            // The future of these further trips is large, and most flights do not need it.
            Verdict::Other => Box::pin(self.compare_and_set(at, plan, batch, not_after, found, sent)).await,
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
        let At { link, keys } = at;
        let (has_turns, mut has_lost) = (self.shared.links.has_turns(), false);
        loop {
            if found.is_late() {
                return Ok(None);
            }
            let (outcomes, mut state, must_write) = apply(plan, &found, batch)?;
            let now = found.now;
            let mut after = state.write(plan, now).unwrap_or_default();
            if !must_write {
                after.clone_from(&found.text);
            }
            // A process whose first write failed may have taken the turn. Such a process writes the state even if the
            // state is unchanged, so that its turn ends.
            if after == found.text && !has_lost {
                self.probe(at, plan, &mut state, &found, not_after).await;
            } else {
                let ttl = state.time_to_live(&plan.algorithm, now);
                let asked = link.now();
                let swap = Swap { before: &found.text, after: &after, ttl };
                let swapped = match has_turns {
                    true => link.swap_in_turn(&self.key, not_after, swap).await?,
                    false => link.swap(keys, not_after, &[swap]).await?,
                };
                match swapped.verdict {
                    // A server that is out of memory can still delete keys, so a deletion does not close the breaker.
                    Verdict::Done if after.is_empty() => {}
                    Verdict::Done => link.breaker.wrote(),
                    // Another process has changed the state since it was read, or it is the turn of another process.
                    // The calls are decided again, from the state in the reply.
                    Verdict::Other => {
                        if swapped.text == found.text {
                            link.wait_for_turn().await;
                        }
                        (found, sent, has_lost) = (swapped, asked, has_turns);
                        continue;
                    }
                    Verdict::Late => return Ok(None),
                }
            }
            self.remember(plan, state, &found, sent, &outcomes);
            return Ok(Some(outcomes));
        }
    }

    /// Writes the state unchanged, if only a trip that writes can close the circuit breaker. The calls are decided
    /// already, so a failure of this write affects only the breaker.
    async fn probe(
        &self,
        at: At<'_>,
        plan: &Plan<A>,
        state: &mut States<A>,
        found: &Answer,
        not_after: Nanos,
    ) {
        let At { link, keys } = at;
        if found.text.is_empty() || !link.breaker.needs_write() {
            return;
        }
        let ttl = state.time_to_live(&plan.algorithm, found.now);
        let swaps = [Swap { before: &found.text, after: &found.text, ttl }];
        // A large future, which is seldom needed.
        let written = Box::pin(link.swap(keys, not_after, &swaps)).await;
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
        // If another flight has taken over, the state may have changed since it was read.
        let is_current =
            || self.shared.flights.get(&self.key).is_some_and(|waiting| waiting.flight == self.number);
        if outcomes.iter().any(|outcome| !outcome.decision.is_allowed()) && is_current() {
            self.shared.denials.remember(&self.key, plan, state.own, found.now, sent);
        }
    }
}

/// Applies the calls in order to the state in `found`. Returns the outcomes, the new state, and whether that state must
/// be written.
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
