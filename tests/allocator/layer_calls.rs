//! Allocations of a call through the layer. If nothing is reported, the layer allocates nothing. Otherwise, it
//! allocates the values of the header fields. The body of a denied request is not read.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::measure;
use bytes::Bytes;
use http::header::ACCEPT;
use http::{Request, Response};
use http_body::{Body, Frame};
use tower::layer::Layer;
use tower::util::ServiceFn;
use tower::{Service, service_fn};
#[cfg(feature = "axum")]
use tower_throttle::Rejecter;
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, SlidingCounter, SlidingWindow, TokenBucket,
};
use tower_throttle::key::{Global, PeerIp};
use tower_throttle::middleware::{
    HeaderFormat, HttpResponder, ResetFormat, ResponseBody, SendHeaders, Shadow,
};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

/// A body that must not be read.
#[derive(Debug, Default)]
struct Unread;

impl Body for Unread {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("it was read")
    }

    fn is_end_stream(&self) -> bool {
        panic!("it was looked at")
    }
}

type Answer = Response<ResponseBody<Empty>>;

/// The response body of the inner service.
#[derive(Debug, Default)]
struct Empty;

impl Body for Empty {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}

fn behind(_: Request<Unread>) -> Ready<Result<Response<Empty>, Infallible>> {
    ready(Ok(Response::new(Empty)))
}

fn request() -> Request<Unread> {
    let mut request = Request::new(Unread);
    request.extensions_mut().insert(std::net::IpAddr::from([192, 0, 2, 7]));
    request
}

fn call<S>(service: &mut S, request: Request<Unread>) -> Answer
where
    S: Service<Request<Unread>, Response = Answer, Error = Infallible>,
{
    let mut answering = pin!(service.call(request));
    match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(answer)) => answer,
        Poll::Pending => panic!("no call is queued here"),
    }
}

type Behind = fn(Request<Unread>) -> Ready<Result<Response<Empty>, Infallible>>;

/// Returns the maximum number of allocations of a call whose key is known.
fn allocations<L>(layer: L, status: u16) -> u64
where
    L: Layer<ServiceFn<Behind>>,
    L::Service: Service<Request<Unread>, Response = Answer, Error = Infallible>,
{
    let mut service = layer.layer(service_fn(behind as Behind));
    for _ in 0..3 {
        call(&mut service, request());
    }
    let mut most = 0;
    for _ in 0..100 {
        let (request, mut answer) = (request(), None);
        let counted = measure(|| answer = Some(call(&mut service, request)));
        assert_eq!(answer.unwrap().status(), status);
        most = most.max(counted.count_total);
    }
    most
}

/// The number of allocations for the header table of a response that had no fields.
const TABLE: u64 = 2;

const MANY: Quota = Quota::per_hour(1_000_000);

/// Returns a configuration that reports nothing to the client.
fn silent() -> HttpResponder {
    HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false)
}

fn by_key<A: Algorithm>(rule: A) -> RateLimitLayer<PeerIp, A> {
    RateLimitLayer::new(PeerIp::new(), rule)
}

#[test]
fn an_admitted_call_that_is_reported_nothing_allocates_nothing() {
    fn nothing<A: Algorithm>(rule: A) {
        let name = format!("{rule:?}");
        assert_eq!(allocations(by_key(rule).responder(silent()), 200), 0, "{name}");
    }
    nothing(TokenBucket::new(MANY));
    nothing(FixedWindow::new(MANY));
    nothing(FixedWindow::new(MANY).aligned());
    nothing(SlidingWindow::new(MANY));
    nothing(SlidingCounter::new(MANY));
    nothing((TokenBucket::new(MANY), FixedWindow::new(MANY)));
}

/// The value of a policy is built once and shared.
#[test]
fn an_admitted_call_allocates_for_the_values_of_its_fields() {
    let draft = || HttpResponder::new().insert_extension(false);
    let bucket = || by_key(TokenBucket::new(MANY));
    assert_eq!(allocations(bucket().responder(draft()), 200), TABLE + 1);
    let tuple = (TokenBucket::new(MANY), FixedWindow::new(MANY));
    // The two policies are in two field lines, and the table needs an allocation for the second line. There is one item
    // of `RateLimit`.
    assert_eq!(allocations(by_key(tuple).responder(draft()), 200), TABLE + 2);
    // The decision for handlers is boxed.
    assert_eq!(allocations(bucket(), 200), TABLE + 2);
    assert_eq!(
        allocations(bucket().responder(HttpResponder::new().send_headers(SendHeaders::Never)), 200),
        1
    );
    // One allocation for the value of each field.
    let legacy = draft().headers([HeaderFormat::XRateLimit(ResetFormat::DeltaSeconds)]);
    assert!(allocations(bucket().responder(legacy), 200) <= TABLE + 3);
}

