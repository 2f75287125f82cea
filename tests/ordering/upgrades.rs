//! Connections that change their protocol: upgrades, such as those of WebSockets, and tunnels.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::routing::{any, get};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tower::{Layer, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket};
use tower_throttle::key::{Global, Host, Method as ByMethod, Paths, PeerIp, Preflight, Route};
use tower_throttle::{Quota, RateLimitLayer};

use crate::hyper_only::{Connection, Kind, boxed, serve};
use crate::support::{Server, VERSIONS, Version, read_until};
use crate::{at_last, limit, limiter, used_up};

/// Echoes everything until the other side closes.
fn echo(upgrade: OnUpgrade) {
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        // A client that disconnects early is not a failure.
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
}

/// Asserts that data is echoed more than once, in both directions.
async fn echoes(upgraded: Upgraded) {
    let mut io = TokioIo::new(upgraded);
    for said in ["hello", "hello again", "\0\r\n\r\n"] {
        io.write_all(said.as_bytes()).await.unwrap();
        let mut heard = vec![0; said.len()];
        at_last("an echo", io.read_exact(&mut heard)).await.unwrap();
        assert_eq!(heard, said.as_bytes());
    }
}

fn upgrading() -> Router {
    let upgrade = |mut request: Request<Body>| async move {
        echo(hyper::upgrade::on(&mut request));
        match request.method() {
            // HTTP/2 uses this method.
            &Method::CONNECT => Response::new(Body::empty()),
            _ => Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "upgrade")
                .header("upgrade", "echo")
                .body(Body::empty())
                .unwrap(),
        }
    };
    Router::new().route("/echo", any(upgrade)).route("/", get(|| async { "hello" }))
}

fn asks_to_upgrade() -> Request<Empty<Bytes>> {
    let request = Request::get("/echo").header("connection", "upgrade").header("upgrade", "echo");
    request.body(Empty::new()).unwrap()
}

