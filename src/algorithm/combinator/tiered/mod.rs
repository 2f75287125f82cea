//! # Tiers
//!
//! **Problem.** Free users get ten a minute, paying ones a thousand; a login costs more care than a search.
//!
//! **Naive answer.** A limiter for each tier.
//!
//! **Where it breaks.** A user who is moved to another tier finds an unused budget there; moved to and fro, one each
//! time.
//!
//! **The idea.** A user has a state for each tier it was asked with, and what it uses counts in all of them.
//! The state for a tier that is new to it is converted from the one that leaves it the least: as when a
//! limiter's algorithm is [replaced](crate::limiter::RateLimiter::replace), but for one key.
//!
//! One state would not do: converted to a small limit and back to a large one, it would have forgotten what the
//! small one cannot hold. A user that alternates between two tiers would have no limit at all.
//!
//! **Invariant.** Each tier's limit holds by itself, for all that was used with any tier since the key was
//! first asked with this one. No call waits longer than the tier that is asked could demand.
//!
//! **Cost.** The algorithm's own size more per key (40 to 72 bytes) and 24 bytes; for keys that were recently
//! asked with several tiers, a state and an algorithm for each of them, up to 32. Work in proportion to that.

mod queueing;
#[cfg(feature = "redis")]
mod stored;

use std::iter;
use std::mem;
use std::time::Duration;

use crate::algorithm::{Algorithm, Queueing, QuotaPolicy, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

/// One kind of algorithm, configured differently for each tier. Each call may choose its tier.
///
/// The algorithm given here is for calls that choose none. The choice is made by the layer
/// ([`tier`](crate::middleware::RateLimitLayer::tier)) or by the caller of the limiter
/// ([`check_by`](crate::limiter::RateLimiter::check_by)).
///
/// A key that is asked with a tier for the first time starts with what it has used with others, as the table of
/// [`replace`](crate::limiter::RateLimiter::replace) describes. From then on, what it uses with any tier counts
/// for all of them, as far as they have units left (what exceeds them is not owed): so moving a user to another
/// tier neither resets it nor locks it out, and alternating between tiers gains nothing. A key keeps at most 32
/// tiers; the one that becomes fresh first is evicted. A refund goes to the tier that was asked last. Queued
/// calls of all tiers share one queue, which moves at the pace of the tier that admitted a call last.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Tiered<A> {
    algorithm: A,
}

/// The state that a [`Tiered`] keeps for a key.
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
    /// Returns the algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> &A {
        &self.algorithm
    }

    /// Creates tiers whose default, for calls that choose none, is `algorithm`.
    #[must_use]
    pub const fn new(algorithm: A) -> Self {
        Self { algorithm }
    }

    #[inline]
    fn switch_to(&self, state: &mut TieredState<A>, now: Nanos) {
        if state.by != self.algorithm {
            self.switch_slow(state, now);
        }
    }

    #[cold]
    fn switch_slow(&self, state: &mut TieredState<A>, now: Nanos) {
        let known = state.other_tiers.iter().position(|(algorithm, _)| *algorithm == self.algorithm);
        let mine = match known {
            Some(at) => state.other_tiers.remove(at).1,
            None => {
                // From the tier that leaves the least: a small one cannot hold what a large one knows.
                let mut mine = self.migrated(&state.by, &state.state, now);
                for (by, other) in &state.other_tiers {
                    let other = self.migrated(by, other, now);
                    if other.1 < mine.1 {
                        mine = other;
                    }
                }
                mine.0
            }
        };
        let before =
            (mem::replace(&mut state.by, self.algorithm.clone()), mem::replace(&mut state.state, mine));
        state.other_tiers.push(before);
    }
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Converts a state of another tier to this one. Returns it, and how much it leaves.
    fn migrated(&self, by: &A, state: &A::State, now: Nanos) -> (A::State, u64) {
        let mut mine = state.clone();
        self.algorithm.migrate(&mut mine, by, now);
        let left = self.algorithm.peek(&mut mine, now, 0).remaining();
        (mine, left)
    }
}

