//! The exactness suite: each algorithm, and the queue in front of it, against naive and exact models that
//! share no code with the crate.
//!
//! Two of these modules are worth a second run without overflow checks, for which this program is built
//! again: so it is one of its own.

mod boundaries;
mod models;
mod mutants;
mod oracle;
mod queue_arithmetic;
mod queueing;
mod sliding_window_strict;
mod smooth;
#[path = "../support/mod.rs"]
mod support;
