//! Threads that lock keys in opposite orders are charged exactly the units that each limit admits.

use std::sync::atomic::{AtomicU64, Ordering};

use tower::{Layer, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, RateLimitLayer};

use super::{Key, Keys, Ledger, at_once, both, frozen, hourly, key, passes, watched};
use crate::support::{Random, scaled};

fn tuples_are_exact<A: Algorithm, B: Algorithm>(pair: (A, B), due: u64) {
    for round in 0..200_u64 {
        let limiter = frozen(pair.clone(), 4);
        let spent = AtomicU64::new(0);
        at_once(|thread| {
            for cost in [1 + thread, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1] {
                if limiter.check_n(&round, cost).is_allowed() {
                    spent.fetch_add(cost, Ordering::Relaxed);
                }
            }
        });
        assert_eq!(spent.into_inner(), due, "round {round} of {pair:?}");
        assert_eq!(limiter.peek(&round).remaining(), 0);
    }
}

#[test]
fn threads_charging_a_tuple_get_what_its_smallest_limit_allows() {
    watched(|| {
        tuples_are_exact((TokenBucket::new(hourly(40)), FixedWindow::new(hourly(25))), 25);
        tuples_are_exact((SlidingWindow::new(hourly(17)), SlidingLog::new(hourly(30))), 17);
        tuples_are_exact((SlidingCounter::new(hourly(22)), TokenBucket::new(hourly(90).burst(19))), 19);
    });
}

/// Joins two limiters in both orders, with keys that cross, so that threads lock the keys in opposite orders.
fn crossing<A: Algorithm, B: Algorithm>(a: A, b: B, of_a: u64, of_b: u64) {
    const KEYS: u64 = 6;
    for seed in 0..scaled(30) {
        let (first, second) = (frozen(a.clone(), 1_000), frozen(b.clone(), 1_000));
        let ledger = Ledger::default();
        at_once(|thread| {
            let mut random = Random::new(seed * 100 + thread);
            let (mut there, mut back) = (both!(first, second), both!(second, first));
            for _ in 0..3_000 {
                let (one, two) = (random.below(KEYS), random.below(KEYS));
                match thread % 2 {
                    0 if passes(&mut there, [one, two, 0]) => ledger.note(&[('a', one), ('b', two)]),
                    1 if passes(&mut back, [two, one, 0]) => ledger.note(&[('a', one), ('b', two)]),
                    _ => {}
                }
            }
        });
        for key in 0..KEYS {
            let (in_a, in_b) = (ledger.used('a', key), ledger.used('b', key));
            assert_eq!(first.peek(&key).remaining(), of_a - in_a, "seed {seed}: {key} of {a:?}");
            assert_eq!(second.peek(&key).remaining(), of_b - in_b, "seed {seed}: {key} of {b:?}");
        }
        // No call was denied that both limiters would have admitted.
        let mut there = both!(first, second);
        for (one, two) in (0..KEYS).flat_map(|one| (0..KEYS).map(move |two| (one, two))) {
            assert!(!passes(&mut there, [one, two, 0]), "seed {seed}: {one} and {two} were left over");
        }
    }
}

#[test]
fn joined_limits_are_neither_exceeded_nor_undercharged_in_any_lock_order() {
    watched(|| {
        crossing(TokenBucket::new(hourly(40)), FixedWindow::new(hourly(31)), 40, 31);
        crossing(SlidingLog::new(hourly(23)), SlidingCounter::new(hourly(37)), 23, 37);
        crossing(SlidingWindow::new(hourly(29)), TokenBucket::new(hourly(5).burst(50)), 29, 50);
    });
}

/// One limiter is three times in a layer, with keys in any order. A key is charged as often as it occurs.
#[test]
fn one_limiter_several_times_in_a_layer_is_charged_for_each() {
    const KEYS: u64 = 5;
    const LIMIT: u64 = 200;
    watched(|| {
        for seed in 0..scaled(20) {
            let limiter = frozen(TokenBucket::new(hourly(LIMIT)), 1_000);
            let layer = RateLimitLayer::with_limiter(from_fn(key::<0> as Key<0>), limiter.clone())
                .and(RateLimitLayer::with_limiter(from_fn(key::<1> as Key<1>), limiter.clone()))
                .and(RateLimitLayer::with_limiter(from_fn(key::<2> as Key<2>), limiter.clone()))
                .responder(ErrorResponder);
            let ledger = Ledger::default();
            at_once(|thread| {
                let mut random = Random::new(seed * 100 + thread);
                let mut service = layer.layer(service_fn(async |_: Keys| Ok::<_, ()>(())));
                for _ in 0..2_000 {
                    let keys = [(); 3].map(|()| random.below(KEYS));
                    if passes(&mut service, keys) {
                        ledger.note(&keys.map(|key| ('a', key)));
                    }
                }
            });
            let left: Vec<_> = (0..KEYS).map(|key| LIMIT - ledger.used('a', key)).collect();
            let reported: Vec<_> = (0..KEYS).map(|key| limiter.peek(&key).remaining()).collect();
            assert_eq!(reported, left, "seed {seed}");
            assert!(left.iter().filter(|left| **left > 2).count() <= 1, "seed {seed}: {left:?} left over");
        }
    });
}

#[test]
fn a_layer_joined_with_its_clone_costs_two() {
    let limiter = frozen(FixedWindow::new(hourly(5)), 100);
    let layer = RateLimitLayer::with_limiter(from_fn(key::<0> as Key<0>), limiter.clone());
    let twice = layer.clone().and(layer).responder(ErrorResponder);
    let mut service = twice.layer(service_fn(async |_: Keys| Ok::<_, ()>(())));
    let passed: Vec<_> = (0..4).map(|_| passes(&mut service, [7, 0, 0])).collect();
    assert_eq!(passed, [true, true, false, false]);
    assert_eq!(limiter.peek(&7_u64).remaining(), 1);
}
