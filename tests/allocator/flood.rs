//! Memory under a flood of keys. It does not grow, with any treatment of a full table.

use allocation_counter::measure;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

const MAX_KEYS: usize = 10_000;

/// Checks that live memory does not grow with the number of keys after the table has been full for a while.
fn stays_flat(keys: u64) {
    for on_full in [OnFull::EvictLeastUsed, OnFull::Reject] {
        let builder = RateLimiter::builder(FixedWindow::new(Quota::per_day(1_000))).clock(ManualClock::new());
        let limiter = builder.max_keys(MAX_KEYS).on_full(on_full).build();
        let mut key = 0;
        let mut flood = |keys| {
            let held = measure(|| {
                for _ in 0..keys {
                    key += 1;
                    let _ = limiter.check(&key);
                }
            });
            assert_eq!(limiter.len(), MAX_KEYS);
            held.bytes_current
        };
        let first = flood(200_000);
        assert!(first <= 2 * 120 * MAX_KEYS as i64, "{on_full:?}: {first} bytes");
        let more = flood(keys);
        // One part of the table may still fill for the first time.
        assert!(more <= 16_384, "{on_full:?}: {more} bytes more for {keys} keys");
    }
}

#[test]
fn live_memory_is_flat_over_three_hundred_thousand_keys() {
    stays_flat(300_000);
}

#[test]
#[ignore = "the full size: .ci/nightly runs it"]
fn live_memory_is_flat_over_ten_million_keys() {
    stays_flat(10_000_000);
}
