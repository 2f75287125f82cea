//! Tiers: a limit for each call.

use std::iter;
use std::mem;

use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy, SharedPermit, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

/// One kind of algorithm, configured differently for each tier. Each call may choose its tier.
///
/// The algorithm given here is for calls that choose none. The choice is made by the layer
/// ([`tier`](crate::middleware::RateLimitLayer::tier)) or by the caller of the limiter
/// ([`tier`](crate::limiter::RateLimiter::tier)).
///
/// A key that is asked with a tier for the first time starts with what it has used with others, as the table of
/// [`replace`](crate::limiter::RateLimiter::replace) describes. From then on, what it uses with any tier counts
/// for all of them, as far as they have units left (what exceeds them is not owed): so moving a user to another
/// tier neither resets it nor locks it out, and alternating between tiers gains nothing. A key keeps at most 32
/// tiers; the one that becomes fresh first is evicted. A refund goes to the tier that was asked last. Queued
/// calls of all tiers share one queue, in the order of arrival; each leaves when its own tier admits it.
///
/// ```
/// use tower_throttle::algorithm::{Tiered, TokenBucket};
/// use tower_throttle::{Quota, RateLimiter};
///
/// let free = TokenBucket::new(Quota::per_minute(10));
/// let paid = TokenBucket::new(Quota::per_minute(1_000));
/// let limiter = RateLimiter::new(Tiered::new(free.clone()));
///
/// assert_eq!(limiter.tier(&free).check_n("user:42", 4).remaining(), 6);
/// // The user pays. Four are used, and stay used.
/// assert_eq!(limiter.tier(&paid).check("user:42").remaining(), 995);
/// ```
///
/// A user whose calls are those of [every picture](crate::algorithm#pictures) pays for a larger token bucket for a while:
///
#[cfg_attr(doc, doc = include_str!("../../pictures/tiers.svg"))]
///
/// # How it works
///
/// **Problem.** Free users get ten a minute, paying ones a thousand; a login costs more care than a search.
///
/// **Naive answer.** A limiter for each tier.
///
/// **Where it breaks.** A user who is moved to another tier finds an unused budget there; moved to and fro, one each
/// time.
///
/// **The idea.** A user has a state for each tier it was asked with, and what it uses counts in all of them.
/// The state for a tier that is new to it is converted from the one that leaves it the least: as when a
/// limiter's algorithm is [replaced](crate::limiter::RateLimiter::replace), but for one key.
///
/// One state would not do: converted to a small limit and back to a large one, it would have forgotten what the
/// small one cannot hold. A user that alternates between two tiers would have no limit at all.
///
/// **Invariant.** Each tier's limit holds by itself, for all that was used with any tier since the key was
/// first asked with this one. No call waits longer than the tier that is asked could demand.
///
/// **Cost.** The algorithm's own size more per key (40 to 72 bytes) and 24 bytes; for keys that were recently
/// asked with several tiers, a state and an algorithm for each of them, up to 32. Work in proportion to that.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiered<A> {
    algorithm: A,
}

/// The state that a [`Tiered`] keeps for a key.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TieredState<A: Algorithm> {
    /// The tier that was asked last.
    by: A,
    state: A::State,
    /// The other tiers that were asked, up to [`MAX_TIERS`].
    other_tiers: Vec<(A, A::State)>,
}

/// The maximum number of tiers that a key has a state for.
const MAX_TIERS: usize = 32;

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Creates tiers whose default, for calls that choose none, is `algorithm`.
    #[must_use]
    pub const fn new(algorithm: A) -> Self {
        Self { algorithm }
    }

    /// Returns the algorithm for calls that choose none.
    #[must_use]
    pub const fn algorithm(&self) -> &A {
        &self.algorithm
    }
}

