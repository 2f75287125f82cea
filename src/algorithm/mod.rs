//! The algorithms: pure arithmetic over plain state.
//!
//! An algorithm is `(algorithm, &mut state, now, cost) -> Decision`. It reads no clock, takes no lock
//! and does no I/O; the owner of its state (a [`Store`](crate::store::Store)) guarantees that one call at
//! a time changes it. So no admission is ever computed from a sum that another thread is changing, and
//! every algorithm can be tested as a table.
//!
//! # Which one do I want?
//!
//! | you want | take | maximum in any one period | how it flows | `Retry-After` is | state per key |
//! |---|---|---|---|---|---|
//! | bursts up to a size, and a steady rate on average | [`TokenBucket`] | burst + limit | a burst, then one by one | until the next token | 24 bytes |
//! | never more than the limit in **any** period | [`SlidingWindow`] | limit | a burst, then as slices end | until a slice is a period old | 56 bytes + 8 per slice |
//! | that, and each unit back to the nanosecond, at any price | [`SlidingLog`] | limit | as calls came a period ago | until a call is a period old | 64 bytes + 16 per unit |
//! | nearly that, for next to nothing | [`SlidingCounter`] | just under 2 × limit, for calls bunched at an edge | a burst, then evenly | until the estimate has faded | 32 bytes |
//! | the cheapest to explain: "100 per hour, then wait for the next hour" | [`FixedWindow`] | just under 2 × limit, around an edge | in bursts | until the window ends | 24 bytes |
//! | to smooth instead of to refuse: calls **wait** and are admitted at a steady rate | [`LeakyBucket`] | limit | evenly | until there is a place in the queue | 24 bytes |
//! | to pace calls of your own, with a reserve or a warm-up | [`Smooth`] | limit, and what one second stores | evenly, slower when cold | until there is a place in the queue | 48 bytes |
//! | a number **at a time**, however long they take | [`Concurrency`] | no bound | as calls end | absent: it is unknown when a call ends | 16 bytes |
//!
//! If in doubt: [`TokenBucket`]. In front of something that breaks above a number of calls: [`SlidingWindow`]
//! if callers can come back, [`LeakyBucket`] if they should wait.
//!
//! All of them deny without charging, report a `retry_after` at which the very same call is allowed, and compute
//! in integers: a quota of 7 per minute admits exactly 7 a minute for ever.
//!
//! # Waiting
//!
//! Every algorithm can queue calls instead of refusing them: in [`acquire`](crate::limiter::RateLimiter::acquire)
//! always, and in a layer once `queue(n)`, `max_wait(duration)` or `overflow(..)` was called. ([`LeakyBucket`] and
//! [`Smooth`] exist to let calls wait, and queue in a layer without it.) Queued calls are admitted first come, first
//! served: by a bucket when their tokens are there, by a window when it has room. A call that waits for a window and is
//! polled late takes its unit from the window in which it is admitted.
//!
//! In [`acquire`](crate::limiter::RateLimiter::acquire), any number of calls waits unless one of those methods was
//! called: only [`max_queued`](crate::limiter::Builder::max_queued) bounds them, for all keys together, and one key may
//! take all its places. The queues of [`LeakyBucket`] and [`Smooth`] are as long as the burst.
//!
//! | nginx | here |
//! |---|---|
//! | `limit_req burst=b nodelay` | `TokenBucket::new(quota.burst(b + 1))` |
//! | `limit_req burst=b` | `LeakyBucket::new(quota).queue(b)` |
//! | `limit_req burst=b delay=d` | `TokenBucket::new(quota.burst(d + 1)).queue(b - d)`: `d + 1` pass at once, the next `b - d` are paced, the rest is refused |
//! | `limit_conn n` | `Concurrency::per_key(n)` |
//!
//! # Combined algorithms
//!
//! | you want | write | more state per key |
//! |---|---|---|
//! | ten a second **and** a thousand a day, all or nothing | a tuple: `(TokenBucket::new(..), FixedWindow::new(..))` | the sum |
//! | a key that is refused ten times in a minute to be locked out for an hour | `algorithm.block_for(hour).after(10)`: [`Lockout`] | 32 bytes |
//! | payments to borrow from the next window | `window.priority(20)`: [`Priority`] | none |
//! | free and paying users, or limits chosen for each request | [`Tiered`] | the size of the algorithm, and 24 bytes |
//!
//! Limits on *different* keys, all or nothing, are joined as layers: [`and`](crate::middleware::RateLimitLayer::and).
//! An algorithm can be [replaced](crate::limiter::RateLimiter::replace) while calls go on.
//!
//! # Pictures
//!
//! Each page has a picture of its algorithm. The same calls arrive in all of them, and the limit is always 4 per
//! second. From top to bottom:
//!
//! - The calls that arrive, from left to right. A dot passes, a cross is refused, and a ring has to wait.
//! - The calls that pass, if calls wait. A triangle has waited.
//! - The state of the algorithm: its count, its tokens, its queue.
//! - The calls that have passed within the last second. Where they exceed the limit, the curve is orange: around the
//!   edge of a fixed window, or because a bucket's burst comes on top of its rate.
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
//! The time of a key is the latest clock reading it has observed. While a reading is up to one period behind that, the
//! key's time stands still; a reading further behind means that the clock was set back: the key keeps its level, and
//! its time continues from the new reading.

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
#[cfg(feature = "redis")]
mod stored;
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
#[cfg(feature = "redis")]
pub use stored::{ReservedTime, ScriptSteps, StateReader, StateWriter, StorableError, StoredAlgorithm};
#[cfg(feature = "redis")]
pub(crate) use stored::{Step, StepKind};
pub use token_bucket::{TokenBucket, TokenBucketState};
pub use usage::Usage;

