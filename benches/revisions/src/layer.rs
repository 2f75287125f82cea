//! What a layer adds to a call of a service, in nanoseconds.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::{Router, routing::get};
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::clock;
use crate::{Contestant, Group, Options, Row, Run, print_head};

/// A short batch is seldom interrupted.
const BATCH: usize = 500;
/// The calls before each batch, which bring the code and the data of the layer into the caches of the processor.
const WARM_UP: usize = 50;
const ROUNDS: usize = 500;

/// Limits per hour: one that is never used up, and one that is used up at once.
const PLENTY: u32 = 3_500_000_000;
const FEW: u32 = 1;

/// The indices of the peers.
const NO_FIELDS: usize = 0;
const FIELDS: usize = 1;
const DENIED: usize = 2;

/// Puts a layer around a service that answers at once, and makes its calls.
macro_rules! bare {
    ($layer:expr) => {
        run_of($layer.layer(Bare))
    };
}

/// Puts a layer around the routes of an app, and makes its calls.
macro_rules! routed {
    ($layer:expr) => {
        run_of(app().layer($layer).with_state(()))
    };
}

/// Returns the rows of a revision: the name of each, the peer that does the same, and its calls.
macro_rules! rows {
    ($revision:ident, $around:ident) => {{
        use $revision::key::PeerIp;
        use $revision::middleware::{Rejection, SendHeaders};
        use $revision::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

        let per_hour = |limit: u32| RateLimitLayer::per_ip(Quota::per_hour(limit.into()));
        let limit = || per_hour(PLENTY);
        let denied = || per_hour(FEW);
        let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
        let lean = || limit().responder(silent);
        let by_counter = || {
            let limiter = RateLimiter::builder(limit().limiter().algorithm());
            let limiter = limiter.clock(clock::$revision::Counter::new()).build();
            RateLimitLayer::with_limiter(PeerIp::new(), limiter)
        };
        let observe = |_: &Rejection<'_>, _: &Request<Body>| {};
        let by_hand = |limiter: RateLimiter<_>| ByHand(move |key: &IpAddr| limiter.check(key).is_allowed());
        let rows: Vec<(&str, usize, Run)> = vec![
            ("no fields", NO_FIELDS, $around!(lean())),
            ("no fields, axum_body", NO_FIELDS, $around!(lean().axum_body())),
            ("no fields, on_reject", NO_FIELDS, $around!(lean().on_reject(observe))),
            ("no fields, .and", NO_FIELDS, $around!(lean().and(limit()))),
            ("no fields, .and, axum_body", NO_FIELDS, $around!(lean().and(limit()).axum_body())),
            (
                "no fields, axum_body, counter",
                NO_FIELDS,
                $around!(by_counter().responder(silent).axum_body()),
            ),
            ("by hand", NO_FIELDS, $around!(by_hand(limit().limiter().clone()))),
            ("by hand, counter", NO_FIELDS, $around!(by_hand(by_counter().limiter().clone()))),
            ("not limited", NO_FIELDS, $around!(lean().unless(|_: &Request<Body>| true))),
            ("default", FIELDS, $around!(limit())),
            ("default, axum_body", FIELDS, $around!(limit().axum_body())),
            ("default, axum_body, counter", FIELDS, $around!(by_counter().axum_body())),
            ("default, on_reject", FIELDS, $around!(limit().on_reject(observe))),
            ("default, .and", FIELDS, $around!(limit().and(limit()))),
            ("denied", DENIED, $around!(denied())),
            ("denied, axum_body", DENIED, $around!(denied().axum_body())),
            ("denied, on_reject", DENIED, $around!(denied().on_reject(observe))),
        ];
        rows
    }};
}

/// Returns the rows in which calls are denied with an error, which axum does not take.
macro_rules! error_rows {
    ($revision:ident) => {{
        use $revision::{ErrorResponder, Quota, RateLimitLayer};

        let per_hour = |limit: u32| RateLimitLayer::per_ip(Quota::per_hour(limit.into()));
        let limit = |limit: u32| per_hour(limit).responder(ErrorResponder);
        let rows: Vec<(&str, usize, Run)> = vec![
            ("ErrorResponder", NO_FIELDS, bare!(limit(PLENTY))),
            ("ErrorResponder, .and", NO_FIELDS, bare!(limit(PLENTY).and(per_hour(PLENTY)))),
            ("ErrorResponder, denied", DENIED, bare!(limit(FEW))),
        ];
        rows
    }};
}

