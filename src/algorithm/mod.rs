//! The algorithms: pure arithmetic over plain state.
//!
//! An algorithm decides a call with a function `(&self, &mut state, now, cost) -> Decision`. This function reads no
//! clock, takes no lock and does no I/O. The owner of the state (a [`Limiter`](crate::limiter::Limiter)) guarantees
//! that only one call at a time uses the state of a key. So an algorithm never decides on a state that another thread
//! is changing, and can be tested with a table of calls and expected decisions.
//!
//! # Which one do I want?
//!
//! | you want | take | at most in any one period |
//! |---|---|---|
//! | bursts, and a steady rate on average | [`TokenBucket`] | burst + limit; the burst is the limit by default |
//! | never more than the limit | [`SlidingWindow`] | limit |
//! | never more than the limit, and each unit available again after exactly one period; memory in proportion to the limit | [`SlidingLog`] | limit |
//! | about the limit, with two counts per key | [`SlidingCounter`] | just under 2 × limit, for calls bunched at the ends of windows |
//! | 100 per day, then wait for the next one | [`FixedWindow`] | just under 2 × limit; 2 × limit with `.aligned()` |
//! | requests that wait and leave at a steady rate | [`LeakyBucket`] | limit, each counted at its scheduled time |
//! | to pace calls of your own, with stored permits or a warm-up (Guava's rate limiters) | [`Smooth`] | limit; if bursty, also the permits stored in one second |
//! | 100 at a time, however long each takes | [`Concurrency`] | no bound |
//!
//! If in doubt, use [`TokenBucket`]. To protect a service that fails above a number of calls per period, use
//! [`SlidingWindow`] if callers can retry, and [`LeakyBucket`] if they should wait.
//!
//! This is how the calls of a key pass, what a denied call reports, and what a key takes:
//!
//! | algorithm | how calls pass | `Retry-After` is the time | state per key |
//! |---|---|---|---|
//! | [`TokenBucket`] | a burst, then one by one | until the next token | 24 bytes |
//! | [`SlidingWindow`] | a burst, then as slices end | until the last instant of a slice is a period old | 56 bytes, or more |
//! | [`SlidingLog`] | a burst, then as calls become a period old | until a call is a period old | 64 bytes + 16 per record that the log has room for |
//! | [`SlidingCounter`] | a burst, then evenly | until the estimate is low enough | 32 bytes |
//! | [`FixedWindow`] | in bursts | until the window ends | 24 bytes |
//! | [`LeakyBucket`] | evenly | until there is a place in the queue | 24 bytes |
//! | [`Smooth`] | evenly, slower when cold | until there is a place in the queue | 48 bytes |
//! | [`Concurrency`] | as calls end | of a configurable hint, because it is unknown when a call ends | 16 bytes |
//!
//! A [`SlidingWindow`] with more than 14 slices takes 72 bytes + 8 per slice, and at least 184 bytes. So does a key
//! that has used more than 65,535 units in a window.
//!
//! A denial charges nothing. All algorithms compute in integers, so a rate of 7 per minute does not drift. A denial
//! reports a `retry_after`. If no other call for the key is made before this time has passed, the same call is then
//! allowed or, if it may wait, queued. A denial by [`Concurrency`] has no `retry_after`, and neither has the denial of
//! a call that can never pass because it costs more than the burst of a token bucket or the limit of a window.
//!
//! # Waiting
//!
//! Every algorithm in the first table can queue calls instead of denying them. A call of
//! [`acquire`](crate::limiter::RateLimiter::acquire) that cannot pass now is queued if the queue has a free place and
//! the call would not wait longer than `max_wait`. With [`QueueOverflow::DropOldest`], a call that finds the queue full
//! can take the place of the call that has waited longest. With [`Concurrency`], the wait is not known in advance, so a
//! queued call is denied once it has waited for `max_wait`. A layer queues requests if `queue(n)`, `max_wait(duration)`
//! or `overflow(..)` was called on the algorithm. With [`LeakyBucket`] and [`Smooth`], which exist to delay calls, a
//! layer queues requests by default. Queued calls are admitted in the order of arrival. A token bucket admits a queued
//! call when the bucket has the tokens, a window when the window has room, and a leaky bucket at the scheduled time of
//! the call. A call that waits for a window is charged to the window in which the call is admitted. If the call is
//! polled late, this can be a later window than the first one with room.
//!
//! If none of `queue`, `max_wait` and `overflow` was called on an algorithm other than [`LeakyBucket`] and [`Smooth`],
//! any number of calls can wait in [`acquire`](crate::limiter::RateLimiter::acquire). Only
//! [`max_queued`](crate::limiter::Builder::max_queued) bounds these calls, for all keys together, so the waiters of one
//! key may use up `max_queued`. With [`LeakyBucket`] and [`Smooth`], the number of places in a key's queue is by
//! default the quota's burst.
//!
//! | nginx | this crate |
//! |---|---|
//! | `limit_req burst=b nodelay` | a `TokenBucket` with `.burst(b + 1)` |
//! | `limit_req burst=b` | a `LeakyBucket` with `.queue(b)` |
//! | `limit_req burst=b delay=d` | a `TokenBucket` with `.burst(d + 1)` and `.queue(b - d)`: `d + 1` pass at once, the next `b - d` are paced, and further calls are denied |
//! | `limit_conn n` | `Concurrency::per_key(n)` |
//!
//! # Combined algorithms
//!
//! | you want | write | more state per key |
//! |---|---|---|
//! | ten a second **and** a thousand a day: a call is charged to both limits or to neither | a tuple: `(a_second, a_day)` | none beyond the states of the members |
//! | a key that is denied ten times in a minute to be locked out for an hour | `.block_for(hour).after(10)`: [`Lockout`] | 32 bytes |
//! | payments to borrow from the next window | `window.priority(20)`: [priority](#priority) | none |
//! | free and paying users, or limits chosen for each request | [`Tiered`] | the size of the algorithm, and 24 bytes |
//!
//! To limit *different* keys so that a call is charged to all of them or to none, join layers with
//! [`and`](crate::middleware::RateLimitLayer::and). The algorithm of a limiter can be
//! [replaced](crate::limiter::RateLimiter::replace) while calls are made.
//!
//! ## Several limits on one key
//!
//! **Problem.** Limit a key to ten calls a second, and to a thousand calls a day.
//!
//! **Naive answer.** Ask two limiters in turn.
//!
//! **Where it breaks.** A call that the first limiter admits and the second denies stays charged to the first. So a
//! caller that has used up its daily limit also uses up its limit per second, and the reported numbers are wrong.
//! Undoing that charge is no better: until the charge is undone, it can cause other calls to be denied.
//!
//! **The idea.** Charge all limits or none. The key stays locked from the first decision to the last charge, so no
//! other call can change the states in that time. If the states are cheap to copy, copy them, check all limits, and
//! restore the copies if a limit denies the call. Otherwise peek at all limits, and check them if all of them allow the
//! call.
//!
//! **Invariant.** A call passes only if each limit admits it. A denial charges none of the limits.
//!
//! **Cost.** An admitted call takes a copy of the states and a check of each limit. If one of the limits is a
//! [`SlidingWindow`], a [`SlidingLog`] or a [`Concurrency`], the call takes a peek and a check of each limit instead.
//! The limits that deny a call are checked in both cases, because a limit may count its denials. The states are stored
//! next to each other.
//!
//! ## Priority
//!
//! The method `priority(percent)` of [`FixedWindow`], [`SlidingWindow`], [`SlidingCounter`] and [`SlidingLog`] lets
//! calls with priority borrow units of the next window. A call without priority is decided as if the method had not
//! been called, except that the call never waits, and is denied while calls with priority are queued. A call [with
//! priority](crate::limiter::Call::priority) that cannot pass now is queued until the window has room for the call. If
//! the total cost of the queue would then exceed the given percentage of the limit, the call is denied. The wait is at
//! most one period. With a [`SlidingWindow`], it is at most one period plus one slice. With a [`SlidingCounter`], whose
//! units count in two windows, it is at most two periods. The `retry_after` of a denied call assumes that the queued
//! calls are admitted on time. A call that is admitted late is charged late, so the real wait can be longer.
//!
//! The method [`priority`](crate::middleware::RateLimitLayer::priority) of a layer sets which requests have priority.
//! [`Tiered`] and [`Lockout`] have the calls with priority of the windows that they contain. Tuples have none. In an
//! algorithm of your own, [`QueueConfig::priority_only`] lets only calls with priority wait. With any other algorithm,
//! a call with priority is decided as any other call, and a warning is logged (feature `tracing`). In Redis there is no
//! priority: a limit on which `priority` was called cannot be built there, and a tier with priority has no effect,
//! which is not logged. While an algorithm is replaced, a call may be decided without its priority.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use std::time::Duration;
//! use tower_throttle::algorithm::FixedWindow;
//! use tower_throttle::{Quota, RateLimiter};
//!
//! let limiter = RateLimiter::new(FixedWindow::new(Quota::per_second(4)).priority(50));
//! assert!(limiter.check_n("upstream", 4).is_allowed());
//! assert!(!limiter.acquire("upstream").await.is_allowed());
//! let payment = limiter.call("upstream").priority().acquire().await;
//! assert!(payment.is_allowed());
//! assert_eq!(payment.delay(), Duration::from_secs(1));
//! # }
//! ```
//!
//! **Problem.** The window is already used up, and a call arrives that must not be denied, such as a payment among page
//! views.
//!
//! **Naive answer.** Admit the call over the limit.
//!
//! **Where it breaks.** Important calls are not limited at all. Many of them together overload the service that the
//! limit protects.
//!
//! **The idea** (from Alibaba's Sentinel, where it is called *occupy*). A call with priority takes its units from the
//! next window, and waits until that window begins. Only a given percentage of the next window can be borrowed.
//!
//! In this picture, every third call has priority. At 4.8 s, the window is used up after four of eight calls:
//!
#![cfg_attr(doc, doc = include_str!("pictures/priority.svg"))]
//!
//! In this crate, the borrowing calls are queued, and no other call overtakes them. So their units are reserved without
//! a charge, and if a borrowing call is cancelled, other calls can use its units.
//!
//! **Invariant.** The limit of the window holds for all calls. The queued calls cost at most the given percentage of
//! the limit, unless calls of another kind are queued as well: by a tier without priority, or before the algorithm was
//! replaced. Calls with priority are then denied until the queue is that short.
//!
//! **Cost.** A key takes no more memory than without priority, except for the waiters in the queue.
//!
//! # Pictures
//!
//! The docs of most algorithms have a picture. The same calls arrive in all pictures, in the phases that are named at
//! the top: a trickle, a burst of 3 calls and a burst of 5 calls around the end of a window, a pause, a burst of 8,
//! twice the limit for two seconds, a pause. The limit is 4 calls per second, for [`Concurrency`] 4 calls at a time,
//! and for [`Tiered`] 8 calls per second during a part of the time. From top to bottom:
//!
//! - The calls that arrive, from left to right. A dot is a call that passes, a cross is a call that is denied, and a
//!   ring is a call that waits.
//! - Only if calls wait in the picture: the calls that pass, at the times at which they pass. A diamond is a call that
//!   has waited.
//! - The state of the algorithm: its count, its tokens or its queue.
//! - The number of calls that have passed within the last second. Where this number exceeds a limit per second, the
//!   area above the limit is orange: for example around the end of a fixed window, or because a bucket's burst comes on
//!   top of its rate.
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
//! The time of a key is the latest clock reading that the key has observed. While the clock is up to one period behind
//! the key's time, the key's time stands still. If the clock is further behind, the algorithm assumes that the clock
//! was set back: the key's used units stay used, and the key's time continues from the new reading.