/// An algorithm that decides whether a call may pass.
///
/// Implement it to bring your own. Every method should return in constant time, must not panic for any `now` and
/// `cost`, and must allow a cost of 0 without changing what the key may do. All values of a type must agree on whether
/// there is a [`queueing`](Algorithm::queueing), and on whether calls [hold](Algorithm::needs_release) something.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no algorithm that decides whether a call may pass",
    note = "take one of `tower_throttle::algorithm`, or a tuple of them; `block_for(..)` becomes one by `.after(n)`"
)]
pub trait Algorithm: Clone + Debug + Send + Sync + 'static {
    /// The state of one key.
    type State: Clone + Debug + Send + Sync + 'static;

    /// Returns the state, at `now`, of a fresh key, for a limiter created at `created_at`.
    ///
    /// Such a key counts as idle since `created_at`.
    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State;

    /// Undoes a charge of `cost` made at `charged_at`, as far as it still counts.
    ///
    /// Only that very charge is given back, however much else the key has used, and nothing of it if the clock was set
    /// back behind `charged_at`. A [`refund`](Algorithm::refund), in contrast, does not know which charge it is for. By
    /// default, a charge no longer counts once time has passed.
    fn undo(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Nanos) {
        if now <= charged_at {
            self.refund(state, now, cost);
        }
    }

    /// Returns the latest clock reading that the state has observed.
    fn last_update(&self, state: &Self::State) -> Nanos;

    /// Charges `cost` units if they are available, all or none.
    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Returns the decision that [`check`](Algorithm::check) of that cost would make, without charging: `remaining` and
    /// `reset_after` describe the state as it is.
    ///
    /// The state may be advanced to `now`, which changes no decision.
    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Gives back up to `cost` units that were charged and still count. Units that no longer count are not given back: a
    /// key never has more than a fresh one.
    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64);

    /// Converts `state` at `now` from the configuration `old` to this one.
    ///
    /// What was used stays used, but no more of it than this configuration could ever charge a key: so no call waits
    /// longer than this configuration could demand. See
    /// [replacing an algorithm](crate::limiter::RateLimiter::replace).
    fn migrate(&self, state: &mut Self::State, old: &Self, now: Nanos);

    /// Switches `state` to this tier and returns the previous one if it differs. For [`Tiered`], whose state knows its
    /// tier.
    #[inline]
    fn switch_tier(&self, _state: &mut Self::State, _now: Nanos) -> Option<Self> {
        None
    }

    /// Undoes a [`switch_tier`](Algorithm::switch_tier), for a call that was denied.
    fn restore_tier(&self, _state: &mut Self::State, _now: Nanos, _before: Self) {}

    /// Charges units that another tier has admitted, as far as there is room for them. For [`Tiered`].
    fn charge_saturating(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        let room = self.peek(state, now, 0).remaining();
        let _ = self.check(state, now, cost.min(room));
    }

    /// Returns whether the state is fresh: it answers, now and later, as that of a new key, and may be forgotten. It is
    /// not fresh while `now` is behind its latest clock reading.
    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool;

    /// Returns the policy that is reported to clients: the quota and the window of the `RateLimit-Policy` field.
    fn policy(&self) -> QuotaPolicy;

    /// Calls `f` with the policy of each limit, in the order of [`Decision::limit_index`]. A tuple has more than one.
    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        f(self.policy());
    }

    /// Returns whether it was given a quota with a burst that it does not use. A limiter that is built with it logs a
    /// warning (feature `tracing`).
    fn ignores_burst(&self) -> bool {
        false
    }

    /// Returns the time over which a client that received `decision` should spread what remains: the effective window
    /// of the `RateLimit` field.
    ///
    /// It is `None` where waiting does not help. On an admission it is never longer than the window of the
    /// [policy](Algorithm::policy): else the field would report a lower rate than the policy.
    fn header_window(&self, decision: &Decision) -> Option<Duration> {
        match decision.is_allowed() {
            true => Some(decision.reset_after().min(self.policy().window)),
            false => decision.retry_after(),
        }
    }

    /// Refuses a key for the whole of `duration` [`after`](LockoutBuilder::after) a number of refusals. See
    /// [`Lockout`].
    ///
    /// # Panics
    ///
    /// Panics if `duration` is zero.
    fn block_for(self, duration: Duration) -> LockoutBuilder<Self> {
        LockoutBuilder::new(self, duration)
    }

    /// Returns how calls are queued. `None` if the algorithm cannot queue: a call that may not pass now is refused.
    fn queueing(&self) -> Option<&dyn Queueing<Self::State>> {
        None
    }

    /// Returns whether calls are queued that do not ask to wait: those of a layer.
    #[inline]
    fn holds_requests(&self) -> bool {
        self.queueing().is_some()
    }

    /// Returns whether an admitted call holds something until it ends. Then it is [released](Algorithm::release) once,
    /// and so is its part of the [total](Algorithm::release_total) of all keys.
    #[inline]
    fn needs_release(&self) -> bool {
        false
    }

    /// Releases the units of a call of `cost` that has ended: its key holds that much less.
    fn release(&self, _state: &mut Self::State, _now: Nanos, _cost: u64) {}

    /// Releases a call of `cost` that has ended from the total of all keys. The call was made with this algorithm.
    fn release_total(&self, _cost: u64) {}

    /// Returns the number of units that calls in progress hold. A key with units in flight is never evicted.
    fn in_flight(&self, _state: &Self::State) -> u64 {
        0
    }

    /// Returns how near the key is to its limit at `now`. A store that is full evicts the least used of several keys.
    ///
    /// By default, this is the fraction of the limit that a [`peek`](Algorithm::peek) of a copy reports as used.
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        Usage::reported_by(&self.peek(&mut state.clone(), now, 0))
    }

    /// Marks the state as one that several keys share, or as a key's own again. A shared state never locks its keys
    /// out, so that one of them cannot lock out the others. For [`Lockout`], and algorithms that contain it.
    fn set_shared(&self, _state: &mut Self::State, _shared: bool) {}

    /// Resets the state to `fresh`, except for the units that calls in progress hold.
    fn reset_state(&self, state: &mut Self::State, fresh: Self::State) {
        *state = fresh;
    }
}

