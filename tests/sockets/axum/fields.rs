//! Responses have fields or not by their status, and the fields name the policies.

use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Quota, RateLimitLayer};

use super::{assert_denied, hello, per_ip};
use crate::support::{self, Answer, Item, Server, VERSIONS, Version, request, send};

#[tokio::test]
async fn redirects_carry_no_fields_but_all_other_responses_do() {
    let app = Router::new()
        .route(
            "/status/{code}",
            get(|axum::extract::Path(code): axum::extract::Path<u16>| async move {
                StatusCode::from_u16(code).unwrap()
            }),
        )
        .route("/away", get(|| async { Redirect::to("/status/200") }))
        .layer(per_ip(Quota::per_minute(100), &ManualClock::new()));
    let server = Server::start(app).await;
    for code in [300, 301, 302, 303, 307, 308, 399] {
        let answer = support::get(server.address, Version::Http1, &format!("/status/{code}")).await;
        assert_eq!(answer.status, code);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
    }
    assert!(!support::get(server.address, Version::Http2, "/away").await.has("ratelimit"));
    for code in [200, 204, 299, 304, 400, 404, 429, 500, 503] {
        let answer = support::get(server.address, Version::Http1, &format!("/status/{code}")).await;
        assert_eq!(answer.status, code);
        assert!(answer.has("ratelimit") && answer.has("ratelimit-policy"), "{answer:?}");
        assert!(!answer.has("retry-after"), "{answer:?}");
    }
}

#[tokio::test]
async fn the_fields_of_an_inner_limiter_stay_and_those_of_the_outer_are_added() {
    let clock = ManualClock::new();
    let app = hello()
        .layer(per_ip(Quota::per_minute(2), &clock).name("inner"))
        .layer(per_ip(Quota::per_hour(3), &clock).name("outer"));
    for version in VERSIONS {
        clock.advance(Duration::from_secs(3_600));
        let server = Server::start(app.clone()).await;
        let names = |answer: &Answer, field: &str| {
            answer.items(field).into_iter().map(|item| item.name).collect::<Vec<_>>()
        };
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(names(&answer, "ratelimit"), ["inner", "outer"]);
        assert_eq!(names(&answer, "ratelimit-policy"), ["inner", "outer"]);

        support::get(server.address, version, "/").await;
        // The inner limiter denies the request, and its response passes through the outer limiter.
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(answer.status, 429);
        assert_eq!(names(&answer, "ratelimit"), ["inner", "outer"]);
        assert_eq!(answer.retry_after(), 30);
        assert_eq!(answer.json()["violated-policies"], serde_json::json!(["inner"]));

        // The outer limiter denies the request, so the inner limiter is not called.
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(answer.status, 429);
        assert_eq!(names(&answer, "ratelimit"), ["outer"]);
        assert_eq!(answer.retry_after(), 1_200);
    }
}

#[tokio::test]
async fn fields_that_an_inner_service_sets_are_left_alone() {
    let app = Router::new()
        .route(
            "/",
            get(|| async {
                let own = [("retry-after", "77"), ("ratelimit", "\"own\";r=1"), ("content-type", "text/x")];
                (StatusCode::SERVICE_UNAVAILABLE, own, "busy").into_response()
            }),
        )
        .layer(per_ip(Quota::per_minute(9), &ManualClock::new()));
    let server = Server::start(app).await;
    let answer = support::get(server.address, Version::Http1, "/").await;
    assert_eq!(answer.header("retry-after"), "77");
    assert_eq!(answer.header("content-type"), "text/x");
    assert_eq!(answer.text(), "busy");
    let names: Vec<_> = answer.items("ratelimit").into_iter().map(|item| item.name).collect();
    assert_eq!(names, ["own", "default"]);
}

#[tokio::test]
async fn a_head_request_gets_the_same_head_as_a_get() {
    for version in VERSIONS {
        let app = hello().layer(per_ip(Quota::per_minute(2), &ManualClock::new()));
        let server = Server::start(app).await;
        let call = |method| send(server.address, version, request(method, "/"));

        let head = call(Method::HEAD).await;
        assert_eq!((head.status, head.header("ratelimit")), (StatusCode::OK, "\"default\";r=1;t=30"));
        assert_eq!(call(Method::GET).await.text(), "hello");
        let (get, head) = (call(Method::GET).await, call(Method::HEAD).await);
        assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(head.reported(), get.reported());
        assert_eq!(head.header("content-length"), get.body.len().to_string());
        assert!(head.body.is_empty());
    }
}

#[test]
#[should_panic(expected = "printable ASCII")]
fn a_name_that_no_field_can_carry_panics() {
    let _ = RateLimitLayer::per_ip(Quota::per_second(1)).name("a\nb");
}

#[test]
fn a_name_from_outside_the_program_is_validated() {
    let layer = || RateLimitLayer::per_ip(Quota::per_second(1));
    for name in ["a\nb", "a\rb", "", "\u{7f}", "Zürich", &"x".repeat(257)] {
        let error = layer().try_name(name).unwrap_err().to_string();
        assert!(error.contains("printable ASCII") && !error.contains('\n'), "{error}");
    }
    for name in [" ", "login", "a\"b\\c", &"x".repeat(256)] {
        assert!(layer().try_name(name).is_ok(), "{name}");
    }
}

#[tokio::test]
async fn a_name_is_quoted_in_fields_and_bodies() {
    let name = r#"log"in \ "sign up""#;
    let layer = per_ip(Quota::per_minute(1), &ManualClock::new()).name(name);
    for version in VERSIONS {
        layer.limiter().reset(&std::net::IpAddr::from([127, 0, 0, 1]));
        let server = Server::start(hello().layer(layer.clone())).await;
        let answer = support::get(server.address, version, "/").await;
        assert_eq!(answer.header("ratelimit-policy"), r#""log\"in \\ \"sign up\"";q=1;w=60"#);
        assert_eq!(Item::read(answer.header("ratelimit")).name, name);
        assert_denied(&support::get(server.address, version, "/").await, name, (1, 60), 60);
    }
}

#[tokio::test]
async fn the_largest_quota_is_reported_in_fifteen_digits() {
    let app = hello().layer(per_ip(Quota::per_day(u64::MAX), &ManualClock::new()));
    let server = Server::start(app).await;
    let answer = support::get(server.address, Version::Http1, "/").await;
    assert_eq!(Item::read(answer.header("ratelimit-policy")).get("q"), 999_999_999_999_999);
    assert_eq!(Item::read(answer.header("ratelimit")).get("r"), 999_999_999_999_999);
}
