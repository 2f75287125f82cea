//! Denied requests over HTTP/1.x with an unread body. The response says that the connection will be closed, unless the
//! body is drained.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(feature = "axum")]
use axum::{Router, body::Body};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use http::{HeaderName, Method, Request, Response, Version};
use http_body::Frame;
use http_body_util::Full;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{BodyFormat, Rejection, RequestHead, Responder, ResponseBody};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::PolledByHand;

const KIB: u64 = 1_024;
const HALF_A_SECOND: Duration = Duration::from_millis(500);

fn used_up() -> RateLimiter<FixedWindow> {
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build();
    assert!(limiter.check(&()).is_allowed());
    limiter
}

type Answer = Response<ResponseBody<Full<Bytes>>>;

/// Returns a service that rejects everything.
fn rejecting<B, R>(
    responder: R,
) -> impl Service<Request<B>, Response = Answer, Error = Infallible, Future: Send> + Clone
where
    B: Send + 'static,
    R: Responder<Request<B>, Response<Full<Bytes>>, Infallible, Response = Answer, Error = Infallible>,
    R: Clone + Send + Sync + 'static,
{
    let inner = service_fn(|_: Request<B>| ready(Ok(Response::new(Full::from("hello")))));
    RateLimitLayer::with_limiter(Global, used_up()).responder(responder).layer(inner)
}

fn post<B>(headers: &[(HeaderName, &str)], body: B) -> Request<B> {
    let mut request = Request::builder().method(Method::POST).uri("/");
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    request.body(body).unwrap()
}

fn connection<B>(answer: &Response<B>) -> Vec<&str> {
    answer.headers().get_all(CONNECTION).iter().map(|value| value.to_str().unwrap()).collect()
}

/// A body with a pause before each frame. It counts the frames that were read.
#[derive(Clone)]
struct Upload {
    frame: usize,
    frames: usize,
    pause: Duration,
    fails: bool,
    read: Arc<AtomicUsize>,
    waiting: Option<Arc<tokio::sync::Mutex<Pin<Box<tokio::time::Sleep>>>>>,
}

impl Upload {
    fn new(frame: u64, frames: usize) -> Self {
        let frame = usize::try_from(frame).unwrap();
        Self { frame, frames, pause: Duration::ZERO, fails: false, read: Arc::default(), waiting: None }
    }

    fn slow(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    fn failing(self) -> Self {
        Self { fails: true, ..self }
    }

    fn frames_read(&self) -> usize {
        self.read.load(Ordering::SeqCst)
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        if self.frames_read() == self.frames {
            return Poll::Ready(self.fails.then_some(Err("broken")));
        }
        if !self.pause.is_zero() {
            let pause = self.pause;
            let timer =
                self.waiting.get_or_insert_with(|| Arc::new(tokio::sync::Mutex::new(Box::pin(sleep(pause)))));
            let mut timer = timer.try_lock().unwrap();
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            timer.as_mut().reset(Instant::now() + pause);
        }
        self.read.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(vec![0; self.frame].into()))))
    }
}

#[tokio::test]
async fn a_denial_over_http_1_of_a_request_with_a_body_closes_the_connection() {
    let close = &["close"][..];
    for (headers, expected) in [
        (vec![(CONTENT_LENGTH, "1")], close),
        (vec![(CONTENT_LENGTH, "10000000")], close),
        (vec![(TRANSFER_ENCODING, "chunked")], close),
        (vec![(CONTENT_LENGTH, "10"), (EXPECT, "100-continue")], close),
        (vec![(CONTENT_LENGTH, "7"), (CONTENT_TYPE, "application/grpc-web")], close),
        (vec![(CONTENT_LENGTH, "0")], &[]),
        // An outer layer has removed the length.
        (vec![], close),
    ] {
        for version in [Version::HTTP_10, Version::HTTP_11] {
            // The type of the body does not matter.
            let mut request = post(&headers, ());
            *request.version_mut() = version;
            let answer = rejecting(HttpResponder::new()).oneshot(request).await.unwrap();
            assert_eq!(connection(&answer), expected, "{version:?} {headers:?}");
        }
        let mut request = post(&headers, ());
        *request.version_mut() = Version::HTTP_2;
        let answer = rejecting(HttpResponder::new()).oneshot(request).await.unwrap();
        assert!(connection(&answer).is_empty(), "{headers:?}");
    }
    // Without a length, a request has a body only if its method lets expect one (RFC 9110, section 8.6).
    for (method, expected) in [
        (Method::POST, close),
        (Method::PUT, close),
        (Method::PATCH, close),
        // By text, since not each version of `http` has a constant for it.
        (Method::from_bytes(b"QUERY").unwrap(), close),
        (Method::GET, &[]),
        (Method::HEAD, &[]),
        (Method::DELETE, &[]),
        (Method::OPTIONS, &[]),
    ] {
        let request = Request::builder().method(method.clone()).body(()).unwrap();
        let answer = rejecting(HttpResponder::new()).oneshot(request).await.unwrap();
        assert_eq!(connection(&answer), expected, "{method}");
    }
}

