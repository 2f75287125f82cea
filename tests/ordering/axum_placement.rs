//! The places that the layer can have in an axum app, and among other layers.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{MethodRouter, any, get};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::decompression::DecompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::{ResponseBodyTimeoutLayer, TimeoutLayer};
use tower_http::trace::TraceLayer;
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::key::PeerIp;

use crate::support::{Server, VERSIONS, Version, request, send};
use crate::{HERE, left, limit, limiter};

type Limit = RateLimitLayer<PeerIp, FixedWindow>;

fn hello() -> MethodRouter {
    get(|| async { "hello" })
}

/// A service without axum's routes.
fn service()
-> impl Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync {
    service_fn(|_: Request| async { Ok(Response::new(Body::from("hello"))) })
}

/// Returns each place that a limit can have in an app, with a path that is limited.
fn places(limit: Limit) -> Vec<(&'static str, &'static str, Router)> {
    let app = || Router::new().route("/", hello());
    let l = || limit.clone();
    vec![
        ("around a router", "/", app().layer(l())),
        ("around its routes", "/", app().route_layer(l())),
        ("around a method router", "/", Router::new().route("/", hello().layer(l()))),
        ("around its methods", "/", Router::new().route("/", hello().route_layer(l()))),
        ("around a handler", "/", Router::new().route("/", get((|| async { "hello" }).layer(l())))),
        ("around a route's service", "/", Router::new().route_service("/", l().layer(service()))),
        ("in what is nested", "/in", Router::new().nest("/in", app().layer(l()))),
        ("around the routes of what is nested", "/in", Router::new().nest("/in", app().route_layer(l()))),
        ("around what is nested", "/in", Router::new().nest("/in", app()).layer(l())),
        (
            "in what is nested twice",
            "/a/b",
            Router::new().nest("/a", Router::new().nest("/b", app().layer(l()))),
        ),
        ("in a service that is nested", "/in/", Router::new().nest_service("/in", app().layer(l()))),
        ("around a service that is nested", "/in/x", Router::new().nest_service("/in", l().layer(service()))),
        (
            "outside of a service that is nested",
            "/in/x",
            Router::new().nest_service("/in", service()).layer(l()),
        ),
        ("in what is merged", "/", Router::new().route("/other", any(|| async {})).merge(app().layer(l()))),
        ("around what is merged", "/", Router::new().merge(app()).layer(l())),
        ("around a fallback", "/x", Router::new().fallback((|| async { "hello" }).layer(l()))),
        ("around a fallback's router", "/x", Router::new().fallback(|| async { "hello" }).layer(l())),
        ("around a fallback's service", "/x", Router::new().fallback_service(l().layer(service()))),
        ("around a whole app", "/", Router::new().fallback_service(app()).layer(l())),
        ("in a fallback's app", "/", Router::new().fallback_service(app().layer(l()))),
        ("in a stack", "/", app().layer(ServiceBuilder::new().layer(l()))),
        ("in a tuple", "/", app().layer((TraceLayer::new_for_http(), l()))),
        (
            "before a state is given",
            "/",
            Router::<u8>::new().route("/", hello_with_state()).layer(l()).with_state(7),
        ),
        (
            "after a state was given",
            "/",
            Router::<u8>::new().route("/", hello_with_state()).with_state(7).layer(l()),
        ),
    ]
}

fn hello_with_state() -> MethodRouter<u8> {
    get(|_: axum::extract::State<u8>| async { "hello" })
}

#[tokio::test]
async fn a_limit_works_in_each_place_of_an_app() {
    let limiter = limiter(2);
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
    for version in VERSIONS {
        for (place, path, app) in places(layer.clone()) {
            limiter.reset(&HERE);
            let server = Server::start(app).await;
            for left_then in [1, 0] {
                let answer = send(server.address, version, request(Method::GET, path)).await;
                assert_eq!((answer.status, answer.text()), (StatusCode::OK, "hello"), "{place}");
                assert_eq!(
                    answer.header("ratelimit"),
                    format!("\"default\";r={left_then};t=3600"),
                    "{place}"
                );
                assert_eq!(left(&limiter, &HERE), left_then, "{place}");
            }
            let answer = send(server.address, version, request(Method::GET, path)).await;
            assert_eq!(
                (answer.status, answer.retry_after()),
                (StatusCode::TOO_MANY_REQUESTS, 3_600),
                "{place}"
            );
            assert_eq!(answer.json()["violated-policies"][0], "default", "{place}");
            let head = send(server.address, version, request(Method::HEAD, path)).await;
            assert_eq!((head.status, head.body.len()), (StatusCode::TOO_MANY_REQUESTS, 0), "{place}");
            assert_eq!(head.header("content-length"), answer.body.len().to_string(), "{place}");
        }
    }
}

