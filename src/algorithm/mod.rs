//! The rules: pure arithmetic over plain state.
//!
//! An algorithm is `(algorithm, &mut state, now, cost) -> Decision`. It reads no clock, takes no lock
//! and does no I/O; whoever holds its state (a [`Store`](crate::store::Store)) promises that one call at
//! a time changes it. So no admission is ever computed from a sum that another thread is changing, and
//! every rule can be tested as a table.
//!
//! # Which one do I want?
//!
//! | you want | take | most in any one period | how it flows | `Retry-After` is | state per key |
//! |---|---|---|---|---|---|
//! | bursts up to a size, and a steady rate on average | [`TokenBucket`] | burst + limit | a burst, then one by one | until the next token | 24 bytes |
//! | never more than the limit in **any** period | [`SlidingWindow`] | limit | a burst, then as slices end | until a slice is a period old | 56 bytes + 8 per slice |
//! | that, and each unit back to the nanosecond, at any price | [`SlidingLog`] | limit | as calls came a period ago | until a call is a period old | 64 bytes + 16 per unit |
//! | nearly that, for next to nothing | [`SlidingCounter`] | just under 2 × limit, for calls bunched at an edge | a burst, then evenly | until the estimate has faded | 32 bytes |
//! | the cheapest to explain: "100 per hour, then wait for the next hour" | [`FixedWindow`] | just under 2 × limit, around an edge | in bursts | until the window ends | 24 bytes |
//! | to smooth instead of to refuse: calls **wait** and leave at a steady rate | [`LeakyBucket`] | limit | evenly | until there is a place in line | 24 bytes |
//! | to pace calls of your own, with a reserve or a warm-up | [`Smooth`] | limit, and what one second stores | evenly, slower when cold | until there is a place in line | 48 bytes |
//! | so many **at a time**, however long they take | [`Concurrency`] | no bound | as calls end | absent: nobody knows when a call ends | 16 bytes |
//!
//! If in doubt: [`TokenBucket`]. In front of something that breaks above a number of calls: [`SlidingWindow`]
//! if callers can come back, [`LeakyBucket`] if they should wait.
//!
//! All of them deny without charging, tell a `retry_after` at which the very same call is allowed, and compute
//! in integers: a quota of 7 per minute admits exactly 7 a minute for ever.
//!
//! # Waiting
//!
//! Every one of them lets calls wait instead of refusing them: in [`acquire`](crate::limiter::RateLimiter::acquire),
//! and in a layer once it is told to, by `queue(n)`, `max_wait(duration)` or `overflow(..)`. ([`LeakyBucket`] and
//! [`Smooth`] are there to let calls wait, and need not be told.) First come, first served; a bucket lets a call go
//! when its tokens are there, a window when it has room. A call that waits for a window and is polled late takes its
//! unit from the window in which it leaves.
//!
//! In [`acquire`](crate::limiter::RateLimiter::acquire), any number of calls waits unless one of those methods was
//! called: only [`max_queued`](crate::limiter::Builder::max_queued) bounds them, for all keys together, and one key may
//! take all its places. The queues of [`LeakyBucket`] and [`Smooth`] are as long as the burst.
//!
//! | nginx | here |
//! |---|---|
//! | `limit_req burst=b nodelay` | `TokenBucket::new(quota.burst(b + 1))` |
//! | `limit_req burst=b` | `LeakyBucket::new(quota).queue(b)` |
//! | `limit_req burst=b delay=d` | `TokenBucket::new(quota.burst(d + 1)).queue(b - d)`: so many at once, the next so many are paced, the rest is refused |
//! | `limit_conn n` | `Concurrency::per_key(n)` |
//!
//! # Rules made of rules
//!
//! | you want | write | more state per key |
//! |---|---|---|
//! | ten a second **and** a thousand a day, all or nothing | a tuple: `(TokenBucket::new(..), FixedWindow::new(..))` | the sum |
//! | who is refused ten times in a minute to be out for an hour | `algorithm.block_for(hour).after(10)`: [`Lockout`] | 32 bytes |
//! | payments to borrow from the next window | `window.priority(20)`: [`Priority`] | none |
//! | free and paying users, or a rule for each request | [`Tiered`] | the rule's size, and 24 bytes |
//!
//! Limits on *different* keys, all or nothing, are joined as layers: [`and`](crate::middleware::RateLimitLayer::and).
//! A rule can be [replaced](crate::limiter::RateLimiter::replace) while calls go on.
//!
//! # Pictures
//!
//! Each page has a picture of its algorithm. The same calls come in all of them, and the limit is always 4 per
//! second. From above:
//!
//! - What comes, from left to right. A dot passes, a cross is refused, and a ring has to wait.
//! - Where calls wait: what passes. A triangle has waited.
//! - What the algorithm itself looks at: its count, its tokens, its line.
//! - What has passed within the last second. Where that is above the limit, it is orange: around the edge of a fixed
//!   window, or because a bucket's burst comes on top of its rate.
//!
//! A fixed window refuses:
//!
#![cfg_attr(doc, doc = include_str!("pictures/fixed_window.svg"))]
//!
//! A leaky bucket lets calls wait:
//!
#![cfg_attr(doc, doc = include_str!("pictures/leaky_bucket.svg"))]
//!
//! # Time
//!
//! Time for a key is the largest reading it has seen. A reading up to one period behind it stands still; one further
//! behind is taken as a clock that was set back: the key keeps its level, and time goes on from there.

