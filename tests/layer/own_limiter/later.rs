//! Limiters that reply later are awaited, and the failures of a limiter are reported.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::key::{FromFn, StoreKey, from_fn};
use tower_throttle::limiter::Attempt;
use tower_throttle::middleware::OnStoreError;
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer};

use crate::support::own_limiter::Down;
use crate::support::{Answer as Got, OwnLimiter, PolledByHand};

const LATE: Duration = Duration::from_millis(50);

/// Returns a limiter that admits `limit` calls an hour, and replies late.
fn remote(limit: u64) -> OwnLimiter<TokenBucket> {
    OwnLimiter::new(TokenBucket::new(Quota::per_hour(limit))).latency(LATE)
}

fn down() -> OwnLimiter<TokenBucket> {
    let limiter = remote(1);
    limiter.set_down(true);
    limiter
}

type Http = Request<Full<Bytes>>;

type Body = Full<Bytes>;

/// Limits the calls of each path but `/free`.
fn by_path() -> FromFn<impl Fn(&Http) -> Option<String> + Clone> {
    from_fn(|request: &Http| (request.uri().path() != "/free").then(|| request.uri().path().to_owned()))
}

async fn hello(_: Http) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// Returns the layer around an HTTP service that counts its calls.
fn http(
    limiter: OwnLimiter<TokenBucket>,
) -> (
    impl Service<
        Http,
        Response = Response<impl hyper::body::Body<Data = Bytes, Error: fmt::Debug>>,
        Error = Infallible,
        Future: Send,
    > + Clone,
    Arc<AtomicUsize>,
) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let layer = RateLimitLayer::with_limiter(by_path(), limiter).name("remote");
    let service = layer.layer(service_fn(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        hello(request)
    }));
    (service, calls)
}

fn get(path: &str) -> Http {
    Request::get(path).body(Full::default()).unwrap()
}

fn grpc() -> Http {
    Request::post("/").header("content-type", "application/grpc").body(Full::default()).unwrap()
}

