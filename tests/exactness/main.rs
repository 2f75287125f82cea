//! The exactness suite: each rule, and the line in front of it, against naive and exact models that know nothing of how the crate computes.
//!
//! Two of these are worth a second run without overflow checks, in which this program is built again: so it is one of its own.

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
