//! Tests of the layer with this limiter.

use super::*;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::{FromFn, StoreKey, from_fn};
use tower_throttle::middleware::OnStoreError;
use tower_throttle::{Quota, RateLimitLayer};

use crate::support::{Answer as Got, PolledByHand};

type Http = Request<Full<Bytes>>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, std::io::Error> {
    Ok(Response::new(Full::from("hello")))
}

fn get(key: &str) -> Http {
    Request::get("/").header("x-api-key", key).body(Full::default()).unwrap()
}

fn by_key() -> FromFn<impl Fn(&Http) -> Option<String> + Clone> {
    from_fn(|request: &Http| Some(request.headers()["x-api-key"].to_str().unwrap().to_owned()))
}

async fn status(
    service: impl Service<
        Http,
        Response = Response<impl http_body::Body<Data = Bytes, Error: fmt::Debug>>,
        Error: fmt::Debug,
    >,
    key: &str,
) -> Got {
    Got::read(service.oneshot(get(key)).await.unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn a_tuple_limits_each_key() {
    let both = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_hour(3)));
    let layer = RateLimitLayer::with_limiter(by_key(), limiter(both));
    let service = layer.layer(service_fn(hello));
    for expected in [200, 200, 429] {
        assert_eq!(status(service.clone(), "a").await.status, expected);
    }
    assert_eq!(status(service.clone(), "b").await.status, 200);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(status(service.clone(), "a").await.status, 200);
    let denied = status(service, "a").await;
    assert_eq!((denied.status.as_u16(), denied.retry_after()), (429, 3_598));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_settled_by_its_response() {
    let limiter = limiter(FixedWindow::new(Quota::per_hour(10)));
    let layer = RateLimitLayer::with_limiter(by_key(), limiter.clone())
        .cost(|request: &Http| if request.uri().path() == "/" { 1 } else { 5 })
        .settle(|_: &Response<Full<Bytes>>| Some(2));
    let service = layer.layer(service_fn(hello));
    let mut cheap = get("a");
    *cheap.uri_mut() = "/cheap".parse().unwrap();
    assert_eq!(service.clone().oneshot(cheap).await.unwrap().status(), 200);
    assert_eq!(limiter.peek(&StoreKey::Key("a".to_owned()), Attempt::new(1)).await.unwrap().remaining(), 8);
    assert_eq!(status(service, "a").await.status, 200);
    assert_eq!(limiter.peek(&StoreKey::Key("a".to_owned()), Attempt::new(1)).await.unwrap().remaining(), 6);
}

#[tokio::test(start_paused = true)]
async fn the_body_of_the_response_holds_the_permit() {
    let layer = RateLimitLayer::with_limiter(by_key(), limiter(Concurrency::per_key(1)));
    let service = layer.layer(service_fn(hello));
    let response = service.clone().oneshot(get("a")).await.unwrap();
    assert_eq!(status(service.clone(), "a").await.status, 429, "the body is not read yet");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(status(service, "a").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_if_the_algorithm_holds_requests() {
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let service = RateLimitLayer::with_limiter(by_key(), limiter(bucket)).layer(service_fn(hello));
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(status(service.clone(), "a").await.status, 200);
    }
    assert_eq!(start.elapsed(), Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn a_request_reports_the_algorithm_that_decided_it() {
    let limiter = limiter(TokenBucket::new(Quota::per_hour(10)));
    let layer = RateLimitLayer::with_limiter(by_key(), limiter.clone());
    let service = layer.layer(service_fn(hello));
    let policy = |quota| format!("\"default\";q={quota};w=3600");
    assert_eq!(status(service.clone(), "a").await.header("ratelimit-policy"), policy(10));
    let mut slow = PolledByHand::new(status(service.clone(), "a"));
    assert!(!slow.poll());
    // The task decides the call, whose future is not polled yet.
    tokio::task::yield_now().await;
    limiter.replace(TokenBucket::new(Quota::per_hour(20)));
    for remaining in [17, 16] {
        let answer = status(service.clone(), "a").await;
        assert_eq!(answer.header("ratelimit-policy"), policy(20));
        assert!(answer.header("ratelimit").starts_with(&format!("\"default\";r={remaining};")), "{answer:?}");
    }
    assert!(slow.poll());
    let answer = slow.output.unwrap();
    assert_eq!(answer.header("ratelimit-policy"), policy(10));
    assert!(answer.header("ratelimit").starts_with("\"default\";r=8;"), "{answer:?}");
    assert_eq!(status(service, "a").await.header("ratelimit-policy"), policy(20));
}

/// Returns a limiter that fails, because its task has ended.
fn gone<A: Algorithm>(algorithm: A) -> TaskLimiter<A> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { limiter(algorithm) })
}

#[test]
fn a_layer_admits_what_its_limiter_cannot_decide_if_it_is_set_so() {
    let tuple = gone((TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_hour(3))));
    let queued = gone(LeakyBucket::new(Quota::per_second(10)).queue(5));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for (treatment, http, grpc) in
            [(None, 503, "14"), (Some(OnStoreError::Reject), 503, "14"), (Some(OnStoreError::Allow), 200, "")]
        {
            let mut layer = RateLimitLayer::with_limiter(by_key(), tuple.clone());
            if let Some(treatment) = treatment {
                layer = layer.on_store_error(treatment);
            }
            let service = layer.layer(service_fn(hello));
            let answer = status(service.clone(), "a").await;
            assert_eq!(answer.status, http);
            assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
            let mut call = get("a");
            call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            let answer = Got::read(service.oneshot(call).await.unwrap()).await;
            assert_eq!((answer.status.as_u16(), answer.has("grpc-status")), (200, !grpc.is_empty()));
            assert!(grpc.is_empty() || answer.header("grpc-status") == grpc, "{answer:?}");
        }
        let queued = RateLimitLayer::with_limiter(by_key(), queued.clone())
            .cost(|_: &Http| 3)
            .settle(|_: &Response<Full<Bytes>>| Some(2))
            .on_store_error(OnStoreError::Allow);
        assert_eq!(status(queued.layer(service_fn(hello)), "a").await.status, 200);
    });
}
