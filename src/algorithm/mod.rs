//! The algorithms: pure arithmetic over plain state.
//!
//! An algorithm is `(algorithm, &mut state, now, cost) -> Decision`. It reads no clock, takes no lock and does no I/O.
//! The owner of the state (a [`Store`](crate::store::Store)) guarantees that one call at a time changes the state. So
//! no admission is ever computed from a sum that another thread is changing, and every algorithm can be tested as a
//! table.
//!
//! # Which one do I want?
//!
//! | you want | use | maximum in any one period | how calls pass | `Retry-After` is | state per key |
//! |---|---|---|---|---|---|
//! | bursts up to a size, and a steady rate on average | [`TokenBucket`] | burst + limit | a burst, then one by one | until the next token | 24 bytes |
//! | never more than the limit in **any** period | [`SlidingWindow`] | limit | a burst, then as slices end | until the last instant of a slice is a period old | 72 bytes, + 8 per slice if over ten |
//! | never more than the limit in any period, and each unit available again after exactly one period | [`SlidingLog`] | limit | a burst, then as calls become a period old | until a call is a period old | 64 bytes + 16 per unit |
//! | about the limit in any period, with two counts per key | [`SlidingCounter`] | just under 2 × limit, for calls bunched at an edge | a burst, then evenly | until the estimate is low enough | 32 bytes |
//! | the cheapest to explain: "100 per hour, then wait for the next hour" | [`FixedWindow`] | just under 2 × limit, around an edge | in bursts | until the window ends | 24 bytes |
//! | to delay calls instead of denying them: calls **wait** and are admitted at a steady rate | [`LeakyBucket`] | limit, counted by scheduled times | evenly | until there is a place in the queue | 24 bytes |
//! | to pace calls of your own, with stored permits or a warm-up | [`Smooth`] | limit, plus the permits stored in one second if bursty | evenly, slower when cold | until there is a place in the queue | 48 bytes |
//! | a number **at a time**, however long they take | [`Concurrency`] | no bound | as calls end | only a hint: it is unknown when a call ends | 16 bytes |
//!
//! If in doubt, use [`TokenBucket`]. To protect a service that fails above a number of calls per period, use
//! [`SlidingWindow`] if callers can retry, and [`LeakyBucket`] if they should wait.
//!
//! A denial charges nothing. All algorithms compute in integers, so a rate of 7 per minute does not drift. A denial by
//! any of them except [`Concurrency`] reports a `retry_after`, unless the call can never pass, because it costs more
//! than the burst of a token bucket or the limit of a window: the same call is allowed after that time, if no other
//! call was made meanwhile.
//!
//! # Waiting
//!
//! Every algorithm in the first table can queue calls instead of denying them. A call of
//! [`acquire`](crate::limiter::RateLimiter::acquire) that cannot pass now is queued if the queue has a free place and
//! the wait is not above `max_wait`. A layer queues requests if `queue(n)`, `max_wait(duration)` or `overflow(..)` was
//! called on the algorithm. With [`LeakyBucket`] and [`Smooth`], which exist to delay calls, a layer queues requests by
//! default. Queued calls are admitted in the order of arrival. A token bucket admits a queued call when the bucket has
//! the tokens, a window when the window has room, and a leaky bucket at the slot of the call. A call that waits for a
//! window and is polled late is charged to the window in which it is admitted.
//!
//! With the other algorithms, unless one of those three methods was called, any number of calls can wait in
//! [`acquire`](crate::limiter::RateLimiter::acquire). Only [`max_queued`](crate::limiter::Builder::max_queued) bounds
//! these calls, for all keys together, so the waiters of one key may use up `max_queued`. By default, the queues of
//! [`LeakyBucket`] and [`Smooth`] hold as many calls as the quota's burst.
//!
//! | nginx | this crate |
//! |---|---|
//! | `limit_req burst=b nodelay` | `TokenBucket::new(quota.burst(b + 1))` |
//! | `limit_req burst=b` | `LeakyBucket::new(quota).queue(b)` |
//! | `limit_req burst=b delay=d` | `TokenBucket::new(quota.burst(d + 1)).queue(b - d)`: `d + 1` pass at once, the next `b - d` are paced, the rest is denied |
//! | `limit_conn n` | `Concurrency::per_key(n)` |
//!
//! # Combined algorithms
//!
//! | you want | write | more state per key |
//! |---|---|---|
//! | ten a second **and** a thousand a day, all or nothing | a tuple: `(TokenBucket::new(..), FixedWindow::new(..))` | none beyond the states of the members |
//! | a key that is denied ten times in a minute to be locked out for an hour | `algorithm.block_for(hour).after(10)`: [`Lockout`] | 32 bytes |
//! | payments to borrow from the next window | `window.priority(20)`: [`Priority`] | none |
//! | free and paying users, or limits chosen for each request | [`Tiered`] | the size of the algorithm, and 24 bytes |
//!
//! Limits on *different* keys, all or nothing, are joined as layers: [`and`](crate::middleware::RateLimitLayer::and).
//! An algorithm can be [replaced](crate::limiter::RateLimiter::replace) while calls go on.
//!
//! ## Several limits on one key
//!
//! **Problem.** Limit a key to ten calls a second, and to a thousand calls a day.
//!
//! **Naive answer.** Ask two limiters in turn.
//!
//! **Where it breaks.** A call that the first limiter admits and the second denies stays charged by the first. So a
//! caller that has used up its daily limit also uses up its limit per second, and the reported numbers are wrong.
//! Charging and undoing is no better: other calls see the charge in between.
//!
//! **The idea.** Peek at all limits first, then charge all limits or none. The key stays locked until then, so no other
//! call gets in between.
//!
//! **Invariant.** A call passes only if each limit admits it. A denial charges none of the limits.
//!
//! **Cost.** A peek at each limit, and a check of each if all of them allow the call. The states are stored next to
//! each other.
//!
//! # Pictures
//!
//! Most pages have a picture of their algorithm. The same calls arrive in all pictures, in the phases that are named at
//! the top: a trickle, a burst of 3 calls and a burst of 5 calls around the edge of a window, a pause, a burst of 8,
//! twice the limit for two seconds, a pause. The limit is 4 calls per second, for [`Concurrency`] 4 calls at a time,
//! and for [`Tiered`] 8 calls per second during a part of the time. From top to bottom:
//!
//! - The calls that arrive, from left to right. A dot is a call that passes, a cross is a call that is denied, and a
//!   ring is a call that waits.
//! - The calls that pass, in the pictures in which calls wait. A triangle is a call that has waited.
//! - The state of the algorithm: its count, its tokens or its queue.
//! - The calls that have passed within the last second. Where these calls exceed the limit, the curve is orange: around
//!   the edge of a fixed window, or because a bucket's burst comes on top of its rate.
//!
//! A fixed window denies:
//!
#![cfg_attr(doc, doc = include_str!("pictures/fixed_window.svg"))]
//!
//! A leaky bucket lets calls wait:
//!
#![cfg_attr(doc, doc = include_str!("pictures/leaky_bucket.svg"))]
//!
//! # Time
//!
//! The time of a key is the latest clock reading it has observed. While the clock is up to one period behind the key's
//! time, the key's time stands still. If the clock is further behind, it was set back: the key keeps its used units,
//! and its time continues from the new reading.

mod clock_step;
mod concurrency;
mod definition;
mod fixed_window;
mod leaky_bucket;
mod queue_config;
mod quota_policy;
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

// This module comes last, because rustdoc lists a type's methods by module: so constructors come before `block_for` and
// `priority`.
mod combinator;

pub use combinator::lockout::{Lockout, LockoutBuilder, LockoutState};
pub use combinator::priority::{HasPriority, Priority, Window};
pub use combinator::tiered::{Tiered, TieredState};
pub use concurrency::{Concurrency, ConcurrencyState};
pub use definition::Algorithm;
pub use fixed_window::{FixedWindow, FixedWindowState};
pub use leaky_bucket::{LeakyBucket, LeakyBucketState};
pub(crate) use queue_config::holds_requests;
pub use queue_config::{QueueConfig, QueueOverflow};
pub use quota_policy::{QuotaPolicy, QuotaUnit};
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
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_as_large_as_the_table_says() {
        assert_eq!(size_of::<TokenBucketState>(), 24);
        assert_eq!(size_of::<FixedWindowState>(), 24);
        assert_eq!(size_of::<LeakyBucketState>(), 24);
        assert_eq!(size_of::<SlidingWindowState>(), 72);
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