#[test]
fn what_else_costs_an_allocation() {
    let bucket = || by_key(TokenBucket::new(MANY));

    let concurrent = by_key(Concurrency::per_key(9)).responder(silent());
    assert_eq!(allocations(concurrent, 200), 1, "the permit");
    let settled = bucket().settle(|_: &Response<Empty>| 1_u64);
    assert_eq!(allocations(settled.responder(silent()), 200), 1, "what it is settled by");
    assert_eq!(allocations(bucket().shadow(&Shadow::on()).responder(silent()), 200), 0);
    let all = || RateLimitLayer::new(Global, FixedWindow::new(MANY));
    assert_eq!(allocations(bucket().and(all()).responder(silent()), 200), 0);
    let three = || bucket().and(all()).and(all()).responder(silent());
    assert_eq!(allocations(three(), 200), 1, "the outcomes of more than two policies");
    assert_eq!(allocations(three().and(all()), 200), 1);
}

#[test]
fn a_denied_call_reads_no_body_and_allocates_little() {
    // The allocations are for the header table and, if fields are sent, for the value of `RateLimit`. The value of
    // `Retry-After` needs an allocation only for a wait of more than an hour.
    let every = |seconds| by_key(TokenBucket::new(Quota::per(1, Duration::from_secs(seconds)).unwrap()));
    for (responder, most) in [(silent(), TABLE), (HttpResponder::new(), TABLE + 1)] {
        assert_eq!(allocations(every(3_600).responder(responder), 429), most);
        assert_eq!(allocations(every(3_602).responder(responder), 429), most + 1);
    }
}

/// `Accept` decides which body a denial has.
#[test]
fn an_accept_of_any_length_costs_a_denial_no_allocation() {
    let layer = by_key(TokenBucket::new(Quota::per_hour(1)));
    let mut service = layer.layer(service_fn(behind as Behind));
    (0..3).for_each(|_| drop(call(&mut service, request())));
    let mut denied = |accept: &str| {
        let mut request = request();
        request.headers_mut().insert(ACCEPT, accept.parse().unwrap());
        measure(|| assert_eq!(call(&mut service, request).status(), 429)).count_total
    };
    let (usual, for_people) = (denied("*/*"), denied("text/html"));
    assert_eq!(denied("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), for_people);
    assert_eq!(denied(&"a/b;q=0.125,".repeat(10)), usual);
    assert_eq!(denied(&format!("text/html,{}", "a/b;q=0,".repeat(50_000))), usual);
}

#[cfg(feature = "axum")]
#[test]
fn the_rejection_of_a_handler_takes_little_memory() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)));
    let rejecter = Rejecter::new(Request::new(()).into_parts().0);
    let mut bytes = 0;
    for _ in 0..10 {
        if let Err(denied) = limiter.check(&()).into_result() {
            bytes = measure(|| drop(rejecter.reject(&limiter, denied))).bytes_total;
        }
    }
    assert!((1..8_192).contains(&bytes), "{bytes} bytes");
}

/// The first request after a replacement makes the values of the fields again. Later requests cost what they cost
/// before.
#[test]
fn a_replaced_algorithm_costs_no_allocation_per_call() {
    fn same<A: Algorithm>(first: A, second: A, status: u16) {
        let limiter = RateLimiter::new(first);
        let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
        let before = allocations(layer.clone(), status);
        limiter.replace(second);
        assert_eq!(allocations(layer, status), before, "{status}");
    }
    same(TokenBucket::new(MANY), TokenBucket::new(Quota::per_hour(2_000_000)), 200);
    let per = |seconds| TokenBucket::new(Quota::per(1, Duration::from_secs(seconds)).unwrap());
    same(per(900), per(901), 429);
}

#[test]
fn a_replaced_algorithm_costs_no_allocation_per_joined_call() {
    let limiter = RateLimiter::new(TokenBucket::new(MANY));
    let all = RateLimitLayer::new(Global, FixedWindow::new(MANY));
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone()).and(all).responder(silent());
    let before = allocations(layer.clone(), 200);
    limiter.replace(TokenBucket::new(Quota::per_hour(2_000_000)));
    assert_eq!(allocations(layer, 200), before);
}

/// The size that the layer adds to the future of an admitted call: the outcome, and one reference.
#[test]
fn the_response_future_is_little_larger_than_that_of_the_inner_service() {
    fn extra<A: Algorithm>(rule: A) -> usize {
        let mut service = by_key(rule).layer(service_fn(behind as Behind));
        size_of_val(&service.call(request())) - size_of_val(&behind(request()))
    }
    assert!(extra(TokenBucket::new(MANY)) <= 144, "{}", extra(TokenBucket::new(MANY)));
    // The types of the algorithm and of the responder make no difference.
    assert_eq!(extra(TokenBucket::new(MANY)), extra((TokenBucket::new(MANY), FixedWindow::new(MANY))));
}
