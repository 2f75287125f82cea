//! The counts of limiters and layers. Each call is counted once, whatever its outcome, on one thread and on many.

mod layers;
mod limiters;
mod many_threads;

use std::convert::Infallible;
use std::future::{Ready, ready};

use tower::util::ServiceFn;
use tower::{Service, service_fn};
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::stats::CallStats;
use tower_throttle::{Quota, RateLimiter};

use crate::support::PolledByHand;

type Answers = Ready<Result<(), Infallible>>;

fn answers<Req>() -> ServiceFn<fn(Req) -> Answers> {
    service_fn(|_| ready(Ok(())))
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

fn frozen<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).build()
}

/// Returns the counts as a text. Counts of zero are left out.
fn text(stats: CallStats) -> String {
    let CallStats { admitted, denied, queue_full, table_full, closed, denied_by_others, .. } = stats;
    let CallStats { cancelled, shadow_denied, queued, .. } = stats;
    [
        ("admitted", admitted),
        ("denied", denied),
        ("queue full", queue_full),
        ("table full", table_full),
        ("closed", closed),
        ("denied by others", denied_by_others),
        ("cancelled", cancelled),
        ("shadow", shadow_denied),
        ("queued", queued),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| format!("{count} {name}"))
    .collect::<Vec<_>>()
    .join(", ")
}

fn counted<A: Algorithm>(limiter: &RateLimiter<A>) -> String {
    text(limiter.stats().calls)
}

/// Calls a service with a request. Returns whether it was admitted at once.
fn passes<S, Req>(service: &S, request: Req) -> bool
where
    S: Service<Req, Response = ()> + Clone,
{
    let mut call = PolledByHand::new(service.clone().call(request));
    call.poll() && call.output.is_some_and(|output| output.is_ok())
}