/// The length of a text that is worth compressing.
const LENGTH: usize = 10_000;

/// Builds an app with the layer inside of a limit, and an app with the layer outside of the limit.
macro_rules! either_side {
    ($($layer:expr),* $(,)?) => {
        vec![$((
            stringify!($layer),
            [
                app().layer($layer).layer(limit(2)),
                app().layer(limit(2)).layer($layer),
            ],
        )),*]
    };
}

fn app() -> Router {
    Router::new().route("/", any(|| async { "hello ".repeat(LENGTH / 6) }))
}

async fn passes_on(request: Request, next: Next) -> Response {
    next.run(request).await
}

/// Makes a request with hyper's own client, which accepts compressed responses.
async fn fetch(server: &Server, version: Version) -> (http::response::Parts, Bytes) {
    let http2 = version == Version::Http2;
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(http2).build_http::<Empty<Bytes>>();
    let request = http::Request::get(format!("http://{}/", server.address)).body(Empty::new()).unwrap();
    let response = DecompressionLayer::new().layer(client).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts, body.collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_limit_works_among_other_layers_on_either_side() {
    const SOON: Duration = Duration::from_secs(60);
    let stacks = either_side![
        TraceLayer::new_for_http(),
        CompressionLayer::new(),
        ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(CompressionLayer::new()),
        CorsLayer::permissive(),
        TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, SOON),
        ResponseBodyTimeoutLayer::new(SOON),
        RequestBodyLimitLayer::new(10),
        CatchPanicLayer::new(),
        from_fn(passes_on),
        limit(100).name("another"),
    ];
    for (layer, apps) in stacks {
        for (side, app) in apps.into_iter().enumerate() {
            // Both requests share one budget. A second pair of requests would exceed it.
            let server = Server::start(app).await;
            for version in VERSIONS {
                let (head, body) = fetch(&server, version).await;
                assert_eq!(head.status, 200, "{layer}, {side}, {version:?}");
                assert!(head.headers.contains_key("ratelimit"), "{layer}, {side}: {head:?}");
                assert_eq!(body, "hello ".repeat(LENGTH / 6), "{layer}, {side}");
            }
            for version in VERSIONS {
                let (head, body) = fetch(&server, version).await;
                assert_eq!(head.status, 429, "{layer}, {side}, {version:?}");
                assert_eq!(head.headers["retry-after"], "3600", "{layer}, {side}");
                assert_eq!(head.headers["content-type"], "application/problem+json", "{layer}, {side}");
                let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(problem["violated-policies"][0], "default", "{layer}, {side}");
            }
        }
    }
}

/// Tests tower's layers that have errors of their own, which axum requires to be handled.
#[tokio::test]
async fn a_limit_works_among_layers_that_fail() {
    let failed = |error: tower::BoxError| async move { (StatusCode::SERVICE_UNAVAILABLE, error.to_string()) };
    let handle = axum::error_handling::HandleErrorLayer::new(failed);
    let tower_layers =
        || ServiceBuilder::new().load_shed().concurrency_limit(10).timeout(Duration::from_secs(60));
    for app in [
        app().layer(ServiceBuilder::new().layer(handle.clone()).layer(tower_layers()).layer(limit(2))),
        app().layer(ServiceBuilder::new().layer(limit(2)).layer(handle.clone()).layer(tower_layers())),
        // The error of the inner layers passes through the limit.
        app().layer(ServiceBuilder::new().layer(handle.clone()).layer(limit(2)).layer(tower_layers())),
        app().layer(ServiceBuilder::new().layer(handle).buffer(10).layer(limit(2))),
    ] {
        let server = Server::start(app).await;
        for version in VERSIONS {
            assert_eq!(fetch(&server, version).await.0.status, 200);
        }
        for version in VERSIONS {
            assert_eq!(fetch(&server, version).await.0.status, 429);
        }
    }
}
