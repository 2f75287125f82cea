//! Services that are not HTTP get the denials of the layer as errors.

use std::error::Error as _;
use std::time::Duration;

#[cfg(all(feature = "axum", feature = "tonic"))]
use http::Request;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, KeyError, KeyExtractor};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{by_user, shout};

#[tokio::test]
async fn a_service_of_strings_is_limited_by_an_error_value() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::builder(TokenBucket::new(Quota::per_second(4).burst(2))).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(by_user(), limiter).responder(ErrorResponder);
    let mut service = layer.layer(service_fn(shout));
    let mut call = async |line: &str| service.ready().await?.call(line.to_owned()).await;

    assert_eq!(call("ann hello").await.unwrap(), "ANN HELLO");
    clock.advance(Duration::from_millis(100));
    assert_eq!(call("ann again").await.unwrap(), "ANN AGAIN");
    let error = call("ann and again").await.unwrap_err();
    let Error::Limited(decision) = &error else { panic!("{error:?}") };
    assert_eq!(decision.retry_after(), Some(Duration::from_millis(150)));
    assert_eq!((decision.limit(), decision.remaining()), (2, 0));
    assert!(error.source().is_none());
    assert_eq!(error.to_string(), "rate limit exceeded: denied, 0 of 2 left, retry after 150ms");
    assert_eq!(call("bob hello").await.unwrap(), "BOB HELLO");
    for _ in 0..10 {
        assert_eq!(call("root hello").await.unwrap(), "ROOT HELLO");
    }
    clock.advance(Duration::from_millis(150) - Duration::from_nanos(1));
    assert!(matches!(call("ann").await, Err(Error::Limited(_))));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(call("ann").await.unwrap(), "ANN");
}

#[tokio::test]
async fn an_inner_failure_is_returned_as_one() {
    let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(2))).responder(ErrorResponder);
    let service = layer.layer(service_fn(shout));
    let error = service.clone().oneshot("ann fail".to_owned()).await.unwrap_err();
    let Error::Inner(inner) = &error else { panic!("{error:?}") };
    assert_eq!(inner.to_string(), "it failed");
    // The error of the inner service is displayed as it is.
    assert_eq!(error.to_string(), "it failed");
    // The call was admitted, so it was charged.
    assert!(service.clone().oneshot("ann".to_owned()).await.is_ok());
    assert!(matches!(service.oneshot("ann".to_owned()).await, Err(Error::Limited(_))));
}

#[tokio::test]
async fn a_service_that_is_not_ready_fails_as_an_inner_one() {
    #[derive(Clone)]
    struct Broken;
    impl Service<String> for Broken {
        type Response = String;
        type Error = &'static str;
        type Future = std::future::Ready<Result<String, &'static str>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Err("broken"))
        }
        fn call(&mut self, _: String) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(1))).responder(ErrorResponder);
    let error = layer.layer(Broken).ready().await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Inner("broken")), "{error:?}");
}

#[tokio::test]
async fn a_key_that_cannot_be_determined_is_an_error_of_its_own() {
    #[derive(Clone)]
    struct Broken;
    impl KeyExtractor<String> for Broken {
        type Key = ();
        fn extract(&self, _: &String) -> Result<Option<()>, KeyError> {
            Err(KeyError::new("say who you are"))
        }
    }
    let layer = RateLimitLayer::new(Broken, TokenBucket::new(Quota::per_hour(1))).responder(ErrorResponder);
    let error = layer.layer(service_fn(shout)).oneshot("ann".to_owned()).await.unwrap_err();
    assert!(matches!(error, Error::Key(_)), "{error:?}");
    assert_eq!(error.source().unwrap().to_string(), "say who you are");
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_http_are_queued_too() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(2);
    let layer = RateLimitLayer::new(Global, bucket).responder(ErrorResponder);
    let service = layer.layer(service_fn(shout));
    let start = tokio::time::Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..4 {
        let service = service.clone();
        calls.spawn(async move { (n, service.oneshot(n.to_string()).await, start.elapsed().as_millis()) });
    }
    let mut seen = Vec::new();
    for (n, answer, at) in calls.join_all().await {
        seen.push((n, answer.is_ok(), at));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(0, true, 0), (1, true, 100), (2, true, 200), (3, false, 0)]);
}

/// One limiter limits services of three kinds.
#[cfg(all(feature = "axum", feature = "tonic"))]
#[tokio::test]
async fn the_same_limiter_limits_axum_tonic_and_strings() {
    use tonic::codegen::http::Request as GrpcRequest;

    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(3)));
    let layer = RateLimitLayer::with_limiter(Global, limiter);

    let app = axum::Router::new().route("/", axum::routing::get(|| async {})).layer(layer.clone());
    let grpc = layer.layer(tonic::service::Routes::default().prepare());
    let strings = layer.clone().responder(ErrorResponder).layer(service_fn(shout));

    let http = || app.clone().oneshot(Request::new(axum::body::Body::empty()));
    let grpc = || {
        let request = GrpcRequest::post("/test.Echo/Say").header("content-type", "application/grpc");
        grpc.clone().oneshot(request.body(tonic::body::Body::empty()).unwrap())
    };
    let line = || strings.clone().oneshot("ann".to_owned());

    assert_eq!(http().await.unwrap().status(), 200);
    // The service has no such method, but the call was admitted.
    assert_eq!(grpc().await.unwrap().headers()["grpc-status"], "12");
    assert_eq!(line().await.unwrap(), "ANN");
    assert_eq!(http().await.unwrap().status(), 429);
    assert_eq!(grpc().await.unwrap().headers()["grpc-status"], "8");
    assert!(matches!(line().await, Err(Error::Limited(_))));
}
