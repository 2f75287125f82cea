//! Only a response changes the cost of a call: a failure or a cancellation keeps it, and a denial charges nothing.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{Call, Outcome, SECOND, behind, five, limiter, settling};
use crate::header_parser::ParsedFields;
use crate::reference_service::limited;
use crate::support::TickingClock;

#[tokio::test]
async fn only_failed_logins_count() {
    for clock in TickingClock::both() {
        let logins = limiter(FixedWindow::new(Quota::per_minute(3)), &clock);
        let layer = RateLimitLayer::with_limiter(Global, logins)
            .settle(|response: &Response<Body>| u64::from(!response.status().is_success()));
        let login = service_fn(|request: Request<Body>| async move {
            let right = request.uri() == "/right";
            let status = if right { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            let response = Response::builder().status(status).body(Body::empty()).unwrap();
            Ok::<_, BoxError>(response)
        });
        let service = limited(layer, BoxCloneSyncService::new(login));
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            (response.status().as_u16(), ParsedFields::read(response.headers()).left[0].r)
        };
        for _ in 0..100 {
            assert_eq!(ask("/right").await, (200, 3), "the fields describe the state after settling");
        }
        assert_eq!(ask("/wrong").await, (401, 2));
        assert_eq!(ask("/wrong").await, (401, 1));
        assert_eq!(ask("/right").await, (200, 1));
        assert_eq!(ask("/wrong").await, (401, 0));
        assert_eq!(ask("/right").await, (429, 0));
        clock.advance(Duration::from_secs(60));
        assert_eq!(ask("/right").await, (200, 3));
    }
}

#[test]
fn settling_higher_makes_debt() {
    for clock in TickingClock::both() {
        let queries = limiter(TokenBucket::new(five()), &clock);
        let service = limited(settling(&queries), behind());
        Call::start(&service, 1).costs(3);
        assert_eq!(queries.peek(&()).remaining(), 2);
        Call::start(&service, 1).costs(12);
        // 15 tokens are missing from a bucket of five, and five arrive in a second.
        assert_eq!(queries.peek(&()).remaining(), 0);
        clock.advance(SECOND * 2);
        assert!(!Call::start(&service, 1).goes_on());
        clock.advance(SECOND / 5);
        assert_eq!(queries.peek(&()).remaining(), 1);
    }
}

#[test]
fn without_debt_settling_higher_charges_only_available_units() {
    for clock in TickingClock::both() {
        let queries = RateLimiter::builder(TokenBucket::new(five())).clock(clock.clone()).max_debt(0).build();
        let service = limited(settling(&queries), behind());
        Call::start(&service, 1).costs(3);
        assert_eq!(queries.peek(&()).remaining(), 2);
        Call::start(&service, 1).costs(100);
        assert_eq!(queries.peek(&()).remaining(), 0);
        // These 97 units are charged to no key.
        clock.advance(SECOND / 5);
        assert_eq!(queries.peek(&()).remaining(), 1);
        Call::start(&service, 1).costs(u64::MAX);
        assert!(!Call::start(&service, 1).goes_on());
        clock.advance(SECOND);
        assert_eq!(queries.peek(&()).remaining(), 5);
    }
}

#[test]
fn a_call_without_a_response_costs_what_it_was_charged() {
    for clock in TickingClock::both() {
        let limiter = limiter(FixedWindow::new(Quota::per_hour(10)), &clock);
        let service = limited(settling(&limiter), behind());
        // The service fails.
        let mut call = Call::start(&service, 2);
        call.ends(Outcome::Fails);
        assert!(call.hand.output.unwrap().is_err());
        assert_eq!(limiter.peek(&()).remaining(), 8);
        // The caller disconnects.
        drop(Call::start(&service, 2));
        assert_eq!(limiter.peek(&()).remaining(), 6);
        // The response reports no cost.
        Call::start(&service, 2).ends(Outcome::Costs(None));
        assert_eq!(limiter.peek(&()).remaining(), 4);
        // The call is denied.
        assert!(!Call::start(&service, 5).goes_on());
        assert_eq!(limiter.peek(&()).remaining(), 4);
        // The call is settled when the head of the response is there, whatever happens to the body.
        let mut call = Call::start(&service, 3);
        assert_eq!(limiter.peek(&()).remaining(), 1);
        call.ends(Outcome::Costs(Some(1)));
        assert_eq!(limiter.peek(&()).remaining(), 3);
        drop(call);
        assert_eq!(limiter.peek(&()).remaining(), 3);
    }
}

#[test]
fn a_call_in_progress_is_free_when_it_ends_whatever_its_cost() {
    for clock in TickingClock::both() {
        let limiter = limiter(Concurrency::per_key(3), &clock);
        let service = limited(settling(&limiter), behind());
        for actual in [0, 1, 3] {
            let mut call = Call::start(&service, 1);
            call.ends(Outcome::Costs(Some(actual)));
            assert_eq!(limiter.peek(&()).remaining(), 2, "its body has not ended");
            drop(call);
            assert_eq!(limiter.peek(&()).remaining(), 3);
        }
    }
}
