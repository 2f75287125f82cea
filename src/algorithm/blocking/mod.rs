//! # Blocking after abuse
//!
//! **Problem.** A caller that is refused again and again is guessing passwords, or broken. Turn it away for a while.
//!
//! **Naive answer.** Block for an hour at the first refusal; or start the block anew at each.
//!
//! **Where it breaks.** One call too many, and a customer is out for an hour. A client that retries in a loop is out
//! for ever.
//!
//! **The idea.** Count the refusals within a window that begins with the first of them. At the `n`-th the block
//! begins, and lasts as long as was said: what comes meanwhile is refused, is told the rest, and changes nothing.
//!
//! ```text
//!   limit 2, block for 5 s after 3
//!
//!   calls   ● ● ✗ ✗ ✗ ✗    ✗     ✗ ●
//!                   ├── 5 s ──────┤
//!             1st ──┘ 3rd: "try again in 5 s"
//! ```
//!
//! **Invariant.** A block ends exactly `duration` after the refusal that began it. Without a block, every answer is
//! that of the rule inside.
//!
//! **Cost.** 32 bytes more per key.

mod line;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::algorithm::time::step;
use crate::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Line, Policy, SlidingCounter, SlidingLog,
    SlidingWindow, Smooth, TokenBucket, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A rule that blocks for a time; [`after`](BlockFor::after) how many refusals remains to be said.
#[derive(Clone, Debug)]
#[must_use = "say after how many refusals: `.after(n)`"]
pub struct BlockFor<A> {
    rule: A,
    duration: u64,
}

impl<A: Algorithm> BlockFor<A> {
    pub(super) fn new(rule: A, duration: Duration) -> Self {
        assert!(!duration.is_zero(), "a block of no time blocks nothing: give at least one nanosecond");
        // As long as the longest period: 292 years.
        Self { rule, duration: Nanos::from(duration).0.min(i64::MAX as u64) }
    }

    /// A key that was refused `refusals` times within the rule's window is refused for the whole time.
    ///
    /// # Panics
    ///
    /// If `refusals` is 0.
    #[must_use]
    pub fn after(self, refusals: u64) -> Blocking<A> {
        assert!(refusals > 0, "after 0 refusals everybody is blocked: give at least 1");
        let mut window = 0;
        self.rule.policies(&mut |policy| window = Nanos::from(policy.window).0.max(window));
        if window == 0 {
            // Concurrent requests have none.
            window = self.duration;
        }
        let window = window.clamp(1, i64::MAX as u64);
        Blocking { rule: self.rule, duration: self.duration, window, refusals, prolongs: false }
    }
}

/// A rule that turns a key away for a while when it was refused too often.
///
/// Made by `block_for(duration).after(refusals)`, a method of every [`Algorithm`]. A window begins with the first
/// refusal and is as long as the rule's own ([`Policy::window`]), or, of
/// [`Concurrency`](crate::algorithm::Concurrency), as the block; with so many refusals in it the block begins, and
/// that refusal already tells it. While it lasts, every call is refused, and `retry_after` tells the rest; hammering
/// neither prolongs nor shortens it. Calls that wait in line when it begins keep their places.
/// [`reset`](crate::limiter::RateLimiter::reset) lifts it; a refund does not.
///
/// Here a denial does have a consequence: it is counted. Blocks are not nested: a block within a blocked rule tells
/// its `retry_after` too late.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::FixedWindow;
/// use tower_throttle::{Quota, RateLimiter};
///
/// // five wrong passwords a minute; who goes on for ten more is out for an hour
/// let rule = FixedWindow::new(Quota::per_minute(5)).block_for(Duration::from_secs(3_600)).after(10);
/// let logins = RateLimiter::new(rule);
/// # for _ in 0..14 {
/// #     let _ = logins.check("user:42");
/// # }
/// # assert!(logins.check("user:42").retry_after() > Some(Duration::from_secs(3_590)));
/// # logins.reset("user:42");
/// # assert!(logins.check("user:42").is_allowed());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Blocking<A> {
    rule: A,
    duration: u64,
    window: u64,
    refusals: u64,
    prolongs: bool,
}

