//! A call is charged by all limits or by none, and a denial reports when all limits would admit it.

use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{INTERVAL, MS, answers, joined, limiter, passes, queue, waits};
use crate::support::PolledByHand;

#[test]
fn the_other_limit_is_charged_when_the_call_is_queued() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(3)), &clock));
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    // The request joins the queue in `call`, before any poll.
    let mut second = PolledByHand::new(service.call(()));
    assert_eq!(bucket.peek(&()).remaining(), 1);
    let mut third = waits(service.call(()));
    assert_eq!(bucket.peek(&()).remaining(), 0);
    // The queue would accept the call, but the bucket denies it.
    assert!(!passes(service.call(())));
    clock.advance(INTERVAL);
    assert!(second.run() && !third.run());
    clock.advance(INTERVAL);
    assert!(third.run());
    // The call is charged once, and not again when it is released.
    clock.advance(Duration::from_secs(1_200) - INTERVAL * 2);
    assert_eq!(bucket.peek(&()).remaining(), 1);
    assert_eq!(line.peek(&()).remaining(), 1);
}

#[test]
fn a_call_that_either_denies_is_charged_by_neither_and_not_queued() {
    let clock = ManualClock::new();
    let (line, bucket) = (limiter(queue(), &clock), limiter(TokenBucket::new(Quota::per_hour(2)), &clock));
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    let mut waiting = waits(service.call(()));
    for _ in 0..100 {
        assert!(!passes(service.call(())), "the bucket is empty");
    }
    clock.advance(INTERVAL);
    assert!(waiting.run());
    clock.advance(INTERVAL);
    assert!(line.check(&()).is_allowed(), "no other call was queued");

    let short = limiter(LeakyBucket::new(Quota::per_second(10)).queue(1), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(50)), &clock);
    // The queue is the second limit. The first limit is not charged either.
    let mut service = joined!(bucket, short);
    assert!(passes(service.call(())));
    let waiting = waits(service.call(()));
    for _ in 0..100 {
        assert!(!passes(service.call(())), "the queue is full");
    }
    assert_eq!(bucket.peek(&()).remaining(), 48);
    drop(waiting);
    assert_eq!(bucket.peek(&()).remaining(), 49);
}

#[test]
fn a_queue_longer_than_max_wait_charges_no_key() {
    let clock = ManualClock::new();
    let line = limiter(queue().max_wait(INTERVAL * 2), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(50)), &clock);
    let mut service = joined!(line, bucket);
    assert!(passes(service.call(())));
    let _line = [(); 2].map(|()| waits(service.call(())));
    let mut refused = PolledByHand::new(service.call(()));
    assert!(refused.poll());
    let Some(Err(Error::Limited(decision))) = refused.output else { panic!("it is refused") };
    assert_eq!(decision.retry_after(), Some(INTERVAL));
    assert_eq!(bucket.peek(&()).remaining(), 47);
}

/// A layer with a tuple queues calls only if each member of the tuple is configured to queue calls.
#[tokio::test(start_paused = true)]
async fn a_tuple_holds_requests_if_each_member_does() {
    let bucket = || TokenBucket::new(Quota::per_hour(5));
    let start = Instant::now();
    let mut refuses =
        RateLimitLayer::new(Global, (queue(), bucket())).responder(ErrorResponder).layer(answers());
    assert!(refuses.call(()).await.is_ok());
    let Err(Error::Limited(decision)) = refuses.call(()).await else { panic!("it waited") };
    assert_eq!((decision.retry_after(), decision.limit_index()), (Some(INTERVAL), 0));
    let tuple = (queue(), bucket().queue(3));
    let mut holds = RateLimitLayer::new(Global, tuple).responder(ErrorResponder).layer(answers());
    assert!(holds.call(()).await.is_ok() && start.elapsed().is_zero());
    assert!(holds.call(()).await.is_ok());
    assert_eq!(start.elapsed(), INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn a_cost_of_zero_does_not_wait_in_joined_queues() {
    let (line, bucket) = (RateLimiter::new(queue()), RateLimiter::new(TokenBucket::new(Quota::per_hour(1))));
    let free = |cost: u64| {
        RateLimitLayer::with_limiter(Global, line.clone())
            .cost(move |(): &()| cost)
            .and(RateLimitLayer::with_limiter(Global, bucket.clone()).cost(move |(): &()| cost))
            .responder(ErrorResponder)
            .layer(answers())
    };
    assert!(passes(free(1).call(())));
    let start = Instant::now();
    for _ in 0..100 {
        assert!(free(0).oneshot(()).await.is_ok());
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(!passes(free(1).call(())));
    assert!(!passes(free(u64::MAX).call(())));
}

#[test]
fn a_denial_reports_when_both_would_accept_it() {
    let clock = ManualClock::new();
    let line = limiter(LeakyBucket::new(Quota::per_second(10)).queue(1), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_second(4).burst(3)), &clock);
    let mut service = joined!(line, bucket);
    let refused = |service: &mut _| -> Option<Decision> {
        let mut call = PolledByHand::new(Service::call(service, ()));
        match call.poll() {
            true => match call.output.unwrap() {
                Err(Error::Limited(decision)) => Some(decision),
                _ => None,
            },
            false => {
                std::mem::forget(call);
                None
            }
        }
    };
    assert_eq!(refused(&mut service), None);
    assert_eq!(refused(&mut service), None);
    // The queue is full for 100 ms. The bucket has one more token.
    let wait = refused(&mut service).unwrap().retry_after().unwrap();
    assert_eq!(wait, INTERVAL);
    clock.advance(wait - Duration::from_nanos(1));
    assert!(refused(&mut service).is_some());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(refused(&mut service), None);
    // Now the bucket is empty, too, and its wait is longer.
    let wait = refused(&mut service).unwrap().retry_after().unwrap();
    assert_eq!(wait, MS * 150);
    clock.advance(wait - Duration::from_nanos(1));
    assert!(refused(&mut service).is_some());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(refused(&mut service), None);
}
