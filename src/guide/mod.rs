//! The guide: how to set up limits, chapter by chapter.
//!
//! **Start**
//!
//! - [Limits](limits): a decision tree, quotas, algorithms, several limits at once, tiers, lockouts, priority.
//! - [Keys](keys): addresses, users, tokens; exemptions, deny lists, missing keys.
//! - [Servers and frameworks](servers): axum, tonic, hyper, and others.
//! - [Behind a proxy](proxy): the client's address, when all connections come from a proxy.
//! - [Recipes](recipes): sign-ins, plans, uploads, outbound clients, jobs, webhooks, gRPC, WebSockets, tests, and more.
//! - [Migration](migration): from tower_governor, axum-governor, governor, tower's own limits, nginx and
//!   express-rate-limit.
//!
//! **Operate**
//!
//! - [Trying a limit](rollout): shadow mode, a load test, costs that depend on the response.
//! - [In production](production): a checklist, counts, log events, metrics, alerts.
//! - [Many machines], in the crate `tower-throttle-redis`: a limit in Redis, a share per machine, sticky routing.
//! - [Troubleshooting](troubleshooting): why 500 or 503, why all callers get 429, or none; codes in the log.
//!
//! **Understand**
//!
//! - [Ordering](ordering): which layers belong outside a limit, and where its state lives.
//! - [Responses](responses): what a rejected caller gets, and how to change it.
//! - [Queueing](queueing): requests that wait instead of being rejected.
//! - [Concurrency](concurrency): requests in progress, and open WebSockets.
//! - [Costs that are known only at the end](costs): estimates, meters, debt; tokens, jobs, WebSockets.
//! - [Without HTTP](engine): limits in your own code, other services, clocks for tests, limiters of your own.
//!
//! **Reference**
//!
//! - [Promises](promises): what holds, what an attacker can and cannot do, and which test says so.
//! - [Floods of keys](floods): what happens when the key table is full, and how to size it.
//! - [Compile errors](compile_errors): what the compiler says, and what to change.
//! - [Design](design): how it works inside, which you need not know.
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
#[cfg_attr(not(doctest), doc = include_str!("design.md"))]
pub mod design {}

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
#[cfg_attr(not(doctest), doc = include_str!("servers.md"))]
pub mod servers {}

#[cfg_attr(not(doctest), doc = include_str!("rustdoc_links.md"))]
#[cfg_attr(not(doctest), doc = include_str!("troubleshooting.md"))]
pub mod troubleshooting {}