/// Returns the layers of tower_governor that do the same as the rows.
macro_rules! peers {
    ($around:ident) => {{
        let config = |limit: u32| {
            let mut builder = GovernorConfigBuilder::default();
            builder.period(Duration::from_secs(3_600) / limit).burst_size(limit);
            builder
        };
        vec![
            ("tower_governor", $around!(GovernorLayer::new(config(PLENTY).finish().expect("a quota")))),
            (
                "tower_governor, use_headers",
                $around!(GovernorLayer::new(config(PLENTY).use_headers().finish().expect("a quota"))),
            ),
            ("tower_governor, denied", $around!(GovernorLayer::new(config(FEW).finish().expect("a quota")))),
        ]
    }};
}

pub fn run(options: &Options) {
    measure(
        options,
        "bare service: ns added",
        run_of(Bare),
        peers!(bare),
        [rows!(base, bare), error_rows!(base)].into_iter().flatten(),
        [rows!(change, bare), error_rows!(change)].into_iter().flatten(),
    );
    measure(
        options,
        "axum app: ns added",
        run_of(app().with_state(())),
        peers!(routed),
        rows!(base, routed),
        rows!(change, routed),
    );
}

/// Measures the rows of one table.
fn measure(
    options: &Options,
    title: &str,
    plain: Run,
    peers: Vec<(&str, Run)>,
    base: impl IntoIterator<Item = (&'static str, usize, Run)>,
    change: impl IntoIterator<Item = (&'static str, usize, Run)>,
) {
    let mut rows = Vec::new();
    for ((name, peer, base), (_, _, change)) in base.into_iter().zip(change) {
        if options.want(title, name) {
            rows.push(Row { base: Contestant::new(name, base), change: Contestant::new(name, change), peer });
        }
    }
    if rows.is_empty() {
        return;
    }
    let plain = Some(Contestant::new("no layer", plain));
    let peers = peers.into_iter().map(|(name, run)| Contestant::new(name, run)).collect();
    print_head(title);
    Group { plain, peers, rows }.run(options.rounds.unwrap_or(ROUNDS), BATCH);
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "Hello, World!" }))
}

/// A service that answers at once, with a future as large as that of a small handler.
#[derive(Clone)]
struct Bare;

impl Service<Request<Body>> for Bare {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        black_box(&request);
        Answer { response: ready(Ok(Response::new(Body::empty()))), rest: [0; 6] }
    }
}

struct Answer {
    response: Ready<Result<Response<Body>, Infallible>>,
    rest: [u64; 6],
}

impl Future for Answer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        black_box(&self.rest);
        Pin::new(&mut self.response).poll(cx)
    }
}

/// The least that a layer can do: it checks the address, and passes an admitted request on. It answers no denied one.
#[derive(Clone)]
struct ByHand<C>(C);

impl<C: Clone, S> Layer<S> for ByHand<C> {
    type Service = Checked<C, S>;

    fn layer(&self, inner: S) -> Checked<C, S> {
        Checked { admits: self.0.clone(), inner }
    }
}

#[derive(Clone)]
struct Checked<C, S> {
    admits: C,
    inner: S,
}

impl<C: Fn(&IpAddr) -> bool, S: Service<Request<Body>>> Service<Request<Body>> for Checked<C, S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().expect("an address");
        assert!((self.admits)(&peer.0.ip()), "no call is denied here");
        self.inner.call(request)
    }
}

fn run_of<S: Service<Request<Body>> + 'static>(mut service: S) -> Run {
    Box::new(move || batch(&mut service))
}

fn batch<S: Service<Request<Body>>>(service: &mut S) -> Duration {
    make_calls(service, WARM_UP);
    let started = Instant::now();
    make_calls(service, BATCH);
    started.elapsed()
}

#[inline(never)]
fn make_calls<S: Service<Request<Body>>>(service: &mut S, count: usize) {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..count {
        let request = request();
        assert!(service.poll_ready(&mut cx).is_ready());
        let call = pin!(service.call(request));
        match call.poll(&mut cx) {
            Poll::Ready(response) => drop(black_box(response)),
            Poll::Pending => unreachable!("no call waits here"),
        }
    }
}

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4711))));
    request
}