fn said(headers: &HeaderMap, name: &str) -> String {
    headers[name].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_upgrade_is_counted_once_and_continues_without_the_layer() {
    for layered in [upgrading().layer(limit(2)), upgrading().route_layer(limit(2))] {
        let server = Server::start(layered).await;
        let mut open = Vec::new();
        for left in [1, 0] {
            let mut connection = Connection::open(server.address, Version::Http1).await;
            let response = connection.send(asks_to_upgrade()).await;
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            assert_eq!(said(response.headers(), "ratelimit"), format!("\"default\";r={left};t=3600"));
            open.push((connection, hyper::upgrade::on(response).await.unwrap()));
        }
        let mut rejected = Connection::open(server.address, Version::Http1).await;
        assert_eq!(rejected.send(asks_to_upgrade()).await.status(), 429);
        for (_connection, upgraded) in open {
            echoes(upgraded).await;
        }
    }
}

#[tokio::test]
async fn a_queued_upgrade_is_made_when_it_is_admitted() {
    let algorithm = LeakyBucket::new(Quota::per_second(20)).queue(2);
    let server = Server::start(upgrading().layer(RateLimitLayer::new(Global, algorithm))).await;
    let mut upgrades = JoinSet::new();
    let address = server.address;
    for _ in 0..3 {
        upgrades.spawn(async move {
            let mut connection = Connection::open(address, Version::Http1).await;
            let response = connection.send(asks_to_upgrade()).await;
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            echoes(hyper::upgrade::on(response).await.unwrap()).await;
        });
    }
    upgrades.join_all().await;
}

#[tokio::test]
async fn a_rejected_upgrade_is_an_ordinary_response_and_the_connection_stays_usable() {
    let app =
        Router::new().merge(upgrading().route_layer(used_up())).route("/free", get(|| async { "free" }));
    let server = Server::start(app).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        let upgrade = b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(upgrade).await.unwrap();
        let answer = at_last("429", read_until(&mut stream, "[\"default\"]}")).await.to_lowercase();
        assert!(
            answer.starts_with("http/1.1 429 ") && answer.contains("\r\nretry-after: 3600\r\n"),
            "{answer}"
        );
        assert!(!answer.contains("\r\nupgrade:") && !answer.contains("\r\nconnection:"), "{answer}");
        stream.write_all(b"GET /free HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let answer = at_last("200", read_until(&mut stream, "free")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// Returns the request that begins a WebSocket over HTTP/2 (RFC 8441).
fn extended_connect() -> Request<Empty<Bytes>> {
    let mut request = Request::connect("http://localhost/echo").body(Empty::new()).unwrap();
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    request
}

#[tokio::test]
async fn an_extended_connect_is_counted_once_and_continues_without_the_layer() {
    let server = Server::start(upgrading().layer(limit(2))).await;
    let mut connection = Connection::open(server.address, Version::Http2).await;
    // The settings of the server allow this, and have arrived with the first response.
    assert_eq!(connection.send(Request::get("/").body(Empty::new()).unwrap()).await.status(), 200);
    let response = connection.send(extended_connect()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(said(response.headers(), "ratelimit"), "\"default\";r=0;t=3600");
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let rejected = connection.send(extended_connect()).await;
    assert_eq!(
        (rejected.status(), said(rejected.headers(), "retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, "3600".into())
    );
    echoes(upgraded).await;
}

fn connect() -> Request<Empty<Bytes>> {
    Request::connect("example.com:443").body(Empty::new()).unwrap()
}

/// A proxy whose limit admits two tunnels. The tunnels end at the proxy itself.
async fn proxy(kind: Kind, layer: RateLimitLayer<Global, FixedWindow>) -> Server {
    let tunnel = service_fn(|mut request: Request<Incoming>| async move {
        assert_eq!(request.method(), Method::CONNECT);
        assert_eq!(request.uri().authority().unwrap(), "example.com:443");
        echo(hyper::upgrade::on(&mut request));
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    serve(kind, boxed(layer.layer(tunnel))).await
}

#[tokio::test]
async fn a_tunnel_is_counted_once_and_continues_without_the_layer() {
    for (kind, version) in crate::hyper_only::KINDS {
        let server = proxy(kind, limit(2)).await;
        let mut open = Vec::new();
        for left in [1, 0] {
            let mut connection = Connection::open(server.address, version).await;
            let response = connection.send(connect()).await;
            assert_eq!(response.status(), 200, "{kind:?}");
            assert_eq!(said(response.headers(), "ratelimit"), format!("\"default\";r={left};t=3600"));
            open.push((connection, hyper::upgrade::on(response).await.unwrap()));
        }
        let mut rejected = Connection::open(server.address, version).await;
        let response = rejected.send(connect()).await;
        assert_eq!(
            (response.status(), said(response.headers(), "retry-after")),
            (StatusCode::TOO_MANY_REQUESTS, "3600".into())
        );
        for (_connection, upgraded) in open {
            echoes(upgraded).await;
        }
    }
}

/// Asks for tunnels. Returns the statuses.
async fn connect_statuses(app: Router) -> Vec<u16> {
    let server = Server::start(app).await;
    let mut statuses = Vec::new();
    for version in VERSIONS {
        for _ in 0..2 {
            let mut connection = Connection::open(server.address, version).await;
            statuses.push(connection.send(connect()).await.status().as_u16());
        }
    }
    statuses
}

#[tokio::test]
async fn a_request_without_a_path_has_a_key_of_each_kind() {
    let app = || Router::new().route("/", get(|| async {}));
    let over = |rest: [u16; 3]| {
        let mut all = vec![404];
        all.extend(rest);
        all
    };
    let limited = over([429; 3]);
    assert_eq!(connect_statuses(app().layer(limit(1))).await, limited);
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter(1));
    assert_eq!(connect_statuses(app().layer(layer)).await, limited);
    let layer = RateLimitLayer::with_limiter(Route::new(), limiter(1));
    assert_eq!(connect_statuses(app().layer(layer)).await, limited);
    let layer = RateLimitLayer::with_limiter(ByMethod::new(), limiter(1));
    assert_eq!(connect_statuses(app().layer(layer)).await, limited);
    let layer = RateLimitLayer::with_limiter(Host::known(["example.com"]), limiter(1));
    assert_eq!(connect_statuses(app().layer(layer)).await, limited);
    let layer = limit(1).unless(Paths::new(["/"])).unless(Preflight);
    assert_eq!(connect_statuses(app().layer(layer)).await, limited);
}

/// `OPTIONS *` has no path either.
#[tokio::test]
async fn options_for_the_server_as_a_whole_is_counted() {
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(limit(2))).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for status in ["404", "404", "429"] {
        stream.write_all(b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let end = if status == "429" { "[\"default\"]}" } else { "\r\n\r\n" };
        let answer = at_last("an answer", read_until(&mut stream, end)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}
