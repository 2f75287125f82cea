//! The layer in tonic servers, with a real client and over raw HTTP/2.
#![cfg(feature = "tonic")]

#[path = "../support/mod.rs"]
mod support;

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, Request};
use http_body_util::Full;
use support::{Answer, Client1, Client2, Server, Task, listen, request};
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::{Layer, Service};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Header, PeerIp, from_fn};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

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

fn builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
}

fn per_ip(quota: Quota, clock: &ManualClock) -> RateLimitLayer<PeerIp, TokenBucket> {
    let limiter = RateLimiter::builder(TokenBucket::new(quota)).clock(clock.clone()).build();
    RateLimitLayer::with_limiter(PeerIp::new(), limiter)
}

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
        let refused = client.send(say(asked)).await;
        assert_trailers_only(&refused, "application/grpc", "8");
        assert!(refused.ended_with_headers, "{refused:?}");
        assert_eq!(refused.retry_after(), 2);
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
    let refused = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
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

/// Returns whether the calls from an address have used up its quota.
fn is_used_up(layer: &RateLimitLayer<PeerIp, TokenBucket>, address: [u8; 4]) -> bool {
    !layer.limiter().peek(&IpAddr::from(address)).is_allowed()
}

#[tokio::test]
async fn a_peer_is_known_by_its_address() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let server = serve!(builder().layer(layer.clone()).add_service(Echo::default()));
    let mut caller = Caller::connect(&server).await;
    assert!(caller.echo("ab").await.is_ok());
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(is_used_up(&layer, [127, 0, 0, 1]) && !is_used_up(&layer, [127, 0, 0, 2]));
}

const CERTIFICATE: &str = include_str!("certificates/localhost.pem");
const KEY: &str = include_str!("certificates/localhost.key");

#[tokio::test]
async fn over_tls_a_peer_is_known_as_well() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let tls = ServerTlsConfig::new().identity(Identity::from_pem(CERTIFICATE, KEY));
    let server = serve!(builder().tls_config(tls).unwrap().layer(layer.clone()).add_service(Echo::default()));
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(CERTIFICATE)).domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{}", server.address)).unwrap();
    let endpoint = endpoint.tls_config(tls).unwrap();
    let mut caller = Caller::at(endpoint.clone()).await;
    assert_eq!(caller.echo("ab").await.unwrap().into_inner().text, "abab");
    // This is another connection from the same address.
    let mut caller = Caller::at(endpoint).await;
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(is_used_up(&layer, [127, 0, 0, 1]) && !is_used_up(&layer, [127, 0, 0, 2]));
}

#[cfg(unix)]
mod unix {
    use std::fs;
    use std::path::PathBuf;

    use tokio::net::UnixListener;
    use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
    use tower_throttle::key::MissingKey;
    use tower_throttle::key::Networks;

    use super::*;

    /// A server at a Unix socket, which is stopped on drop.
    struct Socket {
        path: PathBuf,
        _serving: Task,
    }

    impl Socket {
        fn start(name: &str, layer: RateLimitLayer<PeerIp, TokenBucket>) -> Self {
            let path =
                std::env::temp_dir().join(format!("tower-throttle-{}-{name}.sock", std::process::id()));
            let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
            let serving = builder().layer(layer).add_service(Echo::default()).serve_with_incoming(incoming);
            Self { path, _serving: Task::spawn(async move { serving.await.unwrap() }) }
        }

        async fn caller(&self) -> Caller {
            Caller::at(Endpoint::from_shared(format!("unix://{}", self.path.display())).unwrap()).await
        }
    }

    impl Drop for Socket {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.path);
        }
    }

    #[tokio::test]
    async fn over_a_unix_socket_no_caller_has_an_address() {
        let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
        let server = Socket::start("rejected", layer.clone());
        let mut caller = server.caller().await;
        for _ in 0..2 {
            let status = caller.echo("ab").await.unwrap_err();
            assert_eq!(status.code(), Code::Internal);
            assert_eq!(status.message(), "the server cannot identify the client of this request");
            assert!(!status.metadata().contains_key("retry-after"), "{status:?}");
        }
        let counts = layer.stats().keys;
        assert_eq!((counts.rejected, counts.shared, counts.unlimited, counts.forbidden), (2, 0, 0, 0));
    }

    #[tokio::test]
    async fn over_a_unix_socket_all_may_be_limited_as_one() {
        let layer = per_ip(Quota::per_hour(2), &ManualClock::new()).missing_key(MissingKey::Shared);
        let server = Socket::start("shared", layer.clone());
        for _ in 0..2 {
            assert!(server.caller().await.echo("ab").await.is_ok());
        }
        let status = server.caller().await.echo("ab").await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let counts = layer.stats().keys;
        assert_eq!((counts.rejected, counts.shared, counts.unlimited, counts.forbidden), (0, 3, 0, 0));
        // No caller with an address shares this budget.
        assert!(!is_used_up(&layer, [127, 0, 0, 1]));
    }

    #[tokio::test]
    async fn over_a_unix_socket_no_caller_is_limited_or_served_by_name() {
        let unix = || Networks::new(["unix"]).unwrap();
        let layer = |key| {
            let limiter =
                RateLimiter::builder(TokenBucket::new(Quota::per_hour(1))).clock(ManualClock::new());
            RateLimitLayer::with_limiter(key, limiter.build())
        };
        let allowing = layer(PeerIp::new().allow(unix()));
        let server = Socket::start("allowed", allowing.clone());
        for _ in 0..3 {
            assert!(server.caller().await.echo("ab").await.is_ok());
        }
        let denying = layer(PeerIp::new().deny(unix()));
        let server = Socket::start("denied", denying.clone());
        assert_eq!(server.caller().await.echo("ab").await.unwrap_err().code(), Code::PermissionDenied);
        let counts = [allowing, denying].map(|layer| layer.stats().keys);
        assert_eq!(counts.map(|counts| (counts.rejected, counts.forbidden)), [(0, 0), (0, 1)]);
    }

    #[tokio::test]
    async fn over_a_unix_socket_all_may_pass() {
        let layer = per_ip(Quota::per_hour(1), &ManualClock::new()).missing_key(MissingKey::Pass);
        let server = Socket::start("passed", layer.clone());
        for _ in 0..3 {
            assert!(server.caller().await.echo("ab").await.is_ok());
        }
        assert_eq!(layer.stats().keys.unlimited, 3);
    }
}
