//! Denials have the configured status, over HTTP and gRPC, unless another one is configured for their reason.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow};
use tower_throttle::key::Global;
use tower_throttle::middleware::HttpResponder;
use tower_throttle::{Quota, RateLimitLayer};

use super::{is_head_of, responses, stopped};
use crate::header_parser::number;
use crate::reference_service::{behind, limited};
use crate::support::{Answer, Server, VERSIONS, request, send};

const HOUR: Duration = Duration::from_secs(3_600);

fn layer<A: Algorithm>(algorithm: A) -> RateLimitLayer<Global, A> {
    RateLimitLayer::with_limiter(Global, stopped(algorithm)).name("all")
}

/// One call a minute.
fn once_a_minute() -> RateLimitLayer<Global, FixedWindow> {
    layer(FixedWindow::new(Quota::per_minute(1)))
}

fn busy() -> HttpResponder {
    HttpResponder::new().denied_status(StatusCode::SERVICE_UNAVAILABLE)
}

/// Returns the status and `Retry-After`.
fn kind(answer: &Answer) -> (u16, Option<u64>) {
    (answer.status.as_u16(), number(&answer.headers, "retry-after"))
}

#[tokio::test]
async fn a_denial_has_the_status_and_all_else_of_a_429() {
    let answers = async |responder| {
        let service = limited(once_a_minute().responder(responder), behind(HeaderMap::new()));
        responses::<2>(service, "text/plain").await
    };
    let [_, by_default] = answers(HttpResponder::new()).await;
    let [first, denied] = answers(busy()).await;
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
    let service = limited(once_a_minute().responder(busy()), behind(HeaderMap::new()));
    let [_, denied] = responses(service, "application/grpc").await;
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
async fn a_lockout_has_the_status_of_a_denial_unless_it_has_its_own() {
    for (responder, status) in [(busy(), 503), (busy().lockout_status(StatusCode::FORBIDDEN), 403)] {
        let lockout = layer(FixedWindow::new(Quota::per_minute(1)).block_for(HOUR).after(2));
        let service = limited(lockout.responder(responder), behind(HeaderMap::new()));
        let [_, first, begins] = responses(service, "text/plain").await;
        assert_eq!([kind(&first), kind(&begins)], [(503, Some(60)), (status, Some(3_600))]);
    }
}

#[tokio::test]
async fn other_reasons_keep_their_statuses() {
    for (responder, status) in [(busy(), 429), (busy().never_fits_status(StatusCode::PAYLOAD_TOO_LARGE), 413)]
    {
        let too_large = once_a_minute().cost(|_: &Request<Body>| 2).responder(responder);
        let [never] = responses(limited(too_large, behind(HeaderMap::new())), "text/plain").await;
        assert_eq!(kind(&never), (status, None));
    }
    let teapot = HttpResponder::new().denied_status(StatusCode::IM_A_TEAPOT);
    let closed = once_a_minute().responder(teapot);
    closed.limiter().close();
    let [closed] = responses(limited(closed, behind(HeaderMap::new())), "text/plain").await;
    assert_eq!(kind(&closed), (503, Some(1)));
    let keyless = RateLimitLayer::per_ip(Quota::per_minute(1)).responder(teapot);
    let [keyless] = responses(limited(keyless, behind(HeaderMap::new())), "text/plain").await;
    assert_eq!(keyless.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_custom_response_knows_the_status() {
    let responder = busy().rejection_response(|rejection, _| {
        let mut response = Response::new(rejection.status().to_string());
        *response.status_mut() = rejection.status();
        response
    });
    let all = once_a_minute().and(layer(FixedWindow::new(Quota::per_hour(9)))).responder(responder);
    let [_, denied] = responses(limited(all, behind(HeaderMap::new())), "text/plain").await;
    assert_eq!((denied.status.as_u16(), denied.text()), (503, "503 Service Unavailable"));
}
