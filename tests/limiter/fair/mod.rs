//! A shared total is fair to all callers: who is next, who is denied, what is reported, and how calls end.

mod basics;
mod ends;
mod reports;
mod shares;
mod simulation;

use std::time::Duration;

use tower_throttle::algorithm::Concurrency;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Denied, FairAcquire, FairLimiter, Permit};

use crate::support::{Now, PolledByHand, waits};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Returns a limiter with a clock of its own.
fn fair(algorithm: Concurrency) -> (FairLimiter, ManualClock) {
    let clock = ManualClock::new();
    (FairLimiter::builder(algorithm).clock(clock.clone()).build(), clock)
}

/// Takes a permit that is free.
#[track_caller]
fn taken(limiter: &FairLimiter, key: &str) -> Permit {
    limiter.try_acquire_permit(key).expect("a permit is free")
}

/// Starts a call that must wait.
#[track_caller]
fn queued(limiter: &FairLimiter, key: &str) -> PolledByHand<FairAcquire> {
    waits(limiter.acquire_permit(key))
}

/// Returns the permit of a call that was woken and admitted.
#[track_caller]
fn admitted(call: &mut PolledByHand<FairAcquire>) -> Permit {
    assert!(call.run(), "the call was admitted, and told so");
    call.output.take().unwrap().expect("it was admitted")
}

/// Returns the denial of a call that was woken and denied.
#[track_caller]
fn denied(call: &mut PolledByHand<FairAcquire>) -> Denied {
    assert!(call.run(), "the call was denied, and told so");
    call.output.take().unwrap().expect_err("it was denied")
}

/// Asserts that nothing is held and nobody waits.
#[track_caller]
fn is_unused(limiter: &FairLimiter) {
    let total = limiter.algorithm().limit_in_total().unwrap();
    assert_eq!(limiter.stats().store.waiting, 0, "calls that wait");
    let limit = limiter.algorithm().limit_per_key().min(total);
    assert_eq!(limiter.call("nobody else").peek().remaining(), limit, "free units");
    let whole = limiter.call("nobody else").cost(limit).acquire_permit().now();
    drop(whole.expect("all units are free"));
}