/// A quota as it is reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    /// The maximum that can be admitted at one instant.
    pub quota: u64,
    /// The time in which that much becomes available again. It has no meaning for
    /// [concurrent](QuotaUnit::ConcurrentRequests) requests.
    pub window: Duration,
    /// The unit that is counted.
    pub unit: QuotaUnit,
}

/// The unit that a quota counts: the `qu` parameter of the `RateLimit-Policy` field.
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
    /// Creates a policy of `quota` requests per `window`.
    #[must_use]
    pub const fn new(quota: u64, window: Duration) -> Self {
        Self { quota, window, unit: QuotaUnit::Requests }
    }

    /// Creates a policy of `quota` requests at a time.
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
    fn a_combined_state_is_as_large_as_the_table_says() {
        type StateOf<A> = <A as Algorithm>::State;
        assert_eq!(size_of::<StateOf<(TokenBucket, SlidingCounter)>>(), 24 + 32);
        assert_eq!(size_of::<StateOf<Lockout<TokenBucket>>>(), 24 + 32);
        assert_eq!(size_of::<StateOf<Priority<FixedWindow>>>(), 24);
        assert_eq!(size_of::<StateOf<Tiered<TokenBucket>>>(), 24 + 24 + size_of::<TokenBucket>());
        let algorithms = [size_of::<FixedWindow>(), size_of::<TokenBucket>(), size_of::<LeakyBucket>()];
        assert!(algorithms.iter().all(|size| (32..=72).contains(size)), "{algorithms:?}");
    }
}
