//! The layer around services that are not HTTP, and the properties of its types.

use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, Header, KeyError, KeyExtractor, PeerIp, from_fn};
use tower_throttle::middleware::{
    Policy, PolicyReport, RateLimit, Rejection, Responder, ResponseBody, ResponseFuture, UnitCost,
};
use tower_throttle::{Error, ErrorResponder, HttpResponder, Quota, RateLimitLayer, RateLimiter};

/// Returns an extractor for lines of a protocol, `<user> <command>`. The key is the user.
fn by_user() -> impl KeyExtractor<String, Key = String> + Copy {
    from_fn(|line: &String| line.split(' ').next().filter(|user| *user != "root").map(str::to_owned))
}

async fn shout(line: String) -> Result<String, io::Error> {
    match line.contains("fail") {
        true => Err(io::Error::other("it failed")),
        false => Ok(line.to_uppercase()),
    }
}

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

fn is_shared<T: Send + Sync + Clone + Unpin + fmt::Debug + 'static>(_: &T) {}
fn is_sent<T: Send>(_: &T) {}

/// Returns a layer whose type is written out, as users may write it.
fn limiter() -> RateLimitLayer<PeerIp, TokenBucket> {
    RateLimitLayer::per_ip(Quota::per_second(1))
}

#[test]
fn layers_are_shared_and_futures_are_sent() {
    let layer = limiter();
    is_shared(&layer);
    is_shared(&RateLimitLayer::new(Header::new("x-api-key").unwrap(), FixedWindow::new(Quota::per_day(1))));
    is_shared(&RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_day(1))).responder(ErrorResponder));
    is_shared(&RateLimiter::new(LeakyBucket::new(Quota::per_day(1))));
    is_sent(&RateLimiter::new(LeakyBucket::new(Quota::per_day(1))).acquire("key"));

    let mut service = layer.layer(Plain);
    is_shared(&service);
    let future = service.call(Request::new(Empty::new()));
    is_sent(&future);
    let mut queues = RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_day(1))).layer(Plain);
    is_shared(&queues);
    is_sent(&queues.call(Request::new(Empty::new())));
}

/// An HTTP service whose request and response bodies differ.
#[derive(Clone, Debug)]
struct Plain;

impl Service<Request<Empty<Bytes>>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = std::future::Ready<Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Empty<Bytes>>) -> Self::Future {
        std::future::ready(match request.uri().path() {
            "/fail" => Err(io::Error::other("it failed")),
            _ => Ok(Response::new(Full::from("plain"))),
        })
    }
}

/// A chain of layers in which the type of each layer has a name.
struct App {
    service: RateLimit<Plain, Policy<Global, TokenBucket>, HttpResponder>,
}

type Pending = ResponseFuture<Plain, Request<Empty<Bytes>>, Policy<Global, TokenBucket>, HttpResponder>;

impl App {
    fn call(&mut self, path: &str) -> Pending {
        self.service.call(Request::get(path).body(Empty::new()).unwrap())
    }
}

#[tokio::test]
async fn bodies_may_differ_and_errors_stay_what_they_are() {
    let layer: RateLimitLayer<Global, TokenBucket, UnitCost, HttpResponder> =
        RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(2)));
    let mut app = App { service: layer.layer(Plain) };
    let response: Response<ResponseBody<Full<Bytes>>> = app.call("/").await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "plain");
    let error: io::Error = app.call("/fail").await.unwrap_err();
    assert_eq!(error.to_string(), "it failed");
    let response = app.call("/").await.unwrap();
    assert_eq!(response.status(), 429);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
}

/// A function of a library that is generic over the limit.
#[derive(Clone)]
struct Held<K, A: Algorithm> {
    layer: RateLimitLayer<K, A>,
}

impl<K, A: Algorithm> Held<K, A> {
    fn around<S>(&self, service: S) -> <RateLimitLayer<K, A> as Layer<S>>::Service {
        self.layer.layer(service)
    }
}

#[tokio::test]
async fn a_struct_holds_a_layer_of_any_key_and_algorithm() {
    let held = Held { layer: RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(1))) };
    let call = || held.clone().around(Plain).oneshot(Request::new(Empty::new()));
    assert_eq!(call().await.unwrap().status(), 200);
    assert_eq!(call().await.unwrap().status(), 429);
}

#[tokio::test]
async fn a_name_a_cost_and_a_response_are_set_in_any_order() {
    let quota = || TokenBucket::new(Quota::per_hour(2));
    let cost = |line: &String| line.len() as u64;
    let layers = [
        ServiceBuilder::new()
            .layer(RateLimitLayer::new(Global, quota()).name("a").cost(cost).responder(ErrorResponder))
            .service(service_fn(shout)),
        ServiceBuilder::new()
            .layer(RateLimitLayer::new(Global, quota()).responder(ErrorResponder).cost(cost).name("a"))
            .service(service_fn(shout)),
    ];
    for service in layers {
        assert!(matches!(service.clone().oneshot("abc".to_owned()).await, Err(Error::Limited(_))));
        assert!(service.clone().oneshot("ab".to_owned()).await.is_ok());
        assert!(matches!(service.oneshot("a".to_owned()).await, Err(Error::Limited(_))));
    }
}