/// What a [`Blocking`] remembers of a key.
#[derive(Clone, Debug)]
pub struct BlockingState<S> {
    state: S,
    count: Count,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    last: Nanos,
    /// The rest of the block, at `last`.
    left: u64,
    /// The refusals in the window, which began `age` ago; or [`SHARED`].
    refusals: u64,
    age: u64,
}

/// In place of a number of refusals: the state is shared by several keys, whose refusals are not counted.
const SHARED: u64 = u64::MAX;

impl<A: Algorithm> Blocking<A> {
    /// Each call that is refused while the block lasts begins it anew: a client that retries in a loop stays out.
    #[must_use]
    pub fn prolonging(self) -> Self {
        Self { prolongs: true, ..self }
    }

    /// Brings the count up to `now`; how far the clock is behind its time.
    #[inline]
    fn advance(&self, count: &mut Count, now: Nanos) -> u64 {
        let step = step(count.last, now, self.window);
        count.last = step.seen(now);
        count.left = count.left.saturating_sub(step.elapsed);
        count.age = count.age.saturating_add(step.elapsed);
        if count.age >= self.window && count.refusals != SHARED {
            count.refusals = 0;
        }
        step.behind
    }

    /// A call was refused.
    fn refuse(&self, count: &mut Count) {
        if count.refusals == SHARED {
            return;
        }
        if count.left > 0 {
            if self.prolongs {
                count.left = self.duration;
            }
            return;
        }
        if count.refusals == 0 {
            count.age = 0;
        }
        count.refusals += 1;
        if count.refusals >= self.refusals {
            (count.left, count.refusals) = (self.duration, 0);
        }
    }

    /// What the rule inside said, as it is told: with the block, and with the count that is to be forgotten.
    fn told(&self, count: &Count, behind: u64, decision: Decision) -> Decision {
        let rest = match (count.left, count.refusals) {
            (0, 0 | SHARED) => return decision,
            (0, _) => return decision.with_reset_of(self.window - count.age + behind),
            (left, _) => left.saturating_add(behind),
        };
        let denied = match decision.is_allowed() {
            true => Decision::deny(decision.limit(), 0, Some(rest), nanos(decision.reset_after())),
            false => {
                let retry = decision.retry_after().map(|wait| nanos(wait).max(rest));
                Decision::deny(decision.limit(), 0, retry, nanos(decision.reset_after()))
                    .with_unknown_wait(!decision.never_fits())
            }
        };
        denied.with_index(decision.index()).with_reset_of(rest)
    }

    /// A cost of 0 passes; nothing else would.
    fn nothing(&self, count: &Count, behind: u64, decision: Decision) -> Decision {
        let reset = nanos(decision.reset_after());
        match count.left {
            0 => self.told(count, behind, decision),
            left => {
                let rest = left.saturating_add(behind);
                let allowed = Decision::allow(decision.limit(), 0, reset).with_next(rest);
                allowed.with_index(decision.index()).with_reset_of(rest)
            }
        }
    }
}

fn nanos(span: Duration) -> u64 {
    Nanos::from(span).0
}

impl<A: Algorithm> Algorithm for Blocking<A> {
    type State = BlockingState<A::State>;

    fn fresh(&self, built: Nanos, now: Nanos) -> Self::State {
        let count = Count { last: now, left: 0, refusals: 0, age: 0 };
        BlockingState { state: self.rule.fresh(built, now), count }
    }

    #[inline]
    fn seen(&self, state: &Self::State) -> Nanos {
        self.rule.seen(&state.state)
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(&mut state.count, now);
        if cost == 0 {
            return self.nothing(&state.count, behind, self.rule.check(&mut state.state, now, 0));
        }
        let blocked = state.count.left > 0;
        let decision = match blocked {
            true => self.rule.peek(&mut state.state, now, cost),
            false => self.rule.check(&mut state.state, now, cost),
        };
        if blocked || !decision.is_allowed() {
            self.refuse(&mut state.count);
        }
        self.told(&state.count, behind, decision)
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(&mut state.count, now);
        let decision = self.rule.peek(&mut state.state, now, cost);
        if cost == 0 {
            return self.nothing(&state.count, behind, decision);
        }
        let mut then = state.count;
        if then.left > 0 || !decision.is_allowed() {
            self.refuse(&mut then);
        }
        // When to come back is what a check would say; the rest describes the state as it is.
        let retry = self.told(&then, behind, decision).retry_after().map(nanos);
        self.told(&state.count, behind, decision).with_retry_of(retry)
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.rule.refund(&mut state.state, now, cost);
    }