#[macro_use]
mod list;

mod clock_step;
mod concurrency;
pub(crate) mod definition;
mod fixed_window;
pub(crate) mod info;
mod leaky_bucket;
mod queue_config;
mod quota_policy;
mod rate;
mod semaphore;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod smooth;
pub(crate) mod stored;
mod token_bucket;

// These modules come last, because rustdoc lists the methods of a type in the order of the modules. So constructors
// come before `block_for`.
mod lockout;
mod tiered;
mod tuple;

pub use concurrency::{Concurrency, ConcurrencyState, SharedPermit};
pub use definition::{Algorithm, MAX_DEBT};
pub(crate) use definition::{holds_requests, limit_of_new_key};
pub use fixed_window::{FixedWindow, FixedWindowState};
pub use info::AlgorithmInfo;
pub use leaky_bucket::LeakyBucket;
pub use lockout::{Lockout, LockoutState};
pub use queue_config::{QueueConfig, QueueOverflow};
pub use quota_policy::QuotaPolicy;
pub(crate) use semaphore::QueueSlot;
pub use sliding_counter::{SlidingCounter, SlidingCounterState};
pub use sliding_log::{SlidingLog, SlidingLogState};
pub use sliding_window::{SlidingWindow, SlidingWindowState};
pub use smooth::{Smooth, SmoothState};
pub use stored::{ReservedTime, StateReader, StateWriter, StoredAlgorithm};
pub use tiered::{Tiered, TieredState};
pub use token_bucket::{TokenBucket, TokenBucketState};

// These items occur in the signatures of algorithms.
#[doc(hidden)]
pub use self::definition::Usage;
#[doc(hidden)]
pub use self::semaphore::Semaphore;
#[doc(hidden)]
pub use self::stored::ScriptSteps;
pub use definition::LockoutBuilder;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_as_large_as_the_table_says() {
        assert_eq!(size_of::<TokenBucketState>(), 24);
        assert_eq!(size_of::<FixedWindowState>(), 24);
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
        assert_eq!(size_of::<StateOf<Tiered<TokenBucket>>>(), 24 + 24 + size_of::<TokenBucket>());
        let algorithms = [size_of::<FixedWindow>(), size_of::<TokenBucket>(), size_of::<LeakyBucket>()];
        assert!(algorithms.iter().all(|size| (32..=80).contains(size)), "{algorithms:?}");
    }
}
