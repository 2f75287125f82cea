//! Limits in shadow mode.

mod beside_other_limits;
mod decisions;
mod switched;

use axum::body::Body;
use http::{Request, Response};
use tower::{Service as _, service_fn};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::middleware::ShadowDenied;
use tower_throttle::{Decision, Quota};

use crate::reference_service::Service;
use crate::support::{PolledByHand, limiter};

/// A service that returns the extensions of its request that shadow mode has inserted.
fn marked() -> Service {
    Service::new(service_fn(|request: Request<Body>| {
        let mut response = Response::new(Body::from("hello"));
        if let Some(denial) = request.extensions().get::<ShadowDenied>() {
            response.extensions_mut().insert(*denial);
        }
        if let Some(decision) = request.extensions().get::<Decision>() {
            response.extensions_mut().insert(*decision);
        }
        std::future::ready(Ok(response))
    }))
}

/// Makes a call that is not queued.
fn ask(service: &Service) -> Response<Body> {
    let mut hand = PolledByHand::new(service.clone().call(Request::new(Body::empty())));
    assert!(hand.poll(), "it is held");
    hand.output.unwrap().unwrap()
}

fn mark(response: &Response<Body>) -> Option<Decision> {
    response.extensions().get::<ShadowDenied>().map(|ShadowDenied(decision)| *decision)
}

fn hourly(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_hour(limit))
}
