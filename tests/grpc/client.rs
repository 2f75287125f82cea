//! A tonic client that calls a limited tonic server. The client is written like a generated client.

use std::net::SocketAddr;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::tokio_stream::{Stream, iter};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower::{BoxError, Layer};
use tower_throttle::algorithm::{Concurrency, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, PeerIp};
use tower_throttle::limiter::FairLimiter;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::details::{Details, read};
use crate::service::{CHAT, Echo, JOIN, METHODS, SAY, SPELL, Words, builder, limit, serve};

/// A transport for HTTP requests of a client.
pub(crate) trait Transport:
    tonic::client::GrpcService<
        tonic::body::Body,
        ResponseBody: http_body::Body<Data = bytes::Bytes, Error: Into<BoxError> + Send> + Send + 'static,
        Future: Send,
    >
{
}

impl<T> Transport for T
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
    T::Future: Send,
{
}

/// A generated client.
#[derive(Clone)]
pub(crate) struct Caller<T = Channel>(Grpc<T>);

impl Caller {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self(Grpc::new(endpoint.connect().await.unwrap()))
    }
}

fn codec() -> ProstCodec<Words, Words> {
    ProstCodec::default()
}

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

fn one(text: &str) -> Request<Words> {
    Request::new(Words::new(text))
}

fn letters(text: &str) -> Request<impl Stream<Item = Words> + Send + use<>> {
    let letters: Vec<_> = text.chars().map(Words::new).collect();
    Request::new(iter(letters))
}

async fn all(mut words: tonic::Streaming<Words>) -> Result<Vec<String>, Status> {
    let mut texts = Vec::new();
    while let Some(word) = words.message().await? {
        texts.push(word.text);
    }
    Ok(texts)
}

impl<T: Transport> Caller<T> {
    pub(crate) fn over(transport: T, address: SocketAddr) -> Self {
        Self(Grpc::with_origin(transport, format!("http://{address}").parse().unwrap()))
    }

    /// Calls a method with a text. Returns all messages of the response.
    pub(crate) async fn call(&mut self, method: &'static str, text: &str) -> Result<Vec<String>, Status> {
        assert!(self.0.ready().await.is_ok());
        let (grpc, path) = (&mut self.0, path(method));
        match method {
            SAY => Ok(vec![grpc.unary(one(text), path, codec()).await?.into_inner().text]),
            SPELL => all(grpc.server_streaming(one(text), path, codec()).await?.into_inner()).await,
            JOIN => Ok(vec![grpc.client_streaming(letters(text), path, codec()).await?.into_inner().text]),
            CHAT => all(grpc.streaming(letters(text), path, codec()).await?.into_inner()).await,
            _ => unreachable!("{method}"),
        }
    }
}

/// Returns the messages that an echo server sends in response.
pub(crate) fn answer(method: &str, text: &str) -> Vec<String> {
    match method {
        SAY | JOIN => vec![text.to_owned()],
        _ => text.chars().map(String::from).collect(),
    }
}

const THIRD: Duration = Duration::from_nanos(333_333_334);

/// Allows one call, and one more every third of a second.
fn thirds() -> TokenBucket {
    TokenBucket::new(Quota::per(1, THIRD).unwrap())
}

/// Asserts that a rejection by any method reports its wait to the nanosecond.
async fn assert_reports_the_wait(address: SocketAddr, clock: &ManualClock) {
    let mut caller = Caller::connect(address).await;
    for method in METHODS {
        assert_eq!(caller.call(method, "abc").await.unwrap(), answer(method, "abc"));
        clock.advance(THIRD / 2);
        let status = caller.call(method, "abc").await.unwrap_err();
        let wait = THIRD - THIRD / 2;
        assert_eq!(read(&status), Details::new(Some(wait), &["thirds"], Some(167)), "{method}");
        let reported = status.get_details_retry_info().unwrap().retry_delay.unwrap();

        clock.advance(reported - Duration::from_nanos(1));
        let status = caller.call(method, "abc").await.unwrap_err();
        assert_eq!(
            read(&status),
            Details::new(Some(Duration::from_nanos(1)), &["thirds"], Some(1)),
            "{method}"
        );
        clock.advance(Duration::from_nanos(1));
        assert_eq!(caller.call(method, "abc").await.unwrap(), answer(method, "abc"));
        clock.advance(THIRD);
    }
}

