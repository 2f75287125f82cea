//! Measurements of a call through the layer in process, without a socket or a runtime. Requests are created before the
//! time is measured. A call ends when its response is dropped.

pub mod names;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::key::{Global, PeerIp, from_fn};
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use self::names::*;
use crate::check::{FEW, PLENTY};
use crate::interleave::{Contestant, Rounds};
use crate::tsc::TscClock;
use crate::{alloc, table};

const BATCH: usize = 250;
const BATCHES: usize = 4;

pub fn run(rounds: usize) {
    let (admitted, admitted_counts) = column(PLENTY, rounds);
    let (denied, denied_counts) = column(FEW, rounds);
    let names = [
        PLAIN,
        PASSED,
        LEAN,
        LEAN_TSC,
        LEAN_PEER,
        FIELDS,
        FIELDS_TSC,
        FIELDS_PEER,
        KIT_PEER,
        TUPLE,
        JOINED,
        STACKED,
    ];
    let rows: Vec<_> = (names.into_iter().enumerate())
        .map(|(at, name)| {
            vec![
                name.to_owned(),
                table::ratio(admitted.ratio(name, PLAIN)),
                table::ratio(denied.ratio(name, PLAIN)),
                admitted_counts[at].to_string(),
                denied_counts[at].to_string(),
            ]
        })
        .collect();
    table::print(
        "a call in process: time to that without a layer; allocations",
        &["", "admitted", "denied", "allocations, admitted", "denied"],
        &rows,
    );
    let pairs = [
        ("no fields", LEAN, LEAN_PEER),
        ("no fields, time stamp counter", LEAN_TSC, LEAN_PEER),
        ("header fields", FIELDS, FIELDS_PEER),
        ("header fields, time stamp counter", FIELDS_TSC, FIELDS_PEER),
        ("header fields, to throttle-kit's", FIELDS, KIT_PEER),
    ];
    let rows: Vec<_> = pairs
        .map(|(what, name, peer)| {
            vec![
                what.to_owned(),
                table::ratio(admitted.ratio(name, peer)),
                table::ratio(denied.ratio(name, peer)),
                table::ratio(admitted.extra(name, peer, PLAIN)),
            ]
        })
        .into();
    table::print(
        "a call in process: tower-throttle's time to its peer's, whole, and what the layer adds",
        &["", "admitted", "denied", "added, admitted"],
        &rows,
    );
    let rows = both(rounds);
    let rows: Vec<_> = [(LEAN, LEAN), (FIELDS, FIELDS), (LEAN_PEER, LEAN_PEER), (FIELDS_PEER, FIELDS_PEER)]
        .map(|(name, _)| vec![name.to_owned(), table::ratio(rows.ratio(&format!("{name}, denied"), name))])
        .into();
    table::print("a denied call: time to that of an admitted one", &["", "denied"], &rows);
}

fn column(limit: u32, rounds: usize) -> (Rounds, Vec<f64>) {
    let mut contestants = field(limit, "");
    let counts = contestants.iter_mut().map(|(_, run)| {
        // The first run creates the state of the key.
        run();
        allocations(run)
    });
    let counts = counts.collect();
    (Rounds::of(timed(contestants), rounds), counts)
}

/// Makes calls, and returns the number of allocations per call.
pub fn allocations(run: &mut Run) -> f64 {
    run().1 as f64 / (BATCH * BATCHES) as f64
}

/// Measures admitted and denied calls in the same rounds.
fn both(rounds: usize) -> Rounds {
    let mut contestants = field(PLENTY, "");
    contestants.extend(field(FEW, ", denied"));
    Rounds::of(timed(contestants), rounds)
}

pub type Run = Box<dyn FnMut() -> (Duration, u64)>;

pub fn timed(contestants: Vec<(String, Run)>) -> Vec<Contestant<'static>> {
    contestants.into_iter().map(|(name, mut run)| Contestant::new(name, move || run().0)).collect()
}

