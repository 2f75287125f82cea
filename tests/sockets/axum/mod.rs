//! The layer in axum apps, over real sockets, with HTTP/1.1 and HTTP/2.

mod budgets;
mod fields;
mod keys;
mod uploads;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::PeerIp;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{Answer, Item};

/// A layer with a token bucket for each address, on a clock that the test advances.
fn per_ip(quota: Quota, clock: &ManualClock) -> RateLimitLayer<PeerIp, TokenBucket> {
    let limiter = RateLimiter::builder(TokenBucket::new(quota)).clock(clock.clone()).build();
    RateLimitLayer::with_limiter(PeerIp::new(), limiter)
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// Asserts the whole response to a denied request, over both versions.
fn assert_denied(answer: &Answer, name: &str, (q, w): (u64, u64), retry_after: u64) {
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
    assert_eq!(answer.retry_after(), retry_after, "{answer:?}");
    let policy = Item::read(answer.header("ratelimit-policy"));
    assert_eq!((policy.name.as_str(), policy.get("q"), policy.get("w")), (name, q, w));
    assert_eq!(policy.parameters.len(), 2, "{policy:?}");
    let limit = Item::read(answer.header("ratelimit"));
    assert_eq!((limit.name.as_str(), limit.get("r"), limit.get("t")), (name, 0, retry_after));
    assert_eq!(limit.parameters.len(), 2, "{limit:?}");
    let problem = answer.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!([name]));
}
