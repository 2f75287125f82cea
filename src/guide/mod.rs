//! The guide: how to set up limits, chapter by chapter.
//!
//! - [Limits](limits): quotas, several limits at once, tiers, lockouts, priority.
//! - [Keys](keys): keys with examples, exemptions, deny lists, missing keys.
//! - [Behind a proxy](proxy): the client's address, when all connections come from a proxy.
//! - [Floods of keys](floods): what happens when the key table is full, and how to size it.
//! - [Responses](responses): what a rejected caller gets, and how to change it.
//! - [Queueing](queueing): requests that wait instead of being rejected.
//! - [Concurrency limits](concurrency): limits of requests in progress, and of open WebSockets.
//! - [Trying a limit](rollout): shadow mode, and costs that depend on the response.
//! - [Many machines], in the crate `tower-throttle-redis`: a limit in Redis, a share per machine, sticky routing; what is
//!   exact, and what is not.
//! - [In production](production): counters, log events and metrics; what to watch and to alert on.
//! - [Ordering](ordering): which layers belong outside of the rate-limit layer, and which inside.
//! - [Without HTTP](engine): the engine, other services, tonic, and clocks for tests.
//! - [Promises](promises): what is exact, what is bounded, and what is never done.
//!
//! With all features, the doc tests compile the Rust code of all chapters.
//!
//! [Many machines]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html

#[doc = include_str!("concurrency.md")]
pub mod concurrency {}

#[doc = include_str!("engine.md")]
pub mod engine {}

#[doc = include_str!("floods.md")]
pub mod floods {}

// The code of this chapter needs the feature `axum`.
#[cfg_attr(any(feature = "axum", not(doctest)), doc = include_str!("keys.md"))]
pub mod keys {}

#[doc = include_str!("limits.md")]
pub mod limits {}

#[doc = include_str!("ordering.md")]
pub mod ordering {}

// The code of this chapter needs the feature `tracing`.
#[cfg_attr(any(feature = "tracing", not(doctest)), doc = include_str!("production.md"))]
pub mod production {}

#[doc = include_str!("promises.md")]
pub mod promises {}

#[doc = include_str!("proxy.md")]
pub mod proxy {}

#[doc = include_str!("queueing.md")]
pub mod queueing {}

#[doc = include_str!("responses.md")]
pub mod responses {}

#[doc = include_str!("rollout.md")]
pub mod rollout {}
