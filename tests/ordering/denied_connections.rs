//! A client that got its denial and keeps its connection blocks no other client, although an inner layer admits one
//! request at a time.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::routing::{Route, get};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::layer::layer_fn;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::key::Header;

use crate::hyper_only::{KINDS, serve};
use crate::support::{Client1, Client2, Server, VERSIONS, Version, request};
use crate::{at_last, limiter};

fn by_user() -> RateLimitLayer<Header, FixedWindow> {
    RateLimitLayer::with_limiter(Header::new("user").unwrap(), limiter(1))
}

fn from(user: &'static str) -> Request<Full<Bytes>> {
    let mut request = request(Method::GET, "/");
    request.headers_mut().insert("user", user.parse().unwrap());
    request
}

async fn blocks_nobody(server: &Server, version: Version) {
    macro_rules! check {
        ($connect:path) => {{
            let (mut first, mut second) = ($connect(server.address).await, $connect(server.address).await);
            for status in [200, 429] {
                assert_eq!(first.send(from("denied")).await.status, status);
            }
            let answer = at_last("an answer beside a denied client", second.send(from("other"))).await;
            assert_eq!(answer.status, 200);
            assert_eq!(first.send(from("denied")).await.status, 429, "the connection is still there");
        }};
    }
    match version {
        Version::Http1 => check!(Client1::http1),
        Version::Http2 => check!(Client2::http2),
    }
}

#[tokio::test]
async fn in_axum() {
    for version in VERSIONS {
        let app = Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(ConcurrencyLimitLayer::new(1))
            .layer(by_user());
        blocks_nobody(&Server::start(app).await, version).await;
    }
}

async fn ask<S, B>(service: &mut S, user: &'static str) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let ready = service.ready().await.unwrap();
    at_last("an answer", ready.call(from(user).map(Body::new))).await.unwrap().status()
}

/// axum's `Route` reserves nothing when it is ready, so a limit around it need not replace it after a rejection.
#[tokio::test]
async fn in_axum_with_one_service_that_is_held() {
    let (limited, routes) = std::sync::mpsc::channel();
    let _: Router = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(ConcurrencyLimitLayer::new(1))
        .layer(layer_fn(move |route: Route| {
            limited.send(by_user().layer(route.clone())).unwrap();
            route
        }))
        .with_state(());
    // The handler, and what axum answers without one.
    for mut held in routes.try_iter() {
        let mut other = held.clone();
        let admitted = ask(&mut held, "denied").await;
        assert_eq!(ask(&mut held, "denied").await, 429);
        assert_eq!(ask(&mut other, "other").await, admitted);
    }
}

#[tokio::test]
async fn in_hyper() {
    for (kind, version) in KINDS {
        let hello =
            |_: Request<Incoming>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))) };
        let service = ServiceBuilder::new()
            .layer(by_user())
            .layer(ConcurrencyLimitLayer::new(1))
            .service(service_fn(hello));
        blocks_nobody(&serve(kind, service).await, version).await;
    }
}
