//! A closed limiter answers queued calls and new calls at once, and leaves nothing behind.

mod admitted_calls;
mod handle;
mod over_http;
mod queued_calls;

use tower_throttle::{Decision, Quota};

use crate::support::{Now, limiter};

fn quota() -> Quota {
    Quota::per_hour(1)
}

/// Asserts that a decision says that the limiter is closed, and nothing else.
fn assert_closed(decision: &Decision) {
    assert!(decision.is_closed() && !decision.is_allowed(), "{decision:?}");
    assert_eq!((decision.retry_after(), decision.remaining()), (None, 0), "{decision:?}");
}

macro_rules! service {
    ($layer:expr) => {
        $layer.responder(ErrorResponder).layer(service_fn(|()| ready(Ok::<(), Infallible>(()))))
    };
}
pub(crate) use service;
