//! Limiters that reply later are awaited, and the failures of a limiter are reported.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{AlgorithmInfo, TokenBucket};
use tower_throttle::key::from_fn;
use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor, LimiterStats, Reservation};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Answer as Got, PolledByHand};

const LATE: Duration = Duration::from_millis(50);

/// A limiter like one on another machine. Its keys are strings, and it replies later.
#[derive(Clone, Debug)]
struct Remote {
    there: RateLimiter<TokenBucket>,
    fails: bool,
}

#[derive(Debug)]
struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection refused by 192.0.2.1")
    }
}

impl std::error::Error for Down {}

impl Limiter for Remote {
    type Algorithm = TokenBucket;
    type Error = Down;
    type Wait = Pin<Box<dyn Future<Output = Result<Decided, Down>> + Send>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.there.info()
    }

    fn stats(&self) -> LimiterStats {
        LimiterStats::default()
    }

    fn close(&self) {
        self.there.close();
    }
}

impl<K: ToString + ?Sized> LimiterFor<K> for Remote {
    fn acquire(&self, key: &K, attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
        let (limiter, key, cost) = (self.clone(), key.to_string(), attempt.cost());
        Acquired::Pending(Box::pin(async move {
            sleep(LATE).await;
            match limiter.fails {
                true => Err(Down),
                false => Ok(Decided::new(limiter.there.check_n(&key, cost), Reservation::default())),
            }
        }))
    }
}

fn remote(quota: Quota, fails: bool) -> Remote {
    Remote { there: RateLimiter::new(TokenBucket::new(quota)), fails }
}

type Http = Request<Full<Bytes>>;

/// Returns the layer around an HTTP service that counts its calls.
fn http(
    limiter: Remote,
) -> (
    impl Service<
        Http,
        Response = Response<impl hyper::body::Body<Data = Bytes, Error: fmt::Debug>>,
        Error = Down,
        Future: Send,
    > + Clone,
    Arc<AtomicUsize>,
) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let by_path =
        from_fn(|request: &Http| (request.uri().path() != "/free").then(|| request.uri().path().to_owned()));
    let service =
        RateLimitLayer::with_limiter(by_path, limiter).name("remote").layer(service_fn(move |_: Http| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(Response::new(Full::<Bytes>::from("hello"))) }
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
    let by_path = from_fn(|request: &Http| Some(request.uri().path().to_owned()));
    let hello = |_: Http| async { Ok::<_, Down>(Response::new(Full::<Bytes>::from("hello"))) };
    let layer = RateLimitLayer::with_limiter(by_path, remote(Quota::per_hour(1), false)).name("remote");
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
    let broken = RateLimitLayer::with_limiter(by_path, remote(Quota::per_hour(1), true));
    assert_eq!(broken.layer(service_fn(hello)).oneshot(get("/")).await.unwrap().status(), 503);
    assert_eq!((broken.stats().store_errors, broken.stats().calls.ended()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_limiter_is_awaited_and_decides_the_call() {
    let (service, calls) = http(remote(Quota::per_hour(1), false));
    let start = Instant::now();
    let mut call = PolledByHand::new(service.clone().oneshot(get("/")));
    assert!(!call.poll());
    assert_eq!(calls.load(Ordering::SeqCst), 0, "not before the limiter has said so");
    sleep(LATE).await;
    assert!(call.run());
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
    let (service, calls) = http(remote(Quota::per_hour(1), true));
    let start = Instant::now();
    for _ in 0..3 {
        let answer = Got::read(service.clone().oneshot(get("/free")).await.unwrap()).await;
        assert!(answer.status == 200 && !answer.has("ratelimit"));
    }
    assert_eq!((start.elapsed(), calls.load(Ordering::SeqCst)), (Duration::ZERO, 3));
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_fails_is_503_and_not_the_callers_fault() {
    let (service, calls) = http(remote(Quota::per_hour(1), true));
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
async fn a_limiter_that_fails_is_unavailable_to_grpc() {
    let (service, _) = http(remote(Quota::per_hour(1), true));
    let answer = Got::read(service.oneshot(grpc()).await.unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "14"));
    assert!(answer.ended_with_headers && !answer.header("grpc-message").contains("192.0.2.1"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_denial_is_resource_exhausted_to_grpc() {
    let (service, _) = http(remote(Quota::per_hour(1), false));
    service.clone().oneshot(grpc()).await.unwrap();
    let answer = Got::read(service.oneshot(grpc()).await.unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "8"));
}

#[tokio::test(start_paused = true)]
async fn services_that_are_not_http_get_the_limiters_error() {
    let by_line = from_fn(|line: &String| Some(line.clone()));
    let layer = |fails| {
        RateLimitLayer::with_limiter(by_line, remote(Quota::per_hour(1), fails)).responder(ErrorResponder)
    };
    let shout = service_fn(|line: String| async move { Ok::<_, std::io::Error>(line.to_uppercase()) });

    let error = layer(true).layer(shout).oneshot("a".to_owned()).await.unwrap_err();
    let Error::Store(cause) = &error else { panic!("{error:?}") };
    assert!(cause.downcast_ref::<Down>().is_some());
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "connection refused by 192.0.2.1");

    let service = layer(false).layer(shout);
    assert_eq!(service.clone().oneshot("a".to_owned()).await.unwrap(), "A");
    assert!(matches!(service.oneshot("a".to_owned()).await, Err(Error::Limited(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_at_any_poll_reaches_neither_the_service_nor_the_next_caller() {
    for polls in 0..3 {
        let (service, calls) = http(remote(Quota::per_hour(1), false));
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
