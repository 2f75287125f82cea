//! Rate limiting for tower services: axum apps, tonic servers, and services that are not HTTP at all.
//!
//! A [`RateLimitLayer<K, A>`](RateLimitLayer) wraps any tower `Service`. It asks a [key extractor](key) `K` who is
//! calling, asks an [algorithm] `A` whether the call may pass now, and then lets it through and says what is left, or
//! answers `429 Too Many Requests` with a true `Retry-After` (gRPC: `RESOURCE_EXHAUSTED`), or, with a
//! [`LeakyBucket`](algorithm::LeakyBucket) or wherever it is told to, holds the request and releases it when its turn
//! has come.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_throttle::algorithm::SlidingWindow;
//! use tower_throttle::key::PeerIp;
//! use tower_throttle::{Quota, RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     // a token bucket per address: 100 a minute, at most 20 at once
//!     .layer(RateLimitLayer::per_ip(Quota::per_minute(100).burst(20)))
//!     // the same thing in its parts, with another algorithm
//!     .layer(RateLimitLayer::new(PeerIp::new(), SlidingWindow::new(Quota::per_hour(1_000))).name("hourly"));
//! ```
//!
//! # Where to read on
//!
//! - [`Quota`]: how much, per how long.
//! - [`algorithm`]: which one do I want?
//! - [`key`]: who is asking.
//! - [`guide`]: set-ups, such as [behind a proxy](guide::proxy).
//! - [`middleware`]: the layer, and what a refused caller gets.
//! - [`RateLimiter`]: the engine, without any middleware.
//! - [`clock`]: time, and how to test with it.
//! - [`store`]: where state lives, what it costs, how it is bounded.
//!
//! # Promises
//!
//! 1. **Never early.** No request is admitted that the exact rule would refuse, over any length of time: no drift, no
//!    float. Late by at most one nanosecond per call. This holds for every key in the table; to those that a full table
//!    evicts or lets share, its [policy](store::OnFull) applies.
//! 2. **Exact under concurrency.** With any number of threads on one key, as many are admitted as the rule allows.
//! 3. **A denial spends nothing**, and asks for nothing later: a client that hammers recovers like one that waits,
//!    unless [blocking](algorithm::Lockout) was asked for. Of several limits, those that would allow are not charged
//!    when one denies.
//! 4. **`retry_after` is true**: the same call is denied at every instant before it and allowed at it, if nobody else
//!    calls and nobody gives up a place. `Retry-After` is that, rounded up to seconds, at least 1. A cost that can
//!    never fit has none. When a call in progress ends is not known: there, `retry_after` is `None` and `Retry-After` is
//!    [a hint](middleware::HttpResponder::retry_after_unknown).
//! 5. **`remaining` is true**: so many calls of cost 1 would be admitted at this instant.
//! 6. **A clock that steps back** admits nothing extra. Up to one period behind, time stands still for a key; further
//!    behind, the key keeps its level and time goes on from there.
//! 7. **Cancel safe.** A future dropped at any await point charges once or not at all, as its docs say, leaves no
//!    waiter asleep and no slot lost.
//! 8. **Bounded**: keys, waiters per key and in total, memory per key, and work per call. That is constant, but
//!    amortised where tables and queues grow and for [`SlidingLog`](algorithm::SlidingLog), and in proportion to the line of its key, some 10 ns to 30
//!    ns for each who waits, for a call that: gives up its place, or comes after one that has; has a `max_wait`, or
//!    looks, after a window has let somebody go late; drops the oldest of a window or of
//!    [`Smooth`](algorithm::Smooth); is refused while it has priority; or goes by another [tier](algorithm::Tiered)
//!    than those who wait. A flood of keys ends when it ends: by default it locks no new key out, neither while it lasts
//!    nor afterwards. See [floods of keys](guide::floods).
//! 9. **No panic on input**: any header, key, cost or clock, and any quota that can be built.
//! 10. **A refused request costs little**: its body is not read, unless the responder is told to [drain](middleware::HttpResponder::drain) it.
//!
//! # What it is not
//!
//! Limits hold for one process; nothing is shared between machines yet. State is gone when the process ends. It is no
//! protection against a flood that fills the line or the accept queue: that is for the kernel or the edge.
//!
//! # Features
//!
//! Features only add. `axum` (default): [`PeerIp`](key::PeerIp) and [`ClientIp`](key::ClientIp) read axum's
//! `ConnectInfo`, and `key::Route` its `MatchedPath`; handlers take a [`Decision`] as an argument. `tonic`: they read tonic's `TcpConnectInfo`, and a limited gRPC
//! service keeps its name. `tracing` (default): one error event for each kind of mistake in the set-up that requests
//! suffer from, a warning when a limiter is built of a window with a burst, and an event of level `debug` for each that was held in line.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
pub mod clock;
pub mod decision;
pub mod error;
pub mod guide;
pub mod key;
pub mod limiter;
pub mod middleware;
pub mod quota;
pub mod store;

#[cfg(feature = "axum")]
mod axum;
mod observe;
mod queue;
mod random;
mod sync;
#[cfg(feature = "tonic")]
mod tonic;

// The README's code is compiled and run with the documentation's. It shows what the feature `axum` adds, too.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "axum")]
pub use self::axum::MissingDecision;
pub use decision::Decision;
pub use error::QuotaError;
pub use key::MissingKey;
pub use limiter::RateLimiter;
pub use middleware::{Error, ErrorResponder, HttpResponder, RateLimitLayer};
pub use quota::Quota;
