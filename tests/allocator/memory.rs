//! The key table. It is bounded, it is swept by the calls that use it, and it cannot be used to exceed a limit.

use std::time::Duration;

use allocation_counter::measure;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::store::OnFull;
use tower_throttle::{Quota, RateLimiter};

use crate::scale::scaled;

/// Returns the number of keys of a flood, for tables of 100,000 keys.
fn flood_size() -> u32 {
    scaled(3_000_000) as u32
}

const HOUR: Duration = Duration::from_secs(3_600);

fn limiter<A: Algorithm>(algorithm: A, max_keys: usize) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder(algorithm).clock(clock.clone()).max_keys(max_keys).build(), clock)
}

/// Returns the same limiter, with shared buckets for keys that find no place in the table.
fn sharing<A: Algorithm>(algorithm: A, max_keys: usize) -> (RateLimiter<A>, ManualClock) {
    let clock = ManualClock::new();
    let builder = RateLimiter::builder(algorithm).clock(clock.clone()).max_keys(max_keys);
    (builder.on_full(OnFull::ShareBuckets).build(), clock)
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(5))
}

fn admitted<A: Algorithm>(limiter: &RateLimiter<A>, keys: impl Iterator<Item = u32>) -> usize {
    keys.filter(|key| limiter.check(key).is_allowed()).count()
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
    flood(sharing(LeakyBucket::new(Quota::per_hour(5)), 100_000), 1);
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

/// Returns the live bytes per key of a full table.
fn bytes_per_key<A: Algorithm>(algorithm: A) -> i64 {
    let mut table = None;
    let bytes = held(|| {
        let (limiter, _) = limiter(algorithm, 200_000);
        assert_eq!(admitted(&limiter, 0..200_000), 200_000);
        table = Some(limiter);
    });
    assert_eq!(table.unwrap().len(), 200_000);
    bytes / 200_000
}

#[test]
fn a_full_table_takes_few_bytes_per_key() {
    assert!(bytes_per_key(bucket()) < 48);
    assert!(bytes_per_key(FixedWindow::new(Quota::per_hour(5))) < 48);
    assert!(bytes_per_key(SlidingWindow::new(Quota::per_hour(5))) <= 110);
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
fn a_flood_that_takes_nothing_is_not_kept() {
    let (limiter, _clock) = limiter(bucket(), 1_000);
    for key in 0..100_000_u32 {
        assert!(limiter.check_n(&key, 0).is_allowed());
        assert!(!limiter.check_n(&key, 6).is_allowed());
        assert!(limiter.peek(&key).is_allowed());
        assert!(limiter.is_empty());
    }
}

#[test]
fn new_keys_of_a_table_in_use_are_limited_together() {
    let (limiter, _clock) = sharing(bucket(), 10);
    assert_eq!(admitted(&limiter, 0..10), 10);
    let let_in = admitted(&limiter, 10..100_000);
    assert_eq!(let_in, 256 * 5, "each of 256 shared buckets lets in what one key may have");
    assert_eq!(limiter.len(), 10);
    assert_eq!(
        admitted(&limiter, (0..10).flat_map(|key| [key; 9])),
        10 * 4,
        "an earlier key has lost nothing"
    );
}

/// When there is room again, keys get buckets of their own. The units that a key used in a shared bucket still count.
#[test]
fn moving_out_of_a_shared_bucket_gives_no_second_budget() {
    for newcomer in 0..100_u32 {
        let (limiter, clock) = sharing(bucket(), 1);
        assert!(limiter.check("first").is_allowed());
        assert_eq!(admitted(&limiter, [newcomer; 9].into_iter()), 5);
        assert!(!limiter.peek(&newcomer).is_allowed());
        // The first key is now fresh, so it can be removed to make room. One unit is available again.
        clock.advance(HOUR / 5);
        assert_eq!(admitted(&limiter, [newcomer; 9].into_iter()), 1);
        assert_eq!(limiter.len(), 1, "it has a place of its own now");
    }
}

#[test]
fn part_of_a_budget_used_in_a_shared_bucket_stays_used() {
    let (limiter, clock) = sharing(bucket(), 1);
    let _ = limiter.check("first");
    assert_eq!(limiter.check_n("newcomer", 3).remaining(), 2);
    limiter.reset("first");
    assert_eq!(limiter.check("newcomer").remaining(), 1);
    clock.advance(HOUR);
    assert_eq!(limiter.check("newcomer").remaining(), 4);
}

#[test]
fn idle_keys_make_room_for_new_ones() {
    let (limiter, clock) = limiter(bucket(), 10_000);
    assert_eq!(admitted(&limiter, 0..10_000), 10_000);
    clock.advance(HOUR);
    assert_eq!(limiter.len(), 10_000, "nothing is cleaned without calls");
    let newcomers = (10_000..20_000_u32).flat_map(|key| [key; 5]);
    assert_eq!(admitted(&limiter, newcomers), 50_000, "each has a place and a budget of its own");
    assert_eq!(limiter.len(), 10_000);
}

/// Asserts that `new` calls with new keys remove all of `old` idle keys from a table of at most `max_keys`.
fn assert_swept(max_keys: usize, old: u32, new: u32) {
    let (limiter, clock) = limiter(bucket(), max_keys);
    assert_eq!(admitted(&limiter, 0..old), old as usize);
    clock.advance(HOUR);
    assert_eq!(admitted(&limiter, old..old + new), new as usize);
    assert_eq!(limiter.len(), new as usize, "{old} old keys, {new} new keys");
}

#[test]
fn as_many_new_keys_remove_all_idle_keys_of_a_shard() {
    // A table of at most 127 keys has one shard. Slots are examined for up to 16 new keys together, so up to 15 new
    // keys have not caused a sweep yet.
    for old in 1..=55 {
        assert_swept(127, old, old + 16);
    }
}

#[test]
fn twice_as_many_new_keys_remove_all_idle_keys() {
    // Keys are distributed over the shards at random, so a shard may get fewer new keys than it has old ones. With
    // 10,000 new keys, one of 67 shards keeps a few old ones in about one run of a hundred.
    assert_swept(100_000, 10_000, 20_000);
}

#[test]
fn keys_in_use_among_idle_ones_are_kept() {
    let (limiter, clock) = sharing(bucket(), 1_000);
    assert_eq!(admitted(&limiter, 0..900), 900);
    clock.advance(HOUR);
    let busy = || (900..1_000_u32).flat_map(|key| [key; 9]);
    assert_eq!(admitted(&limiter, busy()), 500);
    assert_eq!(admitted(&limiter, 1_000..100_000), 900 + 1_024 * 5);
    assert_eq!(admitted(&limiter, busy()), 0);
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
fn a_key_that_is_reset_is_fresh_and_takes_no_slot() {
    let (limiter, _clock) = limiter(bucket(), 10);
    assert!(limiter.check_n("a", 5).is_allowed() && limiter.check("b").is_allowed());
    assert_eq!(limiter.len(), 2);
    limiter.reset("a");
    assert_eq!(limiter.len(), 1);
    assert_eq!(limiter.peek("a").remaining(), 5);
    limiter.reset("a");
    limiter.reset("never seen");
    assert_eq!(limiter.len(), 1);
    assert!(limiter.check_n("a", 5).is_allowed());
    assert_eq!(limiter.check("b").remaining(), 3, "the other key is as it was");
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

/// The table may remove a fresh key, because this changes no decision. It changes none even when the clock steps back.
#[test]
fn evicting_a_key_gives_nothing_extra_when_the_clock_steps_back() {
    for strangers in [0, 2] {
        let quota = Quota::per(10, Duration::from_secs(10)).unwrap();
        let (limiter, clock) = limiter(TokenBucket::new(quota), 100);
        assert!(limiter.check_n("key", 10).is_allowed());
        clock.set(Duration::from_secs(10));
        assert_eq!(limiter.check_n("key", 0).remaining(), 10);
        // For each new key, the table examines old keys and removes those that are fresh.
        assert_eq!(admitted(&limiter, 0..strangers), strangers as usize);
        clock.set(Duration::from_secs(5));
        assert!(limiter.check_n("key", 10).is_allowed());
        clock.set(Duration::from_secs(10));
        let extra = limiter.check("key");
        assert!(!extra.is_allowed(), "10 and 10 in 10 s are all it may have, after {strangers} strangers");
    }
}

#[test]
fn a_table_of_zero_keys_has_a_slot_for_one() {
    let (limiter, _clock) = limiter(bucket(), 0);
    assert_eq!(admitted(&limiter, [1; 9].into_iter()), 5);
    assert_eq!(limiter.len(), 1);
}