/// A layer outside of the limit that removes `Content-Length`, and the headers by which a caller brings it to do so.
#[cfg(feature = "axum")]
macro_rules! assert_closes_or_drains {
    ($outer:expr, $headers:expr, $body:expr) => {{
        for (version, expected) in [(Version::HTTP_11, &["close"][..]), (Version::HTTP_2, &[])] {
            let request = |method| {
                let body: Bytes = $body.into();
                let length = body.len().to_string();
                let headers = [&[(CONTENT_LENGTH, &*length)][..], &$headers].concat();
                let mut request = post(&headers, Body::from(body));
                (*request.version_mut(), *request.method_mut()) = (version, method);
                request
            };
            let rejected = Router::new().fallback(|| async {}).layer(
                tower::ServiceBuilder::new()
                    .layer($outer)
                    .layer(RateLimitLayer::with_limiter(Global, used_up())),
            );
            let answer = rejected.oneshot(request(Method::POST)).await.unwrap();
            assert_eq!(connection(&answer), expected, "{version:?}");
            let drained = RateLimitLayer::with_limiter(Global, used_up())
                .responder(HttpResponder::new().drain(KIB, HALF_A_SECOND));
            let drained = Router::new()
                .fallback(|| async {})
                .layer(tower::ServiceBuilder::new().layer($outer).layer(drained));
            let answer = drained.oneshot(request(Method::POST)).await.unwrap();
            assert!(connection(&answer).is_empty(), "{version:?}");
        }
    }};
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn an_upload_whose_length_an_outer_layer_has_removed_closes_the_connection_or_is_drained() {
    use http::header::CONTENT_ENCODING;
    use tower_http::decompression::RequestDecompressionLayer;

    // The gzip of nothing.
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0".as_slice();
    assert_closes_or_drains!(RequestDecompressionLayer::new(), [(CONTENT_ENCODING, "gzip")], gzip);
    let grpc_web = || tonic_web::GrpcWebLayer::new();
    assert_closes_or_drains!(grpc_web(), [(CONTENT_TYPE, "application/grpc-web")], b"\0\0\0\0\0".as_slice());
}

#[tokio::test]
async fn an_admitted_request_and_one_without_a_limit_keep_their_connection() {
    let layer = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(1)));
    let inner =
        service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))));
    let answer = layer.layer(inner).oneshot(post(&[(CONTENT_LENGTH, "1")], ())).await.unwrap();
    assert_eq!((answer.status().as_u16(), connection(&answer)), (200, vec![]));
}

#[tokio::test]
async fn a_response_that_closes_by_itself_has_one_connection_header() {
    for (own, expected) in [
        ("close", vec!["close"]),
        ("Upgrade, Close", vec!["Upgrade, Close"]),
        ("x-hop", vec!["x-hop", "close"]),
    ] {
        let answer = move |_: &Rejection<'_>, _: &RequestHead<'_>| {
            Response::builder().header(CONNECTION, own).body("").unwrap()
        };
        let responder = HttpResponder::new().rejection_response(answer);
        let answer = rejecting(responder.clone()).oneshot(post(&[(CONTENT_LENGTH, "1")], ())).await.unwrap();
        assert_eq!(connection(&answer), expected);

        // The response's own `Connection` field is kept, even if the body is drained.
        let drained = rejecting(responder.drain(KIB, HALF_A_SECOND));
        let answer = drained.oneshot(post(&[(CONTENT_LENGTH, "1")], Full::<Bytes>::from("x"))).await.unwrap();
        assert_eq!(connection(&answer), [own]);
    }
}