/// A responder whose response shows the reports that the responder got.
#[derive(Clone)]
struct Telling;

impl<E> Responder<String, String, E> for Telling {
    type Response = String;
    type Error = E;

    fn map_response(&self, reports: &[PolicyReport<'_>], response: String) -> String {
        format!("{response}, {}", said(reports))
    }

    fn map_error(&self, error: E) -> E {
        error
    }

    fn reject(&self, request: &String, refusal: Rejection<'_>) -> Result<String, E> {
        match refusal {
            Rejection::Limited(reports) => Ok(format!("not {request}, {}", said(reports))),
            other => panic!("{other:?}"),
        }
    }
}

fn said(reports: &[PolicyReport<'_>]) -> String {
    let said = reports.iter().map(|report| {
        let (policy, decision) = (report.policy(), report.decision());
        let window = report.window().map(|window| window.as_secs());
        format!(
            "{}: {} per {:?}, {} left, {window:?}",
            report.name(),
            policy.quota,
            policy.window,
            decision.remaining()
        )
    });
    said.collect::<Vec<_>>().join(" and ")
}

#[tokio::test]
async fn a_custom_responder_makes_the_responses() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(1))).clock(clock).build();
    let layer = RateLimitLayer::with_limiter(by_user(), limiter).name("mine").responder(Telling);
    let service = layer.layer(service_fn(shout));
    let call = |line: &str| service.clone().oneshot(line.to_owned());
    assert_eq!(call("ann").await.unwrap(), "ANN, mine: 1 per 60s, 0 left, Some(60)");
    assert_eq!(call("ann").await.unwrap(), "not ann, mine: 1 per 60s, 0 left, Some(60)");
    assert_eq!(call("root").await.unwrap(), "ROOT, ");
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

#[tokio::test]
async fn a_service_returns_what_it_wraps() {
    let service = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(1))).layer(Plain);
    let _: &Plain = service.get_ref();
    let _: Plain = service.into_inner();
}

#[test]
fn debug_output_of_a_future_is_short() {
    let future = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(1)))
        .layer(Plain)
        .call(Request::new(Empty::new()));
    fn is_future<F: Future>(_: &F) {}
    is_future(&future);
    assert_eq!(format!("{future:?}"), "ResponseFuture { .. }");
}

/// A responder that counts the calls of `max_wait`, and allows no wait.
#[derive(Clone, Default)]
struct Impatient(Arc<AtomicUsize>);

impl<Req, Res, Err> Responder<Req, Res, Err> for Impatient {
    type Response = Res;
    type Error = Error<Err>;

    fn max_wait(&self, _: &Req) -> Option<Duration> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Some(Duration::ZERO)
    }

    fn map_response(&self, _: &[PolicyReport<'_>], response: Res) -> Res {
        response
    }

    fn map_error(&self, error: Err) -> Error<Err> {
        Error::Inner(error)
    }

    fn reject(&self, request: &Req, rejection: Rejection<'_>) -> Result<Res, Error<Err>> {
        ErrorResponder.reject(request, rejection)
    }
}

#[tokio::test(start_paused = true)]
async fn a_responder_is_asked_for_the_maximum_wait_only_if_requests_can_be_queued() {
    let window = FixedWindow::new(Quota::per_hour(1));
    let bucket = TokenBucket::new(Quota::per_hour(1));
    let queue = bucket.clone().queue(9);
    let tiers = Tiered::new(bucket.clone());
    macro_rules! assert_asked {
        ($layer:expr, $asks:expr) => {{
            let asked = Impatient::default();
            let service = $layer.responder(asked.clone()).layer(service_fn(shout));
            assert!(service.clone().oneshot("ann".to_owned()).await.is_ok());
            assert!(matches!(service.oneshot("ann".to_owned()).await, Err(Error::Limited(_))));
            assert_eq!(asked.0.load(Ordering::SeqCst), $asks);
        }};
    }
    assert_asked!(RateLimitLayer::new(by_user(), window.clone()), 0);
    assert_asked!(RateLimitLayer::new(by_user(), bucket.clone()), 0);
    assert_asked!(RateLimitLayer::new(by_user(), queue.clone()), 2);
    assert_asked!(RateLimitLayer::new(by_user(), tiers).tier(move |_: &String, _| queue.clone()), 2);
    let both = || RateLimitLayer::new(by_user(), window.clone());
    assert_asked!(both().and(RateLimitLayer::new(Global, bucket.clone())), 0);
    assert_asked!(both().and(RateLimitLayer::new(Global, bucket.queue(9))), 2);
}