/// What to do with the state of a tier that was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Forget it, if it is a new one: nothing has changed.
    Nothing,
    /// Keep it, if there is a place for it.
    State,
    /// Keep it as that of the tier that was asked last.
    Tier,
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Converts a state of another tier to this one. Returns it, and how much it leaves.
    fn migrated(&self, by: &A, state: &A::State, now: Nanos) -> (A::State, u64) {
        let mut mine = state.clone();
        self.algorithm.migrate(&mut mine, by, now);
        let left = self.algorithm.peek(&mut mine, now, 0).remaining();
        (mine, left)
    }

    /// Returns the state for a tier that is new to the key: converted from the tier that leaves the least, since a small
    /// one cannot hold what a large one has counted.
    #[cold]
    fn new_tier(&self, state: &TieredState<A>, now: Nanos) -> A::State {
        let mut mine = self.migrated(&state.by, &state.state, now);
        for (by, other) in &state.other_tiers {
            let other = self.migrated(by, other, now);
            if other.1 < mine.1 {
                mine = other;
            }
        }
        mine.0
    }

    /// Asks the state of this tier, which may be new to the key.
    #[inline]
    fn ask<R>(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        ask: impl FnOnce(&mut A::State) -> (R, Keep),
    ) -> R {
        match state.by == self.algorithm {
            true => ask(&mut state.state).0,
            false => self.ask_other(state, now, ask),
        }
    }

    #[cold]
    fn ask_other<R>(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        ask: impl FnOnce(&mut A::State) -> (R, Keep),
    ) -> R {
        let known = state.other_tiers.iter().position(|(algorithm, _)| *algorithm == self.algorithm);
        let (result, keep, at) = match known {
            Some(at) => {
                let (result, keep) = ask(&mut state.other_tiers[at].1);
                (result, keep, at)
            }
            None => {
                let mut mine = self.new_tier(state, now);
                let (result, keep) = ask(&mut mine);
                let has_place = state.other_tiers.len() < MAX_TIERS - 1;
                if keep == Keep::Nothing || keep == Keep::State && !has_place {
                    return result;
                }
                state.other_tiers.push((self.algorithm.clone(), mine));
                (result, keep, state.other_tiers.len() - 1)
            }
        };
        if keep == Keep::Tier {
            let (by, mine) = state.other_tiers.remove(at);
            let before = (mem::replace(&mut state.by, by), mem::replace(&mut state.state, mine));
            state.other_tiers.push(before);
        }
        result
    }

    /// Extends `reset_after` of a `decision` of this tier: the key is fresh once it is fresh for each tier.
    fn reported(&self, state: &mut TieredState<A>, now: Nanos, decision: Decision) -> Decision {
        let others = state.tiers_mut().filter(|(algorithm, _)| **algorithm != self.algorithm);
        others.fold(decision, |reported, (algorithm, state)| {
            reported.with_min_reset(Nanos::from(algorithm.peek(state, now, 0).reset_after()).0)
        })
    }

    /// Asks the state of this tier for something that changes nothing.
    fn look<R>(&self, state: &mut TieredState<A>, now: Nanos, look: impl FnOnce(&mut A::State) -> R) -> R {
        self.ask(state, now, |mine| (look(mine), Keep::Nothing))
    }
}

impl<A: Algorithm> TieredState<A> {
    /// Returns each tier with its state, the one that was asked last first.
    fn tiers_mut(&mut self) -> impl Iterator<Item = (&A, &mut A::State)> {
        let other_tiers = self.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        iter::once((&self.by, &mut self.state)).chain(other_tiers)
    }

    /// Charges what was used with one tier to the others, as far as they have units left.
    #[inline]
    fn count(&mut self, now: Nanos, cost: u64) {
        if self.other_tiers.len() >= MAX_TIERS {
            self.evict_one(now);
        }
        for (algorithm, state) in &mut self.other_tiers {
            algorithm.charge_saturating(state, now, cost);
        }
    }

    /// Evicts the tier that becomes fresh first.
    fn evict_one(&mut self, now: Nanos) {
        let reset = |(algorithm, state): &mut (A, A::State)| algorithm.peek(state, now, 0).reset_after();
        let resets = self.other_tiers.iter_mut().map(reset).enumerate();
        if let Some((soonest, _)) = resets.min_by_key(|(_, reset)| *reset) {
            self.other_tiers.remove(soonest);
        }
    }
}

impl<A: Algorithm + PartialEq> Algorithm for Tiered<A> {
    type State = TieredState<A>;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;

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

    /// Moves the key to this tier if the call is admitted. A denial may be counted by the tier, and is kept.
    #[inline]
    fn check(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        let decision = self.ask(state, now, |mine| {
            let decision = self.algorithm.check(mine, now, cost);
            (decision, if decision.is_allowed() { Keep::Tier } else { Keep::State })
        });
        if decision.is_allowed() {
            state.count(now, cost);
        }
        self.reported(state, now, decision)
    }

