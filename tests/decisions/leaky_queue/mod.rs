//! The queue of a leaky bucket: the time of each release, and the decision that each call gets.

mod decisions;
mod release_times;
mod removed;

use std::time::Duration;

use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::{Decision, Quota, RateLimiter};

use crate::support::PolledByHand;

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);

fn ten_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10))
}

/// Returns the decision of `acquire`, if it is made at once.
fn now(limiter: &RateLimiter<LeakyBucket>, cost: u64) -> Option<Decision> {
    let mut call = PolledByHand::new(limiter.acquire_n("key", cost));
    call.poll();
    call.output
}
