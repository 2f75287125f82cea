//! Calls of `check`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use tower_throttle_instructions::algorithm::Algorithm;
use tower_throttle_instructions::{Quota, RateLimiter};

use super::clock::Steps;
use super::counted;

/// A limit that is never used up.
pub const PLENTY: u64 = 3_500_000_000;
/// A limit that is used up at once. The interval between calls of such a quota per hour is not a whole number of
/// nanoseconds, which is the harder case.
pub const FEW: u64 = 7;

/// The number of keys of calls that are admitted.
const KEYS: usize = 100;
/// Enough room that no shard grows while calls are counted.
const MAX_KEYS: usize = 200_000;

/// A limiter that is counted.
pub trait Subject {
    /// Makes a call with `key`. Returns whether the call is admitted.
    fn check(&self, key: &IpAddr) -> bool;
}

impl<A: Algorithm> Subject for RateLimiter<A> {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        black_box(&RateLimiter::check(self, key)).is_allowed()
    }
}

/// Counts calls with a hundred keys in turn. All calls are admitted.
pub fn admitted(algorithm: impl Algorithm, calls: usize) {
    count_admitted(&limiter(algorithm), calls);
}

/// Counts calls with one key. All calls are denied, because the algorithm has a quota of [`few`].
pub fn denied(algorithm: impl Algorithm, calls: usize) {
    count_denied(&limiter(algorithm), calls);
}

fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(Steps::new()).max_keys(MAX_KEYS).build()
}

pub fn count_admitted(subject: &impl Subject, calls: usize) {
    let keys = keys(KEYS);
    walk(subject, &keys, 2 * KEYS);
    assert_eq!(counted(|| walk(subject, &keys, calls)), calls, "every call is admitted");
}

pub fn count_denied(subject: &impl Subject, calls: usize) {
    // A shard keeps the denial of only one key. With one key, most calls are denied without a lock.
    let keys = keys(1);
    walk(subject, &keys, 2 * FEW as usize);
    assert_eq!(counted(|| walk(subject, &keys, calls)), 0, "every call is denied");
}

/// Returns a quota that is used up by a few calls.
pub fn few() -> Quota {
    Quota::per_hour(FEW)
}

/// Makes `calls` calls with the keys in turn. Returns the number of admitted calls.
#[inline(never)]
fn walk(subject: &impl Subject, keys: &[IpAddr], calls: usize) -> usize {
    let (mut at, mut admitted) = (0, 0);
    for _ in 0..calls {
        admitted += usize::from(subject.check(&keys[at]));
        at = if at + 1 < keys.len() { at + 1 } else { 0 };
    }
    admitted
}

/// Returns `count` distinct addresses, in no particular order.
pub fn keys(count: usize) -> Vec<IpAddr> {
    // An odd factor makes this a permutation of all addresses.
    let address = |n: usize| Ipv4Addr::from_bits((n as u32).wrapping_mul(2_654_435_761).rotate_left(16));
    (0..count).map(|n| address(n).into()).collect()
}
