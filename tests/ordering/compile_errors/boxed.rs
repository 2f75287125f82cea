//! A limit in a field, whose type does not name the kind of limit.

use std::convert::Infallible;

use axum::extract::Request;
use axum::response::Response;
use axum::routing::{Route, get};
use axum::Router;
use tower::util::BoxCloneSyncServiceLayer;
use tower_throttle::{Quota, RateLimitLayer};

struct Config {
    limit: BoxCloneSyncServiceLayer<Route, Request, Response, Infallible>,
}

fn main() {
    let quota = Quota::per_minute(100);
    let config = Config { limit: BoxCloneSyncServiceLayer::new(RateLimitLayer::per_ip(quota)) };
    let _: Router = Router::new().route("/", get(|| async { "hello" })).layer(config.limit);
}
