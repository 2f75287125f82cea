//! Rejected uploads over HTTP/2. They end neither the connection nor the requests of others on it.

use std::collections::HashSet;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::types::{DefaultRejection, UnreadBody};
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Server, Task};

/// The number of streams of a connection at once, which is below what hyper and most proxies allow.
const STREAMS: usize = 150;
const ROUNDS: usize = 20;
/// The size of an upload of hyper's client.
const SIZE: usize = 200 * 1024;
/// The frames of an upload that is written by hand. All uploads together fit into half of the window of a connection,
/// because the server enlarges the window only when half of it is used up.
const PIECES: usize = 12;
const PIECE: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that rejects all uploads, and answers all `GET`s.
async fn server<D>(responder: HttpResponder<DefaultRejection, D>) -> Server
where
    D: UnreadBody<Body> + Clone + Send + Sync + 'static,
{
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build();
    assert!(limiter.check(&()).is_allowed());
    let layer = RateLimitLayer::with_limiter(Global, limiter).responder(responder);
    let uploads = Router::new().route("/up", post(|_: Bytes| async {})).layer(layer);
    Server::start(uploads.route("/", get(|| async { "hello" }))).await
}

/// A connection whose frames are written by hand.
struct Frames {
    stream: TcpStream,
    /// The number of bytes that the server allows for all streams together.
    window: i64,
    /// The number of pings that the server has not answered.
    pings: usize,
    next: u32,
    answered: HashSet<u32>,
    has_ended: bool,
}

/// The header blocks of the requests, of static fields and of literals: RFC 7541, appendix A.
const POST_UP: &[u8] = b"\x83\x86\x04\x03/up\x01\x03app";
const GET: &[u8] = b"\x82\x86\x84\x01\x03app";

const HEADERS: (u8, u8) = (1, 4);
const END_STREAM: u8 = 1;

impl Frames {
    async fn open(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let (empty, acknowledged) = (frame((4, 0), 0, b""), frame((4, 1), 0, b""));
        // The server may send as much as it likes.
        let window = frame((8, 0), 0, &(i32::MAX - 65_535).to_be_bytes());
        stream.write_all(&[empty, acknowledged, window].concat()).await.unwrap();
        Self { stream, window: 65_535, pings: 0, next: 1, answered: HashSet::new(), has_ended: false }
    }

    /// Reads one frame.
    async fn read(&mut self) {
        let mut head = [0; 9];
        let mut payload = Vec::new();
        let read = async {
            self.stream.read_exact(&mut head).await?;
            payload.resize(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize, 0);
            self.stream.read_exact(&mut payload).await
        };
        let is_read = timeout(PATIENCE, read).await.expect("the server neither answers nor closes").is_ok();
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        match (head[3], stream) {
            _ if !is_read => self.has_ended = true,
            (1, _) => {
                self.answered.insert(stream);
            }
            (6, _) => self.pings -= 1,
            (7, _) => {
                println!("GOAWAY: {}", payload[8..].escape_ascii());
                self.has_ended = true;
            }
            (8, 0) => self.window += i64::from(u32::from_be_bytes(payload[..].try_into().unwrap())),
            _ => {}
        }
    }

    /// Sends frames, and a ping. Returns when the server has answered the ping, so that it has read the frames.
    async fn send(&mut self, mut frames: Vec<u8>) {
        frames.extend(frame((6, 0), 0, &[0; 8]));
        self.pings += 1;
        self.has_ended |= self.stream.write_all(&frames).await.is_err();
        while self.pings > 0 && !self.has_ended {
            self.read().await;
        }
    }

