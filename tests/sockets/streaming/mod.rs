//! A permit is held until the body of the response has ended. The tests use real sockets, with HTTP/1.1 and HTTP/2.

mod connection;
mod end_of_a_response;
mod metered;
mod queued;
mod web_sockets;
mod while_a_body_streams;

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tower_throttle::algorithm::Concurrency;
use tower_throttle::key::{KeyExtractor, from_fn};
use tower_throttle::{RateLimitLayer, RateLimiter};

use self::connection::Connection;
use crate::support::{Server, Version};

type Limiter = RateLimiter<Concurrency>;

/// Waits for an event, and fails instead of hanging if it does not happen.
async fn at_last<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

enum Piece {
    Data(&'static str),
    Trailers,
    Failure,
}

/// A body that the test feeds.
struct Fed(mpsc::UnboundedReceiver<Piece>);

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| {
            piece.map(|piece| match piece {
                Piece::Data(text) => Ok(Frame::data(Bytes::from(text))),
                Piece::Trailers => {
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-sum", "42".parse().unwrap());
                    Ok(Frame::trailers(trailers))
                }
                Piece::Failure => Err(io::Error::other("the source has failed")),
            })
        })
    }
}

/// The senders for the bodies of the handlers, in the order of the handlers' calls.
type Feeds = Arc<Mutex<VecDeque<mpsc::UnboundedReceiver<Piece>>>>;

struct Stage {
    server: Server,
    limiter: Limiter,
    feeds: Feeds,
}

fn app(feeds: &Feeds) -> Router {
    let feeds = feeds.clone();
    Router::new()
        .route(
            "/stream",
            get(move || async move {
                let feed = feeds.lock().unwrap().pop_front().expect("a feed");
                ([("trailer", "x-sum")], Body::new(Fed(feed)))
            }),
        )
        .route("/empty", get(|| async {}))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }))
        .route("/text", get(|| async { "text" }))
        .route("/fails", get(|| async { Err::<(), _>(StatusCode::INTERNAL_SERVER_ERROR) }))
        .route(
            "/panics",
            get(|| async {
                if true {
                    panic!("as handlers do");
                }
            }),
        )
        .route("/long", get(|| async { "x".repeat(3 << 20) }))
}

impl Stage {
    async fn begin(rule: Concurrency) -> Self {
        let (limiter, feeds) = (RateLimiter::new(rule), Feeds::default());
        let layer = RateLimitLayer::with_limiter(by_user(), limiter.clone());
        Self { server: Server::start(app(&feeds).layer(layer)).await, limiter, feeds }
    }

    fn feed(&self) -> mpsc::UnboundedSender<Piece> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.feeds.lock().unwrap().push_back(receiver);
        sender
    }

    async fn connect(&self, version: Version) -> Connection {
        Connection::open(self.server.address, version).await
    }

    /// Returns whether another call would be admitted now. The limiter is called directly, and not over a socket, so
    /// the result is current.
    fn is_free(&self) -> bool {
        self.limiter.try_acquire_permit(USER).is_ok()
    }

    async fn gets_free(&self, what: &str) {
        at_last(what, async {
            while self.limiter.try_acquire_permit(USER).is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

/// The user that makes the requests.
const USER: &str = "anna";

fn by_user() -> impl KeyExtractor<Request<Body>, Key = String> + Clone {
    from_fn(|request: &Request<Body>| request.headers()["x-user"].to_str().ok().map(str::to_owned))
}
