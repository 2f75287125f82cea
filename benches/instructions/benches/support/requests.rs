//! Requests through a service, in process.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Response};
use tower::{Service, service_fn};
use tower_throttle_instructions::algorithm::{Algorithm, TokenBucket};
use tower_throttle_instructions::key::PeerIp;
use tower_throttle_instructions::stats::PolicyStats;
use tower_throttle_instructions::{Quota, RateLimitLayer, RateLimiter};

use super::checks::FEW;
use super::clock::Steps;
use super::counted;

/// The future of a service that answers at once.
type Answer = Ready<Result<Response<Body>, Infallible>>;

pub fn bare()
-> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer> + Clone {
    service_fn(|_: Request<Body>| ready(Ok(Response::new(Body::empty()))))
}

/// Returns a service whose responses have a header field, as those of a handler have.
pub fn typed()
-> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer> + Clone {
    service_fn(|_: Request<Body>| {
        let mut response = Response::new(Body::empty());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        ready(Ok(response))
    })
}

/// Returns the layer of `RateLimitLayer::per_ip`, with a clock that is the same in each run.
pub fn per_ip(limit: u64) -> RateLimitLayer<PeerIp, TokenBucket> {
    RateLimitLayer::with_limiter(PeerIp::new(), limiter(TokenBucket::new(Quota::per_hour(limit))))
}

pub fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(Steps::new()).build()
}

/// Sends `calls` requests, a multiple of two. Only the service is counted, and not the creation of the requests. Only
/// two requests exist at a time, because the allocator keeps a few free blocks of each size. With more requests, it
/// would have to merge freed blocks, and the cost of a call would depend on the calls before it.
pub fn send<S: Service<Request<Body>>>(mut service: S, calls: usize) {
    const AT_ONCE: usize = 2;
    assert_eq!(calls % AT_ONCE, 0);
    let mut requests = Vec::with_capacity(AT_ONCE);
    let prepare = |requests: &mut Vec<_>| requests.extend((0..AT_ONCE).map(|_| request()));
    for _ in 0..WARM_UP / AT_ONCE {
        prepare(&mut requests);
        walk(&mut service, &mut requests);
    }
    for _ in 0..calls / AT_ONCE {
        prepare(&mut requests);
        counted(|| walk(&mut service, &mut requests));
    }
}

/// The number of requests that are sent first. These use up a limit of [`FEW`].
const WARM_UP: usize = 20;

/// Asserts that a policy admitted all requests that [`send`] has sent if its limit is high, and as many as its limit
/// otherwise.
pub fn assert_decided(stats: &PolicyStats, limit: u64, calls: usize) {
    let sent = (WARM_UP + calls) as u64;
    let admitted = if limit == FEW { FEW } else { sent };
    assert_eq!((stats.calls.admitted, stats.calls.rejected()), (admitted, sent - admitted), "{}", stats.name);
}

/// Sends the requests, one after another.
#[inline(never)]
fn walk<S: Service<Request<Body>>>(service: &mut S, requests: &mut Vec<Request<Body>>) {
    requests.drain(..).for_each(|request| call(service, request));
}

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
    request
}

#[inline]
fn call<S: Service<Request<Body>>>(service: &mut S, request: Request<Body>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    match pin!(service.call(request)).poll(&mut context) {
        Poll::Ready(response) => drop(black_box(response)),
        Poll::Pending => unreachable!("no call is queued here"),
    }
}
