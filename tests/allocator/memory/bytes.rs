//! The key table takes few bytes per key, and a flood of keys does not make it grow.

use allocation_counter::measure;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

use super::{HOUR, admitted, bucket, limiter};
use crate::scale::scaled;

/// Returns the number of keys of a flood, for tables of 100,000 keys.
fn flood_size() -> u32 {
    scaled(3_000_000) as u32
}

/// Returns the bytes that are still held after `work`.
fn held(work: impl FnOnce()) -> i64 {
    measure(work).bytes_current
}

fn flood<A: Algorithm>((limiter, clock): (RateLimiter<A>, ManualClock), capacity: u64) {
    for _ in 0..capacity {
        assert!(limiter.check("honest").is_allowed());
    }
    let before = limiter.check("honest");
    assert!(!before.is_allowed());
    for key in 0..flood_size() {
        let _ = limiter.check(&key);
        assert!(limiter.len() <= 100_000);
    }
    assert_eq!(limiter.len(), 100_000, "a flood of keys in use fills the table");
    assert_eq!(limiter.check("honest"), before, "it is as limited as before the flood: {limiter:?}");
    clock.advance(before.retry_after().unwrap());
    assert!(limiter.check("honest").is_allowed());
}

#[test]
fn a_flood_neither_grows_the_table_nor_frees_a_limited_key() {
    flood(limiter(bucket(), 100_000), 5);
}

#[test]
fn the_same_holds_for_each_algorithm() {
    flood(limiter(FixedWindow::new(Quota::per_hour(5)), 100_000), 5);
    flood(limiter(SlidingWindow::new(Quota::per_hour(5)), 100_000), 5);
    // A leaky bucket admits one call at a time, so all keys are equally used, and no key is the least used one.
    let clock = ManualClock::new();
    let builder = RateLimiter::builder(LeakyBucket::new(Quota::per_hour(5))).clock(clock.clone());
    flood((builder.max_keys(100_000).on_full(OnFull::Reject).build(), clock), 1);
}

#[test]
fn a_flood_holds_no_more_bytes_than_the_documentation_says() {
    let (limiter, _clock) = limiter(bucket(), 100_000);
    let bytes = held(|| {
        for key in 0..flood_size() {
            let _ = limiter.check(&key);
        }
    });
    assert!(bytes <= 48 * 100_000, "{bytes} bytes for 100,000 keys");
    let more = held(|| {
        for key in flood_size()..2 * flood_size() {
            let _ = limiter.check(&key);
        }
    });
    assert_eq!(more, 0, "a second flood needs nothing more");
}

/// Returns the live bytes per key of a full table, after a call of `cost` for each key.
fn bytes_per_key<A: Algorithm>(algorithm: A, cost: u64) -> i64 {
    let mut table = None;
    let bytes = held(|| {
        let (limiter, _) = limiter(algorithm, 200_000);
        for key in 0..200_000 {
            assert!(limiter.check_n(&key, cost).is_allowed());
        }
        table = Some(limiter);
    });
    assert_eq!(table.unwrap().len(), 200_000);
    bytes / 200_000
}

#[test]
fn a_full_table_takes_few_bytes_per_key() {
    let few = Quota::per_hour(5);
    assert!(bytes_per_key(bucket(), 1) < 48);
    assert!(bytes_per_key(FixedWindow::new(few), 1) < 48);
    assert!(bytes_per_key(SlidingWindow::new(few), 1) <= 90);
}

/// The counts of a key that has used more than 65,535 units in a sliding window are in an allocation.
#[test]
fn a_key_with_large_counts_takes_more_bytes() {
    let window = || SlidingWindow::new(Quota::per_day(1_000_000));
    assert!(bytes_per_key(window(), 65_535) <= 90);
    assert!(bytes_per_key(window(), 65_536) <= 90 + 128);
}

#[test]
fn a_limiter_of_ten_keys_takes_less_than_64_kilobytes() {
    let mut table = None;
    let bytes = held(|| {
        let limiter = RateLimiter::new(bucket());
        assert_eq!(admitted(&limiter, 0..10), 10);
        table = Some(limiter);
    });
    assert_eq!(table.unwrap().len(), 10);
    assert!(bytes <= 64 * 1_024, "{bytes} bytes for 10 keys");
}

/// A call that makes a part of the table grow allocates the new part, and moves its keys.
#[test]
fn a_call_makes_at_most_one_small_part_of_the_table_grow() {
    let (limiter, _clock) = limiter(bucket(), 200_000);
    let most =
        (0..200_000_u32).map(|key| measure(|| _ = limiter.check(&key))).max_by_key(|call| call.bytes_total);
    let most = most.unwrap();
    assert_eq!((most.count_total, most.bytes_total), (1, 2_048 * 32), "a shard of 2,048 slots");
}

#[test]
fn a_key_of_a_megabyte_takes_as_much_as_a_number() {
    let (limiter, _clock) = limiter(bucket(), 100_000);
    let mut key = "x".repeat(1 << 20);
    let bytes = measure(|| {
        let _ = limiter.check(key.as_str());
    });
    assert!(bytes.bytes_total < 4_096, "{bytes:?}");
    assert_eq!(limiter.check_n(key.as_str(), 4).remaining(), 0);
    assert!(!limiter.check(key.as_str()).is_allowed());
    key.pop();
    key.push('y');
    assert!(limiter.check(key.as_str()).is_allowed(), "its last byte tells it from another");
}

#[test]
fn repeated_reset_of_one_key_does_not_grow() {
    let (limiter, _clock) = limiter(bucket(), 1_000);
    assert_eq!(admitted(&limiter, 0..500), 500);
    let again = || {
        for _ in 0..100_000 {
            assert!(limiter.check_n("key", 5).is_allowed());
            limiter.reset("key");
        }
    };
    let first = held(again);
    assert!(first < 150 * 1_000, "{first} bytes more");
    assert_eq!(held(again), 0);
    assert_eq!(limiter.len(), 500);
}

#[test]
fn keys_added_and_evicted_repeatedly_do_not_grow_the_table() {
    let (limiter, clock) = limiter(bucket(), 1_000);
    let mut key = 0_u32;
    let mut come_and_go = || {
        for _ in 0..100_000 {
            assert!(limiter.check(&key).is_allowed());
            key += 1;
            clock.advance(HOUR / 600);
        }
    };
    come_and_go();
    // One part of the table may still fill for the first time.
    let more = held(come_and_go);
    assert!(more < 16_384, "{more} bytes more for 100,000 keys gone");
    assert!(limiter.len() < 500);
}
