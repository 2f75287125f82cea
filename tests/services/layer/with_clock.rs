//! A limiter whose clock is moved by a test.

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;

pub(crate) fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}
