//! Joint calls find room for all their keys or charge none, and a flood that one limit denies takes no room.

use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::limiter::OnFull;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{Count, MAX_KEYS, assert_full, daily};
use crate::support::Now;

/// A flood from one /48 is stopped by the limit of the /48, and takes no room from other keys.
#[test]
fn joined_limits_of_a_64_and_a_48_withstand_a_flood_from_one_48() {
    type Address = (u64, u64);
    let clock = ManualClock::new();
    let subnets = RateLimiter::builder(FixedWindow::new(daily())).clock(clock.clone()).max_keys(MAX_KEYS);
    let sites = RateLimiter::builder(FixedWindow::new(Quota::per_day(20_000))).clock(clock.clone());
    let (subnets, sites) = (subnets.build(), sites.max_keys(MAX_KEYS).build());
    let layer = RateLimitLayer::with_limiter(from_fn(|address: &Address| Some(*address)), subnets.clone())
        .and(RateLimitLayer::with_limiter(from_fn(|address: &Address| Some(address.0)), sites.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(async |_: Address| Ok::<_, std::convert::Infallible>(())));
    let admitted = |address: Address| service.clone().call(address).now().is_ok();
    let mut honest = Count::default();
    for subnet in 0..65_536_u64 {
        let _ = admitted((1, subnet));
        if subnet % 65 == 0 {
            honest.add(admitted((1_000 + subnet, 0)));
        }
        assert!(subnets.len() <= MAX_KEYS && sites.len() <= MAX_KEYS);
    }
    honest.assert_below(0, "during the flood");
    let mut later = Count::default();
    (0..1_000).for_each(|site| later.add(admitted((100_000 + site, 0))));
    later.assert_below(0, "after the flood");
    // A call that the limit of the /48 denies evicts no key.
    assert!(subnets.stats().store.evicted <= 20_000 + honest.calls + later.calls - MAX_KEYS as u64 + 1);
    assert!(!admitted((1, 7)), "the limit of the /48 holds");
}

/// The keys of one call do not evict one another. If a call finds room for only some of its keys, no key is charged.
#[test]
fn joint_calls_find_room_for_all_their_keys_or_charge_none() {
    type Pair = (u64, u64);
    let clock = ManualClock::new();
    let rates = RateLimiter::builder(FixedWindow::new(Quota::per_day(5))).clock(clock.clone()).max_keys(2);
    let calls = RateLimiter::builder(Concurrency::per_key(1)).clock(clock.clone()).max_keys(1);
    let (rates, calls) = (rates.build(), calls.build());
    let rate = |which: fn(&Pair) -> u64| {
        RateLimitLayer::with_limiter(from_fn(move |pair: &Pair| Some(which(pair))), rates.clone())
    };
    let both = rate(|pair| pair.0).and(rate(|pair| pair.1)).responder(ErrorResponder);
    let service = both.layer(service_fn(async |_: Pair| Ok::<_, std::convert::Infallible>(())));
    for pair in [(1, 2), (3, 4), (3, 5), (6, 3), (3, 3)] {
        assert!(service.clone().call(pair).now().is_ok(), "{pair:?}");
        assert!(rates.len() <= 2);
    }
    assert_eq!(rates.peek(&3_u64).remaining(), 0, "it stayed in the table, and was charged five times");

    let limited = rate(|pair| pair.0)
        .and(RateLimitLayer::with_limiter(from_fn(|pair: &Pair| Some(pair.1)), calls.clone()))
        .responder(ErrorResponder);
    let service = limited.layer(service_fn(async |_: Pair| Ok::<_, std::convert::Infallible>(())));
    let permit = calls.try_acquire_permit(&7_u64).unwrap();
    match service.clone().call((8, 9)).now() {
        Err(tower_throttle::Error::Limited(denial)) => assert_full(&denial),
        other => panic!("{other:?}"),
    }
    assert_eq!(rates.peek(&8_u64).remaining(), 5, "nothing was charged");
    assert_eq!(calls.stats().calls.table_full, 1);
    drop(permit);
    assert!(service.clone().call((8, 9)).now().is_ok());
}

/// A call of cost 0 needs no room. Its settlement finds the room that there is by then, whether the call is joint or
/// not.
#[test]
fn a_call_of_cost_0_without_room_is_settled_when_there_is_room() {
    let limit = Quota::per_minute(5);
    for is_joint in [false, true] {
        let clock = ManualClock::new();
        let limiter = || RateLimiter::builder(FixedWindow::new(limit)).clock(clock.clone());
        let (rates, others) = (limiter().max_keys(1).on_full(OnFull::Reject).build(), limiter().build());
        let layer = |limiter: &RateLimiter<_>| {
            let layer = RateLimitLayer::with_limiter(from_fn(|key: &u32| Some(*key)), limiter.clone());
            layer.cost(|_: &u32| 0).settle(|actual: &u64| *actual)
        };
        assert!(rates.check(&1_u32).is_allowed());
        let work = service_fn(async |_: u32| {
            clock.advance(Duration::from_secs(60));
            Ok::<_, std::convert::Infallible>(3_u64)
        });
        let alone = layer(&rates);
        let answer = if is_joint {
            alone.and(layer(&others)).responder(ErrorResponder).layer(work).call(2).now()
        } else {
            alone.responder(ErrorResponder).layer(work).call(2).now()
        };
        assert!(matches!(answer, Ok(3)));
        assert_eq!(rates.peek(&2_u32).remaining(), 2, "joint: {is_joint}");
    }
}