/// Drains a body. Returns whether the connection is kept, how many frames were read, and how long the drain took.
async fn drained(max_bytes: u64, headers: &[(HeaderName, &str)], body: Upload) -> (bool, usize, Duration) {
    let service = rejecting(HttpResponder::new().body(BodyFormat::PlainText).drain(max_bytes, HALF_A_SECOND));
    let start = Instant::now();
    let answer = service.oneshot(post(headers, body.clone())).await.unwrap();
    assert_eq!(answer.status(), 429);
    let is_kept = match connection(&answer)[..] {
        [] => true,
        ["close"] => false,
        ref other => panic!("{other:?}"),
    };
    (is_kept, body.frames_read(), start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_body_is_drained_up_to_both_bounds() {
    let chunked = &[(TRANSFER_ENCODING, "chunked")][..];
    let at_once = Duration::ZERO;
    let upload = |frames| Upload::new(KIB, frames);
    // The body has more frames than are read at once.
    assert_eq!(drained(200 * KIB, chunked, upload(200)).await, (true, 200, at_once));
    assert_eq!(drained(200 * KIB - 1, chunked, upload(200)).await, (false, 200, at_once));
    assert_eq!(drained(8 * KIB, chunked, upload(200)).await, (false, 9, at_once));
    assert_eq!(drained(0, chunked, upload(0)).await, (true, 0, at_once));
    // These bodies are known to be too long before they are read.
    assert_eq!(drained(8 * KIB, &[(CONTENT_LENGTH, "8193")], upload(9)).await, (false, 0, at_once));
    assert_eq!(drained(8 * KIB, &[(CONTENT_LENGTH, "8192")], upload(8)).await, (true, 8, at_once));
    // The client has not sent the body, and need not send it.
    let expects = [(CONTENT_LENGTH, "8192"), (EXPECT, "100-continue")];
    assert_eq!(drained(8 * KIB, &expects, upload(8)).await, (false, 0, at_once));
    assert_eq!(drained(8 * KIB, chunked, upload(3).failing()).await, (false, 3, at_once));

    let slow = |frames| upload(frames).slow(Duration::from_millis(100));
    assert_eq!(drained(8 * KIB, chunked, slow(4)).await, (true, 4, Duration::from_millis(400)));
    let (is_kept, frames, after) = drained(80 * KIB, chunked, slow(70)).await;
    assert_eq!((is_kept, after), (false, HALF_A_SECOND));
    assert!((4..=5).contains(&frames), "{frames}");
}

#[tokio::test(start_paused = true)]
async fn bodies_are_drained_over_all_versions_of_http_and_whatever_the_head_says() {
    let service = rejecting(HttpResponder::new().drain(KIB, HALF_A_SECOND));
    for version in [Version::HTTP_11, Version::HTTP_2, Version::HTTP_3] {
        let expects = [(CONTENT_LENGTH, "1"), (EXPECT, "100-continue")];
        for headers in [&[(CONTENT_LENGTH, "1")][..], &[], &expects] {
            // Over HTTP/1.x, a client that expects `100 Continue` need not send its body after the response.
            if headers == expects && version < Version::HTTP_2 {
                continue;
            }
            let body = Upload::new(1, 1);
            let mut request = post(headers, body.clone());
            *request.version_mut() = version;
            let answer = service.clone().oneshot(request).await.unwrap();
            assert!(connection(&answer).is_empty(), "{version:?}");
            assert_eq!(body.frames_read(), 1, "{version:?} {headers:?}");
        }
        // What is left unread does not close a connection that other requests share.
        let mut request = post(&[(CONTENT_LENGTH, "5000")], Upload::new(5 * KIB, 1));
        *request.version_mut() = version;
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(connection(&answer).is_empty(), version >= Version::HTTP_2, "{version:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_an_outer_layer_has_read_is_not_drained_and_keeps_the_connection() {
    let service = rejecting(HttpResponder::new().drain(KIB, HALF_A_SECOND));
    for length in ["1", "5000"] {
        let request = post(&[(CONTENT_LENGTH, length)], Full::<Bytes>::default());
        assert!(connection(&service.clone().oneshot(request).await.unwrap()).is_empty(), "{length}");
    }
    // Without `drain`, the type of the body may be anything, so only the head decides.
    let request = post(&[(CONTENT_LENGTH, "1")], Full::<Bytes>::default());
    assert_eq!(connection(&rejecting(HttpResponder::new()).oneshot(request).await.unwrap()), ["close"]);
}

/// A body that gives one piece for each turn of its task, as hyper's does.
struct Pieces {
    left: usize,
    is_due: bool,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.is_due = !self.is_due;
        if self.is_due {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
    }
}

/// A runtime whose thread stood still past the deadline polls the drain only then.
#[tokio::test(start_paused = true)]
async fn a_body_that_has_arrived_in_time_keeps_the_connection_although_the_thread_stood_still() {
    let mut service = rejecting(HttpResponder::new().drain(KIB, HALF_A_SECOND));
    for (pieces, expected) in [(0, &[][..]), (1, &[]), (100, &[]), (1_000, &["close"])] {
        let body = Pieces { left: pieces, is_due: true };
        let mut call = PolledByHand::new(service.call(post(&[(TRANSFER_ENCODING, "chunked")], body)));
        tokio::time::advance(2 * HALF_A_SECOND).await;
        assert!(call.run());
        assert_eq!(connection(&call.output.unwrap().unwrap()), expected, "{pieces} pieces");
    }
    // A client that is always ahead of the drain does not keep its place for ever.
    let mut service = rejecting(HttpResponder::new().drain(1_000 * KIB, HALF_A_SECOND));
    let body = Pieces { left: 100_000, is_due: true };
    let mut call = PolledByHand::new(service.call(post(&[(TRANSFER_ENCODING, "chunked")], body)));
    let start = Instant::now();
    while !call.poll() {
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(start.elapsed(), 2 * HALF_A_SECOND);
    assert_eq!(connection(&call.output.unwrap().unwrap()), ["close"]);
    // A body of which nothing arrives has no further turn.
    let mut service = rejecting(HttpResponder::new().drain(KIB, HALF_A_SECOND));
    let body = Upload::new(1, 2).slow(Duration::from_secs(60));
    let mut call = PolledByHand::new(service.call(post(&[(CONTENT_LENGTH, "2")], body)));
    tokio::time::advance(2 * HALF_A_SECOND).await;
    assert!(call.poll());
    assert_eq!(connection(&call.output.unwrap().unwrap()), ["close"]);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_bodies_drained_at_the_same_time_is_bounded() {
    // There are more timers than tokio polls in one task without yielding.
    unconstrained(async {
        let mut service = rejecting(HttpResponder::new().drain(KIB, HALF_A_SECOND));
        let mut never_ending = || {
            let body = Upload::new(1, 2).slow(Duration::from_secs(60));
            let mut call = PolledByHand::new(service.call(post(&[(CONTENT_LENGTH, "2")], body)));
            let is_answered = call.poll();
            (call, is_answered)
        };
        let mut drains: Vec<_> = (0..1_024).map(|_| never_ending()).collect();
        assert!(drains.iter().all(|(_, is_answered)| !is_answered));
        let (call, is_answered) = never_ending();
        assert!(is_answered);
        assert_eq!(connection(&call.output.unwrap().unwrap()), ["close"]);
        // If one drain is dropped, another can begin.
        drains.pop();
        drains.push(never_ending());
        assert!(!drains[1_023].1 && never_ending().1);
        sleep(HALF_A_SECOND).await;
        for (call, _) in &mut drains {
            assert!(call.run());
            assert_eq!(connection(call.output.as_ref().unwrap().as_ref().unwrap()), ["close"]);
        }
        assert!(!never_ending().1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_denied_while_queued_is_drained_then() {
    let clock = ManualClock::new();
    let queue = LeakyBucket::new(Quota::per_second(1)).queue(1);
    let limiter = RateLimiter::builder(queue).clock(clock).build();
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone())
        .responder(HttpResponder::new().drain(KIB, HALF_A_SECOND));
    let inner = service_fn(|_: Request<Upload>| {
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))))
    });
    let mut service = layer.layer(inner);
    assert_eq!(service.call(post(&[], Upload::new(1, 0))).await.unwrap().status(), 200);
    let body = Upload::new(1, 2);
    let mut call = PolledByHand::new(service.call(post(&[(CONTENT_LENGTH, "2")], body.clone())));
    assert!(!call.poll() && body.frames_read() == 0);
    limiter.close();
    assert!(call.run());
    let answer = call.output.unwrap().unwrap();
    assert_eq!((answer.status().as_u16(), body.frames_read()), (503, 2));
    assert!(connection(&answer).is_empty());
}

#[test]
fn without_draining_the_body_is_not_polled() {
    struct NoBody;
    let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(1)));
    let inner = service_fn(|_: Request<NoBody>| ready(Ok::<_, Infallible>(Response::new(()))));
    let mut service = layer.layer(inner);
    drop(service.call(Request::new(NoBody)));
}
