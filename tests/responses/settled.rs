//! Queued calls are settled from when they were charged, and the fields of the response to a settled call are true.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, Response};
use tower::layer::Layer;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Tiered, TokenBucket,
};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::generators::{KINDS, Kind, Rule, made_of_units};
use crate::header_parser::ParsedFields;
use crate::reference_service::cost_of;
use crate::reference_service::limited;
use crate::settle::{Call, Outcome, Svc, actual, behind, settling};
use crate::support::TickingClock;

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that a queued call is charged when it is admitted, and that its units count from then on.
fn queued<A: Algorithm, L>(algorithm: &A, layer: impl Fn(&RateLimiter<A>, &TickingClock) -> L)
where
    L: Layer<Svc>,
    L::Service: tower::Service<
            Request<Body>,
            Response = Response<tower_throttle::middleware::ResponseBody<Body>>,
            Error = tower::BoxError,
        > + Clone
        + Send
        + Sync
        + 'static,
    <L::Service as tower::Service<Request<Body>>>::Future: Send,
{
    for clock in TickingClock::both() {
        clock.set(SECOND * 1_000);
        let limiter = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build();
        let service = limited(layer(&limiter, &clock), behind());
        let mut first = Call::start(&service, 2);
        first.ends(Outcome::Costs(Some(2)));
        let mut waits = Call::start(&service, 2);
        assert!(waits.goes_on());
        // The scheduled time of the call has come, and all units of the first call have expired.
        clock.advance(SECOND * 2);
        assert!(!waits.hand.poll(), "it is with the service behind");
        assert_eq!(limiter.peek(&()).remaining(), 0, "{algorithm:?}");
        waits.costs(0);
        assert_eq!(limiter.peek(&()).remaining(), 2, "{algorithm:?}");
    }
}

#[test]
fn a_queued_call_is_settled_from_when_it_was_charged() {
    fn holds<A: Algorithm>(algorithm: A) {
        queued(&algorithm, |limiter, _| settling(limiter));
        queued(&algorithm, |limiter, clock| {
            let other =
                RateLimiter::builder(TokenBucket::new(Quota::per_hour(9))).clock(clock.clone()).build();
            settling(limiter).name("waits").and(settling(&other).name("does-not"))
        });
    }
    let two = Quota::per_second(2);
    holds(FixedWindow::new(two).queue(5));
    holds(SlidingWindow::new(two).queue(5));
    holds(SlidingLog::new(two).queue(5));
    holds((FixedWindow::new(two).queue(5), SlidingLog::new(two).queue(5)));
}

/// Returns the fields of the response to a call that was charged `cost` and whose actual cost was `actual`.
fn answered(service: &Svc, cost: u64, actual: u64) -> HeaderMap {
    let mut call = Call::start(service, cost);
    call.ends(Outcome::Costs(Some(actual)));
    call.hand.output.unwrap().unwrap().headers().clone()
}

/// Asserts that a settled response has the same fields as the response to a call that was charged its actual cost at
/// once.
fn says_what_is_left<A: Algorithm>(algorithm: A) {
    for (cost, actual) in [(1, 1), (1, 0), (3, 1), (1, 3), (2, 2), (0, 2)] {
        says_what_is_left_of(&algorithm, cost, actual, 2);
    }
}

fn says_what_is_left_of<A: Algorithm>(algorithm: &A, cost: u64, actual: u64, calls: usize) {
    let clock = TickingClock::still();
    clock.set(SECOND * 1_000);
    let ours = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build();
    let other = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).build();
    let settled = limited(settling(&ours), behind());
    let charged = RateLimitLayer::with_limiter(Global, other).cost(cost_of as fn(&Request<Body>) -> _);
    let charged = limited(charged, behind());
    for _ in 0..calls {
        let ours = answered(&settled, cost, actual);
        assert_eq!(ours, answered(&charged, actual, actual), "{cost}, {actual}: {algorithm:?}");
    }
}

#[test]
fn the_fields_describe_the_state_after_settling() {
    let quota = Quota::per_hour(10);
    for kind in KINDS {
        // Permits that a cold start takes from the store are not refunded.
        if ![Kind::Concurrency, Kind::WarmingUp, Kind::Bursty, Kind::LeakyBucket].contains(&kind) {
            made_of_units!(Rule::of(kind, quota), |rule| says_what_is_left(rule));
        }
    }
    // `Smooth` admits a call of any cost and queues the next calls. Settling charges no more than is available.
    for (cost, actual) in [(1, 1), (1, 0), (3, 1), (2, 2)] {
        says_what_is_left_of(&LeakyBucket::new(quota).queue(3), cost, actual, 1);
        says_what_is_left_of(&LeakyBucket::new(quota).queue(0), cost, actual, 1);
    }
    says_what_is_left((FixedWindow::new(quota), SlidingLog::new(Quota::per_minute(9))));
    says_what_is_left(FixedWindow::new(quota).priority(20));
    says_what_is_left(TokenBucket::new(quota).block_for(SECOND).after(3));
    says_what_is_left(Tiered::new(FixedWindow::new(quota)));
}

#[test]
fn each_joined_policy_reports_what_it_has_left_after_settling() {
    let clock = TickingClock::new();
    let hour =
        |limit| RateLimiter::builder(FixedWindow::new(Quota::per_hour(limit))).clock(clock.clone()).build();
    let (settled, plain) = (hour(10), hour(20));
    let plain = RateLimitLayer::with_limiter(Global, plain).cost(cost_of as fn(&Request<Body>) -> _);
    let service = limited(plain.name("plain").and(settling(&settled).name("settled")), behind());
    let left = |headers| ParsedFields::read(&headers).left.into_iter().map(|left| left.r).collect::<Vec<_>>();
    assert_eq!(left(answered(&service, 4, 1)), [16, 9]);
    assert_eq!(left(answered(&service, 1, 3)), [15, 6]);
    // The rejection of a denied call reports the denial, and settles nothing.
    let denied = Call::start(&service, 7);
    let response = denied.hand.output.unwrap().unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(left(response.headers().clone()), [15, 6]);
}

#[test]
fn the_fields_of_a_tier_are_its_own() {
    let clock = TickingClock::still();
    let limiter = RateLimiter::builder(Tiered::new(TokenBucket::new(Quota::per_hour(100))));
    let limiter = limiter.clock(clock).build();
    let chosen = TokenBucket::new(Quota::per_minute(6));
    let layer = RateLimitLayer::with_limiter(Global, limiter)
        .cost(cost_of as fn(&Request<Body>) -> _)
        .tier(move |_: &Request<Body>, (): &()| chosen.clone())
        .settle(actual as fn(&Response<Body>) -> _);
    let service = limited(layer, behind());
    let fields = ParsedFields::read(&answered(&service, 3, 1));
    assert_eq!((fields.policies[0].q, fields.policies[0].w), (6, Some(60)));
    // Five units are left, for the next fifty seconds.
    assert_eq!((fields.left[0].r, fields.left[0].t), (5, Some(50)));
}
