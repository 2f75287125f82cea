//! Tests that a call for a key that is already known allocates nothing.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use allocation_counter::measure;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{ClientIp, KeyExtractor, PeerIp, TrustedProxies};
use tower_throttle::limiter::OnFull;
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

/// The first of the calls allocates, if the counts of the key do not fit into its slot.
#[test]
fn a_check_of_a_known_key_with_large_counts_allocates_once() {
    fn allocations<A: Algorithm>(algorithm: A, used: u64) -> u64 {
        let limiter = RateLimiter::builder(algorithm).clock(ManualClock::new()).build();
        assert!(limiter.check("key").is_allowed());
        let calls = measure(|| {
            assert!(limiter.check_n("key", used).is_allowed());
            for _ in 0..1_000 {
                assert!(limiter.check("key").is_allowed());
                assert!(!limiter.check_n("key", u64::MAX).is_allowed());
                assert!(limiter.peek("key").is_allowed());
            }
        });
        calls.count_total
    }
    let quota = Quota::per_day(1_000_000_000);
    assert_eq!(allocations(SlidingWindow::new(quota), 1_000), 0);
    assert_eq!(allocations(SlidingWindow::new(quota), 100_000), 1);
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
fn a_new_key_of_a_full_table_allocates_nothing() {
    for on_full in [OnFull::EvictLeastUsed, OnFull::Reject] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_hour(2));
        let limiter = RateLimiter::builder(bucket).clock(clock).max_keys(10).on_full(on_full).build();
        let mut admitted = 0;
        let mut flood = || {
            for key in 0..10_000 {
                admitted += u32::from(limiter.check(&key).is_allowed());
            }
        };
        flood();
        assert_eq!(measure(flood).count_total, 0, "{on_full:?}");
        assert!(admitted > 0);
    }
}

#[test]
fn an_address_from_a_header_allocates_nothing() {
    let cidrs = || TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"]).unwrap();
    let long = format!("{}203.0.113.7, 10.0.0.2", "6.6.6.6, ".repeat(10_000));
    let all_trusted = "10.0.0.1,".repeat(10_000) + "10.0.0.2";
    let elements = "for=6.6.6.6;by=\"[::1]\", ".repeat(5_000) + "for=\"203.0.113.7:80\"";
    for (client, name, lines) in [
        (ClientIp::x_forwarded_for(cidrs()), "x-forwarded-for", &["203.0.113.7"][..]),
        (ClientIp::x_forwarded_for(cidrs()), "x-forwarded-for", &["6.6.6.6", "2001:db8::1, [fd00::1]:80"]),
        (ClientIp::x_forwarded_for(cidrs()), "x-forwarded-for", &[&long]),
        (ClientIp::x_forwarded_for(cidrs()), "x-forwarded-for", &[&all_trusted]),
        (ClientIp::x_forwarded_for(cidrs()), "x-forwarded-for", &["unknown"]),
        (ClientIp::x_forwarded_for(TrustedProxies::hops(2).unwrap()), "x-forwarded-for", &[&long]),
        (ClientIp::forwarded(cidrs()), "forwarded", &[&elements]),
        (ClientIp::forwarded(cidrs()), "forwarded", &["for=\"\\203.0.113.7\";proto=https"]),
        (ClientIp::header("x-real-ip").unwrap(), "x-real-ip", &["203.0.113.7"]),
        (ClientIp::cloudfront(), "cloudfront-viewer-address", &["2001:db8::1:443"]),
    ] {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(IpAddr::from([10, 0, 0, 1]));
        for line in lines {
            request.headers_mut().append(name, line.parse().unwrap());
        }
        let found = client.resolve(&request);
        let again = measure(|| assert_eq!(client.resolve(&request), found));
        assert_eq!(again.count_total, 0, "{client:?} {found:?}");
        let by_network = measure(|| assert_eq!(client.extract(&request).is_ok(), found.is_ok()));
        assert_eq!(by_network.count_total, 0, "{client:?} {found:?}");
    }
}

/// The first clone of a key allocates what all of its clones share.
#[test]
fn a_clone_of_a_key_allocates_nothing() {
    let (by_peer, by_client) = (PeerIp::new(), ClientIp::x_forwarded_for(TrustedProxies::loopback()));
    let _ = (by_peer.clone(), by_client.clone());
    let clones = measure(|| drop((by_peer.clone(), by_client.clone(), by_peer.clone().clone())));
    assert_eq!(clones.count_total, 0);
}
