//! Calls whose actual cost is known only from their responses.

mod joined_and_queued;
mod naive_models;
mod table;

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service as _, service_fn};
use tower_throttle::algorithm::Algorithm;
use tower_throttle::key::Global;
use tower_throttle::middleware::types::SettleFn;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::reference_service::{Cost, CostOf, cost_of};
use crate::support::{PolledByHand, TickingClock};

/// The outcome of an admitted call. `None` while the call is in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Costs(Option<u64>),
    Fails,
}

/// The actual cost of a call, in the extensions of its response.
#[derive(Clone, Copy, Debug)]
struct Actual(Option<u64>);

/// A gate in front of the inner service, which answers only when the gate is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door(Arc<Mutex<Option<Outcome>>>);

pub(crate) type Svc = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;

pub(crate) fn behind() -> Svc {
    BoxCloneSyncService::new(service_fn(|request: Request<Body>| {
        let Door(door) = request.extensions().get::<Door>().unwrap().clone();
        poll_fn(move |_| match *door.lock().unwrap() {
            None => Poll::Pending,
            Some(Outcome::Fails) => Poll::Ready(Err(BoxError::from("it fails"))),
            Some(Outcome::Costs(actual)) => {
                let mut response = Response::new(Body::empty());
                response.extensions_mut().insert(Actual(actual));
                Poll::Ready(Ok(response))
            }
        })
    }))
}

pub(crate) fn actual(response: &Response<Body>) -> Option<u64> {
    response.extensions().get::<Actual>().and_then(|Actual(actual)| *actual)
}

pub(crate) type Settling<A> = RateLimitLayer<Global, A, SettleFn<CostOf, fn(&Response<Body>) -> Option<u64>>>;

pub(crate) fn settling<A: Algorithm>(limiter: &RateLimiter<A>) -> Settling<A> {
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).cost(cost_of as fn(&_) -> _);
    layer.settle(actual as fn(&_) -> _)
}

pub(crate) fn limiter<A: Algorithm>(algorithm: A, clock: &TickingClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

/// A call that is in progress, or was denied.
pub(crate) struct Call {
    pub(crate) hand: PolledByHand<<Svc as tower::Service<Request<Body>>>::Future>,
    door: Door,
}

impl Call {
    pub(crate) fn start(service: &Svc, cost: u64) -> Self {
        let door = Door::default();
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(Cost(cost));
        request.extensions_mut().insert(door.clone());
        let mut hand = PolledByHand::new(service.clone().call(request));
        hand.poll();
        Self { hand, door }
    }

    /// Returns whether the call was admitted or is queued.
    pub(crate) fn goes_on(&self) -> bool {
        match &self.hand.output {
            None => true,
            Some(Ok(response)) => response.status() != 429,
            Some(Err(_)) => true,
        }
    }

    #[track_caller]
    pub(crate) fn ends(&mut self, outcome: Outcome) {
        *self.door.0.lock().unwrap() = Some(outcome);
        assert!(self.hand.poll(), "the door is open");
    }

    pub(crate) fn costs(mut self, actual: u64) {
        self.ends(Outcome::Costs(Some(actual)));
    }
}

const LIMIT: u64 = 5;
const SECOND: Duration = Duration::from_secs(1);
const PERIOD: u64 = 1_000;

fn five() -> Quota {
    Quota::per_second(LIMIT)
}

/// Returns one nanosecond for the models if the clock stands still. Otherwise, returns a time that is so long that the
/// advances of the clock do not matter.
fn unit(clock: &TickingClock) -> u32 {
    if clock.ticks() { 1_000_000 } else { 1 }
}
