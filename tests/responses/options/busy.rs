//! Denials have the configured status, over HTTP and gRPC, unless another one is configured for their reason.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use serde_json::json;
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, PeerIp};
use tower_throttle::middleware::HttpResponder;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::is_head_of;
use crate::reference_service::{behind, limited};
use crate::support::{Answer, Server, VERSIONS, request, send};

const HOUR: Duration = Duration::from_secs(3_600);

fn layer<A: Algorithm>(algorithm: A) -> RateLimitLayer<Global, A> {
    let limiter = RateLimiter::builder(algorithm).clock(ManualClock::new()).name("all").build();
    RateLimitLayer::with_limiter(Global, limiter)
}

fn busy() -> HttpResponder {
    HttpResponder::new().denied_status(StatusCode::SERVICE_UNAVAILABLE)
}

/// Sends `$n` requests to a service that is limited by `$layer`, and returns the responses.
macro_rules! answers {
    ($layer:expr, $content_type:expr, $n:expr) => {{
        let service = limited($layer, behind(HeaderMap::new()));
        let mut answers = Vec::new();
        for _ in 0..$n {
            let mut request = Request::new(Body::empty());
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static($content_type));
            answers.push(Answer::read(service.clone().oneshot(request).await.unwrap()).await);
        }
        answers
    }};
}

fn kinds(answers: &[Answer]) -> Vec<(u16, Option<&str>)> {
    let wait =
        |answer: &Answer| answer.headers.get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
    answers.iter().map(|answer| (answer.status.as_u16(), wait(answer).map(|wait| &*wait.leak()))).collect()
}

#[tokio::test]
async fn a_denial_has_the_status_and_all_else_of_a_429() {
    let window = || layer(FixedWindow::new(Quota::per_minute(1)));
    let [by_default, busy] = [HttpResponder::new(), busy()].map(|responder| window().responder(responder));
    let [_, by_default] = <[Answer; 2]>::try_from(answers!(by_default, "text/plain", 2)).unwrap();
    let [first, denied] = <[Answer; 2]>::try_from(answers!(busy, "text/plain", 2)).unwrap();
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!((by_default.status.as_u16(), denied.status.as_u16()), (429, 503));
    let mut problem = by_default.json();
    problem["status"] = json!(503);
    assert_eq!(denied.json(), problem);
    let fields = |answer: &Answer| {
        let mut fields = answer.headers.clone();
        fields.remove("content-length");
        fields
    };
    assert_eq!(fields(&denied), fields(&by_default));
    assert_eq!(denied.header("retry-after"), "60");
}

#[tokio::test]
async fn grpc_calls_have_one_code_for_all_denials() {
    let [_, denied] = <[Answer; 2]>::try_from(answers!(
        layer(FixedWindow::new(Quota::per_minute(1))).responder(busy()),
        "application/grpc",
        2
    ))
    .unwrap();
    assert_eq!((denied.status.as_u16(), denied.header("grpc-status")), (200, "8"));
}

#[tokio::test]
async fn a_limit_of_requests_in_progress_is_busy_over_each_version_of_http_and_for_head() {
    let app = Router::new()
        .route("/", any(|| async { "hello" }))
        .layer(layer(Concurrency::per_key(1)).responder(busy()));
    let server = Server::start(app.clone()).await;
    let open = app.oneshot(Request::new(Body::empty())).await.unwrap();
    for version in VERSIONS {
        let [get, head] = [Method::GET, Method::HEAD].map(|method| request(method, "/"));
        let get = send(server.address, version, get).await;
        let head = send(server.address, version, head).await;
        assert_eq!((get.status.as_u16(), get.header("retry-after")), (503, "1"));
        is_head_of(&head, &get);
    }
    drop(open);
    assert_eq!(send(server.address, VERSIONS[0], request(Method::GET, "/")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn other_reasons_keep_their_statuses() {
    let lockout = || layer(FixedWindow::new(Quota::per_minute(1)).block_for(HOUR).after(2));
    let denials = answers!(lockout().responder(busy()), "text/plain", 3);
    assert_eq!(kinds(&denials[1..]), [(503, Some("60")), (503, Some("3600"))], "a lockout is a denial");
    let forbidden = busy().lockout_status(StatusCode::FORBIDDEN);
    let denials = answers!(lockout().responder(forbidden), "text/plain", 3);
    assert_eq!(kinds(&denials[1..]), [(503, Some("60")), (403, Some("3600"))]);

    let too_large = || layer(FixedWindow::new(Quota::per_minute(1))).cost(|_: &Request<Body>| 2);
    assert_eq!(kinds(&answers!(too_large().responder(busy()), "text/plain", 1)), [(429, None)]);
    let large = busy().never_fits_status(StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(kinds(&answers!(too_large().responder(large), "text/plain", 1)), [(413, None)]);

    let teapot = HttpResponder::new().denied_status(StatusCode::IM_A_TEAPOT);
    let closed = layer(FixedWindow::new(Quota::per_minute(1))).responder(teapot);
    closed.limiter().close();
    assert_eq!(kinds(&answers!(closed, "text/plain", 1)), [(503, Some("1"))]);
    let keyless =
        RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(1))).responder(teapot);
    assert_eq!(answers!(keyless, "text/plain", 1)[0].status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_custom_response_knows_the_status() {
    let responder = busy().rejection_response(|rejection, _| {
        let mut response = Response::new(rejection.status().to_string());
        *response.status_mut() = rejection.status();
        response
    });
    let all = layer(FixedWindow::new(Quota::per_minute(1))).and(layer(FixedWindow::new(Quota::per_hour(9))));
    let [_, denied] = <[Answer; 2]>::try_from(answers!(all.responder(responder), "text/plain", 2)).unwrap();
    assert_eq!((denied.status.as_u16(), denied.text()), (503, "503 Service Unavailable"));
}
