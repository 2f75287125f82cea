//! Single cases of waiting. Each test is for one promise.

mod admissions;
mod cancelled;
mod full_queues;
mod layers;

use std::time::Duration;

use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, RateLimiter};

use crate::support::PolledByHand;

const MS: Duration = Duration::from_millis(1);

fn on<A: Algorithm>(rule: A) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(rule).clock(clock.clone()).build(), clock)
}

fn few<A: Algorithm>(rule: A, max_queued: usize) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(rule).clock(clock.clone()).max_queued(max_queued).build(), clock)
}

fn call<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> PolledByHand<Acquire<A>> {
    let mut call = PolledByHand::new(limiter.acquire_n(key, cost));
    call.poll();
    call
}

fn waits<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> PolledByHand<Acquire<A>> {
    let call = call(limiter, key, cost);
    assert!(call.is_pending(), "{:?}", call.output);
    call
}

fn denied<A: Algorithm>(limiter: &RateLimiter<A>, key: &str, cost: u64) -> Decision {
    let decision = call(limiter, key, cost).output.expect("decided at once");
    assert!(!decision.is_allowed());
    decision
}

fn use_up<A: Algorithm>(limiter: &RateLimiter<A>, key: &str) {
    while limiter.check(key).is_allowed() {}
}
