//! Rate limiting for tower services: axum apps, tonic servers, and services that are not HTTP at all.
//!
//! A [`RateLimitLayer<K, A>`](RateLimitLayer) wraps any tower `Service`. A [key extractor](key) `K` identifies the
//! caller, and an [algorithm] `A` decides whether the call is admitted now. The layer forwards an admitted call and
//! reports the remaining units. It answers a denied call with `429 Too Many Requests` and an exact `Retry-After` (gRPC:
//! `RESOURCE_EXHAUSTED`). With a [`LeakyBucket`](algorithm::LeakyBucket), or any algorithm with `queue(n)` or
//! `max_wait(duration)`, the layer queues requests and releases each at its scheduled time.
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
//!     // the same key with another algorithm: a sliding window of 1,000 an hour
//!     .layer(RateLimitLayer::new(PeerIp::new(), SlidingWindow::new(Quota::per_hour(1_000))).name("hourly"));
//! ```
//!
//! # Where to read on
//!
//! - [`guide`]: how to set up limits, chapter by chapter, such as [behind a proxy](guide::proxy).
//! - [`Quota`]: a limit per period, and a burst.
//! - [`algorithm`]: the algorithms, and a table to choose one from.
//! - [`key`]: the extractors that identify a caller.
//! - [`middleware`]: the layer, and what a rejected caller gets.
//! - [`RateLimiter`]: the engine, without any middleware.
//! - [`Decision`]: the result of one call.
//! - [`clock`]: the clocks, and how to test with one.
//! - [`store`]: the state of the keys, what it costs and how it is bounded.
//! - [`error`]: errors of a configuration.
//!
//! # Promises
//!
//! 1. **Never early.** No request is admitted that the exact algorithm would deny, over any length of time: decisions
//!    use no floating-point numbers, and do not drift. A call is admitted late by at most one nanosecond. This holds for
//!    every key in the key table. For keys that a full table evicts, or that share a bucket, see
//!    [`OnFull`](store::OnFull).
//! 2. **Exact under concurrency.** With any number of threads on one key, exactly as many calls are admitted as the
//!    algorithm allows.
//! 3. **A denial charges nothing**, and delays no later call: a client that retries in a loop is admitted as soon as a
//!    client that waits, unless a [lockout](algorithm::Lockout) is configured. If one of several limits denies a call,
//!    the others do not charge it.
//! 4. **`retry_after` is exact**: the same call is denied at every instant before that time, and allowed at that time,
//!    if there is no other call for the key and no queued call is cancelled meanwhile. With
//!    [`DropOldest`](algorithm::QueueOverflow::DropOldest), it may be later than necessary. `Retry-After` is this wait,
//!    rounded up to seconds, at least 1. A denied call whose cost exceeds the limit has no `retry_after`. For a limit
//!    of calls in progress, it is not known when a call will end: `retry_after` is `None`, and `Retry-After` is [a
//!    hint](middleware::HttpResponder::retry_after_unknown).
//! 5. **`remaining` is exact**: that number of calls of cost 1, made by the same method (such as `check` or `acquire`),
//!    would be admitted at this instant, and no more.
//! 6. **A clock that steps back** admits nothing extra. If the clock is behind a key's time by at most one period, the
//!    key's time stands still until the clock has caught up. If the clock is further behind, the key keeps its usage,
//!    and its time continues from the new reading.
//! 7. **Cancel safe.** A future that is dropped at any await point charges once or not at all, as its docs say. The
//!    drop causes no waiter to miss its release, and leaves no slot of a queue taken.
//! 8. **Bounded**: keys, queued calls per key and in total, memory per key, and work per call. Work per call is
//!    constant; where tables and queues grow, and for [`SlidingLog`](algorithm::SlidingLog), it is constant on average.
//!    Work is linear in the length of the key's queue, some 10 ns to 30 ns per waiter, for a call that:
//!    - is cancelled while it is queued, or arrives after a queued call was cancelled;
//!    - has a `max_wait`, or is a peek, after a window has released a waiter late;
//!    - drops the oldest waiter of a window or of [`Smooth`](algorithm::Smooth) from a full queue;
//!    - has priority and is denied;
//!    - has another [tier](algorithm::Tiered) than the queued calls.
//!
//!    By default, a flood of keys causes no new key to be denied, neither during the flood nor afterwards. See
//!    [floods of keys](guide::floods).
//! 9. **No panic on input**: no header, key, cost or reading of the clock causes a panic, and no quota that can be
//!    created.
//! 10. **A rejected request costs little**: its body is not read, unless the responder is configured to
//!     [drain](middleware::HttpResponder::drain) it.
//!
//! # What it is not
//!
//! State in memory holds for one process, and is lost when the process ends. With the feature `redis`, state can be
//! kept in Redis instead. The crate does not protect against floods that exhaust bandwidth or the accept queue; use the
//! kernel or an edge proxy for that.
//!
//! # Features
//!
//! Features only add items, and change no behaviour.
//!
//! - `axum` (default): [`PeerIp`](key::PeerIp) and [`ClientIp`](key::ClientIp) read axum's `ConnectInfo`, and
//!   `key::Route` its `MatchedPath`; handlers take a [`Decision`] as an argument.
//! - `tonic`: [`PeerIp`](key::PeerIp) and [`ClientIp`](key::ClientIp) read tonic's `TcpConnectInfo`, and a limited gRPC
//!   service keeps its name.
//! - `redis`: `store::redis::RedisStore`, for limits that several machines share, in Redis or Valkey. `redis-tls` adds
//!   encrypted connections.
//! - `metrics`: the method `record_metrics` of a layer, which gives its counts to the recorder of the
//!   [`metrics`](https://docs.rs/metrics) facade, for Prometheus and others. See [in production](guide::production).
//! - `test-util`: the module `test_util`, with the promises of a store as tests, for stores of your own.
//! - `tracing` (default): log events. Each kind of configuration mistake that affects requests is logged once as an
//!   error, and a store that fails is logged as an error. Some probable mistakes are logged as warnings, such as a
//!   window with a quota that has a burst. Each request that was queued, denied, or has an invalid key is logged at
//!   level `debug`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
pub mod clock;
pub mod error;
pub mod guide;
pub mod key;
pub mod limiter;
pub mod middleware;
pub mod stats;
pub mod store;
#[cfg(feature = "test-util")]
pub mod test_util;

#[cfg(feature = "axum")]
mod axum;
mod decision;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
mod queue;
mod quota;
mod random;
mod sync;
#[cfg(feature = "tonic")]
mod tonic;

// The README's code is compiled and run as a doc test. It uses items of the feature `axum`.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "axum")]
pub use self::axum::MissingDecision;
pub use decision::Decision;
pub use limiter::rate_limiter::RateLimiter;
#[doc(inline)]
pub use middleware::{Error, ErrorResponder, HttpResponder, RateLimitLayer};
pub use quota::Quota;
