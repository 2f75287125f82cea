//! The guide: how to set up limits, chapter by chapter.
//!
//! - [Recipes](recipes): whole pieces of code for sign-ins, plans, uploads, clients that limit themselves, jobs,
//!   webhooks, gRPC, WebSockets, GraphQL and SQL, limits from a file, a limit from a log, tests, and more.
//! - [Limits](limits): a decision tree, quotas, several limits at once, tiers, lockouts, priority.
//! - [Keys](keys): keys with examples, exemptions, deny lists, missing keys.
//! - [Behind a proxy](proxy): the client's address, when all connections come from a proxy.
//! - [Floods of keys](floods): what happens when the key table is full, and how to size it.
//! - [Responses](responses): what a rejected caller gets, how to change it, and how a handler gives the same answer.
//! - [Queueing](queueing): requests that wait instead of being rejected.
//! - [Concurrency limits](concurrency): limits of requests in progress, and of open WebSockets.
//! - [Costs that are known only at the end](costs): estimates, meters, debt; tokens, jobs, WebSockets.
//! - [Trying a limit](rollout): shadow mode, and costs that depend on the response.
//! - [Many machines], in the crate `tower-throttle-redis`: a limit in Redis, a share per machine, sticky routing; what is
//!   exact, and what is not.
//! - [In production](production): a checklist; counters, log events and metrics; what to watch and to alert on; the
//!   pager rang.
//! - [Ordering](ordering): which layers belong outside the rate-limit layer, and which inside.
//! - [Without HTTP](engine): the engine, other services, tonic, clocks for tests, and limiters of your own.
//! - [Troubleshooting](troubleshooting): why 500, why all callers get 429, or none.
//! - [Migration](migration): from tower_governor, axum-governor, governor, tower's own limits, nginx and
//!   express-rate-limit.
//! - [Compile errors](compile_errors): what the compiler says, and what to change.
//! - [Promises](promises): what is exact, what is bounded, and what is never done.
//! - [Threats](threats): what an attacker can and cannot do, and which test says so.
//! - [Glossary](glossary): the words of the guide.
//!
//! The Rust code of all chapters is compiled and run as doc tests.
//!
//! [Many machines]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html

// Of two definitions of a link, the first one counts: in `rustdoc_links.md`, links lead to items and chapters that
// rustdoc checks, and at the foot of a chapter to files, for a repository's page.

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("compile_errors.md"))]
pub mod compile_errors {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("concurrency.md"))]
pub mod concurrency {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("costs.md"))]
pub mod costs {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("engine.md"))]
pub mod engine {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("floods.md"))]
pub mod floods {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("glossary.md"))]
pub mod glossary {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("keys.md"))]
pub mod keys {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("limits.md"))]
pub mod limits {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("migration.md"))]
pub mod migration {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("ordering.md"))]
pub mod ordering {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("production.md"))]
pub mod production {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("promises.md"))]
pub mod promises {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("proxy.md"))]
pub mod proxy {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("queueing.md"))]
pub mod queueing {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("recipes.md"))]
pub mod recipes {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("responses.md"))]
pub mod responses {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("rollout.md"))]
pub mod rollout {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("threats.md"))]
pub mod threats {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("troubleshooting.md"))]
pub mod troubleshooting {}
