//! What an algorithm or a queue reports of a call is true: it is compared with later calls, on a copy of the state or
//! in a replay. No quota, no cost and no clock makes a report impossible.

mod algorithms;
mod extremes;
mod lockout;
mod queues;

use std::time::Duration;

use tower_throttle::algorithm::*;
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::support::{PolledByHand, Random, effective_window, limiter, scaled};

/// The number of seeds of a random test.
const SEEDS: u64 = 10_000;

const UNIT: u64 = 1_000;

fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}

fn quota(r: &mut Random) -> Quota {
    let limit = r.within(1..=6);
    let period = r.one_of(&[1, 3, 7, 10, 100]) * r.one_of(&[1, 10, UNIT]);
    Quota::per(limit, Duration::from_nanos(period.max(2))).unwrap().burst(r.within(1..=6))
}

fn block<A: Algorithm>(rule: A, r: &mut Random) -> Lockout<A> {
    let rule = Algorithm::block_for(rule, Duration::from_nanos(r.one_of(&[1, 5, 50, 500, 20 * UNIT])))
        .after(r.within(1..=4));
    if r.one_in(3) { rule.extend_on_retry() } else { rule }
}

/// The method that makes a call with priority. It is [`RateLimiter::acquire_n`] if the algorithm has no priority.
type WithPriority<A> = fn(&RateLimiter<A>, &str, u64) -> Acquire<A>;

fn acquire_with_priority<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> Acquire<A> {
    limiter.call(key).cost(cost).priority().acquire()
}
