//! The engine without HTTP, and the contract of a limiter.
//!
//! A [`RateLimiter`] is an [algorithm](crate::algorithm) and a [clock](crate::clock) with the state of all keys, in
//! memory. [`RateLimiter::new`] creates a limiter, and a [`Builder`] creates a limiter with other bounds or another
//! clock. The crate `tower-throttle-redis` has limiters with state in Redis.
//!
//! A layer works with any type that implements [`Limiter`] and [`LimiterFor`]. Such a type promises three things, and
//! an [`Algorithm`](crate::algorithm::Algorithm) relies on them:
//!
//! 1. **Exclusive access.** One call at a time changes the state of a key. No admission is computed from state that
//!    another call is changing.
//! 2. **Removal changes no decision.** The state of a key may be dropped only when the algorithm reports that the state
//!    is [fresh](crate::algorithm::Algorithm::is_fresh). If the limiter has no room for a new key, a documented policy may drop other
//!    states: for a [`RateLimiter`], this policy is [`OnFull`].
//! 3. **All or nothing.** A call that is denied charges nothing. In a limiter that makes its decisions in the process,
//!    such as [`RateLimiter`], a call that is cancelled while it is queued charges nothing either. [`Limiter::Wait`]
//!    says what other limiters promise.
//!
//! # A limiter of your own
//!
//! This limiter lets an algorithm decide by a state that only the limiter has:
//!
//! ```
//! use std::convert::Infallible;
//! use std::future::Pending;
//! use std::sync::{Arc, Mutex};
//!
//! use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, TokenBucket};
//! use tower_throttle::clock::{Clock, Nanos, TokioClock};
//! use tower_throttle::key::PeerIp;
//! use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor, LimiterStats, Reservation};
//! use tower_throttle::{Quota, RateLimitLayer};
//!
//! /// One budget for all callers.
//! #[derive(Clone)]
//! struct OneBudget {
//!     algorithm: TokenBucket,
//!     info: Arc<AlgorithmInfo>,
//!     state: Arc<Mutex<<TokenBucket as Algorithm>::State>>,
//! }
//!
//! impl Limiter for OneBudget {
//!     type Algorithm = TokenBucket;
//!     type Error = Infallible;
//!     type Wait = Pending<Result<Decided, Infallible>>;
//!
//!     fn info(&self) -> Arc<AlgorithmInfo> {
//!         Arc::clone(&self.info)
//!     }
//!     fn stats(&self) -> LimiterStats {
//!         LimiterStats::default()
//!     }
//!     fn close(&self) {}
//! }
//!
//! impl<K: ?Sized> LimiterFor<K> for OneBudget {
//!     fn acquire(&self, _: &K, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
//!         let (mut state, now) = (self.state.lock().unwrap(), TokioClock::new().now());
//!         Acquired::Ready(self.algorithm.check(&mut state, now, attempt.cost()), Reservation::default())
//!     }
//! }
//!
//! let algorithm = TokenBucket::new(Quota::per_minute(100));
//! let state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
//! let limiter = OneBudget {
//!     info: AlgorithmInfo::of(&algorithm), algorithm, state: Arc::new(Mutex::new(state)),
//! };
//! let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter);
//! ```
//!
//! A limiter on other machines requires a key that can be written as a string which is the same on all machines: see
//! [`SharedKey`]. std's `Hash` may differ between machines.

mod attempt;
mod call;
mod charge;
mod contract;
mod entry;
mod eviction;
mod fingerprint;
pub(crate) mod joint;
mod latest_denial;
mod options;
mod queue;
pub(crate) mod rate_limiter;
pub(crate) mod reservation;
mod shard;
mod shared_key;
mod slots;
mod table;
mod wait;

pub use crate::stats::LimiterStats;
pub use attempt::Attempt;
pub use call::{Acquire, AcquirePermit, Call};
pub use contract::{Acquired, Decided, Limiter, LimiterFor, Settles};
pub use options::{OnClose, OnFull};
pub use rate_limiter::Builder;
pub(crate) use rate_limiter::RateLimiter;
pub use reservation::{Denied, Permit, Reservation};
pub use shared_key::{KeySecret, KeyText, KeyWriter, SharedKey};

// These items occur in the signatures of limiters.
#[doc(hidden)]
pub use self::{fingerprint::MemoryKey, shared_key::KeyedHash, wait::QueuedAcquire};
