//! A call for a key already known allocates nothing.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use allocation_counter::measure;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimiter};

fn allocates_nothing<A: Algorithm>(algorithm: A) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let new = measure(|| {
        assert!(limiter.check("user:42").is_allowed());
        assert!(limiter.check(&address).is_allowed());
        for key in 0..1_000 {
            assert!(limiter.check(&key).is_allowed());
        }
    });
    assert!(new.count_total > 0, "the counter counts: new keys need places");

    let (mut allowed, mut denied) = (0, 0);
    let known = measure(|| {
        for round in 0..10_000_u64 {
            for decision in [limiter.check("user:42"), limiter.check_n(&address, round % 5)] {
                match decision.is_allowed() {
                    true => allowed += 1,
                    false => denied += 1,
                }
            }
            clock.advance(Duration::from_micros(17 * (round % 97)));
        }
    });
    assert_eq!(known.count_total, 0, "{limiter:?}");
    assert!(allowed > 1_000 && denied > 1_000, "{allowed} allowed, {denied} denied: {limiter:?}");
}

#[test]
fn a_check_of_a_known_key_allocates_nothing() {
    let quota = Quota::per(3, Duration::from_millis(7)).unwrap();
    allocates_nothing(TokenBucket::new(quota));
    allocates_nothing(FixedWindow::new(quota));
    allocates_nothing(FixedWindow::new(quota).aligned());
    allocates_nothing(SlidingWindow::new(quota));
    allocates_nothing(LeakyBucket::new(quota));
}

#[test]
fn a_check_on_the_default_clock_allocates_nothing() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(2)));
    assert!(limiter.check("user:42").is_allowed());
    let mut denied = 0;
    let known = measure(|| {
        for _ in 0..1_000 {
            denied += u32::from(!limiter.check("user:42").is_allowed());
        }
    });
    assert_eq!((known.count_total, denied), (0, 999));
}

#[test]
fn a_newcomer_to_a_full_table_allocates_nothing_once_its_bucket_is_there() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_hour(2));
    let limiter = RateLimiter::builder(bucket).clock(clock).max_keys(10).build();
    let mut admitted = 0;
    let mut flood = || {
        for key in 0..10_000 {
            admitted += u32::from(limiter.check(&key).is_allowed());
        }
    };
    flood();
    assert_eq!(measure(flood).count_total, 0);
    assert!(admitted > 0);
}
