//! A call that is dropped at any poll is charged only if it was ready, and its release goes to the next waiter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tower::{Layer, Service};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Decision, ErrorResponder, RateLimitLayer, RateLimiter};

use super::{INTERVAL, MS, Slow, busy, thousand_a_second, waiting};
use crate::support::PolledByHand;

#[test]
fn an_acquire_dropped_at_any_poll_has_charged_nothing_unless_it_was_ready() {
    // Each step of the clock wakes the call.
    let run = |polls: usize| {
        let (limiter, clock) = busy();
        let mut call = PolledByHand::new(limiter.acquire(&()));
        let mut time = Duration::ZERO;
        for poll in 0..polls {
            if poll > 0 {
                clock.advance(MS * 10);
                time += MS * 10;
                assert!(call.alarm.rang());
            }
            call.poll();
        }
        let (polled, ready) = (call.polls, call.output.is_some());
        let mut behind = waiting(&limiter);
        call.abandon();
        // The call has used no slot, as if it had never been made.
        while !behind.run() {
            clock.advance(MS);
            time += MS;
        }
        (polled, ready, time)
    };
    let mut polls = 1;
    while !run(polls).1 {
        polls += 1;
    }
    assert_eq!(polls, 11);
    assert_eq!(run(polls), (polls, true, INTERVAL * 2));
    for before in 0..polls {
        assert_eq!(run(before), (before, false, INTERVAL));
    }
}

#[test]
fn a_response_dropped_at_any_poll_has_called_and_charged_both_or_neither() {
    let run = |polls: usize| {
        let (limiter, clock) = busy();
        let slow = Slow::default();
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
        let mut service = layer.layer(slow.clone());
        // The request joins the queue in `call`, before the first poll.
        let mut call = PolledByHand::new(service.call(()));
        let mut behind = waiting(&limiter);
        let mut time = Duration::ZERO;
        for poll in 0..polls {
            if !call.alarm.rang() {
                assert!(poll > 0);
                clock.advance(MS * 20);
                time += MS * 20;
                assert!(call.alarm.rang());
            }
            call.poll();
        }
        let (begun, ready) = (slow.begun.load(Ordering::SeqCst), call.output.is_some());
        call.abandon();
        while !behind.run() {
            clock.advance(MS);
            time += MS;
        }
        assert_eq!(slow.begun.load(Ordering::SeqCst), begun, "no other call began");
        assert_eq!(slow.ended.load(Ordering::SeqCst), usize::from(ready));
        (begun, ready, time)
    };
    let mut polls = 1;
    while !run(polls).1 {
        polls += 1;
    }
    // Five polls while the call is queued, one poll after its release, and three more polls until the service has
    // answered.
    assert_eq!(polls, 9);
    for before in 0..=polls {
        let called = before >= 6;
        let expected = (usize::from(called), before == polls, INTERVAL * (1 + u32::from(called)));
        assert_eq!(run(before), expected, "dropped after {before} polls");
    }
}

#[test]
fn an_unobserved_release_goes_to_the_next_waiter() {
    let (limiter, clock) = busy();
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    let mut third = waiting(&limiter);
    clock.advance(INTERVAL);
    // The poll of the second call finds that the scheduled time of the first call has come, and releases the first
    // call.
    assert!(!second.run());
    first.abandon();
    assert!(second.run(), "the slot belongs to the second one now");
    assert!(!third.run());
    clock.advance(INTERVAL);
    assert!(third.run());
}

#[test]
fn a_release_goes_back_although_others_were_denied_meanwhile() {
    type Other = fn(&RateLimiter<LeakyBucket>) -> Decision;
    let others: [(&str, Other); 4] = [
        ("nothing", |limiter| limiter.check_n(&(), 0)),
        ("a look", |limiter| limiter.peek(&())),
        ("a denied check", |limiter| limiter.check(&())),
        ("a call that waits and leaves", |limiter| {
            waiting(limiter).abandon();
            limiter.peek(&())
        }),
    ];
    for (what, other) in others {
        let (limiter, clock) = busy();
        let mut call = waiting(&limiter);
        clock.advance(INTERVAL);
        // Any call for the key releases the waiter whose scheduled time has come.
        let mut touch = PolledByHand::new(limiter.acquire_n(&(), 0));
        assert!(touch.poll());
        let _ = other(&limiter);
        call.abandon();
        // No other call for the key has been admitted meanwhile.
        assert!(limiter.check(&()).is_allowed(), "after {what}");
    }
}

#[test]
fn a_release_stays_charged_once_another_was_admitted() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(thousand_a_second()).clock(clock.clone()).build();
    assert!(limiter.check(&()).is_allowed());
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    clock.advance(MS * 2);
    assert!(second.run());
    first.abandon();
    assert_eq!(limiter.check(&()).retry_after(), Some(MS));
}
