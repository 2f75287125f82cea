//! A permit is held until the body of the response has ended. The tests use real sockets, with HTTP/1.1 and HTTP/2.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tower_throttle::algorithm::{Concurrency, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, KeyExtractor, from_fn};
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use crate::support::{self, Server, VERSIONS, Version, read_until, request};

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

#[derive(Clone)]
enum Sender {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Full<Bytes>>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// The tasks of a connection, including those that hold its socket.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<Vec<AbortHandle>>>);

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, future: F) {
        self.0.lock().unwrap().push(tokio::spawn(future).abort_handle());
    }
}

/// The connection of a client that reads responses in pieces.
struct Connection {
    address: SocketAddr,
    sender: Sender,
    tasks: Tasks,
}

impl Connection {
    async fn open(address: SocketAddr, version: Version) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let io = TokioIo::new(stream);
        let tasks = Tasks::default();
        let sender = match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                tasks.execute(async move { drop(connection.await) });
                Sender::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
            }
            Version::Http2 => {
                let (sender, connection) = http2::handshake(tasks.clone(), io).await.unwrap();
                tasks.execute(async move { drop(connection.await) });
                Sender::Http2(sender)
            }
        };
        Self { address, sender, tasks }
    }

    /// Sends a request, and returns the head of its response.
    async fn send(&self, method: Method, path: &str) -> Response<Incoming> {
        self.try_send(method, path).await.unwrap()
    }

    async fn try_send(&self, method: Method, path: &str) -> hyper::Result<Response<Incoming>> {
        let mut request = request(method, path);
        request.headers_mut().insert("x-user", USER.parse().unwrap());
        request.headers_mut().insert("te", "trailers".parse().unwrap());
        match self.sender.clone() {
            Sender::Http1(sender) => {
                request.headers_mut().insert("host", self.address.to_string().parse().unwrap());
                let mut sender = sender.lock().await;
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
            Sender::Http2(mut sender) => {
                *request.uri_mut() = format!("http://{}{path}", self.address).parse().unwrap();
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
        }
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        at_last(path, self.send(Method::GET, path)).await
    }

    /// Closes the socket, whatever is in flight.
    fn close(&self) {
        self.tasks.0.lock().unwrap().iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

async fn text(body: &mut Incoming) -> String {
    let frame = at_last("a frame", body.frame()).await.expect("not the end").unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

async fn whole(response: Response<Incoming>) -> Bytes {
    at_last("the whole body", response.into_body().collect()).await.unwrap().to_bytes()
}

#[tokio::test]
async fn a_second_request_is_rejected_for_as_long_as_the_first_streams() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1)).await;
        let (first, second) = (stage.connect(version).await, stage.connect(version).await);
        let feed = stage.feed();
        let mut streams = first.get("/stream").await;
        assert_eq!(streams.status(), 200);
        assert_eq!(streams.headers()["ratelimit-policy"], r#""default";q=1;qu="concurrent-requests""#);
        assert_eq!(streams.headers()["ratelimit"], r#""default";r=0"#);
        for chunk in ["a", "b", "c"] {
            let refused = second.get("/text").await;
            assert_eq!(refused.status(), 429, "{version:?}");
            assert_eq!(refused.headers()["retry-after"], "1", "a hint: when a call ends is not known");
            assert_eq!(refused.headers()["ratelimit"], r#""default";r=0"#);
            whole(refused).await;
            feed.send(Piece::Data(chunk)).ok().unwrap();
            assert_eq!(text(streams.body_mut()).await, chunk);
        }
        assert_eq!(second.get("/text").await.status(), 429);
        feed.send(Piece::Trailers).ok().unwrap();
        drop(feed);
        let trailers = at_last("trailers", streams.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(trailers.into_trailers().unwrap()["x-sum"], "42");
        assert!(at_last("the end", streams.body_mut().frame()).await.is_none());
        stage.gets_free("the end of the first").await;
        let passes = second.get("/text").await;
        assert_eq!((passes.status().as_u16(), &*whole(passes).await), (200, &b"text"[..]));
    }
}

/// Tests a stream of half a second with the real clock.
#[tokio::test]
async fn a_stream_of_half_a_second_holds_its_permit_for_half_a_second() {
    let stage = Stage::begin(Concurrency::per_key(1)).await;
    let (first, second) = (stage.connect(Version::Http1).await, stage.connect(Version::Http2).await);
    let feed = stage.feed();
    let streams = first.get("/stream").await;
    let feeding = tokio::spawn(async move {
        for _ in 0..10 {
            sleep(Duration::from_millis(50)).await;
            feed.send(Piece::Data("tick")).ok().unwrap();
        }
    });
    let mut refused = 0;
    while !feeding.is_finished() {
        let answer = second.get("/text").await;
        if !feeding.is_finished() {
            assert_eq!(answer.status(), 429);
            refused += 1;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 3, "{refused}");
    assert_eq!(whole(streams).await.len(), 40);
    stage.gets_free("the end").await;
}

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

/// Tests a client that reads slowly. Its call holds the permit, because a body that has not been sent has not ended.
#[tokio::test]
async fn a_client_that_does_not_read_holds_its_permit() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1)).await;
        let (slow, other) = (stage.connect(version).await, stage.connect(version).await);
        let feed = stage.feed();
        let streams = slow.get("/stream").await;
        let block: &'static str = "x".repeat(1 << 20).leak();
        for _ in 0..64 {
            feed.send(Piece::Data(block)).ok().unwrap();
        }
        drop(feed);
        for _ in 0..20 {
            assert_eq!(other.get("/text").await.status(), 429, "{version:?}");
        }
        assert_eq!(whole(streams).await.len(), 64 << 20);
        stage.gets_free("the end").await;
    }
}

struct QueuedStreams {
    stage: Stage,
    connections: Vec<Connection>,
}

impl QueuedStreams {
    async fn waits(&self, count: usize) {
        at_last(&format!("{count} wait"), async {
            while self.stage.limiter.queued() != count {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Makes a request whose body has the chunks that the test sends. With HTTP/1.1, the request has a connection of
    /// its own.
    fn call(&self, at: usize) -> JoinHandle<Response<Incoming>> {
        let (sender, address) = (self.connections[at].sender.clone(), self.connections[at].address);
        tokio::spawn(async move {
            let connection = Connection { address, sender, tasks: Tasks::default() };
            connection.send(Method::GET, "/stream").await
        })
    }
}

#[tokio::test]
async fn the_next_queued_call_is_released_when_the_body_before_it_has_ended() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1).total(5).queue(3)).await;
        let mut connections = Vec::new();
        for _ in 0..6 {
            connections.push(stage.connect(version).await);
        }
        let queue = QueuedStreams { stage, connections };
        let feed = queue.stage.feed();
        let mut streams = at_last("the first", queue.call(0)).await.unwrap();
        let (mut calls, mut feeds) = (VecDeque::new(), VecDeque::new());
        for at in 1..=3 {
            feeds.push_back(queue.stage.feed());
            calls.push_back(queue.call(at));
            queue.waits(at).await;
        }
        // The queue is full, and the total of five is not used up.
        let refused = at_last("a refusal", queue.call(4)).await.unwrap();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (429, &"1".parse().unwrap())
        );
        // The client of the second queued call disconnects, so the third call moves up.
        let leaves = calls.remove(1).unwrap();
        leaves.abort();
        queue.connections[2].close();
        if version == Version::Http2 {
            drop(leaves.await);
        }
        queue.waits(2).await;
        feeds.pop_back();
        feed.send(Piece::Data("a")).ok().unwrap();
        assert_eq!(text(streams.body_mut()).await, "a");
        queue.waits(2).await;
        assert!(calls.iter().all(|call| !call.is_finished()));
        drop(feed);
        for left in [1, 0] {
            whole(streams).await;
            streams = at_last("its release", calls.pop_front().unwrap()).await.unwrap();
            assert_eq!((streams.status().as_u16(), queue.stage.limiter.queued()), (200, left), "{version:?}");
            assert!(calls.iter().all(|call| !call.is_finished()), "one at a time, in order");
            assert!(queue.stage.limiter.try_acquire_permit(USER).is_err());
            drop(feeds.pop_front());
        }
        whole(streams).await;
        queue.stage.gets_free("the last").await;
    }
}

