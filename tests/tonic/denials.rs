//! Calls over the limit get `RESOURCE_EXHAUSTED`, in the header block of the response.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use tokio::task::JoinSet;
use tonic::server::Grpc;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::middleware::GrpcMode;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Answer, Client1, Client2, Server, listen, request};
use crate::{Caller, Echo, Other, Words, builder, per_ip, serve};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_passes_and_the_rest_is_resource_exhausted() {
    let clock = ManualClock::new();
    let echo = Echo::default();
    // There is no interceptor. The peer's address comes from the connection info of the server.
    let layer = per_ip(Quota::per_minute(60).burst(5), &clock);
    let server = serve!(builder().layer(layer).add_service(echo.clone()));
    let caller = Caller::connect(&server).await;

    let mut calls = JoinSet::new();
    for _ in 0..15 {
        let mut caller = caller.clone();
        calls.spawn(async move { caller.echo("ab").await });
    }
    let (passed, denied): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((passed.len(), denied.len()), (5, 10));
    for response in passed {
        let response = response.unwrap();
        assert!(response.metadata().contains_key("ratelimit"), "{response:?}");
        assert_eq!(response.into_inner().text, "abab");
    }
    for status in denied {
        let status = status.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "rate limit exceeded"));
        assert_eq!(status.metadata().get("retry-after").unwrap(), "1");
        assert_eq!(status.metadata().get("ratelimit").unwrap(), "\"default\";r=0;t=1");
        assert_eq!(status.metadata().get("ratelimit-policy").unwrap(), "\"default\";q=5;w=5");
    }
    assert_eq!(echo.calls.load(Ordering::SeqCst), 5);

    clock.advance(Duration::from_secs(1));
    let mut caller = caller;
    assert!(caller.echo("ab").await.is_ok());
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn the_layer_works_as_its_users_write_it() {
    let layer = RateLimitLayer::per_ip(Quota::per_hour(1)).name("grpc");
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut caller = Caller::connect(&server).await;
    assert!(caller.echo("ab").await.is_ok());
    // This is another connection from the same address.
    let mut caller = Caller::connect(&server).await;
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
}

/// An inner layer admits one call at a time, and a client keeps its connection after a denial.
#[tokio::test]
async fn a_denied_client_that_keeps_its_connection_blocks_nobody() {
    let layer = RateLimitLayer::new(
        from_fn(|request: &Request<tonic::body::Body>| Some(request.uri().path().to_owned())),
        TokenBucket::new(Quota::per_hour(1)),
    );
    let services = builder()
        .layer(layer)
        .layer(ConcurrencyLimitLayer::new(1))
        .add_service(Echo::default())
        .add_service(Other::default());
    let server = serve!(services);
    let (mut denied, mut other) = (Caller::connect(&server).await, Caller::connect(&server).await);
    assert!(denied.echo("ab").await.is_ok());
    assert_eq!(denied.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(other.call("/test.Other/Say", "ab").await.is_ok());
    assert_eq!(denied.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
}

/// A handler of tonic has no head of the request, and returns a `Status`. The layer's answer is one.
#[tokio::test]
async fn a_handler_returns_the_status_that_a_layer_would_send() {
    let used_up = || {
        let bucket = TokenBucket::new(Quota::per_minute(1));
        let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).name("mail").build();
        assert!(limiter.check(&()).is_allowed());
        RateLimitLayer::with_limiter(Global, limiter)
    };
    let layered = used_up().layer(Echo::default());
    let mail = used_up().responder(HttpResponder::new().grpc(GrpcMode::Always));
    let by_hand = service_fn(move |request: Request<tonic::body::Body>| {
        let mail = mail.clone();
        let handler = service_fn(move |_: tonic::Request<Words>| {
            let admitted = mail.limiter().check(&()).into_result().map_err(|denied| {
                let answer = mail.reject(&Request::new(()), denied);
                Status::from_header_map(answer.headers()).expect("it is a gRPC response")
            });
            std::future::ready(admitted.map(|()| tonic::Response::new(Words::default())))
        });
        let codec = ProstCodec::<Words, Words>::default();
        async move { Ok::<_, Infallible>(Grpc::new(codec).unary(handler, request).await) }
    });
    let request = || {
        let mut request = say("application/grpc").map(tonic::body::Body::new);
        *request.version_mut() = http::Version::HTTP_2;
        request
    };
    // Of the message, tonic encodes the spaces as well.
    let read = |headers: &HeaderMap| {
        let status = Status::from_header_map(headers).unwrap();
        let metadata = status.metadata().clone().into_headers();
        ((status.code(), status.message().to_owned(), status.details().to_owned()), metadata)
    };
    let layered = read(layered.oneshot(request()).await.unwrap().headers());
    let by_hand = read(by_hand.oneshot(request()).await.unwrap().headers());
    assert_eq!(layered.0.0, Code::ResourceExhausted);
    assert_eq!(layered, by_hand);
    assert!(layered.1.contains_key("retry-after"), "{layered:?}");
}

/// Returns an empty message, framed.
const EMPTY: &[u8] = &[0; 5];

fn say(content_type: &'static str) -> Request<Full<Bytes>> {
    let mut say = request(Method::POST, "/test.Echo/Say");
    say.headers_mut().insert("content-type", content_type.parse().unwrap());
    say.headers_mut().insert("te", "trailers".parse().unwrap());
    *say.body_mut() = Full::from(EMPTY);
    say
}

fn assert_trailers_only(answer: &Answer, content_type: &str, status: &str) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), content_type);
    assert_eq!(answer.header("grpc-status"), status);
    assert!(answer.body.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_denial_is_all_in_the_header_block() {
    let layer = per_ip(Quota::per_minute(30).burst(1), &ManualClock::new());
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut client = Client2::http2(server.address).await;
    let admitted = client.send(say("application/grpc")).await;
    assert_eq!((admitted.status.as_u16(), admitted.ended_with_headers), (200, false));
    assert!(!admitted.has("grpc-status"), "an admitted call's status is in its trailers: {admitted:?}");
    for asked in ["application/grpc", "application/grpc+proto", "application/grpc+json"] {
        let rejected = client.send(say(asked)).await;
        assert_trailers_only(&rejected, "application/grpc", "8");
        assert!(rejected.ended_with_headers, "{rejected:?}");
        assert_eq!(rejected.retry_after(), 2);
    }
}

#[tokio::test]
async fn a_grpc_web_client_is_answered_in_its_own_content_type() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let server = serve!(builder().accept_http1(true).layer(layer).add_service(Echo::default()));
    let mut client = Client2::http2(server.address).await;
    client.send(say("application/grpc")).await;
    for asked in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text+proto"] {
        assert_trailers_only(&client.send(say(asked)).await, asked, "8");
        let mut say = say(asked);
        say.headers_mut().remove("te");
        assert_trailers_only(&Client1::http1(server.address).await.send(say).await, asked, "8");
    }
}
