//! The exactness suite. It compares each algorithm, and the algorithm's queue, with naive and exact models, which share
//! no code with the crate.
//!
//! Two of these modules also run without overflow checks. The suite is built again for this run, so it is a program of
//! its own.

mod boundaries;
mod joint;
mod models;
mod mutants;
mod oracle;
mod queue_arithmetic;
mod queueing;
mod sliding_window_strict;
mod smooth;
#[path = "../support/mod.rs"]
mod support;
mod tuples;
