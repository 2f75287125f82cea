//! The guide to limits that several machines share. The other chapters are in the [guide](tower_throttle::guide) of
//! tower-throttle.
//!
//! - [Many machines](many_machines): a limit in Redis, a share per machine, sticky routing; keys, deployments, outages,
//!   errors.
//! - [Exactness](exactness): what is exact, round trips, what is counted, and what is not promised.
//!
//! The doc tests compile the Rust code of the chapters.

// `rustdoc_links.md` has the links of the front page and of the chapters for rustdoc. Those for a repository's page are
// at the foot of each text.

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("exactness.md")]
pub mod exactness {}

#[doc = include_str!("rustdoc_links.md")]
#[doc = include_str!("many_machines.md")]
pub mod many_machines {}
