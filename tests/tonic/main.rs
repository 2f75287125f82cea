//! The layer in tonic servers, with a real client and over raw HTTP/2.
#![cfg(feature = "tonic")]

mod calls;
mod denials;
mod peers;
#[path = "../support/mod.rs"]
mod support;
#[cfg(unix)]
mod unix;

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::Request;
use http::uri::PathAndQuery;
use support::Server;
use tonic::Status;
use tonic::client::Grpc;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::Service;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::PeerIp;
use tower_throttle::{Meter, Quota, RateLimitLayer, RateLimiter};

#[derive(Clone, PartialEq, prost::Message)]
struct Words {
    #[prost(string, tag = "1")]
    text: String,
}

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A service like a generated one. It repeats each message, and counts its calls.
#[derive(Clone, Default)]
struct Echo {
    calls: Arc<AtomicUsize>,
}

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl UnaryService<Words> for Echo {
    type Response = Words;
    type Future = Later<Result<tonic::Response<Words>, Status>>;

    fn call(&mut self, request: tonic::Request<Words>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Meter::of(request.extensions()).add(request.get_ref().text.len() as u64);
        let text = request.into_inner().text.repeat(2);
        Box::pin(async { Ok(tonic::Response::new(Words { text })) })
    }
}

impl Service<Request<tonic::body::Body>> for Echo {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let echo = self.clone();
        let codec = ProstCodec::<Words, Words>::default();
        Box::pin(async { Ok(tonic::server::Grpc::new(codec).unary(echo, request).await) })
    }
}

/// The same service under another name.
#[derive(Clone, Default)]
struct Other(Echo);

impl NamedService for Other {
    const NAME: &'static str = "test.Other";
}

impl Service<Request<tonic::body::Body>> for Other {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Service::call(&mut self.0, request)
    }
}

/// A client like a generated one.
#[derive(Clone)]
struct Caller(Grpc<Channel>);

impl Caller {
    async fn connect(server: &Server) -> Self {
        Self::at(Endpoint::from_shared(format!("http://{}", server.address)).unwrap()).await
    }

    async fn at(endpoint: Endpoint) -> Self {
        Self(Grpc::new(endpoint.connect().await.unwrap()))
    }

    async fn call(&mut self, path: &'static str, text: &str) -> Result<tonic::Response<Words>, Status> {
        self.0.ready().await.unwrap();
        let request = tonic::Request::new(Words { text: text.to_owned() });
        let codec = ProstCodec::<Words, Words>::default();
        self.0.unary(request, PathAndQuery::from_static(path), codec).await
    }

    async fn echo(&mut self, text: &str) -> Result<tonic::Response<Words>, Status> {
        self.call("/test.Echo/Say", text).await
    }
}

macro_rules! serve {
    ($router:expr) => {{
        let (listener, address) = listen().await;
        let serving = $router.serve_with_incoming(TcpIncoming::from(listener));
        Server::running(address, async move { serving.await.unwrap() })
    }};
}
pub(crate) use serve;

fn builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
}

fn per_ip(quota: Quota, clock: &ManualClock) -> RateLimitLayer<PeerIp, TokenBucket> {
    let limiter = RateLimiter::builder(TokenBucket::new(quota)).clock(clock.clone()).build();
    RateLimitLayer::with_limiter(PeerIp::new(), limiter)
}

/// Returns whether the calls from an address have used up its quota.
fn is_used_up(layer: &RateLimitLayer<PeerIp, TokenBucket>, address: [u8; 4]) -> bool {
    !layer.limiter().peek(&IpAddr::from(address)).is_allowed()
}
