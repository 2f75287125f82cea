//! Uploads that are queued are read when they are admitted, and rejected uploads are never read.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body::Frame;
use hyper::client::conn::{http1, http2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::{Limiter, at_last, free_places};
use crate::support::{self, Client, Random, Server, VERSIONS, Version, read_until};

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
    /// Starts a server whose first queued call is admitted one second from now.
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

    fn admit(&self) {
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
async fn an_upload_that_is_sent_before_and_after_its_admission_arrives_whole() {
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
        free_places(&uploads.limiter, 0).await;
        at_last("half an upload", async {
            for chunk in &chunks[..8] {
                sender.send(chunk.clone()).await.unwrap();
            }
        })
        .await;
        uploads.server_is_idle().await;
        assert_eq!(uploads.begun.available_permits(), 0, "{version:?}: the handler was called");

        uploads.admit();
        at_last("the admission", uploads.begun.acquire()).await.unwrap().forget();
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
async fn a_queued_upload_gets_100_continue_when_it_is_admitted_and_a_rejected_one_never() {
    let uploads = Uploads::begin(1).await;
    let mut waits = uploads.expect("/echo").await;
    free_places(&uploads.limiter, 0).await;
    let mut rejected = uploads.expect("/echo").await;
    let mut answer = at_last("a rejection", read_until(&mut rejected, "violated-policies")).await;
    uploads.server_is_idle().await;
    let mut asked = [0; 64];
    let error = waits.try_read(&mut asked).expect_err("it waits");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    assert_eq!(uploads.begun.available_permits(), 0, "the handler was called");

    uploads.admit();
    let asked = at_last("the admission", read_until(&mut waits, "\r\n\r\n")).await;
    assert_eq!(asked, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(uploads.begun.available_permits(), 1);
    waits.write_all(b"abc").await.unwrap();
    let echo = at_last("an echo", read_until(&mut waits, "\r\n\r\nabc")).await;
    assert!(echo.starts_with("HTTP/1.1 200 "), "{echo}");

    // The client also gets no `100 Continue` when a place in the queue is free again.
    rejected.shutdown().await.unwrap();
    at_last("the end", rejected.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert_eq!(uploads.begun.available_permits(), 1);
}

#[tokio::test]
async fn an_upload_admitted_to_a_handler_that_does_not_read_gets_no_100_continue() {
    let uploads = Uploads::begin(1).await;
    let mut waits = uploads.expect("/ignore").await;
    free_places(&uploads.limiter, 0).await;
    uploads.admit();
    let answer = at_last("an answer", read_until(&mut waits, "\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(uploads.begun.available_permits(), 1);
}
