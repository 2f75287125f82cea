//! The exactness suite: each rule, and the line in front of it, against naive and exact models that know nothing of how the crate computes.
//!
//! Two of these are worth a second run without overflow checks, in which this program is built again: so it is one of its own.

mod extremes;
mod lines;
mod models;
mod oracle;
mod smooth;
mod strict;
#[path = "../support/mod.rs"]
mod support;
mod twins;
mod waiting;
