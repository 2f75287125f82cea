//! The implementation of [`Algorithm`] for [`Tiered`].

use super::{Keep, Tiered, TieredState};
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy, Semaphore, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;
use std::iter;

impl<A: Algorithm + PartialEq> Algorithm for Tiered<A> {
    type State = TieredState<A>;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;
    const NEEDS_RELEASE: bool = A::NEEDS_RELEASE;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> TieredState<A> {
        TieredState {
            by: self.algorithm.clone(),
            state: self.algorithm.new_state(created_at, now),
            other_tiers: Vec::new(),
        }
    }

    #[inline]
    fn last_update(&self, state: &TieredState<A>) -> Nanos {
        state.by.last_update(&state.state)
    }

    /// Makes this tier the current tier of the key if the call is admitted. After a denial, the state of a tier that is
    /// new to the key is kept if the key has room for another tier, because the tier may count denials.
    #[inline]
    fn check(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        let decision = self.ask(state, now, |own| {
            let decision = self.algorithm.check(own, now, cost);
            let keep = match decision.is_allowed() {
                // A call of cost 0 charges nothing, so a store need not write it.
                true if cost == 0 => Keep::Nothing,
                true => Keep::Tier,
                false => Keep::State,
            };
            (decision, keep)
        });
        if decision.is_allowed() {
            state.count(now, cost);
        }
        self.reported(state, now, decision)
    }

    /// Peeks at the state of this tier. The current tier of the key stays the same.
    fn peek(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        let decision = self.look(state, now, |own| self.algorithm.peek(own, now, cost));
        self.reported(state, now, decision)
    }

    fn refund(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        state.by.refund(&mut state.state, now, cost);
    }

    fn undo(&self, state: &mut TieredState<A>, now: Nanos, cost: u64, charged_at: Nanos) {
        // The charge of this tier is undone. The charges of the other tiers stay, because it is not known how much was
        // charged to each of them.
        let mut all = state.tiers_mut();
        if let Some((algorithm, state)) = all.find(|(algorithm, _)| **algorithm == self.algorithm) {
            algorithm.undo(state, now, cost, charged_at);
        }
    }

    /// If the key has a state for the old default tier, and none for the new default tier, adds a converted state for
    /// the new default tier. Calls that choose the old algorithm as their tier use the old state, unless it is removed
    /// to make room.
    fn migrate(&self, state: &mut TieredState<A>, from: &Self, now: Nanos) {
        if state.by == from.algorithm {
            return self.ask(state, now, |_| ((), Keep::Tier));
        }
        let old = state.other_tiers.iter().find(|(algorithm, _)| *algorithm == from.algorithm);
        if let Some((algorithm, old)) = old
            && self.algorithm != state.by
            && state.other_tiers.iter().all(|(algorithm, _)| *algorithm != self.algorithm)
        {
            let mut new = old.clone();
            self.algorithm.migrate(&mut new, algorithm, now);
            state.other_tiers.push((self.algorithm.clone(), new));
            state.make_room(now);
        }
    }

    fn is_fresh(&self, state: &TieredState<A>, now: Nanos) -> bool {
        state.tiers().all(|(algorithm, state)| algorithm.is_fresh(state, now))
    }

    fn policy(&self) -> QuotaPolicy {
        self.algorithm.policy()
    }

    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        self.algorithm.for_each_policy(f);
    }

    /// Releases the units of the call in the state of each tier.
    fn release(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        for (algorithm, state) in state.tiers_mut() {
            algorithm.release(state, now, cost);
        }
    }

    fn reset_state(&self, state: &mut TieredState<A>, fresh: TieredState<A>) {
        if !Self::NEEDS_RELEASE {
            *state = fresh;
            return;
        }
        for (algorithm, state) in state.tiers_mut() {
            let mut new = fresh.state.clone();
            algorithm.migrate(&mut new, &fresh.by, algorithm.last_update(state));
            algorithm.reset_state(state, new);
        }
    }

    fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
        self.algorithm.for_each_total(f);
    }

    fn in_flight(&self, state: &TieredState<A>) -> u64 {
        state.by.in_flight(&state.state)
    }

    /// Returns the highest usage of all tiers of the key.
    fn usage(&self, state: &TieredState<A>, now: Nanos) -> Usage {
        let other_tiers = state.other_tiers.iter().map(|(algorithm, state)| algorithm.usage(state, now));
        other_tiers.fold(state.by.usage(&state.state, now), Usage::max)
    }

    fn set_shared(&self, state: &mut TieredState<A>, shared: bool) {
        for (algorithm, state) in state.tiers_mut() {
            algorithm.set_shared(state, shared);
        }
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        self.algorithm.queue_config().map(QueueConfig::exclusive)
    }

    /// If this tier is new to the key, and the key has room for another tier, keeps the state of this tier. From then
    /// on, that state is refilled at the tier's own rate.
    fn ready_at(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Option<Nanos> {
        self.ask(state, now, |own| (self.algorithm.ready_at(own, now, cost), Keep::State))
    }

    fn admit_queued(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        arrived: Nanos,
        cost: u64,
    ) -> Option<Nanos> {
        let admitted = self.ask(state, now, |own| {
            let admitted = self.algorithm.admit_queued(own, now, arrived, cost);
            (admitted, if admitted.is_some() { Keep::Tier } else { Keep::State })
        })?;
        state.count(state.by.last_update(&state.state), cost);
        Some(admitted)
    }

    fn project(&self, state: &mut TieredState<A>, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        let at = self.ask(state, now, |own| {
            // The tier of the next call may admit the next call earlier than this call. The next call must not overtake
            // this call.
            let ready_at = self.algorithm.ready_at(own, now, cost).unwrap_or(now);
            (self.algorithm.project(own, now, arrived, cost).max(ready_at), Keep::Tier)
        });
        state.count(state.by.last_update(&state.state), cost);
        at
    }

    fn queue_capacity(&self, state: &mut TieredState<A>, now: Nanos, max_wait: u64) -> u64 {
        self.look(state, now, |own| self.algorithm.queue_capacity(own, now, max_wait))
    }

    fn report(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        self.ask(state, now, |own| {
            let reported = self.algorithm.report(own, now, cost, counts, decision);
            (reported, if counts { Keep::State } else { Keep::Nothing })
        })
    }

    /// Restores the state of each tier in `before`. Tiers that were added after the copy was made stay.
    fn restore(&self, state: &mut TieredState<A>, before: TieredState<A>) {
        for (tier, kept) in iter::once((before.by, before.state)).chain(before.other_tiers) {
            let mut all = state.tiers_mut();
            if let Some((algorithm, state)) = all.find(|(algorithm, _)| **algorithm == tier) {
                algorithm.restore(state, kept);
            }
        }
    }
}
