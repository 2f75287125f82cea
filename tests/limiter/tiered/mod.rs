//! A tier for each call. Whatever keys move to whatever tiers, used units stay used.

mod layers;
mod moves;
mod queues;

use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, LeakyBucket, Tiered};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

use crate::support::{limiter, waits};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn tiered<A: Algorithm + PartialEq>(algorithm: A) -> (RateLimiter<Tiered<A>>, ManualClock) {
    let clock = ManualClock::new();
    (limiter(Tiered::new(algorithm), &clock), clock)
}

/// Returns how many calls of cost 1 are admitted at one instant.
fn takes<A: Algorithm + PartialEq>(limiter: &RateLimiter<Tiered<A>>, rule: &A, key: &str) -> u64 {
    (0..).take_while(|_| limiter.call(key).tier(rule).check().is_allowed()).count() as u64
}

fn slow() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(2)).queue(3)
}

fn fast() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(20)).queue(50)
}