#[tokio::test]
async fn a_wait_that_is_too_long_ends_with_429() {
    for version in VERSIONS {
        let clock = ManualClock::new();
        let rule = Concurrency::per_key(1).queue(3).max_wait(Duration::from_secs(5));
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
        let feeds = Feeds::default();
        let app = app(&feeds).layer(RateLimitLayer::with_limiter(by_user(), limiter.clone()));
        let stage = Stage { server: Server::start(app).await, limiter, feeds };
        let connections = vec![stage.connect(version).await, stage.connect(version).await];
        let queue = QueuedStreams { stage, connections };
        let _feed = queue.stage.feed();
        let streams = at_last("the first", queue.call(0)).await.unwrap();
        let waits = queue.call(1);
        queue.waits(1).await;
        clock.advance(Duration::from_secs(5));
        let refused = at_last("a refusal", waits).await.unwrap();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (429, &"1".parse().unwrap())
        );
        assert_eq!(refused.headers()["content-type"], "application/problem+json");
        assert_eq!(queue.stage.limiter.queued(), 0);
        drop(streams);
    }
}

#[tokio::test]
async fn the_total_counts_streams_of_all_users() {
    let limiter = RateLimiter::new(Concurrency::per_key(2).total(3));
    let feeds = Feeds::default();
    let layer = RateLimitLayer::with_limiter(by_user(), limiter.clone());
    let server = Server::start(app(&feeds).layer(layer)).await;
    let stage = Stage { server, limiter, feeds };
    let connection = stage.connect(Version::Http2).await;
    let others =
        [stage.limiter.try_acquire_permit("ben").unwrap(), stage.limiter.try_acquire_permit("cleo").unwrap()];
    let _feed = stage.feed();
    let streams = connection.get("/stream").await;
    assert_eq!(connection.get("/text").await.status(), 429);
    drop(others);
    assert_eq!(connection.get("/text").await.status(), 200);
    drop(streams);
    stage.gets_free("the stream").await;
    assert!(stage.is_free());
}