    fn give_back(&self, state: &mut Self::State, now: Nanos, cost: u64, taken: Nanos) {
        self.rule.give_back(&mut state.state, now, cost, taken);
    }

    /// A block goes on, for no longer than a new one.
    fn adapt(&self, state: &mut Self::State, from: &Self, now: Nanos) {
        from.advance(&mut state.count, now);
        self.rule.adapt(&mut state.state, &from.rule, now);
        let count = &mut state.count;
        count.left = count.left.min(self.duration);
        if count.refusals != SHARED {
            count.refusals = if count.age < self.window { count.refusals.min(self.refusals - 1) } else { 0 };
        }
    }

    #[inline]
    fn claim(&self, state: &mut Self::State, now: Nanos) -> Option<Self> {
        let rule = self.rule.claim(&mut state.state, now)?;
        Some(Self { rule, ..*self })
    }

    fn unclaim(&self, state: &mut Self::State, now: Nanos, before: Self) {
        self.rule.unclaim(&mut state.state, now, before.rule);
    }

    /// Blocked or not: it has passed, by another rule.
    fn absorb(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.rule.absorb(&mut state.state, now, cost);
    }

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        let mut count = state.count;
        self.advance(&mut count, now);
        matches!((count.left, count.refusals), (0, 0 | SHARED)) && self.rule.is_fresh(&state.state, now)
    }

    fn policy(&self) -> Policy {
        self.rule.policy()
    }

    fn policies(&self, tell: &mut dyn FnMut(Policy)) {
        self.rule.policies(tell);
    }

    fn window(&self, decision: &Decision) -> Option<Duration> {
        match decision.is_allowed() {
            // In a block nothing is left, and what comes next is its end.
            true if decision.remaining() == 0 && decision.next().is_some() => {
                decision.next().map(Duration::from_nanos)
            }
            true => self.rule.window(decision),
            false => decision.retry_after(),
        }
    }

    fn holds(&self) -> bool {
        self.rule.holds()
    }

    fn release(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.rule.release(&mut state.state, now, cost);
    }

    fn renew(&self, state: &mut Self::State, fresh: Self::State) {
        state.count = fresh.count;
        self.rule.renew(&mut state.state, fresh.state);
    }

    fn release_shared(&self, cost: u64) {
        self.rule.release_shared(cost);
    }

    fn held(&self, state: &Self::State) -> u64 {
        self.rule.held(&state.state)
    }

    fn ignores_burst(&self) -> bool {
        self.rule.ignores_burst()
    }

    /// That of the algorithm inside, or how near the key is to being locked out.
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        let mut count = state.count;
        self.advance(&mut count, now);
        match (count.left, count.refusals) {
            (0, 0 | SHARED) => self.rule.usage(&state.state, now),
            (0, refusals) => self.rule.usage(&state.state, now).max(Usage::of(refusals, self.refusals)),
            // As used up as a key at its limit, and no more: else a flood of keys that are locked out would push out
            // each key at its limit, which would get its quota again.
            _ => Usage::FULL,
        }
    }

    fn set_shared(&self, state: &mut Self::State, shared: bool) {
        self.rule.set_shared(&mut state.state, shared);
        if shared != (state.count.refusals == SHARED) {
            state.count.refusals = if shared { SHARED } else { 0 };
            state.count.left = 0;
        }
    }

    fn line(&self) -> Option<&dyn Line<Self::State>> {
        self.rule.line().map(|_| self as &dyn Line<Self::State>)
    }

    #[inline]
    fn queues(&self) -> bool {
        self.rule.queues()
    }
}

macro_rules! block_for {
    ($($algorithm:ty)+) => {
        $(
            impl $algorithm {
                /// Refuses a key for the whole of `duration` [`after`](BlockFor::after) so many refusals. See
                /// [`Blocking`].
                ///
                /// # Panics
                ///
                /// If `duration` is zero.
                pub fn block_for(self, duration: Duration) -> BlockFor<Self> {
                    BlockFor::new(self, duration)
                }
            }
        )+
    };
}

block_for!(Concurrency FixedWindow SlidingWindow SlidingCounter SlidingLog TokenBucket LeakyBucket Smooth);
