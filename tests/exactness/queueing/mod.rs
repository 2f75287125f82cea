//! Queues of each algorithm, checked against a naive queue: when calls are admitted, which calls are denied, and what
//! each decision reports.

mod against_naive_queue;
mod cases;
mod counted_denials;
mod ends;
mod harness;
mod line;
mod naive_queue;
mod per_algorithm;
mod rules;
mod stall;

use std::time::Duration;

use tower_throttle::Quota;

const SECOND: u64 = 1_000_000_000;

fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn quota(limit: u64, period: u64) -> Quota {
    Quota::per(limit, ns(period)).unwrap()
}
