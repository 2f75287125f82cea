//! # Tiers
//!
//! **Problem.** Free users get ten a minute, paying ones a thousand; a login costs more care than a search.
//!
//! **Naive answer.** A limiter for each tier.
//!
//! **Where it breaks.** A user who is moved to another tier finds an unused budget there; moved to and fro, one each
//! time.
//!
//! **The idea.** A user has a state for each rule it was asked by, and what it uses counts in all of them. The state
//! for a rule that is new to it is that of another which leaves it the least, carried over: as when a limiter's rule
//! is [replaced](crate::limiter::RateLimiter::replace), but for one key.
//!
//! One state would not do: carried over to a small limit and back to a large one, it would have forgotten what the
//! small one cannot hold. Whoever alternates between two tiers would have no limit at all.
//!
//! **Invariant.** Each rule holds by itself, for all that was used since the key was first asked by it, whatever it
//! was used by. Nobody waits longer than the rule that is asked could demand.
//!
//! **Cost.** The rule's own size more per key (40 to 72 bytes) and 24 bytes; for keys that were asked by several
//! rules of late, state and rule for each of them, up to 32. Work in proportion to that.

mod queueing;

use std::iter;
use std::mem;
use std::time::Duration;

use crate::algorithm::{Algorithm, Queueing, QuotaPolicy, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

/// One kind of rule, of which each call may choose another.
///
/// The rule given here is for calls that choose none. The choice is the layer's
/// ([`tier`](crate::middleware::RateLimitLayer::tier)), or that of whoever asks the limiter
/// ([`check_by`](crate::limiter::RateLimiter::check_by)).
///
/// A key that is asked by a rule for the first time starts with what it has used by others, as the table of
/// [`replace`](crate::limiter::RateLimiter::replace) says. From then on, what it uses by any rule counts for all of
/// them, as far as they have room for it (what they have not is not owed): so moving a user to another tier neither
/// resets nor locks anybody, and moving to and fro wins nothing. Of more than 32 rules on one key, that is forgotten
/// for which the key would be fresh soonest. A refund goes to the rule that was asked last. Calls that wait
/// in line stand in one line, which moves as the rule says that last let one in.
///
/// ```
/// use tower_throttle::algorithm::{Tiered, TokenBucket};
/// use tower_throttle::{Quota, RateLimiter};
///
/// let free = TokenBucket::new(Quota::per_minute(10));
/// let paid = TokenBucket::new(Quota::per_minute(1_000));
/// let limiter = RateLimiter::new(Tiered::new(free.clone()));
///
/// assert_eq!(limiter.check_by(&free, "user:42", 4).remaining(), 6);
/// // The user pays. Four are used, and stay used.
/// assert_eq!(limiter.check_by(&paid, "user:42", 1).remaining(), 995);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tiered<A> {
    algorithm: A,
}

/// What a [`Tiered`] remembers of a key.
#[derive(Clone, Debug)]
pub struct TieredState<A: Algorithm> {
    /// The rule that was asked last.
    by: A,
    state: A::State,
    /// The others that were asked, up to [`MAX_TIERS`].
    other_tiers: Vec<(A, A::State)>,
}

/// The most rules that a key has a state for.
const MAX_TIERS: usize = 32;

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Calls that choose no rule go by this one.
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
                // From whichever leaves the least: a small rule cannot hold what a large one knows.
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
    /// A state of another rule, carried over to this one; and how much it leaves.
    fn migrated(&self, by: &A, state: &A::State, now: Nanos) -> (A::State, u64) {
        let mut mine = state.clone();
        self.algorithm.migrate(&mut mine, by, now);
        let left = self.algorithm.peek(&mut mine, now, 0).remaining();
        (mine, left)
    }
}

impl<A: Algorithm> TieredState<A> {
    /// What is used by one rule counts for the others, as far as they have room.
    #[inline]
    fn count(&mut self, now: Nanos, cost: u64) {
        if self.other_tiers.len() >= MAX_TIERS {
            self.evict_one(now);
        }
        for (algorithm, state) in &mut self.other_tiers {
            algorithm.charge_saturating(state, now, cost);
        }
    }

    /// Forgets the one that will soonest be fresh.
    fn evict_one(&mut self, now: Nanos) {
        let reset = |(algorithm, state): &mut (A, A::State)| algorithm.peek(state, now, 0).reset_after();
        let resets = self.other_tiers.iter_mut().map(reset).enumerate();
        if let Some((soonest, _)) = resets.min_by_key(|(_, reset)| *reset) {
            self.other_tiers.remove(soonest);
        }
    }

    /// The key is as if never seen when it is so for each rule.
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

    /// What the rule has counted is kept, if there is a place for it.
    fn restore_tier(&self, state: &mut TieredState<A>, now: Nanos, before: Self) {
        before.switch_to(state, now);
        state.other_tiers.truncate(MAX_TIERS - 1);
    }

    /// A look moves nobody to another tier.
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
        // To the rule that charged it. What was counted for the others stays: how much that was is not known.
        let other_tiers = state.other_tiers.iter_mut().map(|(algorithm, state)| (&*algorithm, state));
        let mut all = iter::once((&state.by, &mut state.state)).chain(other_tiers);
        if let Some((algorithm, state)) = all.find(|(algorithm, _)| **algorithm == self.algorithm) {
            algorithm.undo(state, now, cost, taken);
        }
    }

    /// What went by the rule for calls that choose none goes by the new one. Those that choose the old rule go on by
    /// it.
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

    /// What is over is over for each rule.
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

    /// The highest, by any of the algorithms that the key was asked with.
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