    /// Sends uploads on 150 streams at once, piece by piece, and then one request without a body. Returns how many of
    /// the uploads and of the requests got no response.
    async fn round(&mut self) -> [usize; 2] {
        let uploads: Vec<u32> = (0..STREAMS as u32).map(|number| self.next + 2 * number).collect();
        let other = self.next + 2 * STREAMS as u32;
        self.next = other + 2;
        let length = (STREAMS * PIECES * PIECE) as i64;
        while self.window < length && !self.has_ended {
            self.read().await;
        }
        self.window -= length;
        self.send(uploads.iter().flat_map(|stream| frame(HEADERS, *stream, POST_UP)).collect()).await;
        for number in 1..=PIECES {
            let flags = if number == PIECES { END_STREAM } else { 0 };
            let piece = |stream: &u32| frame((0, flags), *stream, &[0; PIECE]);
            self.send(uploads.iter().flat_map(piece).collect()).await;
        }
        self.send(frame((HEADERS.0, HEADERS.1 | END_STREAM), other, GET)).await;
        while !self.has_ended && uploads.iter().chain([&other]).any(|stream| !self.answered.contains(stream))
        {
            self.read().await;
        }
        let lost = uploads.iter().filter(|stream| !self.answered.contains(stream)).count();
        [lost, usize::from(!self.answered.contains(&other))]
    }
}

/// Returns a frame with a kind, flags, and the number of its stream (RFC 9113, section 4.1).
fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns how many of 3,000 uploads, and of 20 requests between them, got no response. If the server ends the
/// connection, the next uploads have a new one.
async fn lost_by_frames(server: &Server) -> [usize; 2] {
    let mut frames = Frames::open(server).await;
    let mut lost = [0; 2];
    for _ in 0..ROUNDS {
        if frames.has_ended {
            frames = Frames::open(server).await;
        }
        let [uploads, others] = frames.round().await;
        lost = [lost[0] + uploads, lost[1] + others];
    }
    lost
}

/// Returns how many of 3,000 uploads by hyper's client over one connection, and of 20 requests between them, got no
/// response.
async fn lost_by_hyper(server: &Server) -> [usize; 2] {
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let stream = TcpStream::connect(server.address).await.unwrap();
    let io = TokioIo::new(stream);
    let (client, connection) =
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), io).await.unwrap();
    let _connection = Task::spawn(async move {
        let _ = connection.await;
    });
    let [mut uploads, mut others] = [0; 2];
    for _ in 0..ROUNDS {
        let mut sent = JoinSet::new();
        for number in 0..=STREAMS {
            let (method, path, size, status) =
                if number == 0 { (Method::GET, "/", 0, 200) } else { (Method::POST, "/up", SIZE, 429) };
            let uri = format!("http://{}{path}", server.address);
            let body = Full::from(vec![0; size]);
            let request = Request::builder().method(method).uri(uri).body(body).unwrap();
            let mut client = client.clone();
            sent.spawn(async move {
                let is_lost = match client.ready().await {
                    Ok(()) => {
                        client.send_request(request).await.map_or(0, |answer| answer.status().as_u16())
                            != status
                    }
                    Err(_) => true,
                };
                (number, is_lost)
            });
        }
        for (number, is_lost) in sent.join_all().await {
            let lost = if number == 0 { &mut others } else { &mut uploads };
            *lost += usize::from(is_lost);
        }
    }
    [uploads, others]
}

fn draining() -> HttpResponder<DefaultRejection, impl UnreadBody<Body> + Clone + Send + Sync + 'static> {
    HttpResponder::new().drain(2 * 1024 * 1024, Duration::from_secs(30))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_uploads_on_150_streams_at_once_lose_no_response_and_end_no_connection() {
    let server = server(draining()).await;
    let lost = timeout(PATIENCE, lost_by_frames(&server)).await.unwrap();
    assert_eq!(lost, [0, 0], "by frames: uploads, others");
    let lost = timeout(PATIENCE, lost_by_hyper(&server)).await.unwrap();
    assert_eq!(lost, [0, 0], "by hyper's client: uploads, others");
}

/// Prints what clients lose if uploads are rejected without being read: the figures of the guide. `cargo test -p
/// tower-throttle-tests --test sockets -- --ignored --nocapture figures_for_uploads`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
async fn figures_for_uploads() {
    let [by_default, drained] = [server(HttpResponder::new()).await, server(draining()).await];
    for (name, server) in [("default", by_default), ("drain", drained)] {
        println!(
            "{name}, frames: {:?} of 3,000 uploads and 20 others are lost",
            lost_by_frames(&server).await
        );
        println!("{name}, hyper: {:?} of 3,000 uploads and 20 others are lost", lost_by_hyper(&server).await);
    }
}
