//! The permit is released when the response ends, fails, or loses its client.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::key::Global;
use tower_throttle::{RateLimitLayer, RateLimiter};

use super::connection::{Connection, text, whole};
use super::{Feeds, Piece, Stage, USER, app, at_last};
use crate::support::{Server, VERSIONS, Version, read_until};

#[tokio::test]
async fn a_client_that_disconnects_mid_stream_frees_its_permit() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1).total(2)).await;
        for sent in 0..3 {
            let connection = stage.connect(version).await;
            let feed = stage.feed();
            let mut streams = connection.get("/stream").await;
            for _ in 0..sent {
                feed.send(Piece::Data("a")).ok().unwrap();
                text(streams.body_mut()).await;
            }
            assert!(stage.limiter.try_acquire_permit(USER).is_err());
            connection.close();
            stage.gets_free("a connection that is closed").await;
            assert!(feed.is_closed(), "the body is dropped");
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_midway_frees_its_permit_and_the_connection_stays_usable() {
    let stage = Stage::begin(Concurrency::per_key(2)).await;
    let connection = stage.connect(Version::Http2).await;
    let (feed, other) = (stage.feed(), stage.feed());
    let mut streams = connection.get("/stream").await;
    let mut goes_on = connection.get("/stream").await;
    feed.send(Piece::Data("a")).ok().unwrap();
    text(streams.body_mut()).await;
    assert_eq!(connection.get("/text").await.status(), 429);
    drop(streams);
    stage.gets_free("a stream that is reset").await;
    assert_eq!(connection.get("/text").await.status(), 200);
    other.send(Piece::Data("b")).ok().unwrap();
    assert_eq!(text(goes_on.body_mut()).await, "b");
    drop(other);
    assert!(whole(goes_on).await.is_empty());
    at_last("both", async {
        while stage.limiter.peek(USER).remaining() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Resets a stream before there is a response, while the handler is still running.
#[tokio::test]
async fn a_client_that_disconnects_before_the_response_frees_its_permit() {
    for version in VERSIONS {
        let limiter = RateLimiter::new(Concurrency::per_key(1));
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
        let app = Router::new().route("/never", get(std::future::pending::<()>)).layer(layer);
        let server = Server::start(app).await;
        let connection = Arc::new(Connection::open(server.address, version).await);
        let calls = connection.clone();
        let call = tokio::spawn(async move { drop(calls.send(Method::GET, "/never").await) });
        at_last("the call", async {
            while limiter.try_acquire_permit(&()).is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        call.abort();
        if version == Version::Http1 {
            connection.close();
        }
        at_last("the end", async {
            while limiter.try_acquire_permit(&()).is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn the_end_of_any_response_releases_the_permit() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1).total(1)).await;
        let mut connection = stage.connect(version).await;
        for (method, path, status) in [
            (Method::GET, "/empty", 200),
            (Method::GET, "/none", 204),
            (Method::GET, "/text", 200),
            (Method::HEAD, "/text", 200),
            (Method::HEAD, "/empty", 200),
            (Method::HEAD, "/long", 200),
            (Method::OPTIONS, "/text", 405),
            (Method::GET, "/nowhere", 404),
            (Method::GET, "/fails", 500),
            (Method::GET, "/long", 200),
        ] {
            let response = at_last(path, connection.send(method.clone(), path)).await;
            assert_eq!(response.status(), status, "{version:?} {method} {path}");
            whole(response).await;
            stage.gets_free(path).await;
        }
        // If a body fails, the client gets an incomplete response.
        let feed = stage.feed();
        let mut broken = connection.get("/stream").await;
        feed.send(Piece::Data("a")).ok().unwrap();
        text(broken.body_mut()).await;
        feed.send(Piece::Failure).ok().unwrap();
        assert!(at_last("a failure", broken.body_mut().frame()).await.unwrap().is_err());
        stage.gets_free("a body that fails").await;
        // If a handler panics, the task of its connection ends, and the permit is released.
        connection = stage.connect(version).await;
        assert!(at_last("no answer", connection.try_send(Method::GET, "/panics")).await.is_err());
        stage.gets_free("a handler that panics").await;
    }
}

/// Answers 500 for a handler that panics, as tower-http's `CatchPanic` does.
#[tokio::test]
async fn a_panic_that_is_caught_outside_releases_the_permit_before_the_response() {
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
    let catching = tower::layer::layer_fn(|service| {
        tower::service_fn(move |request: Request<Body>| {
            let mut service: axum::routing::Route = Clone::clone(&service);
            async move {
                let call = tokio::spawn(async move { tower::Service::call(&mut service, request).await });
                Ok::<_, Infallible>(match call.await {
                    Ok(answer) => answer.into_response(),
                    Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                })
            }
        })
    });
    let app = app(&Feeds::default()).layer(layer).layer(catching);
    let server = Server::start(app).await;
    for version in VERSIONS {
        let connection = Connection::open(server.address, version).await;
        for _ in 0..3 {
            assert_eq!(connection.get("/panics").await.status(), 500);
            assert!(limiter.try_acquire_permit(&()).is_ok());
        }
    }
}

/// Tests a change of the protocol. The response ends with this change, so the later use of the connection is not
/// limited.
#[tokio::test]
async fn an_upgrade_releases_the_permit() {
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
    let app = Router::new()
        .route(
            "/",
            any(|request: Request<Body>| async move {
                tokio::spawn(async move {
                    let upgraded = hyper::upgrade::on(request).await.unwrap();
                    let mut io = TokioIo::new(upgraded);
                    let mut byte = [0];
                    io.read_exact(&mut byte).await.unwrap();
                    io.write_all(&byte).await.unwrap();
                });
                (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
            }),
        )
        .layer(layer);
    let server = Server::start(app).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await
        .unwrap();
    let head = at_last("101", read_until(&mut stream, "\r\n\r\n")).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(b"!").await.unwrap();
    let mut byte = [0];
    at_last("an echo", stream.read_exact(&mut byte)).await.unwrap();
    assert_eq!(&byte, b"!");
    assert!(limiter.try_acquire_permit(&()).is_ok());
}