mod clock_step;
mod combinator;
mod concurrency;
mod fixed_window;
mod leaky_bucket;
mod queue_config;
mod queueing;
mod rate;
mod semaphore;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod smooth;
mod token_bucket;
mod usage;
mod window_queue;

use std::fmt::Debug;
use std::time::Duration;

use crate::clock::Nanos;
use crate::decision::Decision;

pub use combinator::lockout::{Lockout, LockoutBuilder, LockoutState};
pub use combinator::priority::{HasPriority, Priority, Window};
pub use combinator::tiered::{Tiered, TieredState};
pub use concurrency::{Concurrency, ConcurrencyState};
pub use fixed_window::{FixedWindow, FixedWindowState};
pub use leaky_bucket::{LeakyBucket, LeakyBucketState};
pub use queue_config::{QueueConfig, QueueOverflow};
pub use queueing::{Admission, Queueing};
pub use semaphore::SharedPermit;
pub(crate) use semaphore::{QueueSlot, Semaphore};
pub use sliding_counter::{SlidingCounter, SlidingCounterState};
pub use sliding_log::{SlidingLog, SlidingLogState};
pub use sliding_window::{SlidingWindow, SlidingWindowState};
pub use smooth::{Smooth, SmoothState};
pub use token_bucket::{TokenBucket, TokenBucketState};
pub use usage::Usage;

/// A rule that says whether a call may pass.
///
/// Implement it to bring your own. Every method should return in constant time, must not panic for any `now` and
/// `cost`, and must allow a cost of 0 without changing what the key may do. Whether there is a
/// [`queueing`](Algorithm::queueing), and whether calls [hold](Algorithm::needs_release) something, must be the same for all rules of
/// a type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no rule that says whether a call may pass",
    note = "take one of `tower_throttle::algorithm`, or a tuple of them; `block_for(..)` becomes one by `.after(n)`"
)]
pub trait Algorithm: Clone + Debug + Send + Sync + 'static {
    /// What is remembered of one key.
    type State: Clone + Debug + Send + Sync + 'static;

    /// The state, at `now`, of a key never seen before, for a limiter built at `created_at`.
    ///
    /// Such a key counts as idle since `created_at`.
    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State;

    /// Gives back what still counts of a call that took `cost` at `taken`: of that very call, however much else the
    /// key has used. Nothing, if the clock was set back behind `taken`.
    ///
    /// Unlike a [`refund`](Algorithm::refund), which does not know what it is for. Unless implemented, nothing counts
    /// any more once time has passed.
    fn undo(&self, state: &mut Self::State, now: Nanos, cost: u64, taken: Nanos) {
        if now <= taken {
            self.refund(state, now, cost);
        }
    }

    /// The latest reading of the clock that the state knows of.
    fn last_update(&self, state: &Self::State) -> Nanos;

    /// Takes `cost` units if they are there, all or none.
    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// What [`check`](Algorithm::check) of that cost would say, taking nothing: `remaining` and `reset_after`
    /// describe the state as it is.
    ///
    /// The state may be brought up to `now`, which changes no answer.
    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Gives back up to `cost` units that were taken and still count. Units that count no more are not given back: a
    /// key never has more than one never seen.
    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64);

    /// Takes over a state that has obeyed the rule `from` until `now`, and obeys this one from now on.
    ///
    /// What was used stays used, but no more of it than this rule could ever hold against a key: so nobody waits
    /// longer than this rule could demand. See [changing a rule](crate::limiter::RateLimiter::replace).
    fn migrate(&self, state: &mut Self::State, from: &Self, now: Nanos);

    /// A call by this rule comes to a state that may have obeyed another, of which it knows itself. Gives back the
    /// rule before, if that is another. For [`Tiered`].
    #[inline]
    fn switch_tier(&self, _state: &mut Self::State, _now: Nanos) -> Option<Self> {
        None
    }

    /// Undoes a [`switch_tier`](Algorithm::switch_tier): the call was not let in.
    fn restore_tier(&self, _state: &mut Self::State, _now: Nanos, _before: Self) {}

    /// Counts what another rule has let pass, as far as there is room for it. For [`Tiered`].
    fn charge_saturating(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        let room = self.peek(state, now, 0).remaining();
        let _ = self.check(state, now, cost.min(room));
    }

    /// Whether the state answers, now and later, as that of a key never seen: it may then be forgotten. Not while
    /// `now` is behind what it has seen.
    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool;

    /// How the rule is told to clients: the quota and the window of the `RateLimit-Policy` field.
    fn policy(&self) -> QuotaPolicy;

    /// How each of its limits is told to clients, in the order of [`Decision::limit_index`]: of a tuple, more than one.
    fn for_each_policy(&self, tell: &mut dyn FnMut(QuotaPolicy)) {
        tell(self.policy());
    }

    /// Whether it was given a quota with a burst, of which it makes no use. A limiter that is built with it logs a
    /// warning (feature `tracing`).
    fn ignores_burst(&self) -> bool {
        false
    }

    /// Over how long a client that was told `decision` should spread what remains: the effective window of the
    /// `RateLimit` field. `None` where waiting does not help. On an admission never longer than that of the
    /// [policy](Algorithm::policy): the quota and its window would tell of a lower rate.
    fn header_window(&self, decision: &Decision) -> Option<Duration> {
        match decision.is_allowed() {
            true => Some(decision.reset_after().min(self.policy().window)),
            false => decision.retry_after(),
        }
    }

    /// Refuses a key for the whole of `duration` [`after`](LockoutBuilder::after) so many refusals. See [`Lockout`].
    ///
    /// # Panics
    ///
    /// If `duration` is zero.
    fn block_for(self, duration: Duration) -> LockoutBuilder<Self> {
        LockoutBuilder::new(self, duration)
    }

    /// How calls wait in line, for algorithms that let them. `None`: a call that may not pass now is refused.
    fn queueing(&self) -> Option<&dyn Queueing<Self::State>> {
        None
    }

    /// Whether calls wait in that line that do not ask for it: those of a layer.
    #[inline]
    fn holds_requests(&self) -> bool {
        self.queueing().is_some()
    }

    /// Whether a call that was let in holds something until it is over. Then it is [released](Algorithm::release)
    /// once, and what it [shares](Algorithm::release_total) with other keys, too.
    #[inline]
    fn needs_release(&self) -> bool {
        false
    }

    /// A call of `cost` is over: its key holds that much less.
    fn release(&self, _state: &mut Self::State, _now: Nanos, _cost: u64) {}

    /// A call of `cost` that came by this rule is over: what all keys share holds that much less.
    fn release_total(&self, _cost: u64) {}

    /// How much calls in progress hold of the key. A key of which something is held is never evicted.
    fn in_flight(&self, _state: &Self::State) -> u64 {
        0
    }

    /// Returns how near the key is to its limit at `now`. Of several keys, a store that is full evicts the least used.
    ///
    /// Unless implemented, the fraction of the limit that a [`peek`](Algorithm::peek) of a copy reports as used.
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        Usage::reported_by(&self.peek(&mut state.clone(), now, 0))
    }

    /// Marks the state as one that several keys share, or as a key's own again. A shared state never locks its keys
    /// out: what one of them did is no concern of the others. For [`Lockout`], and what contains it.
    fn set_shared(&self, _state: &mut Self::State, _shared: bool) {}

    /// Makes the state new, but for what calls in progress hold.
    fn reset_state(&self, state: &mut Self::State, fresh: Self::State) {
        *state = fresh;
    }
}

