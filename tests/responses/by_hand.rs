//! A handler that calls a limiter itself gives the response that a layer would give, byte by byte.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow, SlidingLog, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::types::{IntoRejectionBody, RejectHead};
use tower_throttle::middleware::{
    BodyFormat, FieldNames, GrpcMode, HandlerResponder, HeaderFormat, Rejection, RequestHead, ResetFormat,
    Responder, ResponseBody, SendHeaders,
};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter, Rejecter};

use crate::support::{Client2, Server};

const MINUTE: Duration = Duration::from_secs(60);

/// How the service in question answers: behind a layer, by a `Rejecter`, or by the function of a layer.
const WAYS: usize = 3;

/// The requests of the table: a method, `Accept`, and a content type.
const REQUESTS: &[(Method, &str, &str)] = &[
    (Method::GET, "", ""),
    (Method::GET, "*/*", ""),
    (Method::GET, "application/json", ""),
    (Method::GET, "application/problem+json, text/html;q=0.9", ""),
    (Method::GET, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", ""),
    (Method::HEAD, "", ""),
    (Method::HEAD, "text/html", ""),
    (Method::POST, "", "application/json"),
    (Method::POST, "", "application/grpc"),
    (Method::POST, "", "application/grpc+proto"),
    (Method::POST, "text/html", "application/grpc-web"),
    (Method::POST, "", "application/grpc-web-text+proto"),
    (Method::HEAD, "", "application/grpc"),
];

/// Those of the requests that are sent many times: a text, two without a body, problem details, and gRPC.
const FEW_REQUESTS: &[(Method, &str, &str)] = REQUESTS.split_at(4).1.split_at(5).0;

/// A responder whose answers can be compared.
trait Compared:
    RejectHead<Body>
    + RejectHead<Bytes>
    + Responder<
        Request<Body>,
        http::Response<Body>,
        std::convert::Infallible,
        Response = http::Response<ResponseBody<Body>>,
        Error = std::convert::Infallible,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<R> Compared for R where
    R: RejectHead<Body>
        + RejectHead<Bytes>
        + Responder<
            Request<Body>,
            http::Response<Body>,
            std::convert::Infallible,
            Response = http::Response<ResponseBody<Body>>,
            Error = std::convert::Infallible,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// A limiter on a clock that stands still, whose key has used all of its units.
fn used_up<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    let limiter = RateLimiter::builder(algorithm).clock(ManualClock::new()).name("mail").build();
    while limiter.peek(&()).is_allowed() {
        // The call stays in progress.
        std::mem::forget(limiter.try_acquire_permit(&()));
    }
    limiter
}

/// Returns the same service in each of the [`WAYS`]. A request costs `cost`.
fn apps<A: Algorithm>(
    limiters: [RateLimiter<A>; WAYS],
    responder: &impl Compared,
    cost: u64,
) -> [Router; WAYS] {
    let [layered, by_rejecter, by_layer] = limiters;
    let layer = RateLimitLayer::with_limiter(Global, layered).cost(move |_: &Request<Body>| cost);
    let layered =
        Router::new().route("/", any(|| async { "hello" })).layer(layer.responder(responder.clone()));

    let handler = move |rejecter: Rejecter| async move {
        let permit = by_rejecter.call(&()).cost(cost).permit();
        let _permit = permit.map_err(|denied| rejecter.reject(&by_rejecter, denied))?;
        Ok::<_, Response>("hello")
    };
    let by_rejecter =
        Router::new().route("/", any(handler)).layer(Extension(HandlerResponder::new(responder.clone())));

    let layer = RateLimitLayer::with_limiter(Global, by_layer).responder(responder.clone());
    let handler = move |head: Parts| async move {
        match layer.limiter().call(&()).cost(cost).permit() {
            Ok(_permit) => "hello".into_response(),
            Err(denied) => layer.reject(&head, denied).map(Body::from),
        }
    };
    [layered, by_rejecter, Router::new().route("/", any(handler))]
}

/// Sends a request over HTTP/1.1. Returns all bytes of the response except for its date.
async fn sent(server: &Server, (method, accept, content_type): &(Method, &str, &str)) -> Vec<u8> {
    // Without a length, the layer would take a `POST` for one with a body, and close the connection itself.
    let mut text =
        format!("{method} / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n");
    for (name, value) in [("accept", accept), ("content-type", content_type)] {
        if !value.is_empty() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    without_date(exchanged(server, text + "\r\n").await)
}

async fn exchanged(server: &Server, text: String) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    response
}

fn without_date(mut response: Vec<u8>) -> Vec<u8> {
    let at = response.windows(8).position(|part| part == b"\r\ndate: ").expect("a date");
    let length = response[at + 2..].windows(2).position(|part| part == b"\r\n").unwrap();
    response.drain(at..at + 2 + length);
    response
}