/// Tests a limit that is joined with a rate limit on another key, and a limit in a tuple with a rate limit.
#[tokio::test]
async fn beside_a_rate_the_permit_of_a_stream_is_held_to_its_end() {
    let rate = RateLimiter::new(TokenBucket::new(Quota::per_day(100)));
    let one = RateLimiter::new(Concurrency::per_key(1));
    let tuple = RateLimiter::new((TokenBucket::new(Quota::per_day(100)), Concurrency::per_key(1)));
    let feeds = Feeds::default();
    let joined = RateLimitLayer::with_limiter(Global, rate.clone())
        .name("rate")
        .and(RateLimitLayer::with_limiter(by_user(), one.clone()).name("at-once"));
    let apps = [
        app(&feeds).layer(joined),
        app(&feeds).layer(RateLimitLayer::with_limiter(by_user(), tuple.clone())),
    ];
    for (nth, app) in apps.into_iter().enumerate() {
        let server = Server::start(app).await;
        for version in VERSIONS {
            let (first, second) = (
                Connection::open(server.address, version).await,
                Connection::open(server.address, version).await,
            );
            let (feed, receiver) = mpsc::unbounded_channel();
            feeds.lock().unwrap().push_back(receiver);
            let mut streams = first.get("/stream").await;
            assert_eq!(second.get("/text").await.status(), 429);
            feed.send(Piece::Data("a")).ok().unwrap();
            text(streams.body_mut()).await;
            assert_eq!(second.get("/text").await.status(), 429);
            drop(feed);
            whole(streams).await;
            at_last("the end", async {
                while second.get("/text").await.status() != 200 {
                    sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
        }
        // There are two streams and two texts. Neither limit was charged for the rejected call.
        if nth == 0 {
            assert_eq!(rate.peek(&()).remaining(), 96);
        }
    }
}

#[tokio::test]
async fn a_handler_can_read_how_long_its_request_was_queued() {
    let clock = ManualClock::new();
    let algorithm = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let reported = |axum::Extension(decision): axum::Extension<Decision>| async move {
        format!("{} ms", decision.delay().as_millis())
    };
    let app = Router::new().route("/", get(reported)).layer(
        RateLimitLayer::with_limiter(Global, limiter.clone())
            .and(RateLimitLayer::new(Global, TokenBucket::new(Quota::per_day(50)))),
    );
    let server = Server::start(app).await;
    assert_eq!(support::get(server.address, Version::Http1, "/").await.text(), "0 ms");
    let calls: Vec<_> = [(); 2]
        .into_iter()
        .map(|()| async move { support::get(server.address, Version::Http2, "/").await })
        .map(tokio::spawn)
        .collect();
    at_last("both wait", async {
        while limiter.queued() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    clock.advance(Duration::from_millis(100));
    let mut first = None;
    at_last("the first", async {
        while !calls.iter().any(JoinHandle::is_finished) {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    clock.advance(Duration::from_millis(100));
    for call in calls {
        let answer = at_last("an answer", call).await.unwrap();
        first.get_or_insert_with(Vec::new).push(answer.text().to_owned());
    }
    let mut all = first.unwrap();
    all.sort();
    assert_eq!(all, ["100 ms", "200 ms"]);
}
