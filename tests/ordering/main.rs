//! Tests of the guide's chapter on ordering: the places of layers around a limiter. And tests of the layer in each
//! place of an axum app, in hyper servers, and between other layers.
#![cfg(feature = "axum")]

mod axum_body;
mod axum_placement;
mod bodies;
mod compile_errors;
mod denied_connections;
mod guide_recipe;
mod hyper_only;
mod layer_order;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
mod upgrades;

use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

type Limiter = RateLimiter<FixedWindow>;

/// A limit of `limit` calls an hour, on a clock that stands still.
fn limiter(limit: u64) -> Limiter {
    RateLimiter::builder(FixedWindow::new(Quota::per_hour(limit))).clock(ManualClock::new()).build()
}

/// A limit of `limit` calls an hour for all callers.
fn limit(limit: u64) -> RateLimitLayer<Global, FixedWindow> {
    RateLimitLayer::with_limiter(Global, limiter(limit))
}

/// A limit that is used up.
fn used_up() -> RateLimitLayer<Global, FixedWindow> {
    let layer = limit(1);
    assert!(layer.limiter().check(&()).is_allowed());
    layer
}

fn left<K: Hash>(limiter: &Limiter, key: &K) -> u64 {
    limiter.peek(key).remaining()
}

/// The address that the tests call from.
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Waits for an event, and fails instead of hanging if it does not happen. The time limit is so long that it does not
/// affect events that do happen.
async fn at_last<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// A body that the test feeds.
struct Fed(mpsc::UnboundedReceiver<io::Result<Frame<Bytes>>>);

type Feed = mpsc::UnboundedSender<io::Result<Frame<Bytes>>>;

impl Fed {
    fn new() -> (Feed, Self) {
        let (feed, fed) = mpsc::unbounded_channel();
        (feed, Self(fed))
    }
}

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx)
    }
}

fn data(text: &'static str) -> io::Result<Frame<Bytes>> {
    Ok(Frame::data(Bytes::from(text)))
}

fn trailers() -> io::Result<Frame<Bytes>> {
    Ok(Frame::trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), "42".parse().unwrap())])))
}

/// A handler that panics.
async fn panics() {
    if true {
        panic!("as it should");
    }
}
