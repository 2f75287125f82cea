//! Calls get the right decisions with a full queue, after a reset, and with a clock that is set back.

use std::collections::VecDeque;
use std::time::Duration;

use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, Smooth, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Acquire, OnFull};
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{MS, NS, now, ten_a_second};
use crate::support::PolledByHand;

#[test]
fn a_call_that_would_wait_too_long_is_rejected_immediately() {
    let clock = ManualClock::new();
    let bucket = ten_a_second().queue(100).max_wait(MS * 250);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let mut first = PolledByHand::new(limiter.acquire("key"));
    assert!(first.poll());
    let first = first.output.unwrap();
    assert_eq!((first.limit(), first.remaining()), (1, 0));
    let mut waiting = [PolledByHand::new(limiter.acquire("key")), PolledByHand::new(limiter.acquire("key"))];
    assert!(waiting.iter_mut().all(|call| !call.poll()));
    let refused = now(&limiter, 1).unwrap();
    assert_eq!((refused.is_allowed(), refused.retry_after()), (false, Some(MS * 50)));
    clock.advance(MS * 50 - NS);
    assert_eq!(now(&limiter, 1).unwrap().retry_after(), Some(NS));
    clock.advance(NS);
    let mut waits = PolledByHand::new(limiter.acquire("key"));
    assert!(!waits.poll());
    // The clock advances step by step, so the schedule is not late.
    for _ in 0..4 {
        clock.advance(MS * 50);
        assert!(!waits.run());
    }
    clock.advance(MS * 50 - NS);
    assert!(!waits.run());
    clock.advance(NS);
    assert!(waits.run());
    assert_eq!(waits.output.unwrap().delay(), MS * 250);
}

/// A closed limiter and a full table report the limit that an open limiter with room would.
#[test]
fn a_denial_for_another_reason_reports_the_same_limit() {
    fn same<A: Algorithm>(algorithm: A) {
        let builder = RateLimiter::builder(algorithm).clock(ManualClock::new());
        let limiter = builder.max_keys(1).on_full(OnFull::Reject).build();
        let limit = limiter.peek("key").limit();
        let denied = (0..10_000_u64).map(|key| limiter.check(&key)).find(Decision::is_table_full).unwrap();
        assert_eq!(denied.limit(), limit, "{limiter:?}");
        limiter.close();
        let denied = limiter.check("key");
        assert_eq!((denied.is_closed(), denied.limit()), (true, limit), "{limiter:?}");
    }
    same(ten_a_second());
    same(Smooth::bursty(Quota::per_second(10)));
    same(TokenBucket::new(Quota::per_second(10).burst(3)).queue(5));
    same(FixedWindow::new(Quota::per_second(10)).priority(50));
}

#[test]
fn a_reset_releases_the_first_queued_call_and_the_others_follow_one_by_one() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(20)).clock(clock.clone()).build();
    assert!(now(&limiter, 1).unwrap().is_allowed());
    let mut queue: VecDeque<_> = (0..20).map(|_| PolledByHand::new(limiter.acquire("key"))).collect();
    assert!(queue.iter_mut().all(|call| !call.poll()));
    let mut leave = |at: &str| {
        assert!(queue.pop_front().unwrap().run(), "the first is late, {at}");
        assert!(queue.iter_mut().all(|call| !call.run()), "a call is early, {at}");
    };
    for _ in 0..4 {
        clock.advance(MS * 100);
        leave("before the reset");
    }
    clock.advance(MS * 50);
    limiter.reset("key");
    leave("with the reset");
    for _ in 0..15 {
        clock.advance(MS * 100);
        leave("after the reset");
    }
}

#[test]
fn a_clock_that_is_set_back_adds_at_most_a_period_to_any_wait() {
    for back in [MS, MS * 500, MS * 1_000, MS * 1_500, Duration::from_secs(50)] {
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(100));
        let limiter = RateLimiter::builder(ten_a_second().queue(5)).clock(clock.clone()).build();
        assert!(now(&limiter, 1).unwrap().is_allowed());
        let mut queue = [(); 4].map(|()| PolledByHand::new(limiter.acquire("key")));
        assert!(queue.iter_mut().all(|call| !call.poll()));
        clock.set(Duration::from_secs(100) - back);
        assert!(queue.iter_mut().all(|call| !call.run()), "stepping back by {back:?} admits no call");
        for (n, call) in (1..).zip(&mut queue) {
            let mut waited = Duration::ZERO;
            while !call.run() {
                clock.advance(MS);
                waited += MS;
                assert!(waited <= MS * 1_100, "{back:?} back: number {n} still waits");
            }
        }
        // Calls that arrive later do not wait longer, either.
        let mut next = PolledByHand::new(limiter.acquire("key"));
        let mut waited = Duration::ZERO;
        while !next.poll() {
            clock.advance(MS);
            waited += MS;
            assert!(waited <= MS * 1_100, "{back:?} back: the next call still waits");
        }
    }
}

#[test]
fn remaining_and_reset_are_true_for_an_admitted_call() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(ten_a_second().queue(3)).clock(clock.clone()).build();
    let mut waiting: Vec<PolledByHand<Acquire<LeakyBucket>>> = Vec::new();
    let first = now(&limiter, 1).unwrap();
    assert_eq!((first.remaining(), first.reset_after()), (0, MS * 100));
    for _ in 0..3 {
        let mut call = PolledByHand::new(limiter.acquire("key"));
        assert!(!call.poll());
        waiting.push(call);
    }
    clock.advance(MS * 100);
    assert!(waiting[0].run());
    let second = waiting[0].output.unwrap();
    // Two calls are queued. After 300 ms, the queue is empty.
    assert_eq!((second.remaining(), second.reset_after()), (0, MS * 300));
    for call in &mut waiting[1..] {
        clock.advance(MS * 100);
        assert!(call.run());
    }
    clock.advance(MS * 100);
    assert_eq!(now(&limiter, 0).unwrap().remaining(), 1);
    assert_eq!(limiter.peek("key").reset_after(), Duration::ZERO);
}
