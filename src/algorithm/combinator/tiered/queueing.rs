use std::iter;

use super::{Tiered, TieredState};
use crate::algorithm::{Admission, Algorithm, QueueConfig, Queueing, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// Returns the queue of a tier, which must have one.
fn queueing<A: Algorithm>(algorithm: &A) -> &dyn Queueing<A::State> {
    match algorithm.queueing() {
        Some(queueing) => queueing,
        None => unreachable!("whether there is a queue does not change from tier to tier"),
    }
}

/// The queue of the tier that the key was asked with last.
impl<A: Algorithm + PartialEq> Queueing<TieredState<A>> for Tiered<A> {
    fn queue_config(&self, state: &TieredState<A>) -> QueueConfig {
        queueing(&state.by).queue_config(&state.state)
    }

    fn bottleneck(&self, state: &TieredState<A>, cost: u64) -> usize {
        queueing(&state.by).bottleneck(&state.state, cost)
    }

    fn is_timed(&self) -> bool {
        queueing(&self.algorithm).is_timed()
    }

    fn keeps_schedule(&self) -> bool {
        queueing(&self.algorithm).keeps_schedule()
    }

    fn is_plain(&self) -> bool {
        false
    }

    fn follow(&self, state: &mut TieredState<A>, arrived: Nanos, cost: u64) {
        queueing(&state.by).follow(&mut state.state, arrived, cost);
        state.count(state.by.last_update(&state.state), cost);
    }

    fn join(&self, cost: u64) -> Option<SharedPermit> {
        queueing(&self.algorithm).join(cost)
    }

    fn end(&self, state: &mut TieredState<A>, cost: u64) {
        let now = state.by.last_update(&state.state);
        self.release(state, now, cost);
    }

    fn take(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Option<Decision> {
        let decision = queueing(&state.by).take(&mut state.state, now, cost)?;
        state.count(now, cost);
        Some(state.reported(now, decision))
    }

    fn look(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Option<Decision> {
        let decision = queueing(&state.by).look(&mut state.state, now, cost)?;
        Some(state.reported(now, decision))
    }

    fn time(&self, state: &TieredState<A>) -> Nanos {
        queueing(&state.by).time(&state.state)
    }

    fn depart(&self, state: &mut TieredState<A>, now: Nanos, arrived: Nanos, cost: u64) -> Admission {
        let departure = queueing(&state.by).depart(&mut state.state, now, arrived, cost);
        if departure != Admission::NotReady {
            state.count(state.by.last_update(&state.state), cost);
        }
        departure
    }

    fn capacity(&self, state: &TieredState<A>) -> u64 {
        queueing(&state.by).capacity(&state.state)
    }

    fn at_once(&self, state: &TieredState<A>) -> u64 {
        queueing(&state.by).at_once(&state.state)
    }

    fn fits(&self, state: &TieredState<A>, cost: u64) -> bool {
        queueing(&state.by).fits(&state.state, cost)
    }

    fn lends(&self, state: &TieredState<A>) -> Option<u64> {
        queueing(&state.by).lends(&state.state)
    }

    fn turn(&self, state: &TieredState<A>, cost: u64) -> Nanos {
        queueing(&state.by).turn(&state.state, cost)
    }

    fn is_due(&self, state: &TieredState<A>, cost: u64) -> bool {
        queueing(&state.by).is_due(&state.state, cost)
    }

    fn leave(&self, state: &mut TieredState<A>, arrived: Nanos, cost: u64) {
        queueing(&state.by).leave(&mut state.state, arrived, cost);
        state.count(state.by.last_update(&state.state), cost);
    }

    fn keep(&self, state: &TieredState<A>) -> Option<TieredState<A>> {
        let kept = queueing(&state.by).keep(&state.state)?;
        let other_tiers = state
            .other_tiers
            .iter()
            .map(|(algorithm, state)| Some((algorithm.clone(), queueing(algorithm).keep(state)?)));
        Some(TieredState {
            by: state.by.clone(),
            state: kept,
            other_tiers: other_tiers.collect::<Option<_>>()?,
        })
    }

    fn restore(&self, state: &mut TieredState<A>, before: TieredState<A>) {
        for (algorithm, kept) in iter::once((before.by, before.state)).chain(before.other_tiers) {
            let other_tiers = state.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
            let mut all = iter::once((&state.by, &mut state.state)).chain(other_tiers);
            if let Some((algorithm, state)) = all.find(|(known, _)| **known == algorithm) {
                queueing(algorithm).restore(state, kept);
            }
        }
    }

    fn take_back(&self, state: &mut TieredState<A>, cost: u64, released: Nanos) {
        queueing(&state.by).take_back(&mut state.state, cost, released);
    }

    fn passing(&self, state: &TieredState<A>, seen: Nanos) -> u64 {
        queueing(&state.by).passing(&state.state, seen)
    }

    fn in_time(&self, state: &TieredState<A>, cost: u64, now: Nanos, wait: u64) -> bool {
        queueing(&state.by).in_time(&state.state, cost, now, wait)
    }

    fn room(&self, state: &TieredState<A>, now: Nanos, wait: u64) -> u64 {
        queueing(&state.by).room(&state.state, now, wait)
    }

    fn reset(&self, state: &TieredState<A>, now: Nanos) -> u64 {
        let other_tiers =
            state.other_tiers.iter().map(|(algorithm, state)| queueing(algorithm).reset(state, now));
        other_tiers.fold(queueing(&state.by).reset(&state.state, now), u64::max)
    }

    fn bars(&self, state: &TieredState<A>) -> bool {
        queueing(&state.by).bars(&state.state)
    }

    fn answer(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        queueing(&state.by).answer(&mut state.state, now, cost, counts, decision)
    }

    fn observe(&self, state: &mut TieredState<A>, now: Nanos) -> Nanos {
        queueing(&state.by).observe(&mut state.state, now)
    }
}
