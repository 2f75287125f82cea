//! Responses that a browser caches, and its handling of 304 Not Modified.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tower_http::cors::CorsLayer;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::chromium::Page;
use crate::support::Server;

/// A response that may be cached, but must be revalidated.
async fn unchanged(request: Request) -> Response {
    let kept = [(header::ETAG, "\"1\""), (header::CACHE_CONTROL, "no-cache")];
    match request.headers().contains_key(header::IF_NONE_MATCH) {
        true => (StatusCode::NOT_MODIFIED, kept).into_response(),
        false => (kept, "items").into_response(),
    }
}

/// A limit of `limit` calls an hour, for all callers together.
pub(crate) fn limit(limit: u64, clock: &ManualClock) -> RateLimitLayer<Global, FixedWindow> {
    let window = FixedWindow::new(Quota::per_hour(limit));
    RateLimitLayer::with_limiter(Global, RateLimiter::builder(window).clock(clock.clone()).build())
}

#[tokio::test]
async fn no_rejection_is_cached_and_a_cached_response_reports_what_is_left_now() {
    let page = Page::new().await;
    let clock = ManualClock::new();
    let once = limit(1, &clock);
    assert!(once.limiter().check(&()).is_allowed());
    let later = {
        let clock = clock.clone();
        move || async move { clock.advance(Duration::from_secs(3_600)) }
    };
    let app = Router::new().route("/kept", get(|| async { "hello" })).layer(once).route("/later", get(later));
    let app = app.merge(Router::new().route("/items", get(unchanged)).layer(limit(9, &clock)));
    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::try_from(page.origin.as_str()).unwrap())
        .expose_headers(["ratelimit"].map(HeaderName::from_static));
    let server = Server::start(app.layer(cors)).await;
    let fetch = |path: &str, cache: &str| {
        let url = format!("http://{}{path}", server.address);
        json!({ "url": url, "times": 1, "init": { "cache": cache } })
    };
    let answers = page
        .fetches(&[
            fetch("/kept", "force-cache"),
            fetch("/later", "no-store"),
            fetch("/kept", "force-cache"),
            fetch("/items", "default"),
            fetch("/items", "default"),
        ])
        .await;
    let read = |answer: &Value| {
        (answer["status"].as_u64().unwrap(), answer["headers"]["ratelimit"].as_str().map(str::to_owned))
    };
    for (answer, left) in [(&answers[3], 8), (&answers[4], 7)] {
        assert_eq!(answer["text"], "items");
        let expected = format!("\"default\";r={left};t=3600");
        assert_eq!(read(answer).1.as_deref(), Some(expected.as_str()), "{answer}");
    }
    let statuses: Vec<_> = answers.iter().map(|answer| read(answer).0).collect();
    assert_eq!(statuses, [429, 200, 200, 200, 200]);
}
