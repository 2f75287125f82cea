//! Closing a limiter answers its queued calls and new calls, and charges no joined limit.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::limiter::Attempt;
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer};

use super::{Now, assert_closed, limiter, quota, service};
use crate::support::PolledByHand;
use crate::support::calls::{Calls, InProgress, OfUnits, acquire};

fn limited(answer: Result<(), Error<Infallible>>) -> Decision {
    match answer {
        Err(Error::Limited(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

/// Checks that three queued calls are answered when a clone of the limiter is closed, and that new calls are answered,
/// too. The queued calls are made by `acquire`, by `acquire_permit`, and in a layer that queues.
fn answers_all<C: Calls>(rule: impl Algorithm, waits_in_a_layer: bool) {
    let clock = ManualClock::new();
    let limiter = limiter(rule.clone(), &clock);
    let held = limiter.try_acquire_permit("a").unwrap();
    let check = |key, cost| C::check(&limiter, key, cost).0;
    let acquire = |key, cost| acquire(&limiter, key, Attempt::new(cost));
    let mut acquired = PolledByHand::new(acquire("a", 1));
    let mut permit = PolledByHand::new(limiter.acquire_permit("a"));
    assert!(!acquired.poll() && !permit.poll(), "{rule:?}");
    let by_key = tower_throttle::key::from_fn(|(): &()| Some("a"));
    let mut service = service!(RateLimitLayer::with_limiter(by_key, limiter.clone()));
    let mut call = PolledByHand::new(service.call(()));
    assert_eq!(!call.poll(), waits_in_a_layer, "{rule:?}");
    assert_eq!(limiter.queued(), if waits_in_a_layer { 3 } else { 2 });

    limiter.clone().close();
    assert_eq!(limiter.queued(), 0);
    assert!(acquired.is_woken() && permit.is_woken(), "{rule:?}");
    assert!(acquired.run() && permit.run());
    assert_closed(&acquired.output.unwrap().0);
    assert_closed(permit.output.unwrap().unwrap_err().decision());
    if waits_in_a_layer {
        assert!(call.run());
        assert_closed(&limited(call.output.take().unwrap()));
    }
    for key in ["a", "b"] {
        assert_closed(&check(key, 1));
        assert_closed(&check(key, 9));
        assert_closed(&limiter.peek(key));
        assert_closed(&limiter.peek_n(key, u64::MAX));
        assert_closed(limiter.try_acquire_permit(key).unwrap_err().decision());
        assert_closed(&acquire(key, 1).now().0);
        assert_closed(&acquire(key, 7).now().0);
        assert_closed(limiter.acquire_permit(key).now().unwrap_err().decision());
        // A call of cost 0 is always admitted.
        assert!(check(key, 0).is_allowed() && limiter.peek_n(key, 0).is_allowed());
        assert!(acquire(key, 0).now().0.is_allowed());
    }
    assert_closed(&limited(service.call(()).now()));
    // The limiter stays closed as time passes, if its algorithm is replaced, and if it is closed again.
    limiter.close();
    clock.advance(Duration::from_secs(1_000_000));
    limiter.replace(rule.clone());
    limiter.reset("a");
    limiter.refund("a", 1);
    assert_closed(&check("a", 1));
    assert_closed(limiter.clone().acquire_permit("c").now().unwrap_err().decision());
    drop(held);
    assert_closed(&check("a", 1));
    assert_eq!(limiter.queued(), 0);
}

#[test]
fn queued_and_new_calls_are_answered_with_every_algorithm() {
    let leaky = || LeakyBucket::new(quota()).queue(9);
    let one = || Concurrency::per_key(1).total(9).queue(9);
    answers_all::<OfUnits>(leaky(), true);
    answers_all::<OfUnits>(Smooth::bursty(quota()).queue(9), true);
    answers_all::<OfUnits>(TokenBucket::new(quota()).queue(9), true);
    answers_all::<OfUnits>(FixedWindow::new(quota()).queue(9), true);
    answers_all::<OfUnits>(SlidingWindow::new(quota()).queue(9), true);
    answers_all::<OfUnits>(SlidingLog::new(quota()).queue(9), true);
    answers_all::<OfUnits>(SlidingCounter::new(quota()).queue(9), true);
    answers_all::<InProgress>(one(), true);
    answers_all::<InProgress>(one().max_wait(Duration::from_secs(1)), true);
    answers_all::<InProgress>((leaky(), one()), true);
    answers_all::<OfUnits>((TokenBucket::new(quota()).queue(9), FixedWindow::new(quota()).queue(9)), true);
    answers_all::<InProgress>((one(), TokenBucket::new(Quota::per_hour(50)).queue(9), one()), true);
    answers_all::<OfUnits>(Tiered::new(leaky()), true);
    answers_all::<InProgress>(one().block_for(Duration::from_secs(9)).after(500), true);
    answers_all::<InProgress>((leaky(), one()).block_for(Duration::from_secs(9)).after(500), true);
    // These algorithms do not queue calls in a layer. Only `acquire` queues calls.
    let patient = |limit| Quota::per_hour(limit).burst(2);
    let rule = TokenBucket::new(patient(2));
    let clock = ManualClock::new();
    let limiter = limiter(rule, &clock);
    assert!(limiter.check_n("a", 2).is_allowed());
    let mut waits = PolledByHand::new(limiter.acquire("a"));
    assert!(!waits.poll());
    limiter.close();
    assert!(waits.run());
    assert_closed(&waits.output.unwrap());
}

/// A call that waits in one of two queues is answered when either limiter is closed. The charge of the other limit is
/// refunded.
#[test]
fn a_call_rejected_on_close_has_charged_no_joined_limit() {
    for close_the_line in [true, false] {
        let clock = ManualClock::new();
        let line = limiter(LeakyBucket::new(quota()).queue(9), &clock);
        let bucket = limiter(TokenBucket::new(Quota::per_hour(5)), &clock);
        let one = limiter(Concurrency::per_key(3).total(3), &clock);
        let other = limiter(LeakyBucket::new(Quota::per_minute(1)).queue(9), &clock);
        let mut service = service!(
            RateLimitLayer::with_limiter(Global, bucket.clone())
                .and(RateLimitLayer::with_limiter(Global, line.clone()))
                .and(RateLimitLayer::with_limiter(Global, one.clone()))
                .and(RateLimitLayer::with_limiter(Global, other.clone()))
        );
        assert!(service.call(()).now().is_ok());
        let mut calls = [(); 2].map(|()| PolledByHand::new(service.call(())));
        calls.iter_mut().for_each(|call| assert!(!call.poll()));
        assert_eq!((bucket.peek(&()).remaining(), one.peek(&()).remaining()), (2, 1));
        if close_the_line {
            line.close();
        } else {
            other.close();
        }
        for call in &mut calls {
            assert!(call.run(), "it is answered");
            assert_closed(&limited(call.output.take().unwrap()));
        }
        assert_eq!((bucket.peek(&()).remaining(), one.peek(&()).remaining()), (4, 3));
        assert_eq!((line.queued(), other.queued()), (0, 0));
        // New calls are denied and charge no key, whatever the other limits would decide.
        assert_closed(&limited(service.call(()).now()));
        assert_eq!((bucket.peek(&()).remaining(), one.peek(&()).remaining()), (4, 3));
        let _all = [(); 3].map(|()| one.try_acquire_permit(&()).unwrap());
        assert_closed(&limited(service.call(()).now()));
        assert!(bucket.check_n(&(), 4).is_allowed());
        assert_closed(&limited(service.call(()).now()));
    }
}
