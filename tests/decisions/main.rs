//! Single decisions of a limiter, in short runs: admissions, waits, refunds and tiers.

mod acquire;
mod cooperative;
mod decision_tables;
mod denial_reasons;
mod leaky_queue;
mod most_in_a_period;
mod one_queue;
mod panics;
mod refund;
mod release_and_total;
#[path = "../support/mod.rs"]
mod support;
mod tiered;
