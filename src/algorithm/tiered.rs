//! # Tiers
//!
//! **Problem.** Free users get ten a minute, paying ones a thousand; a login costs more care than a search.
//!
//! **Naive answer.** A limiter for each tier.
//!
//! **Where it breaks.** A user who is moved to another tier finds an unused budget there; moved to and fro, one each time.
//!
//! **The idea.** One state per user, and beside it the rule that it obeyed last. Asked by another rule, the state is carried over to that one first:
//! as when a limiter's rule is [replaced](crate::limiter::RateLimiter::replace), but for one key.
//!
//! **Invariant.** What was used stays used, and nobody waits longer than the rule that is asked could demand.
//!
//! **Cost.** The rule's own size more per key (40 to 72 bytes), and a comparison per call.

use std::time::Duration;

use crate::algorithm::{Algorithm, Line, Policy};
use crate::clock::Nanos;
use crate::decision::Decision;

/// One kind of rule, of which each call may choose another.
///
/// The rule given here is for calls that choose none. The choice is the layer's
/// ([`choose`](crate::middleware::RateLimitLayer::choose)), or that of whoever asks the limiter
/// ([`check_by`](crate::limiter::RateLimiter::check_by)).
///
/// A key that is asked by another rule than before is carried over: what was used stays used, as the table of
/// [`replace`](crate::limiter::RateLimiter::replace) says. So moving a user to another tier neither resets nor locks anybody. A refund, and the look that
/// decides whether a key can be forgotten, go by the rule that was asked last.
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
    by: A,
    state: A::State,
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    /// Calls that choose no rule go by this one.
    #[must_use]
    pub const fn new(rule: A) -> Self {
        Self { rule }
    }

    #[inline]
    fn take_over(&self, state: &mut TieredState<A>, now: Nanos) {
        if state.by != self.rule {
            self.rule.adapt(&mut state.state, &state.by, now);
            state.by = self.rule.clone();
        }
    }
}

impl<A: Algorithm + PartialEq> Algorithm for Tiered<A> {
    type State = TieredState<A>;

    fn fresh(&self, built: Nanos, now: Nanos) -> TieredState<A> {
        TieredState { by: self.rule.clone(), state: self.rule.fresh(built, now) }
    }

    #[inline]
    fn seen(&self, state: &TieredState<A>) -> Nanos {
        state.by.seen(&state.state)
    }

    #[inline]
    fn check(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        self.take_over(state, now);
        self.rule.check(&mut state.state, now, cost)
    }

    #[inline]
    fn claim(&self, state: &mut TieredState<A>, now: Nanos) {
        self.take_over(state, now);
    }

    /// A look moves nobody to another tier.
    fn peek(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) -> Decision {
        if state.by == self.rule {
            return self.rule.peek(&mut state.state, now, cost);
        }
        let mut moved = state.clone();
        self.take_over(&mut moved, now);
        self.rule.peek(&mut moved.state, now, cost)
    }

    fn refund(&self, state: &mut TieredState<A>, now: Nanos, cost: u64) {
        state.by.refund(&mut state.state, now, cost);
    }

    /// Keys that went by the rule for those that choose none go by the new one; others are carried over when they are asked again.
    fn adapt(&self, state: &mut TieredState<A>, from: &Self, now: Nanos) {
        if state.by == from.rule {
            self.take_over(state, now);
        }
    }

    fn is_fresh(&self, state: &TieredState<A>, now: Nanos) -> bool {
        state.by.is_fresh(&state.state, now)
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

    fn line(&self) -> Option<&dyn Line<TieredState<A>>> {
        self.rule.line().map(|_| self as &dyn Line<TieredState<A>>)
    }
}

impl<A: Algorithm + PartialEq> Tiered<A> {
    fn own(&self) -> &dyn Line<A::State> {
        line(&self.rule)
    }
}

/// That of a kind of rule that has one.
fn line<A: Algorithm>(rule: &A) -> &dyn Line<A::State> {
    match rule.line() {
        Some(line) => line,
        None => unreachable!("whether there is a line does not change from rule to rule"),
    }
}

/// Places and patience are those of the rule that is asked; the schedule is that of the rule the key obeys.
impl<A: Algorithm + PartialEq> Line<TieredState<A>> for Tiered<A> {
    fn places(&self) -> u64 {
        self.own().places()
    }

    fn max_wait(&self) -> u64 {
        self.own().max_wait()
    }

    fn capacity(&self) -> u64 {
        self.own().capacity()
    }

    fn at_once(&self) -> u64 {
        self.own().at_once()
    }

    fn fits(&self, cost: u64) -> bool {
        self.own().fits(cost)
    }

    fn lends(&self) -> Option<u64> {
        self.own().lends()
    }

    fn turn(&self, state: &TieredState<A>, ahead: u128, cost: u64) -> Nanos {
        line(&state.by).turn(&state.state, ahead, cost)
    }

    fn is_due(&self, state: &TieredState<A>, cost: u64) -> bool {
        line(&state.by).is_due(&state.state, cost)
    }

    fn leave(&self, state: &mut TieredState<A>, arrived: Nanos, cost: u64) {
        line(&state.by).leave(&mut state.state, arrived, cost);
    }

    fn passing(&self, state: &TieredState<A>, seen: Nanos) -> u64 {
        line(&state.by).passing(&state.state, seen)
    }

    fn reset(&self, state: &TieredState<A>, ahead: u128, now: Nanos) -> u64 {
        line(&state.by).reset(&state.state, ahead, now)
    }

    fn bars(&self, state: &TieredState<A>) -> bool {
        line(&state.by).bars(&state.state)
    }

    fn answer(
        &self,
        state: &mut TieredState<A>,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        line(&state.by).answer(&mut state.state, now, cost, counts, decision)
    }

    fn observe(&self, state: &mut TieredState<A>, now: Nanos) -> Nanos {
        line(&state.by).observe(&mut state.state, now)
    }
}
