//! A limit that a flag switches off, outside of a layer with a body type of its own.

use axum::{Router, routing::get};
use tower::ServiceBuilder;
use tower_http::trace::TraceLayer;
use tower_throttle::{Quota, RateLimitLayer};

fn main() {
    let is_limited = std::env::var_os("NO_LIMIT").is_none();
    let limit = RateLimitLayer::per_ip(Quota::per_minute(100)).axum_body();
    let _: Router = Router::new().route("/", get(|| async { "hello" })).layer(
        ServiceBuilder::new().option_layer(is_limited.then_some(limit)).layer(TraceLayer::new_for_http()),
    );
}
