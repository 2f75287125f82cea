//! An nginx that caches responses of any status.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::NGINX;
use crate::server::{Nginx, at};
use crate::support::{Server, Version, get as ask};

#[tokio::test]
async fn a_cache_of_all_statuses_caches_no_rejection() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(1))).clock(clock.clone()).build();
    assert!(limiter.check(&()).is_allowed());
    let layer = RateLimitLayer::with_limiter(Global, limiter);
    let app = Server::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
    let nginx = Nginx::start(NGINX, &at(app.address), "proxy_cache answers; proxy_cache_valid any 1h;").await;
    let answer = ask(nginx.address, Version::Http1, "/").await;
    assert_eq!(answer.status, 429);
    clock.advance(Duration::from_secs(60));
    let answer = ask(nginx.address, Version::Http1, "/").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "hello"));
    // nginx caches the admitted response.
    let answer = ask(nginx.address, Version::Http1, "/").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "hello"));
}
