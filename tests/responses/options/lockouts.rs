//! Denials of keys that are locked out have the configured status, over HTTP and gRPC.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use tonic::Status;
use tonic_types::StatusExt;
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow, Lockout};
use tower_throttle::key::Global;
use tower_throttle::middleware::{BodyFormat, HttpResponder, ResponseBody};
use tower_throttle::{Quota, RateLimitLayer};

use super::{ask, is_head_of, responses, stopped};
use crate::header_parser::number;
use crate::reference_service::{Service, behind, limited};
use crate::support::{Answer, Server, VERSIONS, request, send};

const HOUR: Duration = Duration::from_secs(3_600);

/// One call a minute. The second denial locks the key out for an hour.
fn logins() -> RateLimitLayer<Global, Lockout<FixedWindow>> {
    layer(FixedWindow::new(Quota::per_minute(1)).block_for(HOUR).after(2))
}

fn layer<A: Algorithm>(algorithm: A) -> RateLimitLayer<Global, A> {
    RateLimitLayer::with_limiter(Global, stopped(algorithm)).name("logins")
}

/// Returns the first denial, the denial that begins the lockout, and a denial during the lockout.
async fn denials<L>(layer: L, content_type: &'static str) -> [Answer; 3]
where
    L: tower::Layer<Service>,
    L::Service: tower::Service<
            Request<Body>,
            Response = Response<ResponseBody<Body>>,
            Error = std::convert::Infallible,
            Future: Send,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    let [_, denials @ ..] = responses::<4>(limited(layer, behind(HeaderMap::new())), content_type).await;
    denials
}

fn forbidden() -> HttpResponder {
    HttpResponder::new().lockout_status(StatusCode::FORBIDDEN)
}

fn kind(answer: &Answer) -> (u16, u64) {
    (answer.status.as_u16(), answer.retry_after())
}

#[tokio::test]
async fn by_default_a_lockout_is_a_429() {
    let answers = denials(logins(), "text/plain").await;
    assert_eq!(answers.each_ref().map(kind), [(429, 60), (429, 3_600), (429, 3_600)]);
    let answers = denials(logins(), "application/grpc").await;
    assert_eq!(answers.map(|answer| answer.header("grpc-status").to_owned()), ["8", "8", "8"]);
}

#[tokio::test]
async fn a_lockout_has_its_body_even_if_the_request_would_not_fit() {
    let responder = forbidden().never_fits_body(BodyFormat::Empty);
    let layer = logins().cost(|_: &Request<Body>| 2).responder(responder);
    let [.., answer] = denials(layer, "text/plain").await;
    assert_eq!((answer.status, answer.body.is_empty()), (StatusCode::FORBIDDEN, false));
}

#[tokio::test]
async fn a_lockout_can_be_a_403_that_reports_its_rest() {
    let answers = denials(logins().responder(forbidden()), "text/plain").await;
    assert_eq!(answers.each_ref().map(kind), [(429, 60), (403, 3_600), (403, 3_600)]);
    let problem = |status| {
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": status,
            "violated-policies": ["logins"],
        })
    };
    for (answer, status) in answers.iter().zip([429, 403, 403]) {
        assert_eq!(answer.json(), problem(status));
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("ratelimit-policy"), r#""logins";q=1;w=60"#);
        assert_eq!(answer.header("ratelimit"), format!(r#""logins";r=0;t={}"#, answer.retry_after()));
    }
}

#[tokio::test]
async fn the_403_is_the_same_over_each_version_of_http_and_for_head() {
    let app = Router::new().route("/", any(|| async { "hello" })).layer(logins().responder(forbidden()));
    let server = Server::start(app).await;
    for _ in 0..2 {
        let _ = send(server.address, VERSIONS[0], request(Method::GET, "/")).await;
    }
    for version in VERSIONS {
        let [get, head] = [Method::GET, Method::HEAD].map(|method| request(method, "/"));
        let get = send(server.address, version, get).await;
        let head = send(server.address, version, head).await;
        assert_eq!(kind(&get), (403, 3_600));
        is_head_of(&head, &get);
    }
}

#[tokio::test]
async fn over_grpc_a_403_is_permission_denied_with_the_details() {
    let short = || layer(FixedWindow::new(Quota::per_second(1)).block_for(HOUR / 120).after(2));
    let [first, begins, during] = denials(short().responder(forbidden()), "application/grpc").await;
    for (answer, status, wait) in [(first, "8", 1_000), (begins, "7", 30_000), (during, "7", 30_000)] {
        assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, status));
        assert_eq!(number(&answer.headers, "grpc-retry-pushback-ms"), Some(wait));
        assert_eq!(answer.retry_after(), wait / 1_000);
        let read = Status::from_header_map(&answer.headers).unwrap();
        assert_eq!(read.message(), if status == "7" { "locked out" } else { "rate limit exceeded" });
        let details = read.check_error_details().unwrap();
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_millis(wait)));
        assert_eq!(details.quota_failure().unwrap().violations[0].description, "logins");
    }
    // Of other statuses, gRPC has none that says the same.
    let teapot = HttpResponder::new().lockout_status(StatusCode::IM_A_TEAPOT);
    let answers = denials(logins().responder(teapot), "application/grpc").await;
    assert_eq!(answers.map(|answer| answer.header("grpc-status").to_owned()), ["8", "8", "8"]);
}

#[tokio::test]
async fn a_lockout_that_has_an_unknown_wait_has_the_hint() {
    let exports = layer(Concurrency::per_key(1).block_for(HOUR).after(2));
    let service =
        limited(exports.responder(forbidden().retry_after_unknown(Some(HOUR / 2))), behind(HeaderMap::new()));
    let open = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    let denials = [ask(&service, "text/plain").await, ask(&service, "text/plain").await];
    assert_eq!(denials.each_ref().map(kind), [(429, 1_800), (403, 1_800)]);
    drop(open);
    assert_eq!(kind(&ask(&service, "text/plain").await), (403, 3_600));
}

#[tokio::test]
async fn jitter_and_the_maximum_apply_to_lockouts() {
    let most = forbidden().jitter(HOUR).max_reported_wait(HOUR / 60);
    let answers = denials(logins().responder(most), "text/plain").await;
    assert_eq!(answers.each_ref().map(kind), [(429, 60), (403, 60), (403, 60)]);
}

#[tokio::test]
async fn a_custom_response_knows_the_status_of_a_lockout() {
    let responder = forbidden().rejection_response(|rejection, _| {
        let mut response = Response::new(rejection.is_locked_out().to_string());
        *response.status_mut() = rejection.status();
        response
    });
    let answers = denials(logins().responder(responder), "text/plain").await;
    let all = answers.each_ref().map(|answer| (answer.status.as_u16(), answer.text()));
    assert_eq!(all, [(429, "false"), (403, "true"), (403, "true")]);
}

#[tokio::test]
async fn a_joined_policy_that_locks_out_decides_the_status() {
    let all = layer(FixedWindow::new(Quota::per_hour(1))).name("all");
    let answers = denials(all.and(logins()).responder(forbidden()), "text/plain").await;
    assert_eq!(answers.each_ref().map(kind), [(429, 3_600), (403, 3_600), (403, 3_600)]);

    // A closed limiter is more urgent to know than a lockout.
    let closed = layer(FixedWindow::new(Quota::per_hour(1))).name("all");
    let locked_out = logins();
    locked_out.limiter().lock_out(&(), HOUR);
    closed.limiter().close();
    let answers = denials(closed.and(locked_out).responder(forbidden()), "text/plain").await;
    assert!(answers.iter().all(|answer| answer.status == 503), "{answers:?}");
}