/// Sends a request over HTTP/2. Returns a description of the response without its date.
async fn sent_2(client: &mut Client2, (method, accept, content_type): &(Method, &str, &str)) -> Vec<u8> {
    let mut request = Request::new(http_body_util::Full::default());
    *request.method_mut() = method.clone();
    for (name, value) in [(ACCEPT, accept), (CONTENT_TYPE, content_type)] {
        if !value.is_empty() {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
    }
    let mut answer = client.send(request).await;
    answer.headers.remove(DATE);
    format!("{answer:?} {}", answer.ended_with_headers).into_bytes()
}

/// Asserts that the services give the same responses to all requests of the table. If responses are random, as many
/// responses are compared as are needed to see all of them.
async fn all_the_same(apps: [Router; WAYS], answers: usize) {
    let mut servers = Vec::new();
    for app in apps {
        let server = Server::start(app).await;
        let client = Client2::http2(server.address).await;
        servers.push((server, client));
    }
    let (requests, samples) = if answers == 1 { (REQUESTS, 1) } else { (FEW_REQUESTS, 32) };
    let mut denials = 0;
    for request in requests {
        let mut seen: [[BTreeSet<Vec<u8>>; 2]; WAYS] = Default::default();
        for (at, (server, client)) in servers.iter_mut().enumerate() {
            for _ in 0..samples {
                seen[at][0].insert(sent(server, request).await);
                seen[at][1].insert(sent_2(client, request).await);
            }
        }
        let readable = |all: &BTreeSet<Vec<u8>>| -> Vec<String> {
            all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
        };
        let seen = seen.map(|versions| versions.map(|all| readable(&all)));
        let [layered, others @ ..] = &seen;
        for other in others {
            assert_eq!(layered, other, "{request:?}");
        }
        assert!(layered.iter().all(|all| all.len() <= answers), "{layered:?}");
        denials += usize::from(layered[0].iter().all(|text| !text.contains("hello")));
    }
    assert_eq!(denials, requests.len());
}

async fn compared<A: Algorithm>(algorithm: A, responder: impl Compared) {
    let limiters = [0; WAYS].map(|_| used_up(algorithm.clone()));
    all_the_same(apps(limiters, &responder, 1), 1).await;
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_minute(7).burst(3))
}

fn exports() -> Concurrency {
    Concurrency::per_key(1)
}

#[tokio::test]
async fn with_the_default_responder() {
    compared(bucket(), HttpResponder::new()).await;
    compared(FixedWindow::new(Quota::per_day(1)), HttpResponder::new()).await;
    compared((bucket(), SlidingLog::new(Quota::per_hour(2))), HttpResponder::new()).await;
    compared(exports(), HttpResponder::new()).await;
    compared((exports(), bucket()), HttpResponder::new()).await;
}

#[tokio::test]
async fn without_a_responder_of_the_app_the_default_one_answers() {
    let [layered, _, _] = apps([0; WAYS].map(|_| used_up(bucket())), &HttpResponder::new(), 1);
    let limiter = used_up(bucket());
    let handler = move |rejecter: Rejecter| async move {
        limiter.check(&()).into_result().map_err(|denied| rejecter.reject(&limiter, denied))
    };
    let by_hand = Router::new().route("/", any(handler));
    all_the_same([layered, by_hand.clone(), by_hand], 1).await;
}

#[tokio::test]
async fn with_each_format_of_header_fields() {
    const NAMES: FieldNames = FieldNames::new("x-limit", "x-left", "x-time", ResetFormat::DeltaSeconds);
    let formats = [
        vec![],
        vec![HeaderFormat::Draft06],
        vec![HeaderFormat::Draft07, HeaderFormat::RetryAfterMs],
        vec![
            HeaderFormat::Draft11,
            HeaderFormat::XRateLimit(ResetFormat::DeltaSeconds),
            HeaderFormat::Custom(NAMES),
            HeaderFormat::RetryAfterMs,
        ],
    ];
    for formats in formats {
        compared((bucket(), exports()), HttpResponder::new().headers(formats)).await;
    }
    for send in [SendHeaders::OnRejection, SendHeaders::OnAdmission, SendHeaders::Never] {
        compared(bucket(), HttpResponder::new().send_headers(send).retry_after(false)).await;
    }
}

#[tokio::test]
async fn with_each_format_of_bodies() {
    for body in [BodyFormat::ProblemJson, BodyFormat::PlainText, BodyFormat::Empty] {
        compared(bucket(), HttpResponder::new().body(body)).await;
    }
    for grpc in [GrpcMode::Always, GrpcMode::Never] {
        compared(bucket(), HttpResponder::new().grpc(grpc).insert_details(true)).await;
    }
}

/// A response of one's own, which depends on what the function reads.
fn own(rejection: &Rejection<'_>, head: &RequestHead<'_>) -> http::Response<String> {
    let accept = head.headers().get(ACCEPT);
    let windows: Vec<_> =
        rejection.policies().iter().map(|report| (report.name(), report.window())).collect();
    let text = format!("{} {} {accept:?} {windows:?}", head.method(), head.uri().path());
    let mut response = http::Response::new(text);
    *response.status_mut() = rejection.status();
    response
}