    /// Moves no key to another tier.
    fn peek(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        let decision = self.look(state, now, |mine| self.algorithm.peek(mine, now, cost));
        self.reported(state, now, decision)
    }

    fn refund(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        state.by.refund(&mut state.state, now, cost);
    }

    fn undo(&self, state: &mut TieredState<A>, now: Nanos, cost: u64, taken: Nanos) {
        // To the tier that charged it. What was counted for the others stays: how much that was is not known.
        let mut all = state.tiers_mut();
        if let Some((algorithm, state)) = all.find(|(algorithm, _)| **algorithm == self.algorithm) {
            algorithm.undo(state, now, cost, taken);
        }
    }

    /// Converts the state of the default tier. Calls that choose the old algorithm keep its state.
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
            if state.other_tiers.len() >= MAX_TIERS {
                state.evict_one(now);
            }
        }
    }

    fn is_fresh(&self, state: &TieredState<A>, now: Nanos) -> bool {
        let other_tiers =
            || state.other_tiers.iter().all(|(algorithm, state)| algorithm.is_fresh(state, now));
        state.by.is_fresh(&state.state, now) && other_tiers()
    }

    fn policy(&self) -> QuotaPolicy {
        self.algorithm.policy()
    }

    fn for_each_policy(&self, tell: &mut dyn FnMut(QuotaPolicy)) {
        self.algorithm.for_each_policy(tell);
    }

    fn needs_release(&self) -> bool {
        self.algorithm.needs_release()
    }

    /// Ends the call for each tier.
    fn release(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        for (algorithm, state) in state.tiers_mut() {
            algorithm.release(state, now, cost);
        }
    }

    fn reset_state(&self, state: &mut TieredState<A>, fresh: TieredState<A>) {
        if !self.needs_release() {
            *state = fresh;
            return;
        }
        for (algorithm, state) in state.tiers_mut() {
            let mut new = fresh.state.clone();
            algorithm.migrate(&mut new, &fresh.by, algorithm.last_update(state));
            algorithm.reset_state(state, new);
        }
    }

    fn release_total(&self, cost: u64) {
        self.algorithm.release_total(cost);
    }

    fn in_flight(&self, state: &TieredState<A>) -> u64 {
        state.by.in_flight(&state.state)
    }

    fn ignores_burst(&self) -> bool {
        self.algorithm.ignores_burst()
    }

    /// Returns the highest of all tiers that the key was asked with.
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

    fn ready_at(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Option<Nanos> {
        self.look(state, now, |mine| self.algorithm.ready_at(mine, now, cost))
    }

    fn admit_queued(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        arrived: Nanos,
        cost: u64,
    ) -> Option<Nanos> {
        let admitted = self.ask(state, now, |mine| {
            let admitted = self.algorithm.admit_queued(mine, now, arrived, cost);
            (admitted, if admitted.is_some() { Keep::Tier } else { Keep::Nothing })
        })?;
        state.count(state.by.last_update(&state.state), cost);
        Some(admitted)
    }

    fn project(&self, state: &mut TieredState<A>, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        let at = self.ask(state, now, |mine| {
            // The next call may be of another tier, which would admit it sooner: it must not overtake this one.
            let ready_at = self.algorithm.ready_at(mine, now, cost).unwrap_or(now);
            (self.algorithm.project(mine, now, arrived, cost).max(ready_at), Keep::Tier)
        });
        state.count(state.by.last_update(&state.state), cost);
        at
    }

    fn queue_capacity(&self, state: &mut TieredState<A>, now: Nanos, max_wait: u64) -> u64 {
        self.look(state, now, |mine| self.algorithm.queue_capacity(mine, now, max_wait))
    }

    fn report(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        self.ask(state, now, |mine| {
            let reported = self.algorithm.report(mine, now, cost, counts, decision);
            (reported, if counts { Keep::State } else { Keep::Nothing })
        })
    }

    fn reserve(&self, cost: u64) -> Option<SharedPermit> {
        self.algorithm.reserve(cost)
    }

    /// Restores each tier by itself: tiers that were asked since stay.
    fn restore(&self, state: &mut TieredState<A>, before: TieredState<A>) {
        for (tier, kept) in iter::once((before.by, before.state)).chain(before.other_tiers) {
            let mut all = state.tiers_mut();
            if let Some((algorithm, state)) = all.find(|(algorithm, _)| **algorithm == tier) {
                algorithm.restore(state, kept);
            }
        }
    }
}
