//! Rejected uploads over pooled connections. Each upload gets its own 429.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use bytes::Bytes;
use serde_json::{Value, json};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::types::{DefaultRejection, UnreadBody};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::run::script;
use crate::support::{Server, Version, get};

const KIB: usize = 1024;

/// Sizes of bodies that fit into the kernel's buffers while the server does not read.
const SMALL: [usize; 3] = [10, 16 * KIB, 60 * KIB];

/// Sizes of bodies that do not fit.
const LARGE: [usize; 2] = [100 * KIB, 1024 * KIB];

const COUNT: usize = 200;

const CLIENTS: [&str; 5] = ["http.client", "requests", "httpx", "aiohttp", "node"];

/// A server whose limit is used up.
async fn refusing<D>(responder: HttpResponder<DefaultRejection, D>) -> Server
where
    D: UnreadBody<Body> + Clone + Send + Sync + 'static,
{
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build();
    assert!(limiter.check(&()).is_allowed());
    let layer = RateLimitLayer::with_limiter(Global, limiter).responder(responder);
    let app =
        Router::new().route("/", post(|body: Bytes| async move { body.len().to_string() })).layer(layer);
    let server = Server::start(app).await;
    assert_eq!(get(server.address, Version::Http1, "/").await.status, 429);
    server
}

/// Returns the statuses and the errors that a client got for bodies of all sizes.
async fn upload(client: &str, server: SocketAddr, sizes: &[usize]) -> Vec<Value> {
    let (host, port, count) = (server.ip().to_string(), server.port().to_string(), COUNT.to_string());
    let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
    let mut arguments = vec![client, &host, &port, &count];
    arguments.extend(sizes.iter().map(String::as_str));
    match client {
        "node" => script("upload.mjs", &arguments[1..]).await,
        _ => script("upload.py", &arguments).await,
    }
}

async fn assert_no_response_is_lost<D>(responder: HttpResponder<DefaultRejection, D>, sizes: &[usize])
where
    D: UnreadBody<Body> + Clone + Send + Sync + 'static,
{
    let server = refusing(responder).await;
    for client in CLIENTS {
        for (size, seen) in sizes.iter().zip(upload(client, server.address, sizes).await) {
            assert_eq!(seen, json!({ "429": COUNT }), "{client}, {size} bytes");
        }
    }
}

#[tokio::test]
async fn bodies_that_fit_into_the_buffers_lose_no_response() {
    assert_no_response_is_lost(HttpResponder::new(), &SMALL).await;
}

#[tokio::test]
async fn drained_bodies_lose_no_response() {
    let responder = HttpResponder::new().drain(2 * 1024 * KIB as u64, Duration::from_millis(500));
    assert_no_response_is_lost(responder, &[&SMALL[..], &LARGE].concat()).await;
}

/// Prints what clients got for uploads that are rejected without being read: the figures of the guide. `cargo test -p
/// tower-throttle-tests --test clients -- --ignored --nocapture figures_for_uploads`.
#[tokio::test]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
async fn figures_for_uploads() {
    let sizes = [&SMALL[..], &LARGE].concat();
    let server = refusing(HttpResponder::new()).await;
    for client in CLIENTS {
        for (size, seen) in sizes.iter().zip(upload(client, server.address, &sizes).await) {
            println!("{client}, {size} bytes: {seen}");
        }
    }
}
