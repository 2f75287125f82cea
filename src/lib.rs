//! Rate limiting for tower services: axum apps, tonic servers, and services that are not HTTP at all.
//!
//! A [`RateLimitLayer<K, A>`](RateLimitLayer) wraps any tower `Service`. A [key extractor](key) `K` identifies the
//! caller, and an [algorithm] `A` decides whether the call is admitted now. The layer forwards an admitted call and
//! reports the remaining units. A denied call is answered with `429 Too Many Requests` and the time to wait in
//! `Retry-After`, and a denied gRPC call with `RESOURCE_EXHAUSTED`. Calls over the limit can wait for their turn
//! instead: see [queueing](guide::queueing).
//!
//! # First steps
//!
//! Add the crate to an axum app (until its first release, by `cargo add --path ../tower-throttle`). This app limits
//! each address to 100 requests per minute, and to 20 requests at once:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # mod app {
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//! use tower_throttle::{Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     serve(TcpListener::bind("127.0.0.1:3000").await?).await
//! }
//!
//! async fn serve(listener: TcpListener) -> std::io::Result<()> {
//!     let app = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(RateLimitLayer::per_ip(Quota::per_minute(100).burst(20)).axum_body());
//!     // The limit reads the peer's address. Without it, each request is answered with 500.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! #
//! # #[tokio::main(flavor = "current_thread")]
//! # pub async fn test() -> std::io::Result<()> {
//! #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! #     let listener = TcpListener::bind("127.0.0.1:0").await?;
//! #     let address = listener.local_addr()?;
//! #     tokio::spawn(serve(listener));
//! #     for number in 1.. {
//! #         let mut client = tokio::net::TcpStream::connect(address).await?;
//! #         client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
//! #         let mut response = String::new();
//! #         client.read_to_string(&mut response).await?;
//! #         if number > 20 && response.starts_with("HTTP/1.1 429 ") {
//! #             break;
//! #         }
//! #         assert!(response.starts_with("HTTP/1.1 200 "), "{number}: {response}");
//! #     }
//! #     Ok(())
//! # }
//! # }
//! # #[cfg(feature = "axum")]
//! # fn main() -> std::io::Result<()> {
//! #     app::test()
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! [`axum_body`](guide::servers#axum) is for axum: responses keep axum's body type, which saves an allocation.
//!
//! - **Who is the caller?** Behind a proxy, all connections come from the proxy's address: see [behind a
//!   proxy](guide::proxy). For users, tokens, routes and others, choose [another key](guide::keys).
//! - **How much?** [Limits](guide::limits) has a table of the algorithms. Several limits on one key are a tuple of
//!   algorithms, and limits on different keys are layers that are joined with [`and`](RateLimitLayer::and). If one
//!   layer wraps another instead, the outer layer charges calls that the inner layer denies.
//! - **What does a call cost?** One unit, or what [`cost`](RateLimitLayer::cost) says. If the cost is known only when
//!   the response has ended, as for tokens and rows, the limit is [metered](guide::costs).
//! - **Where?** [Ordering](guide::ordering) says which layers belong outside the limit, such as CORS, and which
//!   inside.
//! - **Is the limit right?** Try it in [shadow mode](guide::rollout), and watch its [counts](guide::production).
//! - **Which server?** [Servers and frameworks](guide::servers) has axum, tonic, hyper and others.
//! - **How many machines?** State in memory [belongs to one process](guide::ordering#where-state-lives). [Many
//!   machines] compares the ways to share a limit.
//!
//! [Many machines]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html
//!
//! Without a layer, a [`RateLimiter`] decides calls: [without HTTP](guide::engine).
//!
//! # Where to read on
//!
//! - [`guide`]: how to set up limits, chapter by chapter.
//! - [Promises](guide::promises): what holds, and what an attacker can and cannot do.
//! - [Recipes](guide::recipes), [troubleshooting](guide::troubleshooting), and [migration](guide::migration) from other
//!   limiters.
//! - [`Quota`]: a limit per period, and a burst.
//! - [`algorithm`]: the algorithms, and a table to choose one from.
//! - [`key`]: the extractors that identify a caller.
//! - [`middleware`]: the layer, and what a rejected caller gets.
//! - [`RateLimiter`]: the engine, without any middleware.
//! - [`Decision`]: the result of one call.
//! - [`clock`]: the clocks, and how to test with one.
//! - [`limiter`]: the contract of a limiter, and how to write one.
//! - [`error`]: errors of a configuration.
//!
//! # What it is not
//!
//! State in memory belongs to one process, and is lost when the process ends. With the crate [`tower-throttle-redis`],
//! state can be kept in Redis instead. The crates do not protect against floods that exhaust bandwidth or the accept
//! queue. Use the kernel or an edge proxy for that.
//!
//! [`tower-throttle-redis`]: https://docs.rs/tower-throttle-redis
//!
//! # Features
//!
//! A feature only adds something, and the core builds without any.
//!
#![doc = include_str!("features.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
pub mod clock;
pub mod error;
pub mod guide;
pub mod key;
pub mod limiter;
pub mod middleware;
pub mod stats;

#[doc(hidden)]
pub mod store_support;

#[cfg(feature = "axum")]
mod axum;
mod decision;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;

mod quota;
mod sys;
#[cfg(feature = "tonic")]
mod tonic;

// The README's code is compiled and run as a doc test. It uses items of the feature `axum`.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use decision::Decision;
pub use limiter::rate_limiter::RateLimiter;
#[cfg(feature = "axum")]
#[doc(inline)]
pub use middleware::Rejecter;
#[doc(inline)]
pub use middleware::{Error, ErrorResponder, HttpResponder, Meter, RateLimitLayer};
pub use quota::Quota;