#[tokio::test]
async fn a_client_reads_the_wait_of_a_limited_server() {
    let (clock, echo) = (ManualClock::new(), Echo::default());
    let layer = limit(thirds(), &clock).name("thirds");
    let server = serve!(builder().layer(layer).add_service(echo.clone()));
    assert_reports_the_wait(server.address, &clock).await;
    assert_eq!(echo.calls(), 8);
}

#[tokio::test]
async fn a_client_reads_the_wait_of_a_limited_service() {
    let (clock, echo) = (ManualClock::new(), Echo::default());
    let layer = limit(thirds(), &clock).name("thirds");
    let server = serve!(builder().add_service(layer.layer(echo.clone())));
    assert_reports_the_wait(server.address, &clock).await;
    assert_eq!(echo.calls(), 8);
}

#[tokio::test]
async fn a_client_reads_the_wait_through_two_limits() {
    let (clock, echo) = (ManualClock::new(), Echo::default());
    let around = RateLimiter::builder(TokenBucket::new(Quota::per_second(1_000))).clock(clock.clone());
    let around = RateLimitLayer::with_limiter(PeerIp::new(), around.build()).name("around");
    let layer = limit(thirds(), &clock).name("thirds");
    let server = serve!(builder().layer(around).add_service(layer.layer(echo)));
    assert_reports_the_wait(server.address, &clock).await;
}

#[tokio::test]
async fn a_stream_is_one_call_however_many_messages_it_carries() {
    let layer = limit(TokenBucket::new(Quota::per_hour(4)), &ManualClock::new());
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut caller = Caller::connect(server.address).await;
    let text = "ab".repeat(500);
    for method in METHODS {
        assert_eq!(caller.call(method, &text).await.unwrap(), answer(method, &text));
    }
    for method in METHODS {
        assert_eq!(caller.call(method, &text).await.unwrap_err().code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn a_stream_holds_its_permit_until_it_ends() {
    let fair = FairLimiter::new(Concurrency::per_key(1).total(1));
    let layer = RateLimitLayer::with_limiter(Global, fair.clone());
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut caller = Caller::connect(server.address).await;
    let (saying, words) = mpsc::channel::<Words>(1);
    saying.send(Words::new("a")).await.unwrap();
    caller.0.ready().await.unwrap();
    let words = Request::new(ReceiverStream::new(words));
    let mut answers = caller.0.streaming(words, path(CHAT), codec()).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap(), Some(Words::new("a")));
    // The response has begun, and the stream goes on.
    assert_eq!(caller.call(SAY, "abc").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(fair.try_acquire_permit("a task").is_err());
    drop(saying);
    assert_eq!(answers.message().await.unwrap(), None);
    drop(fair.acquire_permit("a task").await.unwrap());
    assert_eq!(caller.call(SAY, "abc").await.unwrap(), ["abc"]);
}

#[tokio::test]
async fn a_client_that_still_sends_gets_the_status_and_keeps_its_connection() {
    let layer = limit(thirds(), &ManualClock::new());
    let server = serve!(builder().layer(layer).add_service(Echo::default()));
    let mut caller = Caller::connect(server.address).await;
    caller.call(SAY, "abc").await.unwrap();
    for method in [JOIN, CHAT] {
        // The request stream is open, so more messages may follow at any time.
        let (saying, words) = mpsc::channel::<Words>(1);
        saying.send(Words::new("a")).await.unwrap();
        let words = Request::new(ReceiverStream::new(words));
        caller.0.ready().await.unwrap();
        let status = match method {
            JOIN => caller.0.client_streaming(words, path(method), codec()).await.map(|_| ()).unwrap_err(),
            _ => caller.0.streaming(words, path(method), codec()).await.map(|_| ()).unwrap_err(),
        };
        assert_eq!(read(&status).wait, Some(THIRD));
        saying.closed().await;
    }
    // The connection can still be used.
    assert_eq!(caller.call(SAY, "abc").await.unwrap_err().code(), Code::ResourceExhausted);
}
