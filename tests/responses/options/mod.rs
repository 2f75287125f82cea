//! The options of the responder, over HTTP/1.1 and HTTP/2.

mod busy;
mod custom_waits;
mod fields;
mod lockouts;
mod rejections;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Redirect;
use axum::routing::any;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::Responder;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::header_parser::{Left, ParsedFields, Policy, number};
use crate::reference_service::Service;
use crate::support::{Answer, Server, VERSIONS, request, send, waits};

const MINUTE: Duration = Duration::from_secs(60);

/// A limiter on a clock that stands still.
fn stopped<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).build()
}

/// One call a minute.
fn once() -> RateLimiter<FixedWindow> {
    stopped(FixedWindow::new(Quota::per_minute(1)))
}

fn layer() -> RateLimitLayer<Global, FixedWindow> {
    RateLimitLayer::with_limiter(Global, once()).name("api")
}

/// Returns the response to a request with a `Content-Type`.
async fn ask(service: &Service, content_type: &'static str) -> Answer {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Answer::read(service.clone().oneshot(request).await.unwrap()).await
}

/// Returns the responses to requests that are sent one after another.
async fn responses<const N: usize>(service: Service, content_type: &'static str) -> [Answer; N] {
    let mut answers = Vec::new();
    for _ in 0..N {
        answers.push(ask(&service, content_type).await);
    }
    answers.try_into().unwrap()
}

fn app() -> Router {
    let redirect = || async { Redirect::to("/elsewhere") };
    Router::new().route("/", any(|| async { "hello" })).route("/moved", any(redirect))
}

/// Returns the fields with which `layer` reports its limit. There is one item.
fn reported(r: u64, t: u64) -> ParsedFields {
    let policy = Policy { name: "api".to_owned(), q: 1, w: Some(60), qu: None };
    let left = Left { name: "api".to_owned(), r, t: Some(t) };
    ParsedFields { policies: vec![policy], left: vec![left], retry_after: None }
}

fn rejection() -> ParsedFields {
    ParsedFields { retry_after: Some(60), ..reported(0, 60) }
}

/// Returns the response to an admitted call, and the rejections of a `GET` and of a `HEAD` request, over each version
/// of HTTP.
async fn answers(app: Router) -> Vec<[Answer; 3]> {
    let server = Server::start(app).await;
    let mut answers = Vec::new();
    let admitted = send(server.address, VERSIONS[0], request(Method::GET, "/")).await;
    assert_eq!(admitted.status, 200);
    for version in VERSIONS {
        let [get, head] = [Method::GET, Method::HEAD].map(|method| request(method, "/"));
        let get = send(server.address, version, get).await;
        let head = send(server.address, version, head).await;
        answers.push([admitted.clone(), get, head]);
    }
    answers
}

/// Asserts that the response to `HEAD` equals the response to `GET`, without the body and with the length of the body.
fn is_head_of(head: &Answer, get: &Answer) {
    assert_eq!((head.status, head.body.len()), (get.status, 0));
    let others = |headers: &HeaderMap| {
        let mut headers = headers.clone();
        headers.remove("date");
        headers.remove("content-length");
        headers
    };
    assert_eq!(others(&head.headers), others(&get.headers));
    // Over HTTP/2, a response that ends with its headers needs no length.
    let length = number(&get.headers, "content-length").unwrap_or(0);
    assert_eq!(length, get.body.len() as u64);
    assert_eq!(number(&head.headers, "content-length").unwrap_or(0), length, "{head:?}");
}

async fn with<R>(responder: R) -> Vec<[Answer; 3]>
where
    R: Responder<
            Request<Body>,
            Response<Body>,
            std::convert::Infallible,
            Response = Response<tower_throttle::middleware::ResponseBody<Body>>,
            Error = std::convert::Infallible,
        >,
    R: Clone + Send + Sync + 'static,
{
    let service = tower::ServiceBuilder::new().layer(layer().responder(responder)).service(app());
    answers(Router::new().fallback_service(service)).await
}

/// Returns the rejection by an app with `layers`.
async fn rejected(service: Service) -> Answer {
    loop {
        let answer = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        if answer.status() != 200 {
            return Answer::read(answer).await;
        }
    }
}

/// Returns the denial of a queued request whose maximum wait has ended in a pause of its key. At that instant, the rest
/// of the pause is short enough for a new request to wait, so the wait of the denial is zero.
async fn late(limited: impl FnOnce(RateLimitLayer<Global, LeakyBucket>) -> Service) -> Answer {
    const SECOND: Duration = Duration::from_secs(1);
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(5).max_wait(5 * SECOND);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let service = limited(RateLimitLayer::with_limiter(Global, limiter.clone()));
    assert_eq!(ask(&service, "text/plain").await.status, 200);
    let mut queued = waits(ask(&service, "text/plain"));
    clock.advance(SECOND / 2);
    assert!(limiter.pause(&(), 8 * SECOND));
    clock.set(5 * SECOND);
    assert!(queued.run(), "its time is over");
    queued.output.unwrap()
}
