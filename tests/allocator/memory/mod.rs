//! The key table. It is bounded, it is swept by the calls that use it, and it cannot be used to exceed a limit.

mod bytes;
mod places;

use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

const HOUR: Duration = Duration::from_secs(3_600);

fn limiter<A: Algorithm>(algorithm: A, max_keys: usize) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(algorithm).clock(clock.clone()).max_keys(max_keys).build(), clock)
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(5))
}

fn admitted<A: Algorithm>(limiter: &RateLimiter<A>, keys: impl Iterator<Item = u32>) -> usize {
    keys.filter(|key| limiter.check(key).is_allowed()).count()
}
