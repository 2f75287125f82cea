//! Edge cases of several limits: algorithms and closures that panic, costs above all limits, and values that must not
//! be printed.

mod panics;
mod values;

use tower::Service;
use tower_throttle::{Error, Quota};

use crate::support::{Now, limiter};

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

/// Returns the response to a call that is not queued.
fn ask<S, Req, T>(service: &mut S, request: Req) -> Result<T, Error<()>>
where
    S: Service<Req, Response = T, Error = Error<()>>,
{
    service.call(request).now()
}

macro_rules! served {
    ($layer:expr) => {
        $layer.responder(ErrorResponder).layer(service_fn(async |_| Ok::<_, ()>(())))
    };
}
pub(crate) use served;
