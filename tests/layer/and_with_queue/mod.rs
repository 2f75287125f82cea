//! A queue that is joined with other limits. A call is charged when it is queued, and refunded when it is cancelled.
//! Both limits deny a call, or neither does.

mod cancelled;
mod cancelled_late;
mod charges;
mod denied;
mod two_queues;

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tower::service_fn;
use tower::util::ServiceFn;
use tower_throttle::Quota;
use tower_throttle::algorithm::LeakyBucket;

use crate::support::{Now, limiter, waits};

const MS: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns a limit of ten a second with a queue that is long enough.
fn queue() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(1_000)
}

type Answers = std::future::Ready<Result<(), Infallible>>;

fn answers() -> ServiceFn<fn(()) -> Answers> {
    service_fn(|()| std::future::ready(Ok(())))
}

/// Returns a service behind both limiters, with one key each.
macro_rules! joined {
    ($first:expr, $second:expr) => {
        RateLimitLayer::with_limiter(Global, $first.clone())
            .and(RateLimitLayer::with_limiter(Global, $second.clone()))
            .responder(ErrorResponder)
            .layer(answers())
    };
}
pub(crate) use joined;

fn passes<F, E>(call: F) -> bool
where
    F: Future<Output = Result<(), E>>,
{
    call.now().is_ok()
}
