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

mod line;

use std::iter;
use std::mem;
use std::time::Duration;

use crate::algorithm::{Algorithm, Line, Policy, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

/// One kind of rule, of which each call may choose another.
///
/// The rule given here is for calls that choose none. The choice is the layer's
/// ([`choose`](crate::middleware::RateLimitLayer::choose)), or that of whoever asks the limiter
/// ([`check_by`](crate::limiter::RateLimiter::check_by)).
///
/// A key that is asked by a rule for the first time starts with what it has used by others, as the table of
/// [`replace`](crate::limiter::RateLimiter::replace) says. From then on, what it uses by any rule counts for all of
/// them, as far as they have room for it (what they have not is not owed): so moving a user to another tier neither
/// resets nor locks anybody, and moving to and fro wins nothing. Of more than 32 rules on one key, that is forgotten
/// for which the key would be as good as new soonest. A refund goes to the rule that was asked last. Calls that wait
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
    rule: A,
}

/// What a [`Tiered`] remembers of a key.
#[derive(Clone, Debug)]
pub struct TieredState<A: Algorithm> {
    /// The rule that was asked last.
    by: A,
    state: A::State,
    /// The others that were asked, up to [`MOST`].
    others: Vec<(A, A::State)>,
}

/// The most rules that a key has a state for.
const MOST: usize = 32;

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Calls that choose no rule go by this one.
    #[must_use]
    pub const fn new(rule: A) -> Self {
        Self { rule }
    }

    #[inline]
    fn take_over(&self, state: &mut TieredState<A>, now: Nanos) {
        if state.by != self.rule {
            self.change_over(state, now);
        }
    }

    #[cold]
    fn change_over(&self, state: &mut TieredState<A>, now: Nanos) {
        let known = state.others.iter().position(|(rule, _)| *rule == self.rule);
        let mine = match known {
            Some(at) => state.others.remove(at).1,
            None => {
                // From whichever leaves the least: a small rule cannot hold what a large one knows.
                let mut mine = self.carried_over(&state.by, &state.state, now);
                for (by, other) in &state.others {
                    let other = self.carried_over(by, other, now);
                    if other.1 < mine.1 {
                        mine = other;
                    }
                }
                mine.0
            }
        };
        let before = (mem::replace(&mut state.by, self.rule.clone()), mem::replace(&mut state.state, mine));
        state.others.push(before);
    }
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// A state of another rule, carried over to this one; and how much it leaves.
    fn carried_over(&self, by: &A, state: &A::State, now: Nanos) -> (A::State, u64) {
        let mut mine = state.clone();
        self.rule.adapt(&mut mine, by, now);
        let left = self.rule.peek(&mut mine, now, 0).remaining();
        (mine, left)
    }
}

impl<A: Algorithm> TieredState<A> {
    /// What is used by one rule counts for the others, as far as they have room.
    #[inline]
    fn count(&mut self, now: Nanos, cost: u64) {
        if self.others.len() >= MOST {
            self.forget_one(now);
        }
        for (rule, state) in &mut self.others {
            rule.absorb(state, now, cost);
        }
    }

    /// Forgets the one that will soonest be as good as new.
    fn forget_one(&mut self, now: Nanos) {
        let reset = |(rule, state): &mut (A, A::State)| rule.peek(state, now, 0).reset_after();
        let resets = self.others.iter_mut().map(reset).enumerate();
        if let Some((soonest, _)) = resets.min_by_key(|(_, reset)| *reset) {
            self.others.remove(soonest);
        }
    }

    /// The key is as if never seen when it is so for each rule.
    fn told(&mut self, now: Nanos, decision: Decision) -> Decision {
        self.others.iter_mut().fold(decision, |told, (rule, state)| {
            told.with_reset_of(Nanos::from(rule.peek(state, now, 0).reset_after()).0)
        })
    }
}

impl<A: Algorithm + PartialEq> Algorithm for Tiered<A> {
    type State = TieredState<A>;

    fn fresh(&self, built: Nanos, now: Nanos) -> TieredState<A> {
        TieredState { by: self.rule.clone(), state: self.rule.fresh(built, now), others: Vec::new() }
    }

    #[inline]
    fn seen(&self, state: &TieredState<A>) -> Nanos {
        state.by.seen(&state.state)
    }

    #[inline]
    fn check(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        self.take_over(state, now);
        let decision = self.rule.check(&mut state.state, now, cost);
        if decision.is_allowed() {
            state.count(now, cost);
        }
        state.told(now, decision)
    }

