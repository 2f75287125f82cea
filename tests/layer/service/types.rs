//! Layers are shared, futures are `Send`, and the types of bodies and errors stay what they are.

use std::fmt;
use std::future::Future;
use std::io;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::key::{Global, Header, PeerIp};
use tower_throttle::middleware::types::{Policy, UnitCost, Unset};
use tower_throttle::middleware::{RateLimit, ResponseBody, ResponseFuture};
use tower_throttle::{Error, ErrorResponder, HttpResponder, Quota, RateLimitLayer, RateLimiter};

use super::shout;

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
    service: RateLimit<Plain, Policy<Global, TokenBucket>, HttpResponder<Unset>>,
}

type Pending =
    ResponseFuture<Plain, Request<Empty<Bytes>>, Policy<Global, TokenBucket>, HttpResponder<Unset>>;

impl App {
    fn call(&mut self, path: &str) -> Pending {
        self.service.call(Request::get(path).body(Empty::new()).unwrap())
    }
}

#[tokio::test]
async fn bodies_may_differ_and_errors_stay_what_they_are() {
    let layer: RateLimitLayer<Global, TokenBucket, UnitCost, HttpResponder<Unset>> =
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
