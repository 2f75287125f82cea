//! The difficult cases of a queue for any algorithm: several clocks, late waiters, the end of the clock, cancelled
//! calls, denials that count, totals, and tiers.

mod cancelled;
mod other_limits;
mod times;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::algorithm::*;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Decision, Quota, RateLimiter};

type Queued<A> = Pin<Box<Acquire<A>>>;

const MS: Duration = Duration::from_millis(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn on<A: Algorithm>(algorithm: A) -> (ManualClock, RateLimiter<A>) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).max_queued(20_000).build();
    (clock, limiter)
}

fn poll<A: Algorithm>(call: &mut Queued<A>) -> Option<Decision> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Some(decision),
        Poll::Pending => None,
    }
}

fn waits<A: Algorithm>(call: Acquire<A>) -> Queued<A> {
    let mut call = Box::pin(call);
    assert_eq!(poll(&mut call), None, "it should wait");
    call
}

fn per(limit: u64, period: Duration) -> Quota {
    Quota::per(limit, period).unwrap()
}
