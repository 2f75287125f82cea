//! A limit that may be absent.

use axum::{Router, routing::get};
use tower::util::option_layer;
use tower_throttle::{Quota, RateLimitLayer};

fn main() {
    let quota = std::env::var("LIMIT").ok().map(|text| text.parse().expect("a quota"));
    let limit = |quota: Quota| RateLimitLayer::per_ip(quota);
    let _: Router =
        Router::new().route("/", get(|| async { "hello" })).layer(option_layer(quota.map(limit)));
}
