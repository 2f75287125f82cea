//! Rate limiting for tower services: axum apps, tonic servers, and services that are not HTTP at all.
//!
//! A [`RateLimitLayer<K, A>`](RateLimitLayer) wraps any tower `Service`. A [key extractor](key) `K` identifies the
//! caller, and an [algorithm] `A` decides whether the call is admitted now. The layer forwards an admitted call and
//! reports the remaining units. A denied call is answered with `429 Too Many Requests` and the time to wait in
//! `Retry-After`, and a denied gRPC call with `RESOURCE_EXHAUSTED`. Some algorithms queue calls that cannot be admitted
//! now. These are [`LeakyBucket`](algorithm::LeakyBucket), [`Smooth`](algorithm::Smooth), and any algorithm on which
//! `queue(n)`, `max_wait(duration)` or `overflow(..)` was called. A window on which `priority(percent)` was called
//! queues only calls with [priority](algorithm::Priority). The layer forwards a queued call when the algorithm admits
//! the call.
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
//! - [`store`]: where the state of the keys is kept, and how the memory for it is bounded.
//! - [`error`]: errors of a configuration.
//!
//! # Promises
//!
//! These promises are for state in memory. For state in Redis, see [what is not
//! exact](guide::many_machines#what-is-not-exact).
//!
//! 1. **Never early.** No call is admitted that the algorithm, computed exactly, would deny. This is true over any
//!    length of time, since decisions use no floating-point numbers and do not drift. Rounding makes a call late by at
//!    most one nanosecond, except for [`Smooth`](algorithm::Smooth) with a cold factor above 3. For keys that a full
//!    table evicts, or that share a bucket, see [`OnFull`](store::OnFull).
//! 2. **Exact under concurrency.** With any number of threads on one key, exactly as many calls are admitted as the
//!    algorithm allows.
//! 3. **A denial charges nothing**, and delays no later call. A client that retries in a loop is admitted as early as a
//!    client that waits, unless a [lockout](algorithm::Lockout) is configured. If one limit of a tuple or one of
//!    several joined layers denies a call, the other limits do not charge the call.
//! 4. **`retry_after` is exact.** Suppose that after a denial, no other call for the key is made, no queued call is
//!    cancelled, and queued calls with [priority](algorithm::Priority) are released on time. Suppose also that fewer
//!    than [`max_queued`](limiter::Builder::max_queued) calls are queued. The same call is then denied at every instant
//!    before `retry_after` has passed. As soon as this time has passed, the call is allowed or, if the call may wait,
//!    queued. With [`DropOldest`](algorithm::QueueOverflow::DropOldest), `retry_after` may be longer than necessary.
//!    The field `Retry-After` has this time, rounded up to seconds, at least 1. A call that can never be admitted is
//!    denied without a `retry_after`: for example, a call that costs more than the burst of a token bucket. With a
//!    limit of calls in progress, it is not known when a call will end. So there is no `retry_after`, and `Retry-After`
//!    is only [a hint](middleware::HttpResponder::retry_after_unknown).
//! 5. **`remaining` is exact**: it is the number of calls of cost 1, made by the same method (such as `check` or
//!    `acquire`), that would be admitted at this instant. [`Decision::remaining`] says when `remaining` also includes
//!    calls that would be queued, and what `remaining` is if the key table is full.
//! 6. **A clock that steps back** admits nothing extra. If the clock is at most one period behind the latest reading
//!    that a key has observed, the key's time stands still until the clock has caught up. If the clock is further
//!    behind, the key keeps its used units, and the key's time continues from the new reading.
//! 7. **Cancel safe.** A call whose future is dropped at any await point is charged once or not at all. The docs of
//!    each method say which. The other waiters of the key are still released, and the dropped call no longer occupies a
//!    place in the queue.
//! 8. **Bounded**: the number of keys, the number of queued calls, the memory per key, and the work per call. The work
//!    per call is constant, with two exceptions. It is constant only on average for a call that makes a table or a
//!    queue grow, and for calls of [`SlidingLog`](algorithm::SlidingLog). It is linear in the length of the key's
//!    queue, about 10 ns to 30 ns per waiter, for calls that:
//!    - are cancelled while they are queued, or arrive after a queued call was cancelled;
//!    - arrive after a window has released a waiter late, and have a `max_wait` or only peek;
//!    - displace the oldest waiter of the full queue of a window or of [`Smooth`](algorithm::Smooth);
//!    - have priority and are denied;
//!    - have another [tier](algorithm::Tiered) than the queued calls.
//!
//!    By default, a flood of keys does not cause new keys to be denied, during the flood or afterwards. There is one
//!    exception. Before an eviction, the limiter examines at most 64 keys. If all of them have calls in progress or
//!    queued calls, the new key is denied, because such keys are never evicted. See [floods of keys](guide::floods).
//! 9. **No panic on input**: no header, key, cost, clock reading or valid quota causes a panic.
//! 10. **A rejected request costs little**: its body is not read, unless the responder is configured to
//!     [drain](middleware::HttpResponder::drain) it.
//!
//! # What it is not
//!
//! State in memory belongs to one process, and is lost when the process ends. With the feature `redis`, state can be
//! kept in Redis instead. The crate does not protect against floods that exhaust bandwidth or the accept queue. Use the
//! kernel or an edge proxy for that.
//!
//! # Features
//!
//! A feature adds what this list says, and changes nothing else.
//!
//! - `axum` (default): [`PeerIp`](key::PeerIp) and [`ClientIp`](key::ClientIp) read axum's `ConnectInfo`, `key::Route`
//!   reads axum's `MatchedPath`, and [`Paths`](key::Paths) compares the path in axum's `OriginalUri`. Handlers can take
//!   a [`Decision`] as an argument.
//! - `tonic`: [`PeerIp`](key::PeerIp) and [`ClientIp`](key::ClientIp) read tonic's `TcpConnectInfo`, and a limited gRPC
//!   service still implements tonic's `NamedService`.
//! - `redis`: `store::redis::RedisStore`, for limits that several machines share, in Redis or Valkey. `redis-tls` adds
//!   encrypted connections.
//! - `metrics`: the method `record_metrics` of a layer, which passes the layer's counts to the recorder of the
//!   [`metrics`](https://docs.rs/metrics) facade, for Prometheus and others. See [in production](guide::production).
//! - `test-util`: the module `test_util`, with tests that a store of your own must pass.
//! - `tracing` (default): log events. A layer logs each kind of configuration mistake that affects requests once, as an
//!   error. The layer also logs an error when its store fails. Some probable mistakes are logged as warnings, such as a
//!   window whose quota has a burst. Requests that were queued or denied, that were admitted only because of shadow
//!   mode, or whose key is invalid, are logged at level `debug`.
//! - `tsc`: `clock::TscClock`, a clock that reads the time stamp counter, for faster checks.

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
