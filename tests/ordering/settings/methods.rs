//! The methods of a layer that set something, each with one argument. The programs that must not compile contain this
//! file, too.

use std::sync::atomic::AtomicU64;

use axum::http::HeaderMap;
use tower_throttle::algorithm::{Algorithm, FixedWindow, Tiered};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{KeyExtractor, PeerIp, from_fn};
use tower_throttle::middleware::{Shadow, Shutdown};
use tower_throttle::stats::Timeline;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

// What the macro names, where it is used.
pub(crate) use std::net::IpAddr;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::Ordering;

pub(crate) use axum::extract::Request;
pub(crate) use axum::http::StatusCode;
pub(crate) use axum::response::Response;
pub(crate) use tower_throttle::HttpResponder;
pub(crate) use tower_throttle::key::MissingKey;
pub(crate) use tower_throttle::middleware::{OnStoreError, Rejection, Unmetered};

/// What the methods refer to.
pub(crate) struct Handles {
    pub(crate) shadow: Shadow,
    pub(crate) timeline: Timeline,
    pub(crate) shutdown: Shutdown,
    pub(crate) rejections: Arc<AtomicU64>,
}

impl Handles {
    pub(crate) fn new() -> Self {
        Self {
            shadow: Shadow::on(),
            timeline: Timeline::new().clock(ManualClock::new()),
            shutdown: Shutdown::new(),
            rejections: Arc::default(),
        }
    }
}

fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).build()
}

pub(crate) fn window(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_hour(limit)).priority(50)
}

/// Two requests an hour for each peer.
pub(crate) fn base() -> RateLimitLayer<PeerIp, Tiered<FixedWindow>> {
    RateLimitLayer::with_limiter(PeerIp::new(), limiter(Tiered::new(window(2))))
}

/// One request an hour for all requests with a field `total`.
pub(crate) fn total() -> RateLimitLayer<impl KeyExtractor<Request, Key = ()> + Clone, FixedWindow> {
    let has_field = from_fn(|request: &Request| request.headers().contains_key("total").then_some(()));
    RateLimitLayer::with_limiter(has_field, limiter(window(1))).name("total")
}

/// Returns the number in a field.
pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Calls a method. `and` joins another layer to this one, and `joined` joins this one to another layer.
#[rustfmt::skip]
macro_rules! set {
    ($on:expr, $layer:expr, and) => { $layer.and(total()) };
    ($on:expr, $layer:expr, axum_body) => { $layer.axum_body() };
    ($on:expr, $layer:expr, cost) => {
        $layer.cost(|request: &Request| number(request.headers(), "cost").unwrap_or(1))
    };
    ($on:expr, $layer:expr, enabled) => { $layer.enabled(false) };
    ($on:expr, $layer:expr, hidden) => { $layer.hidden() };
    ($on:expr, $layer:expr, joined) => { total().and($layer) };
    ($on:expr, $layer:expr, metered) => { $layer.metered() };
    ($on:expr, $layer:expr, missing_key) => { $layer.missing_key(MissingKey::Pass) };
    ($on:expr, $layer:expr, name) => { $layer.name("named") };
    ($on:expr, $layer:expr, on_reject) => {{
        let rejections = Arc::clone(&$on.rejections);
        $layer.on_reject(move |_: &Rejection<'_>, _: &Request| _ = rejections.fetch_add(1, Ordering::SeqCst))
    }};
    ($on:expr, $layer:expr, on_store_error) => { $layer.on_store_error(OnStoreError::Allow) };
    ($on:expr, $layer:expr, priority) => { $layer.priority(|request: &Request| request.headers().contains_key("vip")) };
    ($on:expr, $layer:expr, responder) => {
        $layer.responder(HttpResponder::new().denied_status(StatusCode::IM_A_TEAPOT))
    };
    ($on:expr, $layer:expr, settle) => { $layer.settle(|response: &Response| number(response.headers(), "actual")) };
    ($on:expr, $layer:expr, shadow) => { $layer.shadow(&$on.shadow) };
    ($on:expr, $layer:expr, shutdown) => { $layer.shutdown(&$on.shutdown) };
    ($on:expr, $layer:expr, tier) => {
        $layer.tier(|request: &Request, _| window(number(request.headers(), "tier").unwrap_or(2)))
    };
    ($on:expr, $layer:expr, timeline) => { $layer.timeline(&$on.timeline) };
    ($on:expr, $layer:expr, unless) => { $layer.unless(|request: &Request| request.uri().path() == "/free") };
    ($on:expr, $layer:expr, unmetered) => { $layer.unmetered(Unmetered::Refund) };
}
pub(crate) use set;
