//! Cancel safety. A cancelled call is not charged, and all remaining waiters are woken.

mod at_any_poll;
mod many_threads;
mod wakers;
mod wakeups;

use std::time::Duration;

use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;
use tower_throttle::{Quota, RateLimiter};

use crate::support::{PolledByHand, limiter, waits};

const MS: Duration = Duration::from_millis(1);

const INTERVAL: Duration = Duration::from_millis(100);

/// Returns a limit of ten a second with a queue that is long enough.
fn bucket() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(1_000)
}

/// Returns a limit of a thousand a second, with which a stall of 5 ms makes five slots overdue. These slots are used at
/// once.
fn thousand_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(1_000)).queue(1_000)
}

fn manual() -> (RateLimiter<LeakyBucket>, ManualClock) {
    let clock = ManualClock::new();
    (limiter(bucket(), &clock), clock)
}

/// Returns a limiter whose first call has just been admitted, so that the next call is admitted in 100 ms.
fn busy() -> (RateLimiter<LeakyBucket>, ManualClock) {
    let (limiter, clock) = manual();
    assert!(limiter.check(&()).is_allowed());
    (limiter, clock)
}

fn waiting(limiter: &RateLimiter<LeakyBucket>) -> PolledByHand<Acquire<LeakyBucket>> {
    waits(limiter.acquire(&()))
}
