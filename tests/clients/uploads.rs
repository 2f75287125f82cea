//! Rejected uploads over pooled connections. Each upload gets its own 429.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tower::ServiceBuilder;
use tower_http::decompression::{DecompressionBody, RequestDecompressionLayer};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::types::{DefaultRejection, DrainBody, UnreadBody};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::run::script;
use crate::support::{Server, Version, get, listen};

const KIB: usize = 1024;

/// Sizes of bodies that fit into the kernel's buffers while the server does not read.
const SMALL: [usize; 3] = [10, 16 * KIB, 60 * KIB];

/// Sizes of bodies that do not fit.
const LARGE: [usize; 2] = [100 * KIB, 1024 * KIB];

const COUNT: usize = 200;

const CLIENTS: [&str; 5] = ["http.client", "requests", "httpx", "aiohttp", "node"];

/// What is between the client and the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outside {
    Nothing,
    /// A layer that decompresses the uploads, and removes their `Content-Length`.
    Decompression,
    /// TLS in the process of the server.
    Tls,
}

/// A server whose limit is used up.
async fn rejecting<D>(responder: HttpResponder<DefaultRejection, D>, outside: Outside) -> Server
where
    D: UnreadBody<Body> + UnreadBody<DecompressionBody<Body>> + Clone + Send + Sync + 'static,
{
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build();
    assert!(limiter.check(&()).is_allowed());
    let layer = RateLimitLayer::with_limiter(Global, limiter).responder(responder);
    let app = Router::new().route("/", post(|body: Bytes| async move { body.len().to_string() }));
    let app = match outside {
        Outside::Decompression => {
            app.layer(ServiceBuilder::new().layer(RequestDecompressionLayer::new()).layer(layer))
        }
        _ => app.layer(layer),
    };
    if outside == Outside::Tls {
        return with_tls(app).await;
    }
    let server = Server::start(app).await;
    assert_eq!(get(server.address, Version::Http1, "/").await.status, 429);
    server
}

async fn with_tls(app: Router) -> Server {
    let read =
        |name: &str| std::fs::read(format!("{}/certificates/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let certificate = CertificateDer::from_pem_slice(&read("localhost.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read("localhost.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate], key).unwrap()));
    let (listener, address) = listen().await;
    Server::running(address, async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(app.clone()));
            tokio::spawn(async move {
                let io = TokioIo::new(acceptor.accept(stream).await?);
                auto::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
            });
        }
    })
}

/// Returns the statuses and the errors that a client got for bodies of all sizes.
async fn upload(client: &str, server: SocketAddr, outside: Outside, sizes: &[usize]) -> Vec<Value> {
    let scheme = if outside == Outside::Tls { "https" } else { "http" };
    let encoding = if outside == Outside::Decompression { "gzip" } else { "identity" };
    let (url, count) = (format!("{scheme}://{server}/"), COUNT.to_string());
    let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
    let mut arguments = vec![client, &url, &count, encoding];
    arguments.extend(sizes.iter().map(String::as_str));
    match client {
        "node" => script("upload.mjs", &arguments[1..]).await,
        _ => script("upload.py", &arguments).await,
    }
}

async fn assert_no_response_is_lost<D>(
    responder: HttpResponder<DefaultRejection, D>,
    outside: Outside,
    sizes: &[usize],
) where
    D: UnreadBody<Body> + UnreadBody<DecompressionBody<Body>> + Clone + Send + Sync + 'static,
{
    let server = rejecting(responder, outside).await;
    for client in CLIENTS {
        for (size, seen) in sizes.iter().zip(upload(client, server.address, outside, sizes).await) {
            assert_eq!(seen, json!({ "429": COUNT }), "{client}, {outside:?}, {size} bytes");
        }
    }
}

#[tokio::test]
async fn bodies_that_fit_into_the_buffers_lose_no_response() {
    assert_no_response_is_lost(HttpResponder::new(), Outside::Nothing, &SMALL).await;
}

fn draining() -> HttpResponder<DefaultRejection, DrainBody> {
    HttpResponder::new().drain(2 * 1024 * KIB as u64, Duration::from_millis(500))
}

#[tokio::test]
async fn drained_bodies_lose_no_response() {
    assert_no_response_is_lost(draining(), Outside::Nothing, &[&SMALL[..], &LARGE].concat()).await;
}

#[tokio::test]
async fn drained_bodies_lose_no_response_if_an_outer_layer_has_removed_their_length() {
    assert_no_response_is_lost(draining(), Outside::Decompression, &LARGE).await;
}

#[tokio::test]
async fn drained_bodies_lose_no_response_with_tls_in_the_process() {
    assert_no_response_is_lost(draining(), Outside::Tls, &[20_000, LARGE[1]]).await;
}

/// Prints what clients got for uploads that are rejected, by default and with `drain`: the figures of the guide. `cargo
/// test -p tower-throttle-tests --test clients -- --ignored --nocapture figures_for_uploads`.
#[tokio::test]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
async fn figures_for_uploads() {
    for outside in [Outside::Nothing, Outside::Decompression, Outside::Tls] {
        let sizes = match outside {
            Outside::Tls => vec![10, 20_000, 60 * KIB, LARGE[1]],
            _ => [&SMALL[..], &LARGE].concat(),
        };
        let by_default = rejecting(HttpResponder::new(), outside).await;
        let drained = rejecting(draining(), outside).await;
        for (name, server) in [("default", by_default), ("drain", drained)] {
            for (client, size) in
                CLIENTS.into_iter().flat_map(|client| sizes.iter().map(move |size| (client, *size)))
            {
                let seen = upload(client, server.address, outside, &[size]).await;
                println!("{outside:?}, {name}, {client}, {size} bytes: {}", seen[0]);
            }
        }
    }
}
