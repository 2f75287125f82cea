//! Allocations of a request through an axum app, with limits whose responses have axum's body.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::get;
use tower::Service;
use tower::util::MapRequestLayer;
use tower_http::compression::CompressionLayer;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow};
use tower_throttle::key::Global;
use tower_throttle::middleware::types::UnitCost;
use tower_throttle::middleware::{HttpResponder, SendHeaders};
use tower_throttle::{Quota, RateLimitLayer};

/// Returns the number of allocations of a request, including those of axum.
fn allocations(app: Router) -> u64 {
    let mut app = app.with_state(());
    let mut call = || {
        let request = Request::new(Body::empty());
        let mut response = None;
        let counted =
            measure(|| match pin!(app.call(request)).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(ready)) => response = Some(ready),
                Poll::Pending => panic!("no call is queued here"),
            });
        assert_eq!(response.unwrap().status(), 200);
        counted.count_total
    };
    call();
    call()
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// Returns a limit that reports nothing to the client.
fn silent<A: Algorithm>(algorithm: A) -> RateLimitLayer<Global, A, UnitCost, HttpResponder> {
    let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
    RateLimitLayer::new(Global, algorithm).responder(silent)
}

#[test]
fn a_body_of_axum_is_not_boxed_again() {
    let nothing = allocations(app().layer(MapRequestLayer::new(|request: Request| request)));
    let added = |app| allocations(app) - nothing;
    let window = || FixedWindow::new(Quota::per_hour(1_000));
    let limit = || silent(window());
    let in_progress = || silent(Concurrency::per_key(9));
    assert_eq!(added(app().layer(limit().axum_body())), 0);
    assert_eq!(added(app().layer(limit().and(RateLimitLayer::new(Global, window())).axum_body())), 0);
    assert_eq!(added(app().layer(limit())), 1, "axum boxes any other body");
    assert_eq!(added(app().layer(in_progress().axum_body())), 2, "the permit, and the body that holds it");
}

#[test]
fn any_other_body_is_boxed_once() {
    let nothing = MapRequestLayer::new(|request: Request| request);
    let nothing = allocations(app().layer((nothing, CompressionLayer::new())));
    let added = |app| allocations(app) - nothing;
    let limit = || silent(FixedWindow::new(Quota::per_hour(1_000)));
    let in_progress = || silent(Concurrency::per_key(9));
    assert_eq!(added(app().layer((limit().axum_body(), CompressionLayer::new()))), 0, "axum would box it");
    assert_eq!(added(app().layer((in_progress().axum_body(), CompressionLayer::new()))), 1, "the permit");
}
