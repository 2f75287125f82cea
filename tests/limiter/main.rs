//! Limiters: single decisions, long runs, and many threads. These tests use no sockets.

mod acquire;
mod call_counts;
mod cancel_safety;
mod concurrency_limit;
mod cooperative;
mod debt;
mod decision_tables;
mod denial_reasons;
mod denials;
mod fair;
mod flood;
mod flood_gain;
mod idle_then_burst;
mod most_in_a_period;
mod multi_key_threads;
mod not_polled;
mod operations;
mod panics;
mod pause;
mod priority;
mod refund;
mod release_and_total;
mod replace;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod threads_exact;
mod tiered;
