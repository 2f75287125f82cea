//! The waits that the function of a custom response reads are those of the header fields.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, Response};
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{HeaderFormat, HttpResponder, Rejection, RequestHead};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{MINUTE, late};
use crate::header_parser::number;
use crate::reference_service::{Service, behind, limited};
use crate::support::Answer;
use crate::support::own_limiter::OwnLimiter;

/// A body with what the function reads: the wait in milliseconds, and the `t` of each policy that denied the request,
/// or `-` if it has none.
fn reports_of(rejection: &Rejection<'_>, _: &RequestHead<'_>) -> Response<String> {
    let millis = |wait: Duration| wait.as_nanos().div_ceil(1_000_000);
    let denials = rejection.policies().iter().filter(|report| !report.decision().is_allowed());
    let windows = denials.map(|denial| denial.window().map(millis));
    let waits: Vec<_> = [rejection.retry_after().map(millis)]
        .into_iter()
        .chain(windows)
        .map(|wait| wait.map_or("-".to_owned(), |wait| wait.to_string()))
        .collect();
    let mut response = Response::new(waits.join(" "));
    *response.status_mut() = rejection.status();
    response
}

fn limit<A: Algorithm>(algorithm: A) -> RateLimitLayer<Global, A> {
    RateLimitLayer::with_limiter(Global, RateLimiter::builder(algorithm).clock(ManualClock::new()).build())
}

fn once_a_minute() -> RateLimitLayer<Global, FixedWindow> {
    limit(FixedWindow::new(Quota::per_minute(1)))
}

/// Returns the response to a second request, while the first is in progress.
async fn second(service: &Service) -> Answer {
    let ask = || service.clone().oneshot(Request::new(Body::empty()));
    let first = ask().await.unwrap();
    let second = Answer::read(ask().await.unwrap()).await;
    drop(first);
    second
}

/// Asserts that the body of `answer` says what its header fields say. Returns the wait in milliseconds.
fn says_the_same(answer: &Answer) -> Option<u64> {
    let mut waits = answer.text().split(' ').map(|text| text.parse::<u64>().ok());
    let wait = waits.next().unwrap();
    assert_eq!(wait, number(&answer.headers, "retry-after-ms"), "{answer:?}");
    let seconds = wait.map(|wait| wait.div_ceil(1_000).max(1));
    assert_eq!(seconds, number(&answer.headers, "retry-after"), "{answer:?}");
    let items = answer.items("ratelimit");
    let windows: Vec<_> = waits.map(|wait| wait.map(|wait| wait.div_ceil(1_000))).collect();
    if !items.is_empty() {
        let fields: Vec<_> = items.iter().map(|item| item.parameters.get("t").copied()).collect();
        assert_eq!(windows, fields, "{answer:?}");
    }
    wait
}

fn responder() -> HttpResponder {
    HttpResponder::new().headers([HeaderFormat::Draft11, HeaderFormat::RetryAfterMs])
}

#[tokio::test]
async fn a_custom_body_knows_the_jitter() {
    let responder = responder().jitter(MINUTE).rejection_response(reports_of);
    let mut later = 0;
    for _ in 0..50 {
        let service = limited(once_a_minute().responder(responder.clone()), behind(HeaderMap::new()));
        let wait = says_the_same(&second(&service).await).unwrap();
        assert!((60_000..=120_000).contains(&wait), "{wait}");
        later += u32::from(wait > 61_000);
    }
    assert!(later > 25, "{later} of 50");
}

#[tokio::test]
async fn a_custom_body_knows_the_maximum() {
    for jitter in [Duration::ZERO, MINUTE] {
        let responder =
            responder().jitter(jitter).max_reported_wait(MINUTE / 4).rejection_response(reports_of);
        let service = limited(once_a_minute().responder(responder), behind(HeaderMap::new()));
        assert_eq!(says_the_same(&second(&service).await), Some(15_000));
    }
}

#[tokio::test]
async fn a_custom_body_knows_the_hint_if_the_wait_is_unknown() {
    for (hint, most, expected) in [
        (None, MINUTE, None),
        (Some(MINUTE / 4), MINUTE, Some(15_000)),
        (Some(MINUTE * 2), MINUTE, Some(60_000)),
    ] {
        let responder =
            || responder().retry_after_unknown(hint).max_reported_wait(most).rejection_response(reports_of);
        let exports = || limit(Concurrency::per_key(1)).responder(responder());
        let service = limited(exports(), behind(HeaderMap::new()));
        let answer = second(&service).await;
        assert_eq!((answer.status.as_u16(), says_the_same(&answer)), (429, expected));

        // The wait of the other policy is known. It raises the hint, unless there is none.
        let service = limited(exports().and(once_a_minute().name("minute")), behind(HeaderMap::new()));
        let raised = expected.map(|_| 60_000);
        assert_eq!(says_the_same(&second(&service).await), raised);

        let closed = once_a_minute().responder(responder());
        closed.limiter().close();
        let answer = second(&limited(closed, behind(HeaderMap::new()))).await;
        assert_eq!((answer.status.as_u16(), says_the_same(&answer)), (503, expected));
    }
}

#[tokio::test]
async fn a_custom_body_knows_the_hint_if_the_store_failed() {
    let limiter = OwnLimiter::new(FixedWindow::new(Quota::per_minute(1)));
    limiter.set_down(true);
    let layer =
        RateLimitLayer::with_limiter(Global, limiter).responder(responder().rejection_response(reports_of));
    let answer = second(&limited(layer, behind(HeaderMap::new()))).await;
    assert_eq!((answer.status.as_u16(), says_the_same(&answer)), (503, Some(1_000)));
}

#[tokio::test]
async fn a_custom_body_knows_of_no_wait_if_none_helps() {
    let responder = responder().jitter(MINUTE).rejection_response(reports_of);
    let layer = once_a_minute().cost(|_: &Request<Body>| 2).responder(responder);
    let answer = second(&limited(layer, behind(HeaderMap::new()))).await;
    assert_eq!((answer.status.as_u16(), says_the_same(&answer)), (429, None));
}

#[tokio::test]
async fn a_custom_body_rounds_a_wait_that_is_over_up_as_well() {
    let own = |rejection: &Rejection<'_>, head: &RequestHead<'_>| {
        assert_eq!(rejection.policies()[0].decision().retry_after(), Some(Duration::ZERO));
        reports_of(rejection, head)
    };
    let responder = responder().rejection_response(own);
    let answer = late(|layer| limited(layer.responder(responder), behind(HeaderMap::new()))).await;
    assert_eq!((answer.status.as_u16(), says_the_same(&answer)), (429, Some(1)));
}
