//! Calls that end, and calls that are cancelled or displaced. The totals stay exact.
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{Concurrency, QueueOverflow, Tiered};
use tower_throttle::clock::ManualClock;

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The oldest waiter is displaced by a new call, unless the total has no room for the new call. However often such a
/// call is tried, the waiters keep their places and their order.
#[test]
fn the_waiters_keep_their_places_if_the_total_has_no_room_for_the_new_call() {
    let rule = Concurrency::per_key(10).total(13).queue(2).overflow(QueueOverflow::DropOldest);
    let limiter = RateLimiter::builder(rule).clock(ManualClock::new()).build();
    let ten = limiter.call("a").cost(10).permit().unwrap();
    let mut line = [(); 2].map(|()| Box::pin(limiter.acquire_permit("a")));
    assert!(line.iter_mut().all(|call| poll(call).is_pending()));
    for cost in [3, 4, 10, 3] {
        let mut newcomer = Box::pin(limiter.call("a").cost(cost).acquire_permit());
        let Poll::Ready(Err(denied)) = poll(&mut newcomer) else { panic!("10 + 1 + {cost} > 13") };
        assert!(denied.decision().is_queue_full());
        assert!(line.iter_mut().all(|call| poll(call).is_pending()), "a call of {cost} has taken a place");
    }
    let mut fits = Box::pin(limiter.call("a").cost(2).acquire_permit());
    assert!(poll(&mut fits).is_pending(), "10 + 1 + 2");
    assert!(matches!(poll(&mut line[0]), Poll::Ready(Err(_))) && poll(&mut line[1]).is_pending());
    drop(ten);
    assert!(
        matches!(poll(&mut line[1]), Poll::Ready(Ok(_))) && matches!(poll(&mut fits), Poll::Ready(Ok(_)))
    );
}

#[test]
fn a_call_that_may_not_wait_displaces_no_waiter() {
    let rule = |wait| Concurrency::per_key(1).queue(1).overflow(QueueOverflow::DropOldest).max_wait(wait);
    let limiter = RateLimiter::builder(rule(Duration::from_secs(9))).clock(ManualClock::new()).build();
    let _held = limiter.try_acquire_permit("a").unwrap();
    let mut oldest = Box::pin(limiter.acquire_permit("a"));
    assert!(poll(&mut oldest).is_pending());
    limiter.replace(rule(Duration::ZERO));
    let mut newcomer = Box::pin(limiter.acquire_permit("a"));
    assert!(poll(&mut newcomer).is_ready(), "it does not wait");
    assert!(poll(&mut oldest).is_pending(), "no call has taken its place");
}

/// What a call that has waited too long would have held is free when it is told so.
#[test]
fn a_call_that_is_denied_at_its_deadline_is_told_what_is_left_without_it() {
    let rule = Concurrency::per_key(3).total(5).queue(2).max_wait(Duration::from_secs(1));
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    let _held = [("a", 2), ("b", 1)].map(|(key, cost)| limiter.call(key).cost(cost).permit().unwrap());
    let mut late = Box::pin(limiter.call("a").cost(2).acquire_permit());
    assert!(poll(&mut late).is_pending());
    assert_eq!(limiter.peek("a").remaining(), 0, "the total is 5");
    clock.advance(Duration::from_secs(1));
    let Poll::Ready(Err(denied)) = poll(&mut late) else { panic!("its time is over") };
    assert_eq!((denied.decision().remaining(), limiter.peek("a").remaining()), (1, 1));
}

/// A call leaves the total of the tier with which it was made.
#[test]
fn a_call_with_a_tier_of_its_own_leaves_the_total_of_that_tier() {
    let paid = Concurrency::per_key(5).total(1);
    let limiter = RateLimiter::new(Tiered::new(Concurrency::per_key(5)));
    let first = limiter.call("a").tier(&paid).permit().unwrap();
    assert!(limiter.call("b").tier(&paid).permit().is_err(), "one is in progress");
    drop(first);
    let permit = limiter.call("b").tier(&paid).permit().expect("nothing is in progress");
    assert!(limiter.call("a").tier(&paid).permit().is_err());
    drop(permit);
    assert!(limiter.call("a").tier(&paid).permit().is_ok());
}

#[test]
fn a_permit_leaves_the_total_that_it_was_counted_in_though_the_algorithm_was_replaced() {
    let limiter = RateLimiter::new(Concurrency::per_key(5).total(5));
    let old = limiter.try_acquire_permit("a").unwrap();
    limiter.replace(Concurrency::per_key(5).total(1));
    let _new = limiter.try_acquire_permit("b").unwrap();
    drop(old);
    assert!(limiter.try_acquire_permit("c").is_err(), "one is in progress that counts in the new total");
}

/// If the clock steps back, a wait becomes longer by at most one period. This algorithm has no period, so the wait does
/// not become longer.
#[test]
fn a_clock_that_steps_back_does_not_prolong_max_wait() {
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(3_600));
    let rule = Concurrency::per_key(1).max_wait(Duration::from_secs(1));
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
    let _held = limiter.try_acquire_permit("a").unwrap();
    let mut waiting = Box::pin(limiter.acquire_permit("a"));
    assert!(poll(&mut waiting).is_pending());
    clock.set(Duration::ZERO);
    assert!(poll(&mut waiting).is_pending());
    clock.set(Duration::from_secs(2));
    assert!(poll(&mut waiting).is_ready(), "it has waited two seconds, and may wait one");
}
