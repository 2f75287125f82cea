//! Limiters in long runs and on many threads: floods, waiting, cancellation and replacement. These tests use no
//! sockets.

mod call_counts;
mod cancel_safety;
mod concurrency_limit;
mod debt;
mod denials;
mod flood;
mod flood_gain;
mod idle_then_burst;
mod multi_key_threads;
mod not_polled;
mod operations;
mod priority;
mod replace;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod threads_exact;
