//! A limiter counts each call of a key by its outcome, when the outcome is known.

use std::hash::Hash;
use std::time::Duration;

use tower_throttle::algorithm::{Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::OnClose;
use tower_throttle::limiter::OnFull;
use tower_throttle::stats::CallStats;
use tower_throttle::{Quota, RateLimiter};

use super::{counted, frozen, hourly};
use crate::support::PolledByHand;

#[test]
fn checks_and_permits_count_and_peeks_do_not() {
    let limiter = frozen(TokenBucket::new(hourly(2)));
    assert_eq!(counted(&limiter), "");
    let _ = (limiter.check("a"), limiter.peek("a"), limiter.check_n("a", 1), limiter.check("a"));
    assert_eq!(counted(&limiter), "2 admitted, 1 denied");
    // A cost of 0 is always allowed, and a cost above the limit never.
    let _ = (limiter.check_n("b", 0), limiter.check_n("b", 3));
    limiter.refund("a", 1);
    limiter.reset("a");
    assert_eq!(counted(&limiter), "3 admitted, 2 denied");
    let permits = frozen(Concurrency::per_key(1));
    let permit = permits.try_acquire_permit("a").unwrap();
    assert!(permits.try_acquire_permit("a").is_err());
    drop(permit);
    assert_eq!(counted(&permits), "1 admitted, 1 denied");
}

#[test]
fn a_queued_call_is_counted_when_it_joins_and_when_it_ends() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(2);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let mut calls = [(); 4].map(|()| PolledByHand::new(limiter.acquire("a")));
    let polled = calls.each_mut().map(PolledByHand::poll);
    assert_eq!(polled, [true, false, false, true]);
    assert_eq!(counted(&limiter), "1 admitted, 1 queue full, 2 queued");
    let [_, second, third, _] = calls;
    drop(second);
    assert_eq!(counted(&limiter), "1 admitted, 1 queue full, 1 cancelled, 2 queued");
    clock.advance(Duration::from_secs(1));
    // The call is admitted, but not counted yet, because its caller may still drop it.
    assert_eq!(limiter.stats().calls.admitted, 1);
    let mut third = third;
    assert!(third.poll());
    assert_eq!(counted(&limiter), "2 admitted, 1 queue full, 1 cancelled, 2 queued");
    assert_eq!(limiter.stats().calls.ended(), 4);
}

#[test]
fn an_admission_that_was_not_observed_is_counted_as_cancelled() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::builder(LeakyBucket::new(Quota::per_second(1)).queue(2)).clock(clock.clone()).build();
    let mut calls = [(); 2].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false]);
    clock.advance(Duration::from_secs(5));
    let _ = limiter.peek("a");
    drop(calls);
    assert_eq!(counted(&limiter), "1 admitted, 1 cancelled, 1 queued");
}

#[test]
fn a_full_total_counts_as_a_full_queue_and_a_wait_too_long_as_a_denial() {
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(9);
    let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).max_queued(1).build();
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, true]);
    let mut late = PolledByHand::new(limiter.call("a").max_wait(Duration::from_millis(1)).acquire());
    assert!(late.poll());
    assert_eq!(counted(&limiter), "1 admitted, 1 denied, 1 queue full, 1 queued");
}

#[test]
fn a_waiter_that_makes_room_for_a_newer_call_counts_as_a_full_queue() {
    use tower_throttle::algorithm::QueueOverflow;
    let bucket = TokenBucket::new(Quota::per_second(1).burst(1)).queue(1).overflow(QueueOverflow::DropOldest);
    let limiter = frozen(bucket);
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, false]);
    let [_, mut oldest, _newest] = calls;
    assert!(oldest.poll());
    assert_eq!(counted(&limiter), "1 admitted, 1 queue full, 2 queued");
}

#[test]
fn a_full_table_and_a_closed_limiter_are_counted() {
    let limiter = RateLimiter::builder(FixedWindow::new(hourly(5)))
        .clock(ManualClock::new())
        .max_keys(1)
        .on_full(OnFull::Reject)
        .build();
    let _ = (limiter.check("a"), limiter.check("b"), limiter.check("b"));
    assert_eq!(counted(&limiter), "1 admitted, 2 table full");
    let clone = limiter.clone();
    limiter.close();
    let _ = (clone.check("a"), clone.check("b"));
    assert_eq!(counted(&limiter), "1 admitted, 2 table full, 2 closed");
    let open = RateLimiter::builder(FixedWindow::new(hourly(1)))
        .clock(ManualClock::new())
        .on_close(OnClose::Allow)
        .build();
    open.close();
    let _ = (open.check("a"), open.check("a"));
    assert_eq!(counted(&open), "2 admitted");
}

#[test]
fn closing_a_limiter_counts_its_waiters_as_closed() {
    let limiter = frozen(LeakyBucket::new(hourly(1)).queue(2));
    let mut calls = [(); 3].map(|()| PolledByHand::new(limiter.acquire("a")));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, false]);
    limiter.close();
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true; 3]);
    assert_eq!(counted(&limiter), "1 admitted, 2 closed, 2 queued");
}

#[test]
fn a_replaced_algorithm_goes_on_counting() {
    let limiter = frozen(TokenBucket::new(hourly(1)));
    let _ = (limiter.check("a"), limiter.check("a"));
    limiter.replace(TokenBucket::new(hourly(3)));
    let _ = (limiter.check("a"), limiter.check("a"), limiter.check("a"));
    assert_eq!(counted(&limiter), "3 admitted, 2 denied");
}

/// The keys have different types, and the counts do not depend on the type.
#[test]
fn a_count_does_not_depend_on_the_type_of_the_key() {
    fn one(key: &(impl Hash + ?Sized)) -> CallStats {
        let limiter = frozen(TokenBucket::new(hourly(1)));
        let _ = limiter.check(key);
        limiter.stats().calls
    }
    assert_eq!(one("a"), one(&7_u64));
}
