//! What callers get when the key table is full and has no room for their keys.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Header, from_fn};
use tower_throttle::limiter::OnFull;
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

fn full_limiter() -> RateLimiter<FixedWindow> {
    let builder = RateLimiter::builder(FixedWindow::new(Quota::per_day(5))).clock(ManualClock::new());
    builder.max_keys(1).on_full(OnFull::Reject).build()
}

fn request(key: &str, content_type: &'static str) -> Request<Full<Bytes>> {
    let builder = Request::builder().header("x-api-key", key);
    let builder = if content_type.is_empty() { builder } else { builder.header(CONTENT_TYPE, content_type) };
    builder.body(Full::default()).unwrap()
}

macro_rules! answer {
    ($layer:expr, $key:expr, $content_type:expr) => {{
        let hello =
            |_: Request<Full<Bytes>>| ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))));
        let service = $layer.clone().layer(service_fn(hello));
        service.oneshot(request($key, $content_type)).await.unwrap()
    }};
}

#[tokio::test]
async fn a_key_without_room_is_answered_503_and_grpc_unavailable() {
    let limiter = full_limiter();
    let layer = RateLimitLayer::with_limiter(Header::new("x-api-key").unwrap(), limiter.clone());
    assert_eq!(answer!(layer, "first", "").status(), 200);

    let answer = answer!(layer, "second", "");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
    assert_eq!(answer.headers()[RETRY_AFTER], "1", "a hint: when there will be room is not known");
    assert!(!answer.headers().contains_key("ratelimit"), "the caller has used nothing");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("temporary-reduced-capacity") && body.contains("503"), "{body}");

    let answer = answer!(layer, "second", "application/grpc");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["grpc-status"], "14");
    assert!(!answer.headers().contains_key("grpc-retry-pushback-ms"));

    // The caller whose key is in the table is still served.
    assert_eq!(answer!(layer, "first", "").status(), 200);
    assert_eq!(limiter.stats().calls.table_full, 2);
    assert_eq!(limiter.len(), 1);
}

#[tokio::test]
async fn a_key_without_room_is_an_error_that_says_so() {
    let limiter = full_limiter();
    let layer =
        RateLimitLayer::with_limiter(from_fn(|key: &u32| Some(*key)), limiter).responder(ErrorResponder);
    let service = layer.layer(service_fn(|_: u32| ready(Ok::<(), Infallible>(()))));
    assert!(service.clone().oneshot(1).await.is_ok());
    match service.oneshot(2).await {
        Err(Error::Limited(decision)) => {
            assert!(decision.is_table_full() && decision.retry_after().is_none());
        }
        other => panic!("{other:?}"),
    }
}