/// A quota as clients are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    /// The most that can be admitted at one instant.
    pub quota: u64,
    /// The time in which that much comes back. Of no meaning where [concurrent](QuotaUnit::ConcurrentRequests) requests
    /// are counted.
    pub window: Duration,
    /// What is counted.
    pub unit: QuotaUnit,
}

/// What a quota counts: the `qu` parameter of the `RateLimit-Policy` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests, or the units that they cost.
    #[default]
    Requests,
    /// Requests in progress.
    ConcurrentRequests,
}

impl QuotaPolicy {
    /// So many requests come back in `header_window`.
    #[must_use]
    pub const fn new(quota: u64, window: Duration) -> Self {
        Self { quota, window, unit: QuotaUnit::Requests }
    }

    /// So many requests at a time.
    #[must_use]
    pub const fn concurrent(quota: u64) -> Self {
        Self { quota, window: Duration::ZERO, unit: QuotaUnit::ConcurrentRequests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_as_large_as_the_table_says() {
        assert_eq!(size_of::<TokenBucketState>(), 24);
        assert_eq!(size_of::<FixedWindowState>(), 24);
        assert_eq!(size_of::<LeakyBucketState>(), 24);
        assert_eq!(size_of::<SlidingWindowState>(), 56);
        assert_eq!(size_of::<SlidingCounterState>(), 32);
        assert_eq!(size_of::<SlidingLogState>(), 64);
        assert_eq!(size_of::<SmoothState>(), 48);
        assert_eq!(size_of::<ConcurrencyState>(), 16);
    }

    #[test]
    fn a_rule_made_of_rules_is_as_large_as_the_table_says() {
        type StateOf<A> = <A as Algorithm>::State;
        assert_eq!(size_of::<StateOf<(TokenBucket, SlidingCounter)>>(), 24 + 32);
        assert_eq!(size_of::<StateOf<Lockout<TokenBucket>>>(), 24 + 32);
        assert_eq!(size_of::<StateOf<Priority<FixedWindow>>>(), 24);
        assert_eq!(size_of::<StateOf<Tiered<TokenBucket>>>(), 24 + 24 + size_of::<TokenBucket>());
        let algorithms = [size_of::<FixedWindow>(), size_of::<TokenBucket>(), size_of::<LeakyBucket>()];
        assert!(algorithms.iter().all(|size| (32..=72).contains(size)), "{algorithms:?}");
    }
}
