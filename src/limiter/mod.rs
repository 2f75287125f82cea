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
//!    is [fresh](crate::algorithm::Algorithm::is_fresh). If the limiter has no room for a new key, a documented policy
//!    may drop other states: for a [`RateLimiter`], this policy is [`OnFull`].
//! 3. **All or nothing.** A call that is denied charges nothing. In a limiter that makes its decisions in the process,
//!    such as [`RateLimiter`], a call that is cancelled while it is queued charges nothing either. [`Limiter::Wait`]
//!    says what other limiters promise.
//!
//! # A limiter of your own
//!
//! This limiter has one budget for all callers, and no queue. The guide has [one with a map of
//! keys](crate::guide::engine#a-limiter-of-your-own), for calls in progress.
//!
//! ```
//! use std::convert::Infallible;
//! use std::future::Pending;
//! use std::sync::{Arc, Mutex};
//!
//! use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, TokenBucket};
//! use tower_throttle::clock::AnyClock;
//! use tower_throttle::key::PeerIp;
//! use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor, Reservation};
//! use tower_throttle::stats::LimiterStats;
//! use tower_throttle::{Decision, Quota, RateLimitLayer};
//!
//! #[derive(Clone)]
//! struct OneBudget {
//!     algorithm: TokenBucket,
//!     info: Arc<AlgorithmInfo>,
//!     clock: AnyClock,
//!     // `None` once the limiter is closed
//!     state: Arc<Mutex<Option<<TokenBucket as Algorithm>::State>>>,
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
//!     fn close(&self) {
//!         *self.state.lock().unwrap() = None;
//!     }
//! }
//!
//! impl<K: ?Sized> LimiterFor<K> for OneBudget {
//!     fn acquire(&self, _: &K, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
//!         let decision = match &mut *self.state.lock().unwrap() {
//!             Some(state) => self.algorithm.check(state, self.clock.now(), attempt.cost()),
//!             None => Decision::closed(self.info.quotas()[0].quota),
//!         };
//!         Acquired::Ready(decision, Reservation::default())
//!     }
//! }
//!
//! let (algorithm, clock) = (TokenBucket::new(Quota::per_minute(2)), AnyClock::default());
//! let state = algorithm.new_state(clock.now(), clock.now());
//! let limiter = OneBudget {
//!     info: AlgorithmInfo::of(&algorithm),
//!     state: Arc::new(Mutex::new(Some(state))),
//!     algorithm,
//!     clock,
//! };
//! let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter);
//! # use tower::{Layer, ServiceExt, service_fn};
//! # let service = layer.layer(service_fn(async |_: http::Request<String>| {
//! #     Ok::<_, Infallible>(http::Response::new(String::new()))
//! # }));
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # let ask = |peer: &str| {
//! #     let mut request = http::Request::new(String::new());
//! #     request.extensions_mut().insert(peer.parse::<std::net::SocketAddr>().unwrap());
//! #     runtime.block_on(service.clone().oneshot(request)).unwrap().status().as_u16()
//! # };
//! # assert_eq!(["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"].map(ask), [200, 200, 429]);
//! # layer.limiter().close();
//! # assert_eq!(ask("192.0.2.1:1"), 503);
//! ```
//!
//! The crate [`tower-throttle-contract`](https://docs.rs/tower-throttle-contract) has tests that a limiter of your own
//! must pass. A limiter that can do more also does the following:
//!
//! - If its algorithm can be replaced, it implements [`Limiter::generation`]. So a layer reports the quotas of the new
//!   algorithm.
//! - If its algorithm can queue calls, it returns [`Acquired::Pending`] for a call that waits.
//! - If it implements [`Settles`], its layers can [settle](crate::middleware::RateLimitLayer::settle) the cost of a
//!   call.
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

pub use crate::decision::Denied;
pub use attempt::Attempt;
pub use call::{Acquire, AcquirePermit, Call};
pub use contract::{Acquired, Decided, Limiter, LimiterFor, Settles};
pub use options::{OnClose, OnFull};
pub use rate_limiter::Builder;
pub(crate) use rate_limiter::RateLimiter;
pub use reservation::{Permit, Reservation};
pub use shared_key::{KeySecret, KeyText, KeyWriter, SharedKey};

// These items occur in the signatures of limiters.
pub use self::{fingerprint::MemoryKey, shared_key::KeyedHash, wait::QueuedAcquire};
