//! One call closes the limiters of all layers that have joined a handle.

use std::convert::Infallible;
use std::future::ready;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::Shutdown;
use tower_throttle::{Error, ErrorResponder, RateLimitLayer, RateLimiter};

use super::{assert_closed, limiter, quota, service};
use crate::support::PolledByHand;

fn leaky() -> RateLimiter<LeakyBucket> {
    limiter(LeakyBucket::new(quota()).queue(1), &ManualClock::new())
}

#[test]
fn all_limiters_of_a_handle_are_closed_and_their_queued_calls_are_answered() {
    let shutdown = Shutdown::new();
    let [first, second, alone, other] = [(); 4].map(|()| leaky());
    let layer = |limiter: &RateLimiter<LeakyBucket>| RateLimitLayer::with_limiter(Global, limiter.clone());
    let mut service = service!(layer(&first).shutdown(&shutdown).and(layer(&second).shutdown(&shutdown)));
    shutdown.add(&alone);
    assert!(PolledByHand::new(service.call(())).poll(), "the first call is admitted");
    let mut queued = PolledByHand::new(service.call(()));
    assert!(!queued.poll());
    assert_eq!(format!("{shutdown:?}"), "Shutdown { is_closed: false, limiters: 3 }");

    shutdown.clone().close();
    assert!(queued.run());
    let Some(Err(Error::Limited(decision))) = queued.output else { panic!("the queued call is denied") };
    assert_closed(&decision);
    for closed in [&first, &second, &alone] {
        assert_closed(&closed.check(&()));
    }
    assert!(other.check(&()).is_allowed());
    // A limiter that is added later is closed at once. A second call does nothing.
    shutdown.add(&other);
    assert_closed(&other.check(&()));
    shutdown.close();
    assert_eq!(format!("{shutdown:?}"), "Shutdown { is_closed: true, limiters: 0 }");
}
