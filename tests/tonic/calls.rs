//! Services, methods and metadata can be keys, and calls can be queued.

use std::time::Duration;

use http::Request;
use http::uri::PathAndQuery;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::Layer;
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Header, PeerIp, from_fn};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{Server, Task, listen};
use crate::{Caller, Echo, Other, Words, builder, per_ip, serve};

#[tokio::test]
async fn one_service_is_limited_and_its_neighbour_is_not() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let server = serve!(builder().add_service(layer.layer(Echo::default())).add_service(Other::default()));
    let mut caller = Caller::connect(&server).await;
    assert!(caller.echo("ab").await.is_ok());
    for _ in 0..3 {
        assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
        assert_eq!(caller.call("/test.Other/Say", "ab").await.unwrap().into_inner().text, "abab");
    }
}

#[tokio::test]
async fn a_call_whose_key_is_invalid_is_an_invalid_argument() {
    let layer = RateLimitLayer::new(Header::new("x-api-key").unwrap(), TokenBucket::new(Quota::per_hour(1)));
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut caller = Caller::connect(&server).await;
    caller.0.ready().await.unwrap();
    let mut request = tonic::Request::new(Words::default());
    for key in ["secret", "secret"] {
        request.metadata_mut().append("x-api-key", key.parse().unwrap());
    }
    let codec = ProstCodec::<Words, Words>::default();
    let answer: Result<tonic::Response<Words>, Status> =
        caller.0.unary(request, PathAndQuery::from_static("/test.Echo/Say"), codec).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(!status.message().contains("x-api-key") && !status.message().contains("secret"), "{status:?}");
    // The spaces are percent-encoded on the wire, and arrive unchanged.
    assert_eq!(status.message(), "the request does not identify its client in a valid form");
    assert!(!status.metadata().contains_key("retry-after"));
}

#[tokio::test]
async fn a_method_is_a_key_like_any_other() {
    let by_method = from_fn(|request: &Request<tonic::body::Body>| Some(request.uri().path().to_owned()));
    let layer = RateLimitLayer::new(by_method, TokenBucket::new(Quota::per_hour(1)))
        .cost(|request: &Request<_>| u64::from(!request.headers().contains_key("x-free")));
    let services = builder().layer(layer).add_service(Echo::default()).add_service(Other::default());
    let server = serve!(services);
    let mut caller = Caller::connect(&server).await;
    assert!(caller.echo("ab").await.is_ok());
    assert!(caller.call("/test.Other/Say", "ab").await.is_ok());
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_call_is_charged_what_its_handler_counted() {
    let bucket = TokenBucket::new(Quota::per_hour(100));
    let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).build();
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone())
        .cost(|_: &Request<tonic::body::Body>| 10)
        .metered();
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut caller = Caller::connect(&server).await;
    let key = PeerIp::new().key(server.address.ip());
    for (text, used) in [("twelve bytes", 12), ("ab", 14), (&"x".repeat(120), 134)] {
        assert!(caller.echo(text).await.is_ok());
        // The response ends when the server has dropped its body, which may be later than the client's end.
        let is_charged = async {
            while 100_u64.saturating_sub(used) != limiter.peek(&key).remaining() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_charged).await.expect("the call is charged");
    }
    let denied = caller.echo("ab").await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    // 44 units, at 100 an hour.
    assert_eq!(limiter.peek_n(&key, 10).retry_after(), Some(Duration::from_secs(1_584)));
}

#[tokio::test]
async fn calls_are_queued_and_then_admitted() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(2);
    let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let caller = Caller::connect(&server).await;
    let mut first = caller.clone();
    assert!(first.echo("a").await.is_ok());

    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let mut caller = caller.clone();
        calls.spawn(async move { caller.echo("ab").await });
    }
    // Two calls are queued, and the third is denied.
    let rejected = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    let ticking = Task::spawn(async move {
        loop {
            clock.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    });
    for answer in calls.join_all().await {
        assert_eq!(answer.unwrap().into_inner().text, "abab");
    }
    drop(ticking);
}
