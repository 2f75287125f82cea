//! A call with a new key when the table is full, so that a key is evicted for it. The whole call is counted: the check,
//! the eviction, and the insertion of the key.

mod support;

use std::net::IpAddr;

use support::checks::keys;
use support::clock::Steps;
use support::{Case, counted, program};
use tower_throttle_instructions::algorithm::FixedWindow;
use tower_throttle_instructions::{Quota, RateLimiter};

const LIMIT: u64 = 100;
/// The default of `max_keys`.
const TABLE: usize = 100_000;

fn main() {
    program(&[
        // Each shard adds its new keys to a count of the table, 48 at a time: 0.02 locked operations.
        Case::new("keys called once", |calls| count(1, calls)).at_most(1_560.0, 3.05),
        Case::new("half-used keys", |calls| count(LIMIT / 2, calls)).at_most(1_900.0, 3.05),
        Case::new("used-up keys", |calls| count(LIMIT, calls)).at_most(1_850.0, 4.05),
    ]);
}

/// Counts calls with new keys, each of which takes `cost` units. The table is full of keys that have used as many
/// units.
fn count(cost: u64, calls: usize) {
    let keys = keys(2 * TABLE + calls);
    let (before, new) = keys.split_at(2 * TABLE);
    let window = FixedWindow::new(Quota::per_minute(LIMIT));
    let limiter = RateLimiter::builder(window).clock(Steps::new()).max_keys(TABLE).build();
    walk(&limiter, before, cost);
    counted(|| walk(&limiter, new, cost));
    let stats = limiter.stats();
    assert_eq!(stats.calls.admitted, keys.len() as u64, "every key is new");
    assert_eq!(stats.store.evicted, (TABLE + calls) as u64, "every call of a full table evicts a key");
}

#[inline(never)]
fn walk(limiter: &RateLimiter<FixedWindow>, keys: &[IpAddr], cost: u64) {
    for key in keys {
        assert!(limiter.check_n(key, cost).is_allowed());
    }
}