fn field(limit: u32, suffix: &str) -> Vec<(String, Run)> {
    let ours = RateLimitLayer::per_ip(Quota::per_hour(limit.into()));
    let limiter = RateLimiter::builder(ours.limiter().algorithm()).clock(TscClock::new()).build();
    let by_tsc = RateLimitLayer::with_limiter(PeerIp::new(), limiter);
    let no_key = from_fn(|_: &Request<Body>| None::<u64>);
    let unlimited = RateLimitLayer::new(no_key, ours.limiter().algorithm());
    let unlimited = unlimited.responder(ErrorResponder);
    let peer = governor_builder(limit).finish().expect("a quota");
    let peer_with_fields = governor_builder(limit).use_headers().finish().expect("a quota");
    let named = |name: &str, run: Run| (format!("{name}{suffix}"), run);
    let quota = Quota::per_hour(limit.into());
    let two = (TokenBucket::new(quota), FixedWindow::new(quota));
    let tuple = RateLimitLayer::new(PeerIp::new(), two).responder(ErrorResponder);
    let bucket = || RateLimitLayer::per_ip(quota).responder(ErrorResponder);
    let window = || RateLimitLayer::new(Global, FixedWindow::new(quota));
    let inner = window().responder(ErrorResponder);
    vec![
        named(PLAIN, run_of(bare())),
        named(PASSED, run_of(unlimited.layer(bare()))),
        named(LEAN, run_of(ours.clone().responder(ErrorResponder).layer(bare()))),
        named(LEAN_TSC, run_of(by_tsc.clone().responder(ErrorResponder).layer(bare()))),
        named(LEAN_PEER, run_of(GovernorLayer::new(peer).layer(bare()))),
        named(FIELDS, run_of(ours.layer(bare()))),
        named(FIELDS_TSC, run_of(by_tsc.layer(bare()))),
        named(FIELDS_PEER, run_of(GovernorLayer::new(peer_with_fields).layer(bare()))),
        named(KIT_PEER, run_of(throttle_kit(limit).layer(bare()))),
        named(TUPLE, run_of(tuple.layer(bare()))),
        named(JOINED, run_of(bucket().and(window()).layer(bare()))),
        named(STACKED, run_of(bucket().layer(inner.layer(bare())))),
    ]
}

/// Returns a builder of tower_governor with a quota of `limit` per hour, as an interval and a burst.
pub fn governor_builder(
    limit: u32,
) -> GovernorConfigBuilder<
    tower_governor::key_extractor::PeerIpKeyExtractor,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
> {
    let mut builder = GovernorConfigBuilder::default();
    builder.period(Duration::from_secs(3_600) / limit).burst_size(limit);
    builder
}

/// Returns throttle-kit's layer with a quota of `limit` per hour. This layer adds header fields to the response of each
/// admitted request.
pub fn throttle_kit(limit: u32) -> throttle_kit::RateLimitLayer<throttle_kit::InMemoryBackend> {
    let quota = throttle_kit::Quota::from_parts(Duration::from_secs(3_600) / limit, limit);
    throttle_kit::RateLimitLayer::new(quota, throttle_kit::InMemoryBackend::new())
}

/// The future of a service that answers at once.
type Answer = Ready<Result<Response<Body>, Infallible>>;

fn bare()
-> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer> + Clone {
    service_fn(|_: Request<Body>| ready(Ok(Response::new(Body::empty()))))
}

/// Returns a function that makes calls of `service`. The function returns the time of these calls, and the number of
/// their allocations.
pub fn run_of<S>(mut service: S) -> Run
where
    S: Service<Request<Body>> + 'static,
{
    let mut requests = Vec::with_capacity(BATCH);
    Box::new(move || {
        let (mut took, mut allocations) = (Duration::ZERO, 0);
        for _ in 0..BATCHES {
            requests.extend((0..BATCH).map(|_| request()));
            let (before, started) = (alloc::count(), Instant::now());
            requests.drain(..).for_each(|request| call(&mut service, request));
            took += started.elapsed();
            allocations += alloc::count() - before;
        }
        (took, allocations)
    })
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
