//! Clients that disconnect or upload while they are queued, over real sockets, with HTTP/1.1 and HTTP/2.
//!
//! A busy machine is late, so no test here bounds the lateness. Times are compared with slots, before which no call may
//! be released. They are also compared with a second queue, in which no client disconnects. A slot that becomes free
//! must put a call one slot ahead of the second queue.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Uri};
use axum::routing::{get, post};
use bytes::Bytes;
use http_body::Frame;
use hyper::client::conn::{http1, http2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{
    self, Answer, Client, Client1, Client2, Random, Server, VERSIONS, Version, read_until, request,
};

type Limiter = RateLimiter<LeakyBucket>;

const INTERVAL: Duration = Duration::from_millis(300);

/// The cost of the first call of a queue. It is the number of intervals in which the other calls arrive and disconnect,
/// before one of them is released.
const HEAD_START: u32 = 5;

/// Waits for an event, and fails instead of hanging if it does not happen. The time limit is so long that it does not
/// affect events that do happen.
async fn at_last<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Waits until `count` places in the queue are free. This function makes calls of cost 0, which release waiters whose
/// time has come, so use it before that time.
async fn free_slots(limiter: &Limiter, count: u64) {
    at_last(&format!("{count} free slots"), async {
        while limiter.acquire_n(&(), 0).await.remaining() != count {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// The source of requests. With HTTP/1.1, each request has a connection of its own. With HTTP/2, all requests are
/// streams of one connection.
enum Clients {
    Http1(SocketAddr),
    Http2(Client2),
}

impl Clients {
    async fn new(address: SocketAddr, version: Version) -> Self {
        match version {
            Version::Http1 => Self::Http1(address),
            Version::Http2 => Self::Http2(Client2::http2(address).await),
        }
    }

    /// Starts a request. If the task is aborted, the client disconnects: it closes the connection, or resets the
    /// stream.
    fn get(&self, path: &'static str) -> JoinHandle<Answer> {
        let request = request(Method::GET, path);
        match self {
            Self::Http1(address) => {
                let address = *address;
                tokio::spawn(async move { Client1::http1(address).await.send(request).await })
            }
            Self::Http2(client) => {
                let mut client = client.clone();
                tokio::spawn(async move { client.send(request).await })
            }
        }
    }
}

async fn hang_up(calls: impl IntoIterator<Item = JoinHandle<Answer>>) {
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
}

async fn served(call: JoinHandle<Answer>) {
    let answer = at_last("an answer", call).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// A queue, and a second queue in which no client disconnects. Both have just released their first calls.
struct Queues {
    server: Server,
    queue: Limiter,
    other: Limiter,
    /// The calls that reached the handler, in order, each with its time.
    came: Arc<Mutex<Vec<(String, Instant)>>>,
    /// A time before the first slots of both queues.
    began: Instant,
}

impl Queues {
    async fn begin(capacity: u64) -> Self {
        let came = Arc::<Mutex<Vec<_>>>::default();
        let layer = || {
            let bucket = LeakyBucket::new(Quota::per(1, INTERVAL).unwrap()).queue(capacity);
            RateLimitLayer::new(Global, bucket).cost(|request: &Request<_>| {
                if request.uri().path().ends_with("/first") { u64::from(HEAD_START) } else { 1 }
            })
        };
        let handler = {
            let came = came.clone();
            move |uri: Uri| async move { came.lock().unwrap().push((uri.path().to_owned(), Instant::now())) }
        };
        let (queue, other) = (layer(), layer());
        let limiters = (queue.limiter().clone(), other.limiter().clone());
        let app = Router::new()
            .route("/queue/{name}", get(handler.clone()).layer(queue))
            .route("/other/{name}", get(handler).layer(other));
        let server = Server::start(app).await;
        let queues = Self { server, queue: limiters.0, other: limiters.1, came, began: Instant::now() };
        let clients = queues.clients(Version::Http1).await;
        served(clients.get("/queue/first")).await;
        served(clients.get("/other/first")).await;
        queues
    }

    async fn clients(&self, version: Version) -> Clients {
        Clients::new(self.server.address, version).await
    }

    /// Returns the calls of one queue after the first call, in order, each with its time.
    fn came(&self, queue: &str) -> Vec<(String, Instant)> {
        let came = self.came.lock().unwrap();
        let of_the_queue =
            came.iter().filter_map(|(path, at)| Some((path.strip_prefix(queue)?.to_owned(), *at)));
        of_the_queue.skip(1).collect()
    }

    /// Asserts that exactly these calls reached the handler, in this order, and none of them before its slot.
    fn assert_came(&self, queue: &str, names: &[&str]) {
        let came = self.came(queue);
        assert_eq!(came.iter().map(|(name, _)| name).collect::<Vec<_>>(), names, "{queue}");
        for (nth, (name, at)) in (0..).zip(&came) {
            let slot = self.began + INTERVAL * (HEAD_START + nth);
            assert!(*at >= slot, "{queue}{name} came {:?} early", slot - *at);
        }
    }

    /// Asserts that one call reached the handler before the other.
    fn assert_order(&self, first: &str, then: &str) {
        let came = self.came.lock().unwrap();
        let position = |path: &str| came.iter().position(|(other, _)| other == path).expect(path);
        assert!(position(first) < position(then), "{first} came after {then}: {came:?}");
    }
}

async fn one_queued_client_disconnects(version: Version) {
    let queues = Queues::begin(4).await;
    let clients = queues.clients(version).await;
    let mut others = Vec::new();
    for (path, free) in [("/other/1", 3), ("/other/2", 2), ("/other/3", 1)] {
        others.push(clients.get(path));
        free_slots(&queues.other, free).await;
    }

    let leaves = clients.get("/queue/leaves");
    free_slots(&queues.queue, 3).await;
    let stays = clients.get("/queue/stays");
    free_slots(&queues.queue, 2).await;
    hang_up([leaves]).await;
    free_slots(&queues.queue, 3).await;
    let comes = clients.get("/queue/comes");
    free_slots(&queues.queue, 2).await;

    for call in [stays, comes].into_iter().chain(others) {
        served(call).await;
    }
    queues.assert_came("/queue/", &["stays", "comes"]);
    queues.assert_came("/other/", &["1", "2", "3"]);
    // The calls used the first and the second slot of the queue, and not the second and the third.
    queues.assert_order("/queue/stays", "/other/2");
    queues.assert_order("/queue/comes", "/other/3");
}

#[tokio::test]
async fn a_queued_connection_that_is_closed_frees_its_slot_for_the_next() {
    one_queued_client_disconnects(Version::Http1).await;
}

#[tokio::test]
async fn a_queued_stream_that_is_reset_frees_its_slot_for_the_next_of_its_connection() {
    one_queued_client_disconnects(Version::Http2).await;
}

#[tokio::test]
async fn a_connection_that_is_closed_with_several_queued_streams_frees_all_their_slots() {
    let queues = Queues::begin(4).await;
    let connection = Client2::http2(queues.server.address).await;
    let closed = Clients::Http2(connection.clone());
    let open = queues.clients(Version::Http2).await;
    let mut others = Vec::new();
    for (path, free) in [("/other/1", 3), ("/other/2", 2), ("/other/3", 1), ("/other/4", 0)] {
        others.push(open.get(path));
        free_slots(&queues.other, free).await;
    }

    let leave = ["/queue/a", "/queue/b", "/queue/c"].map(|path| closed.get(path));
    free_slots(&queues.queue, 1).await;
    let stays = open.get("/queue/stays");
    free_slots(&queues.queue, 0).await;
    // The socket is closed first, so no stream is reset on its own.
    connection.close();
    hang_up(leave).await;
    free_slots(&queues.queue, 3).await;

    for call in [stays].into_iter().chain(others) {
        served(call).await;
    }
    queues.assert_came("/queue/", &["stays"]);
    queues.assert_came("/other/", &["1", "2", "3", "4"]);
    queues.assert_order("/queue/stays", "/other/2");
}

async fn all_queued_clients_disconnect(version: Version) {
    let queues = Queues::begin(3).await;
    let clients = queues.clients(version).await;
    let others = ["/other/x", "/other/x", "/other/x"].map(|path| clients.get(path));
    free_slots(&queues.other, 0).await;

    let leave = ["/queue/a", "/queue/b", "/queue/c"].map(|path| clients.get(path));
    free_slots(&queues.queue, 0).await;
    assert_eq!(clients.get("/queue/refused").await.unwrap().status, 429);
    hang_up(leave).await;
    free_slots(&queues.queue, 3).await;
    let mut come = Vec::new();
    for (path, free) in [("/queue/next", 2), ("/queue/second", 1), ("/queue/third", 0)] {
        come.push(clients.get(path));
        free_slots(&queues.queue, free).await;
    }

    for call in come.into_iter().chain(others) {
        served(call).await;
    }
    queues.assert_came("/queue/", &["next", "second", "third"]);
    // The first call of the other queue has the same slot, and the second call has the next slot. So no slot was lost.
    let [queue, other] = ["/queue/", "/other/"].map(|queue| queues.came(queue));
    assert!(queue[0].1 < other[1].1 && queue[1].1 < other[2].1, "{queue:?} {other:?}");
}

#[tokio::test]
async fn when_all_connections_of_a_full_queue_close_the_next_call_has_the_next_slot() {
    all_queued_clients_disconnect(Version::Http1).await;
}

#[tokio::test]
async fn when_all_streams_of_a_full_queue_are_reset_the_next_call_has_the_next_slot() {
    all_queued_clients_disconnect(Version::Http2).await;
}

/// A body whose chunks the test sends one by one.
struct Chunks(mpsc::Receiver<Bytes>);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Uploads that are queued until the test moves the clock.
struct Uploads {
    server: Server,
    clock: ManualClock,
    limiter: Limiter,
    /// The number of calls of the handler. A call is counted before the handler reads the body.
    begun: Arc<Semaphore>,
}

impl Uploads {
    /// Starts a server whose first queued call is released one second from now.
    async fn begin(capacity: u64) -> Self {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1)).queue(capacity);
        let limiter = RateLimiter::builder(bucket).clock(clock.clone()).build();
        assert!(limiter.check(&()).is_allowed());
        let begun = Arc::new(Semaphore::new(0));
        let (echoes, ignores) = (begun.clone(), begun.clone());
        let app = Router::new()
            .route(
                "/echo",
                post(move |body: Body| async move {
                    echoes.add_permits(1);
                    to_bytes(body, usize::MAX).await.unwrap()
                }),
            )
            .route("/ignore", post(move |_: Body| async move { ignores.add_permits(1) }))
            .layer(RateLimitLayer::with_limiter(Global, limiter.clone()))
            .route("/free", get(|| async {}));
        Self { server: Server::start(app).await, clock, limiter, begun }
    }

    fn release(&self) {
        self.clock.advance(Duration::from_secs(1));
    }

    /// Makes other requests, so that the server has every opportunity to do more than it should.
    async fn server_is_idle(&self) {
        for _ in 0..20 {
            assert_eq!(support::get(self.server.address, Version::Http1, "/free").await.status, 200);
        }
    }

    /// Sends the head of an upload of three bytes that expects `100 Continue`.
    async fn expect(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }
}

#[tokio::test]
async fn an_upload_that_is_sent_before_and_after_its_release_arrives_whole() {
    for version in VERSIONS {
        let uploads = Uploads::begin(1).await;
        let mut random = Random::new(version as u64);
        let chunks: Vec<Bytes> = (0..16)
            .map(|_| (0..8_192).flat_map(|_| random.word().to_ne_bytes()).collect::<Vec<_>>().into())
            .collect();
        let whole = chunks.concat();
        assert_eq!(whole.len(), 1 << 20);

        // The channel has a capacity of one. So when a chunk could be sent, the chunk before it is on its way.
        let (sender, receiver) = mpsc::channel(1);
        let request = Request::post("/echo").body(Chunks(receiver)).unwrap();
        let address = uploads.server.address;
        let call = tokio::spawn(async move {
            match version {
                Version::Http1 => {
                    Client::<http1::SendRequest<Chunks>>::http1(address).await.send(request).await
                }
                Version::Http2 => {
                    Client::<http2::SendRequest<Chunks>>::http2(address).await.send(request).await
                }
            }
        });
        free_slots(&uploads.limiter, 0).await;
        at_last("half an upload", async {
            for chunk in &chunks[..8] {
                sender.send(chunk.clone()).await.unwrap();
            }
        })
        .await;
        uploads.server_is_idle().await;
        assert_eq!(uploads.begun.available_permits(), 0, "{version:?}: the handler was called");

        uploads.release();
        at_last("the release", uploads.begun.acquire()).await.unwrap().forget();
        at_last("the other half", async {
            for chunk in &chunks[8..] {
                sender.send(chunk.clone()).await.unwrap();
            }
        })
        .await;
        drop(sender);
        let answer = at_last("an answer", call).await.unwrap();
        assert_eq!(answer.status, 200, "{version:?}");
        // `assert_eq` would print the whole body.
        assert!(answer.body == whole, "{version:?}: {} bytes, or other ones", answer.body.len());
    }
}

#[tokio::test]
async fn a_queued_upload_gets_100_continue_when_it_is_released_and_a_rejected_one_never() {
    let uploads = Uploads::begin(1).await;
    let mut waits = uploads.expect("/echo").await;
    free_slots(&uploads.limiter, 0).await;
    let mut refused = uploads.expect("/echo").await;
    let mut answer = at_last("a refusal", read_until(&mut refused, "violated-policies")).await;
    uploads.server_is_idle().await;
    let mut asked = [0; 64];
    let error = waits.try_read(&mut asked).expect_err("it waits");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    assert_eq!(uploads.begun.available_permits(), 0, "the handler was called");

    uploads.release();
    let asked = at_last("a release", read_until(&mut waits, "\r\n\r\n")).await;
    assert_eq!(asked, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(uploads.begun.available_permits(), 1);
    waits.write_all(b"abc").await.unwrap();
    let echo = at_last("an echo", read_until(&mut waits, "\r\n\r\nabc")).await;
    assert!(echo.starts_with("HTTP/1.1 200 "), "{echo}");

    // The client also gets no `100 Continue` when a place in the queue is free again.
    refused.shutdown().await.unwrap();
    at_last("the end", refused.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert_eq!(uploads.begun.available_permits(), 1);
}

#[tokio::test]
async fn an_upload_released_to_a_handler_that_does_not_read_gets_no_100_continue() {
    let uploads = Uploads::begin(1).await;
    let mut waits = uploads.expect("/ignore").await;
    free_slots(&uploads.limiter, 0).await;
    uploads.release();
    let answer = at_last("an answer", read_until(&mut waits, "\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(uploads.begun.available_permits(), 1);
}
