//! The guide to limits that several machines share. The other chapters are in the [guide](tower_throttle::guide) of
//! tower-throttle.
//!
//! - [Many machines](many_machines): a limit in Redis, a share per machine, sticky routing; keys, deployments, outages,
//!   errors.
//! - [Exactness](exactness): what is exact, round trips, what is counted, and what is not promised.
//!
//! The doc tests compile the Rust code of the chapters.

#[doc = include_str!("exactness.md")]
pub mod exactness {}

#[doc = include_str!("many_machines.md")]
#[cfg_attr(
    doc,
    doc = "## A picture of an outage\n\nHere, 500 machines get one and a half times the calls that the limit admits, 100 per second, and Redis or the token server stops for five seconds: the grey band. The picture shows how many calls are admitted in each second. By default, calls are rejected meanwhile; [you can choose otherwise](#when-redis-is-slow-or-fails).\n\n"
)]
#[cfg_attr(doc, doc = include_str!("pictures/many_machines.svg"))]
pub mod many_machines {}
