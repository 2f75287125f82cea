//! A gRPC service with a method of each kind, and servers for the service. The service is written like a generated
//! service.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tonic::codegen::tokio_stream::{Stream, StreamExt, iter};
use tonic::server::{Grpc, NamedService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{BoxError, Service, service_fn};
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{RateLimitLayer, RateLimiter};

/// On the wire, this is also a `google.protobuf.StringValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Words {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
}

impl Words {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }
}

/// Takes one message, and returns it.
pub(crate) const SAY: &str = "/test.Echo/Say";
/// Takes one message, and returns each of its letters.
pub(crate) const SPELL: &str = "/test.Echo/Spell";
/// Takes many messages, and returns one message that contains all of them.
pub(crate) const JOIN: &str = "/test.Echo/Join";
/// Takes many messages, and returns each of them.
pub(crate) const CHAT: &str = "/test.Echo/Chat";

pub(crate) const METHODS: [&str; 4] = [SAY, SPELL, JOIN, CHAT];

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Answers = Pin<Box<dyn Stream<Item = Result<Words, Status>> + Send>>;
type Answered<T> = Result<tonic::Response<T>, Status>;

/// The service, which counts its calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    calls: Arc<AtomicUsize>,
}

impl Echo {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl<B> Service<Request<B>> for Echo
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send + 'static,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut grpc = Grpc::new(ProstCodec::<Words, Words>::default());
        Box::pin(async move {
            Ok(match request.uri().path() {
                SAY => grpc.unary(service_fn(say), request).await,
                SPELL => grpc.server_streaming(service_fn(spell), request).await,
                JOIN => grpc.client_streaming(service_fn(join), request).await,
                CHAT => grpc.streaming(service_fn(chat), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

async fn say(request: tonic::Request<Words>) -> Answered<Words> {
    Ok(tonic::Response::new(request.into_inner()))
}

async fn spell(request: tonic::Request<Words>) -> Answered<Answers> {
    let letters: Vec<_> = request.into_inner().text.chars().map(|letter| Ok(Words::new(letter))).collect();
    Ok(tonic::Response::new(Box::pin(iter(letters))))
}

async fn join(request: tonic::Request<Streaming<Words>>) -> Answered<Words> {
    let mut words = request.into_inner();
    let mut text = String::new();
    while let Some(word) = words.message().await? {
        text.push_str(&word.text);
    }
    Ok(tonic::Response::new(Words { text }))
}

async fn chat(request: tonic::Request<Streaming<Words>>) -> Answered<Answers> {
    Ok(tonic::Response::new(Box::pin(request.into_inner().map(|word| word))))
}

/// A limit with one budget for all callers, on this clock.
pub(crate) fn limit<A: Algorithm>(rule: A, clock: &ManualClock) -> RateLimitLayer<Global, A> {
    RateLimitLayer::with_limiter(Global, RateLimiter::builder(rule).clock(clock.clone()).build())
}

pub(crate) fn builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
}

/// Runs a tonic router on its own port.
macro_rules! serve {
    ($router:expr) => {{
        let (listener, address) = crate::support::listen().await;
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let serving = $router.serve_with_incoming(incoming);
        crate::support::Server::running(address, async move { serving.await.unwrap() })
    }};
}

pub(crate) use serve;
