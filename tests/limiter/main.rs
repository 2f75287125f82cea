//! Limiters: admission, waiting and release, on one thread and on many. No sockets.

mod acquire;
mod call_counts;
mod cancel_safety;
mod concurrency_limit;
mod cooperative;
mod decision_tables;
mod flood;
mod idle_then_burst;
mod multi_key_threads;
mod one_queue;
mod panics;
mod priority;
mod refund;
mod release_and_total;
mod replace;
mod subtle;
#[path = "../support/mod.rs"]
mod support;
mod threads_exact;
mod tiered;