/// The layer counts calls, whatever the limiter counts.
#[tokio::test(start_paused = true)]
async fn calls_of_a_slow_limiter_are_counted_by_the_layer() {
    let layer = RateLimitLayer::with_limiter(by_path(), remote(1)).name("remote");
    let service = layer.layer(service_fn(hello));
    for _ in 0..3 {
        let _ = service.clone().oneshot(get("/")).await.unwrap();
    }
    let mut cancelled = PolledByHand::new(service.oneshot(get("/")));
    assert!(!cancelled.poll());
    drop(cancelled);
    let stats = layer.stats();
    assert_eq!((stats.calls.admitted, stats.calls.denied, stats.calls.cancelled), (1, 2, 1));
    assert_eq!((stats.calls.ended(), stats.store_errors), (4, 0));
    let broken = RateLimitLayer::with_limiter(by_path(), down());
    assert_eq!(broken.layer(service_fn(hello)).oneshot(get("/")).await.unwrap().status(), 503);
    assert_eq!((broken.stats().store_errors, broken.stats().calls.ended()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_limiter_is_awaited_and_decides_the_call() {
    let (service, calls) = http(remote(1));
    let start = Instant::now();
    let mut call = PolledByHand::new(service.clone().oneshot(get("/")));
    assert!(!call.poll());
    assert_eq!(calls.load(Ordering::SeqCst), 0, "not before the limiter has said so");
    sleep(LATE).await;
    while !call.run() {
        yield_now().await;
    }
    let answer = Got::read(call.output.unwrap().unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.text(), start.elapsed()), (200, "hello", LATE));
    assert_eq!(answer.header("ratelimit"), "\"remote\";r=0;t=3600");
    assert_eq!(calls.load(Ordering::SeqCst), 1);

    let answer = Got::read(service.clone().oneshot(get("/")).await.unwrap()).await;
    assert_eq!((answer.status.as_u16(), start.elapsed()), (429, LATE * 2));
    assert_eq!(answer.retry_after(), 3_600);
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["remote"]));
    let answer = Got::read(service.clone().oneshot(get("/other")).await.unwrap()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn an_unlimited_call_does_not_wait_for_the_limiter() {
    let (service, calls) = http(down());
    let start = Instant::now();
    for _ in 0..3 {
        let answer = Got::read(service.clone().oneshot(get("/free")).await.unwrap()).await;
        assert!(answer.status == 200 && !answer.has("ratelimit"));
    }
    assert_eq!((start.elapsed(), calls.load(Ordering::SeqCst)), (Duration::ZERO, 3));
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_fails_is_503_and_not_the_callers_fault() {
    let (service, calls) = http(down());
    for _ in 0..3 {
        let answer = Got::read(service.clone().oneshot(get("/")).await.unwrap()).await;
        assert_eq!(answer.status, 503);
        let problem = answer.json();
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        );
        assert_eq!(problem["status"], 503);
        // The caller does not see the reason of the failure.
        assert!(!answer.text().contains("192.0.2.1"), "{answer:?}");
        assert!(!answer.has("ratelimit"), "{answer:?}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_layer_admits_what_its_limiter_cannot_decide_if_it_is_set_so() {
    for (treatment, http, grpc_status) in [
        (None, 503, Some("14")),
        (Some(OnStoreError::Reject), 503, Some("14")),
        (Some(OnStoreError::Allow), 200, None),
    ] {
        let mut layer = RateLimitLayer::with_limiter(by_path(), down());
        if let Some(treatment) = treatment {
            layer = layer.on_store_error(treatment);
        }
        let settled = layer.clone().cost(|_: &Http| 3).settle(|_: &Response<Body>| Some(2));
        let settled = Got::read(settled.layer(service_fn(hello)).oneshot(get("/")).await.unwrap()).await;
        let service = layer.layer(service_fn(hello));
        let answer = Got::read(service.clone().oneshot(get("/")).await.unwrap()).await;
        assert_eq!((answer.status.as_u16(), settled.status.as_u16()), (http, http), "{treatment:?}");
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
        let answer = Got::read(service.oneshot(grpc()).await.unwrap()).await;
        let status = answer.has("grpc-status").then(|| answer.header("grpc-status"));
        assert_eq!((answer.status.as_u16(), status), (200, grpc_status), "{treatment:?}");
        if grpc_status.is_some() {
            let message = answer.header("grpc-message");
            assert!(answer.ended_with_headers && !message.contains("192.0.2.1"), "{answer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_denial_is_resource_exhausted_to_grpc() {
    let (service, _) = http(remote(1));
    service.clone().oneshot(grpc()).await.unwrap();
    let answer = Got::read(service.oneshot(grpc()).await.unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "8"));
}

#[tokio::test(start_paused = true)]
async fn services_that_are_not_http_get_the_limiters_error() {
    let by_line = from_fn(|line: &String| Some(line.clone()));
    let layer = |limiter| RateLimitLayer::with_limiter(by_line, limiter).responder(ErrorResponder);
    let shout = service_fn(|line: String| async move { Ok::<_, std::io::Error>(line.to_uppercase()) });

    let error = layer(down()).layer(shout).oneshot("a".to_owned()).await.unwrap_err();
    let Error::Store(cause) = &error else { panic!("{error:?}") };
    assert!(cause.downcast_ref::<Down>().is_some());
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "connection refused by 192.0.2.1");

    let service = layer(remote(1)).layer(shout);
    assert_eq!(service.clone().oneshot("a".to_owned()).await.unwrap(), "A");
    assert!(matches!(service.oneshot("a".to_owned()).await, Err(Error::Limited(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_at_any_poll_reaches_neither_the_service_nor_the_next_caller() {
    for polls in 0..3 {
        let (service, calls) = http(remote(1));
        let mut call = PolledByHand::new(service.clone().oneshot(get("/")));
        for _ in 0..polls {
            assert!(!call.poll());
            sleep(LATE / 4).await;
        }
        call.abandon();
        sleep(LATE).await;
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        let answer = Got::read(service.oneshot(get("/")).await.unwrap()).await;
        assert_eq!(answer.status, 200, "after {polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tuple_limits_each_key() {
    let both = (TokenBucket::new(Quota::per_second(2)), FixedWindow::new(Quota::per_hour(3)));
    let service = RateLimitLayer::with_limiter(by_path(), OwnLimiter::new(both)).layer(service_fn(hello));
    let ask = async |path| Got::read(service.clone().oneshot(get(path)).await.unwrap()).await;
    for expected in [200, 200, 429] {
        assert_eq!(ask("/a").await.status, expected);
    }
    assert_eq!(ask("/b").await.status, 200);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(ask("/a").await.status, 200);
    let denied = ask("/a").await;
    assert_eq!((denied.status.as_u16(), denied.retry_after()), (429, 3_598));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_settled_by_its_response() {
    let limiter = remote(10);
    let layer = RateLimitLayer::with_limiter(by_path(), limiter.clone())
        .cost(|request: &Http| if request.method() == "GET" { 1 } else { 5 })
        .settle(|_: &Response<Body>| Some(2));
    let service = layer.layer(service_fn(hello));
    for (request, remaining) in [(get("/"), 8), (Request::post("/").body(Full::default()).unwrap(), 6)] {
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200);
        let peek = limiter.peek(&StoreKey::Key("/".to_owned()), Attempt::new(1));
        assert_eq!(peek.await.unwrap().remaining(), remaining);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_after_a_replacement_reports_the_new_algorithm() {
    let limiter = OwnLimiter::new(TokenBucket::new(Quota::per_hour(10)));
    let layer = RateLimitLayer::with_limiter(by_path(), limiter.clone());
    let service = layer.layer(service_fn(hello));
    let ask = async || Got::read(service.clone().oneshot(get("/")).await.unwrap()).await;
    let policy = |quota| format!("\"default\";q={quota};w=3600");
    assert_eq!(ask().await.header("ratelimit-policy"), policy(10));
    limiter.replace(TokenBucket::new(Quota::per_hour(20)));
    for remaining in [18, 17] {
        let answer = ask().await;
        assert_eq!(answer.header("ratelimit-policy"), policy(20));
        assert!(answer.header("ratelimit").starts_with(&format!("\"default\";r={remaining};")), "{answer:?}");
    }
}
