//! The guide to limits that several machines share. The other chapters are in the [guide](tower_throttle::guide) of
//! tower-throttle.
//!
//! - [Many machines](many_machines): a limit in Redis, a share per machine, sticky routing; what is exact, and what is
//!   not.
//!
//! The doc tests compile the Rust code of the chapter.

#[doc = include_str!("many_machines.md")]
#[cfg_attr(
    doc,
    doc = "## A picture of an outage\n\nIn the last case of [the comparison](#a-comparison), this is the number of calls that are admitted in each second:\n\n"
)]
#[cfg_attr(doc, doc = include_str!("pictures/many_machines.svg"))]
pub mod many_machines {}
