//! Each policy of a layer counts its own requests, also in shadow mode and in joined layers.

use std::time::Duration;

use tower::{Layer, Service};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::Shadow;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{answers, counted, frozen, hourly, passes, text};
use crate::support::PolledByHand;

#[test]
fn policies_that_share_a_limiter_count_on_their_own_and_the_limiter_counts_all() {
    let limiter = frozen(TokenBucket::new(hourly(3)));
    let layer = || RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let (first, second) = (layer().name("first"), layer().name("second"));
    let service = first.clone().layer(answers());
    assert!(passes(&service, ()) && passes(&service, ()));
    assert!(passes(&second.layer(answers()), ()) && !passes(&second.layer(answers()), ()));
    let _ = limiter.check("another key");
    assert_eq!(first.stats().name, "first");
    assert_eq!(text(first.stats().calls), "2 admitted");
    assert_eq!(text(second.stats().calls), "1 admitted, 1 denied");
    assert_eq!(counted(&limiter), "4 admitted, 1 denied");
    drop((first, service));
    let third = layer();
    assert_eq!(text(third.stats().calls), "");
    assert_eq!(counted(&limiter), "4 admitted, 1 denied", "also those of a policy that is gone");
}

#[test]
fn shadow_mode_counts_what_it_let_through() {
    let shadow = Shadow::on();
    let layer = RateLimitLayer::with_limiter(Global, frozen(TokenBucket::new(hourly(1))))
        .shadow(&shadow)
        .responder(ErrorResponder);
    let service = layer.layer(answers());
    assert!(passes(&service, ()) && passes(&service, ()) && passes(&service, ()));
    assert_eq!(text(layer.stats().calls), "1 admitted, 2 shadow");
    shadow.set(false);
    assert!(!passes(&service, ()));
    assert_eq!(text(layer.stats().calls), "1 admitted, 1 denied, 2 shadow");
}

#[test]
fn joined_policies_count_a_request_each() {
    let (bucket, window) = (frozen(TokenBucket::new(hourly(3))), frozen(FixedWindow::new(hourly(2))));
    let layer = RateLimitLayer::with_limiter(Global, bucket.clone())
        .name("bucket")
        .and(RateLimitLayer::with_limiter(Global, window.clone()).name("window"))
        .responder(ErrorResponder);
    let service = layer.layer(answers());
    assert_eq!([(); 4].map(|()| passes(&service, ())), [true, true, false, false]);
    let stats = layer.stats();
    let lines: Vec<_> =
        stats.iter().map(|policy| format!("{}: {}", policy.name, text(policy.calls))).collect();
    assert_eq!(lines, ["bucket: 2 admitted, 2 denied by others", "window: 2 admitted, 2 denied"]);
    assert_eq!(counted(&bucket), "2 admitted, 2 denied by others");
}

#[test]
fn a_joined_call_that_waits_is_counted_when_it_ends() {
    let clock = ManualClock::new();
    let queue = RateLimiter::builder(LeakyBucket::new(Quota::per_second(1)).queue(3)).clock(clock.clone());
    let queue = queue.build();
    let window = RateLimiter::builder(FixedWindow::new(hourly(9))).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(Global, queue.clone())
        .and(RateLimitLayer::with_limiter(Global, window.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(answers::<()>());
    let mut calls = [(); 4].map(|()| PolledByHand::new(service.clone().call(())));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false, false, false]);
    assert_eq!([counted(&queue), counted(&window)], ["1 admitted, 3 queued", "1 admitted"]);
    let [_, second, mut third, mut fourth] = calls;
    drop(second);
    clock.advance(Duration::from_secs(1));
    assert!(third.poll());
    queue.close();
    assert!(fourth.poll());
    assert_eq!(counted(&queue), "2 admitted, 1 closed, 1 cancelled, 3 queued");
    assert_eq!(counted(&window), "2 admitted, 1 denied by others, 1 cancelled");
}

/// Both policies charge one key, so the request takes one place in the queue. Only the policy that queues it says so.
#[test]
fn a_joined_request_that_waits_in_one_queue_for_two_policies_is_queued_once() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(9);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let policy = || RateLimitLayer::with_limiter(Global, limiter.clone());
    let layer = policy().and(policy()).responder(ErrorResponder);
    let counts = || layer.stats().into_iter().map(|policy| text(policy.calls)).collect::<Vec<_>>();
    let service = layer.layer(answers::<()>());
    let mut calls = [(); 2].map(|()| PolledByHand::new(service.clone().call(())));
    assert_eq!(calls.each_mut().map(PolledByHand::poll), [true, false]);
    assert_eq!(counts(), ["1 admitted, 1 queued", "1 admitted"]);
    clock.advance(Duration::from_secs(2));
    assert!(calls[1].poll());
    assert_eq!(counts(), ["2 admitted, 1 queued", "2 admitted"]);
}

#[test]
fn policies_have_the_units_that_were_settled_in_their_limiters() {
    let limiters = [10, 2].map(|limit| {
        RateLimiter::builder(TokenBucket::new(hourly(limit))).clock(ManualClock::new()).max_debt(1).build()
    });
    let [first, second] = limiters.clone().map(|limiter| RateLimitLayer::with_limiter(Global, limiter));
    let settled = first.cost(|()| 2).settle(|()| Some(7)).and(second.cost(|()| 2).settle(|()| Some(4)));
    let layer = settled.responder(ErrorResponder);
    assert!(passes(&layer.clone().layer(answers()), ()));
    let stats = layer.stats();
    let units = [&stats[0], &stats[1]].map(|policy| policy.units);
    assert_eq!(units, limiters.map(|limiter| limiter.stats().units));
    assert_eq!(units.map(|units| (units.charged, units.uncharged)), [(5, 0), (1, 1)]);
}