    #[inline]
    fn claim(&self, state: &mut TieredState<A>, now: Nanos) -> Option<Self> {
        let before = (state.by != self.rule).then(|| Self::new(state.by.clone()));
        self.take_over(state, now);
        before
    }

    /// What the rule has counted is kept, if there is a place for it.
    fn unclaim(&self, state: &mut TieredState<A>, now: Nanos, before: Self) {
        before.take_over(state, now);
        state.others.truncate(MOST - 1);
    }

    /// A look moves nobody to another tier.
    fn peek(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        if state.by == self.rule {
            let decision = self.rule.peek(&mut state.state, now, cost);
            return state.told(now, decision);
        }
        let mut moved = state.clone();
        self.take_over(&mut moved, now);
        let decision = self.rule.peek(&mut moved.state, now, cost);
        moved.told(now, decision)
    }

    fn refund(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        state.by.refund(&mut state.state, now, cost);
    }

    fn give_back(&self, state: &mut TieredState<A>, now: Nanos, cost: u64, taken: Nanos) {
        // To the rule that charged it. What was counted for the others stays: how much that was is not known.
        let others = state.others.iter_mut().map(|(rule, state)| (&*rule, state));
        let mut all = iter::once((&state.by, &mut state.state)).chain(others);
        if let Some((rule, state)) = all.find(|(rule, _)| **rule == self.rule) {
            rule.give_back(state, now, cost, taken);
        }
    }

    /// What went by the rule for calls that choose none goes by the new one. Those that choose the old rule go on by
    /// it.
    fn adapt(&self, state: &mut TieredState<A>, from: &Self, now: Nanos) {
        if state.by == from.rule {
            return self.take_over(state, now);
        }
        let old = state.others.iter().find(|(rule, _)| *rule == from.rule);
        if let Some((rule, old)) = old
            && self.rule != state.by
            && state.others.iter().all(|(rule, _)| *rule != self.rule)
        {
            let mut new = old.clone();
            self.rule.adapt(&mut new, rule, now);
            state.others.push((self.rule.clone(), new));
            if state.others.len() >= MOST {
                state.forget_one(now);
            }
        }
    }

    fn is_fresh(&self, state: &TieredState<A>, now: Nanos) -> bool {
        let others = || state.others.iter().all(|(rule, state)| rule.is_fresh(state, now));
        state.by.is_fresh(&state.state, now) && others()
    }

    fn policy(&self) -> Policy {
        self.rule.policy()
    }

    fn policies(&self, tell: &mut dyn FnMut(Policy)) {
        self.rule.policies(tell);
    }

    fn window(&self, decision: &Decision) -> Option<Duration> {
        self.rule.window(decision)
    }

    fn holds(&self) -> bool {
        self.rule.holds()
    }

    /// What is over is over for each rule.
    fn release(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        let others = state.others.iter_mut().map(|(rule, state)| (&*rule, state));
        for (rule, state) in iter::once((&state.by, &mut state.state)).chain(others) {
            rule.release(state, now, cost);
        }
    }

    fn renew(&self, state: &mut TieredState<A>, fresh: TieredState<A>) {
        if !self.holds() {
            *state = fresh;
            return;
        }
        let TieredState { by, state: mine, others } = state;
        for (rule, state) in
            iter::once((&*by, mine)).chain(others.iter_mut().map(|(rule, state)| (&*rule, state)))
        {
            let mut new = fresh.state.clone();
            rule.adapt(&mut new, &fresh.by, rule.seen(state));
            rule.renew(state, new);
        }
    }

    fn release_shared(&self, cost: u64) {
        self.rule.release_shared(cost);
    }

    fn held(&self, state: &TieredState<A>) -> u64 {
        state.by.held(&state.state)
    }

    fn ignores_burst(&self) -> bool {
        self.rule.ignores_burst()
    }

    /// The highest, by any of the algorithms that the key was asked with.
    fn usage(&self, state: &TieredState<A>, now: Nanos) -> Usage {
        let others = state.others.iter().map(|(rule, state)| rule.usage(state, now));
        others.fold(state.by.usage(&state.state, now), Usage::max)
    }

    fn set_shared(&self, state: &mut TieredState<A>, shared: bool) {
        let others = state.others.iter_mut().map(|(rule, state)| (&*rule, state));
        for (rule, state) in iter::once((&state.by, &mut state.state)).chain(others) {
            rule.set_shared(state, shared);
        }
    }

    fn line(&self) -> Option<&dyn Line<TieredState<A>>> {
        self.rule.line().map(|_| self as &dyn Line<TieredState<A>>)
    }

    #[inline]
    fn queues(&self) -> bool {
        self.rule.queues()
    }
}
