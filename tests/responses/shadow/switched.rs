//! A request reads the switch of shadow mode once, when its call begins. A later switch concerns later requests.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tower::{Service as _, ServiceExt};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, KeyError, KeyExtractor};
use tower_throttle::middleware::Shadow;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{ask, hourly, limiter, mark, marked};
use crate::reference_service::{Service, limited};
use crate::support::{OwnLimiter, PolledByHand};

/// A key extractor that moves a switch each time.
#[derive(Clone, Debug)]
struct Switching(Shadow);

impl<Req> KeyExtractor<Req> for Switching {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        self.0.set(!self.0.is_on());
        Ok(Some(()))
    }
}

/// Returns a limiter that denies all calls.
fn spent() -> RateLimiter<FixedWindow> {
    let limiter = RateLimiter::new(hourly(1));
    assert!(limiter.check(&()).is_allowed());
    limiter
}

/// Returns the status, and whether shadow mode has marked the request.
fn seen(response: &Response<Body>) -> (u16, bool) {
    (response.status().as_u16(), mark(response).is_some())
}

const DRY: (u16, bool) = (200, true);
const DENIED: (u16, bool) = (429, false);

#[test]
fn between_the_key_and_the_decision_it_is_not_read_again() {
    let shadow = Shadow::off();
    let layer = || RateLimitLayer::with_limiter(Switching(shadow.clone()), spent()).shadow(&shadow);
    let real = || RateLimitLayer::new(Global, hourly(9));
    for service in [
        limited(layer(), marked()),
        limited(layer().and(real()), marked()),
        limited(real().and(layer()), marked()),
    ] {
        for (is_on, expected) in [(true, DRY), (false, DENIED)] {
            shadow.set(is_on);
            assert_eq!(seen(&ask(&service)), expected, "it was on: {is_on}");
        }
    }
}

#[tokio::test]
async fn while_a_limiter_replies_it_is_not_read_again() {
    let shadow = Shadow::off();
    let limiter = OwnLimiter::new(hourly(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).shadow(&shadow);
    let service = limited(layer.clone(), marked());
    let request = || Request::new(Body::empty());
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), 200);
    for (is_on, expected) in [(true, DRY), (false, DENIED)] {
        shadow.set(is_on);
        let call = service.clone().call(request());
        shadow.set(!is_on);
        assert_eq!(seen(&call.await.unwrap()), expected, "it was on: {is_on}");
    }
    let calls = layer.stats().calls;
    assert_eq!((calls.admitted, calls.shadow_denied, calls.denied), (1, 1, 1));

    // The limiter fails.
    limiter.set_down(true);
    for (is_on, expected) in [(true, 200), (false, 503)] {
        shadow.set(is_on);
        let call = service.clone().call(request());
        shadow.set(!is_on);
        assert_eq!(call.await.unwrap().status(), expected, "it was on: {is_on}");
    }
}

/// Makes a call that is queued.
fn queued(service: &Service) -> PolledByHand<<Service as tower::Service<Request<Body>>>::Future> {
    let mut call = PolledByHand::new(service.clone().call(Request::new(Body::empty())));
    assert!(!call.poll());
    call
}

#[test]
fn while_a_call_is_queued_it_is_not_read_again() {
    let (clock, shadow) = (ManualClock::new(), Shadow::off());
    let line = || limiter(LeakyBucket::new(Quota::per_second(1)).queue(5), &clock);
    let real = line();
    let service = limited(RateLimitLayer::with_limiter(Global, real.clone()).shadow(&shadow), marked());
    assert_eq!(seen(&ask(&service)), (200, false));
    let mut call = queued(&service);
    shadow.set(true);
    assert_eq!(seen(&ask(&service)), DRY, "it is not queued");
    real.close();
    assert!(call.run());
    assert_eq!(call.output.unwrap().unwrap().status(), 503, "the call that was queued before is denied");

    // The other policy queues the call, which began in shadow mode.
    let watched = RateLimitLayer::with_limiter(Global, spent()).shadow(&shadow);
    let service = limited(RateLimitLayer::with_limiter(Global, line()).and(watched), marked());
    assert_eq!(seen(&ask(&service)), DRY);
    let mut call = queued(&service);
    shadow.set(false);
    clock.advance(Duration::from_secs(1));
    assert!(call.run());
    assert_eq!(seen(&call.output.unwrap().unwrap()), DRY);
    assert_eq!(seen(&ask(&service)), DENIED);
}