impl<A: Algorithm> TieredState<A> {
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

    /// Extends `reset_after`: the key is fresh once it is fresh for each tier.
    fn reported(&mut self, now: Nanos, decision: Decision) -> Decision {
        self.other_tiers.iter_mut().fold(decision, |reported, (algorithm, state)| {
            reported.with_min_reset(Nanos::from(algorithm.peek(state, now, 0).reset_after()).0)
        })
    }
}

impl<A: Algorithm + PartialEq> Algorithm for Tiered<A> {
    type State = TieredState<A>;

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

    #[inline]
    fn check(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        self.switch_to(state, now);
        let decision = self.algorithm.check(&mut state.state, now, cost);
        if decision.is_allowed() {
            state.count(now, cost);
        }
        state.reported(now, decision)
    }

    #[inline]
    fn switch_tier(&self, state: &mut TieredState<A>, now: Nanos) -> Option<Self> {
        let before = (state.by != self.algorithm).then(|| Self::new(state.by.clone()));
        self.switch_to(state, now);
        before
    }

    /// Keeps what the tier has counted, if there is a place for it.
    fn restore_tier(&self, state: &mut TieredState<A>, now: Nanos, before: Self) {
        before.switch_to(state, now);
        state.other_tiers.truncate(MAX_TIERS - 1);
    }

    /// Decides on a copy if the tier is another: a peek moves no key to another tier.
    fn peek(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        if state.by == self.algorithm {
            let decision = self.algorithm.peek(&mut state.state, now, cost);
            return state.reported(now, decision);
        }
        let mut moved = state.clone();
        self.switch_to(&mut moved, now);
        let decision = self.algorithm.peek(&mut moved.state, now, cost);
        moved.reported(now, decision)
    }

    fn refund(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        state.by.refund(&mut state.state, now, cost);
    }

    fn undo(&self, state: &mut TieredState<A>, now: Nanos, cost: u64, taken: Nanos) {
        // To the tier that charged it. What was counted for the others stays: how much that was is not known.
        let other_tiers = state.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        let mut all = iter::once((&state.by, &mut state.state)).chain(other_tiers);
        if let Some((algorithm, state)) = all.find(|(algorithm, _)| **algorithm == self.algorithm) {
            algorithm.undo(state, now, cost, taken);
        }
    }

    /// Converts the state of the default tier. Calls that choose the old algorithm keep its state.
    fn migrate(&self, state: &mut TieredState<A>, from: &Self, now: Nanos) {
        if state.by == from.algorithm {
            return self.switch_to(state, now);
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

    fn header_window(&self, decision: &Decision) -> Option<Duration> {
        self.algorithm.header_window(decision)
    }

    fn needs_release(&self) -> bool {
        self.algorithm.needs_release()
    }

    /// Ends the call for each tier.
    fn release(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        let other_tiers = state.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        for (algorithm, state) in iter::once((&state.by, &mut state.state)).chain(other_tiers) {
            algorithm.release(state, now, cost);
        }
    }

    fn reset_state(&self, state: &mut TieredState<A>, fresh: TieredState<A>) {
        if !self.needs_release() {
            *state = fresh;
            return;
        }
        let TieredState { by, state: mine, other_tiers } = state;
        for (algorithm, state) in iter::once((&*by, mine))
            .chain(other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state)))
        {
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
        let other_tiers = state.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        for (algorithm, state) in iter::once((&state.by, &mut state.state)).chain(other_tiers) {
            algorithm.set_shared(state, shared);
        }
    }

    fn queueing(&self) -> Option<&dyn Queueing<TieredState<A>>> {
        self.algorithm.queueing().map(|_| self as &dyn Queueing<TieredState<A>>)
    }

    #[inline]
    fn holds_requests(&self) -> bool {
        self.algorithm.holds_requests()
    }
}
