//! Places of idle keys are free for new keys, and no key gains units by leaving the table or entering it.

use std::time::Duration;

use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::OnFull;
use tower_throttle::{Quota, RateLimiter};

use super::{HOUR, admitted, bucket, limiter};

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
fn idle_keys_make_room_for_new_ones() {
    let (limiter, clock) = limiter(bucket(), 10_000);
    assert_eq!(admitted(&limiter, 0..10_000), 10_000);
    clock.advance(HOUR);
    assert_eq!(limiter.len(), 10_000, "no key is removed without calls");
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
    let clock = ManualClock::new();
    let builder = RateLimiter::builder(bucket()).clock(clock.clone()).max_keys(1_000);
    let limiter = builder.on_full(OnFull::Reject).build();
    assert_eq!(admitted(&limiter, 0..900), 900);
    clock.advance(HOUR);
    let busy = || (900..1_000_u32).flat_map(|key| [key; 9]);
    assert_eq!(admitted(&limiter, busy()), 500);
    assert_eq!(admitted(&limiter, 1_000..100_000), 900);
    assert_eq!(admitted(&limiter, busy()), 0);
}

#[test]
fn a_key_that_is_reset_is_fresh_and_takes_no_place() {
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

/// The table may remove a fresh key, because this changes no decision. It changes none even when the clock steps back.
#[test]
fn removing_a_key_gives_nothing_extra_when_the_clock_steps_back() {
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
fn a_table_of_zero_keys_has_a_place_for_one() {
    let (limiter, _clock) = limiter(bucket(), 0);
    assert_eq!(admitted(&limiter, [1; 9].into_iter()), 5);
    assert_eq!(limiter.len(), 1);
}
