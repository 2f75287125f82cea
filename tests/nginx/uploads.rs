//! Rejected uploads through nginx, which forwards the upload while the app responds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::NGINX;
use crate::server::{Nginx, at};
use crate::support::{Client1, Server};

/// Returns the statuses that clients got for bodies of the sizes `sizes`.
async fn upload(nginx: SocketAddr, sizes: &[usize]) -> BTreeMap<u16, usize> {
    let mut client = Client1::http1(nginx).await;
    let mut seen = BTreeMap::new();
    for size in sizes {
        let body = Full::new(Bytes::from(vec![0; *size]));
        let request = Request::builder().method(Method::POST).uri("/").body(body).unwrap();
        let answer = client.send(request).await;
        *seen.entry(answer.status.as_u16()).or_default() += 1;
    }
    seen
}

/// A limiter whose limit is used up.
pub(crate) fn used_up() -> RateLimiter<FixedWindow> {
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build();
    assert!(limiter.check(&()).is_allowed());
    limiter
}

fn sizes() -> Vec<usize> {
    [10, 16 * 1024, 60 * 1024, 100 * 1024, 1024 * 1024].repeat(40)
}

/// Prints the statuses of uploads that are rejected without being read: the figures of the guide. `cargo test -p
/// tower-throttle-tests --test nginx -- --ignored --nocapture figures_for_uploads`.
#[tokio::test]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
async fn figures_for_uploads() {
    let layer = RateLimitLayer::with_limiter(Global, used_up());
    let app = Server::start(Router::new().route("/", post(|| async {})).layer(layer)).await;
    let nginx = Nginx::start(NGINX, &at(app.address), "").await;
    println!("nginx: {:?}", upload(nginx.address, &sizes()).await);
}

#[tokio::test]
async fn nginx_reads_the_response_to_every_upload_that_is_drained() {
    let responder = HttpResponder::new().drain(2 * 1024 * 1024, Duration::from_millis(500));
    let layer = RateLimitLayer::with_limiter(Global, used_up()).responder(responder);
    let app = Server::start(Router::new().route("/", post(|| async {})).layer(layer)).await;
    // nginx buffers requests in one case, and does not in the other.
    for buffering in ["on", "off"] {
        let directives = format!("proxy_request_buffering {buffering};");
        let nginx = Nginx::start(NGINX, &at(app.address), &directives).await;
        let count = sizes().len();
        assert_eq!(upload(nginx.address, &sizes()).await, BTreeMap::from([(429, count)]), "{buffering}");
    }
}
