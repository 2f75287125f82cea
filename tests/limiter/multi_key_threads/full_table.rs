//! With a full table, joint calls of keys that share buckets, or that find no place, exceed no limit.

use std::time::Duration;

use tower::{Layer, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::limiter::OnFull;
use tower_throttle::{ErrorResponder, RateLimitLayer, RateLimiter};

use super::{Key, Keys, Ledger, at_once, both, frozen, hourly, key, passes, watched};
use crate::support::{Random, scaled};

/// Returns a limiter whose table has only one place, which is taken, and pairs of keys that share a bucket.
fn crowded<A: Algorithm>(algorithm: A, groups: usize) -> (RateLimiter<A>, Vec<[u64; 2]>) {
    let builder = RateLimiter::builder(algorithm).clock(ManualClock::new()).max_keys(1);
    let limiter = builder.on_full(OnFull::ShareBuckets).build();
    assert!(limiter.check("the only place").is_allowed());
    let full = limiter.peek(&0_u64).remaining();
    let mut found: Vec<[u64; 2]> = Vec::new();
    for one in 0.. {
        if found.len() == groups {
            break;
        }
        if limiter.peek(&one).remaining() < full {
            continue;
        }
        assert!(limiter.check(&one).is_allowed());
        if let Some(other) = (one + 1..one + 5_000).find(|other| {
            limiter.peek(other).remaining() < full
                && !found.iter().any(|[one, _]| same(&limiter, *one, *other))
        }) {
            found.push([one, other]);
        }
    }
    for [one, _] in &found {
        limiter.refund(one, 1);
    }
    assert!(found.iter().flatten().all(|key| limiter.peek(key).remaining() == full));
    (limiter, found)
}

/// Returns whether two keys without a place in the table share a bucket. If so, a charge of one key also counts for the
/// other.
fn same<A: Algorithm>(limiter: &RateLimiter<A>, one: u64, other: u64) -> bool {
    let before = limiter.peek(&other).remaining();
    assert!(limiter.check(&one).is_allowed());
    let after = limiter.peek(&other).remaining();
    limiter.refund(&one, 1);
    after < before
}

/// Both keys of a request share one bucket. The bucket is charged twice or not at all.
#[test]
fn two_keys_in_one_shared_bucket_are_charged_both_or_not_at_all() {
    let (limiter, groups) = crowded(FixedWindow::new(hourly(3)), 1);
    let [one, other] = groups[0];
    let mut service = both!(limiter, limiter);
    assert!(passes(&mut service, [one, other, 0]));
    assert_eq!(limiter.peek(&one).remaining(), 1);
    assert!(!passes(&mut service, [one, other, 0]), "one unit is left, and two are asked for");
    assert_eq!(limiter.peek(&one).remaining(), 1, "nothing was taken");
}

/// The table is full, and all keys share buckets. The totals of the buckets are exact as well.
#[test]
fn shared_buckets_are_exact_in_any_lock_order() {
    const LIMIT: u64 = 300;
    watched(|| {
        for seed in 0..10 {
            let (first, a) = crowded(FixedWindow::new(hourly(LIMIT)), 4);
            let (second, b) = crowded(TokenBucket::new(hourly(LIMIT)), 4);
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread);
                let (mut there, mut back) = (both!(first, second), both!(second, first));
                for _ in 0..1_000 {
                    let (one, two) = (random.below(4), random.below(4));
                    let (in_a, in_b) = (a[one as usize], b[two as usize]);
                    let (in_a, in_b) = (in_a[random.below(2) as usize], in_b[random.below(2) as usize]);
                    match thread % 2 {
                        0 if passes(&mut there, [in_a, in_b, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        1 if passes(&mut back, [in_b, in_a, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        _ => {}
                    }
                }
            });
            let left = |groups: &[[u64; 2]], of: &dyn Fn(u64) -> u64| -> Vec<[u64; 2]> {
                groups.iter().map(|group| group.map(of)).collect()
            };
            let due =
                |limiter| (0..4).map(|group| [LIMIT - ledger.used(limiter, group); 2]).collect::<Vec<_>>();
            assert_eq!(left(&a, &|key| first.peek(&key).remaining()), due('a'), "seed {seed}");
            assert_eq!(left(&b, &|key| second.peek(&key).remaining()), due('b'), "seed {seed}");
        }
    });
}

/// Keys are added to a table that is nearly full, and evicted from it. No key exceeds twice the limit, all calls end,
/// and no place in the table is lost.
#[test]
fn a_table_that_overflows_lets_no_key_exceed_a_limit() {
    const LIMIT: u64 = 12;
    watched(|| {
        for (seed, max_keys) in (0..).zip([1, 2, 3, 7, 64, 100]) {
            let clock = ManualClock::new();
            let build = || {
                RateLimiter::builder(TokenBucket::new(hourly(LIMIT)))
                    .clock(clock.clone())
                    .max_keys(max_keys)
                    .on_full(OnFull::ShareBuckets)
            };
            let (first, second) = (build().build(), build().build());
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread);
                let (mut there, mut back) = (both!(first, second), both!(second, first));
                let mut twice = both!(first, first);
                for _ in 0..scaled(10_000) {
                    let (one, two) = (random.below(120), random.below(120));
                    match random.below(3) {
                        0 if passes(&mut there, [one, two, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        1 if passes(&mut back, [two, one, 0]) => ledger.note(&[('a', one), ('b', two)]),
                        2 if passes(&mut twice, [one, two, 0]) => ledger.note(&[('a', one), ('a', two)]),
                        _ => {}
                    }
                }
            });
            for (limiter, name) in [(&first, 'a'), (&second, 'b')] {
                assert!(limiter.len() <= max_keys);
                for key in 0..120 {
                    assert!(ledger.used(name, key) <= LIMIT, "{max_keys} keys: {key} of {name} exceeds it");
                    let left = limiter.peek(&key).remaining();
                    assert!(
                        left <= LIMIT - ledger.used(name, key),
                        "{max_keys} keys: {key} of {name}: {left} left"
                    );
                }
            }
            // All units are available again, and all places in the table are free.
            clock.advance(Duration::from_secs(7_200));
            for key in 1_000..3_000_u64 {
                let _ = first.check_n(&key, 0);
                let _ = second.check_n(&key, 0);
            }
            assert_eq!((first.len(), second.len()), (0, 0), "{max_keys} keys: places were lost");
        }
    });
}

/// A denial charges nothing and takes no place in the table. So a flood of keys that another limit denies does not fill
/// the table.
#[test]
fn a_key_that_another_limit_denies_takes_no_slot() {
    let (first, second) = (frozen(TokenBucket::new(hourly(5)), 3), frozen(FixedWindow::new(hourly(1)), 3));
    let mut service = both!(first, second);
    assert!(passes(&mut service, [0, 0, 0]));
    for key in 1..1_000 {
        assert!(!passes(&mut service, [key, 0, 0]));
        assert_eq!((first.len(), second.len()), (1, 1), "{key}");
    }
    // So the table has room for other keys.
    assert!(passes(&mut service, [1, 1, 0]) && passes(&mut service, [2, 2, 0]));
    assert_eq!((first.peek(&1_u64).remaining(), second.len()), (4, 3));
}