#[tokio::test]
async fn with_a_custom_response() {
    compared(bucket(), HttpResponder::new().rejection_response(own)).await;
    compared(exports(), HttpResponder::new().rejection_response(own)).await;
    compared(bucket(), HttpResponder::new().rejection_response(body_of_type::<&'static str>)).await;
    compared(bucket(), HttpResponder::new().rejection_response(body_of_type::<()>)).await;
}

fn body_of_type<T: Default + IntoRejectionBody<Body>>(
    _: &Rejection<'_>,
    _: &RequestHead<'_>,
) -> http::Response<T> {
    http::Response::default()
}

/// A jitter of at most a nanosecond makes two different responses, which differ in all fields with a wait.
#[tokio::test]
async fn with_jitter() {
    let responder = HttpResponder::new()
        .jitter(Duration::from_nanos(1))
        .headers([HeaderFormat::Draft11, HeaderFormat::RetryAfterMs]);
    let limiters = [0; WAYS].map(|_| used_up(FixedWindow::new(Quota::per_second(1))));
    all_the_same(apps(limiters, &responder, 1), 2).await;
    let limiters = [0; WAYS].map(|_| used_up(exports()));
    let responder = responder.retry_after_unknown(Some(MINUTE / 2));
    all_the_same(apps(limiters, &responder, 1), 2).await;
}

#[tokio::test]
async fn with_hints_and_maximums() {
    for hint in [None, Some(MINUTE / 2), Some(MINUTE * 60)] {
        let responder = HttpResponder::new().retry_after_unknown(hint).max_reported_wait(MINUTE);
        compared(exports(), responder).await;
        compared(FixedWindow::new(Quota::per_day(1)), responder).await;
        compared((exports(), FixedWindow::new(Quota::per_minute(1))), responder).await;
    }
}

#[tokio::test]
async fn with_lockouts_and_calls_that_never_fit() {
    let responder = HttpResponder::new()
        .lockout_status(StatusCode::FORBIDDEN)
        .never_fits_status(StatusCode::PAYLOAD_TOO_LARGE)
        .never_fits_body(BodyFormat::PlainText);
    compared(FixedWindow::new(Quota::per_minute(1)).block_for(MINUTE * 60).after(5), responder).await;
    for responder in [HttpResponder::new(), responder] {
        let limiters = [0; WAYS].map(|_| used_up(bucket()));
        all_the_same(apps(limiters, &responder, 4), 1).await;
    }
}

#[tokio::test]
async fn with_closed_limiters_and_replaced_algorithms() {
    let limiters = [0; WAYS].map(|_| used_up(bucket()));
    limiters.iter().for_each(RateLimiter::close);
    all_the_same(apps(limiters, &HttpResponder::new(), 1), 1).await;

    let limiters = [0; WAYS].map(|_| used_up(bucket()));
    let apps = apps(limiters.clone(), &HttpResponder::new(), 1);
    limiters.iter().for_each(|limiter| limiter.replace(TokenBucket::new(Quota::per_hour(2))));
    all_the_same(apps, 1).await;
}

/// A layer leaves the body unread, so that the connection has to be closed. A handler may have read it.
#[tokio::test]
async fn a_handler_that_has_read_the_body_keeps_the_connection() {
    let limiters = [0; 2].map(|_| used_up(bucket()));
    let [layered, by_hand] = limiters;
    let layered = Router::new()
        .route("/", any(|_: String| async { "hello" }))
        .layer(RateLimitLayer::with_limiter(Global, layered));
    let handler = move |rejecter: Rejecter, body: String| async move {
        assert_eq!(body, "four");
        by_hand.check(&()).into_result().map_err(|denied| rejecter.reject(&by_hand, denied))
    };
    let by_hand = Router::new().route("/", any(handler));
    let request = || {
        let mut request = Request::new(Body::from("four"));
        request.headers_mut().insert("content-length", 4.into());
        request
    };
    let mut layered = layered.oneshot(request()).await.unwrap();
    let by_hand = by_hand.oneshot(request()).await.unwrap();
    assert_eq!(
        (layered.status(), by_hand.status()),
        (StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS)
    );
    assert_eq!(layered.headers_mut().remove("connection").unwrap(), "close");
    assert_eq!(layered.headers(), by_hand.headers());
}

/// The handler's own limit is reported beside that of a layer around it, as those of two layers are.
#[tokio::test]
async fn a_layer_around_the_handler_adds_its_fields() {
    let limiter = used_up(bucket());
    let handler = move |rejecter: Rejecter| async move {
        limiter.check(&()).into_result().map_err(|denied| rejecter.reject(&limiter, denied))
    };
    let outer = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(9))).name("mail");
    let app = Router::new().route("/", any(handler)).layer(outer);
    let answer = app.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(answer.status(), 429);
    let policies: Vec<_> = answer.headers().get_all("ratelimit-policy").iter().collect();
    assert_eq!(policies, [r#""mail";q=3;w=26"#, r#""mail-2";q=9;w=3600"#]);
}
