//! The body of an upload is read only after the upload is admitted.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tower::ServiceExt;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

use super::per_ip;
use crate::support::{Server, VERSIONS, read_until, request, send};

/// A body that records each poll.
struct Watched(Arc<AtomicBool>);

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.store(true, Ordering::SeqCst);
        Poll::Ready(None)
    }
}

fn upload() -> Router {
    Router::new().route("/", post(|body: Bytes| async move { format!("{} bytes", body.len()) }))
}

#[tokio::test]
async fn the_body_of_a_rejected_upload_is_never_polled() {
    let app = upload().layer(RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(1))));
    for (polled, status) in [(true, StatusCode::OK), (false, StatusCode::TOO_MANY_REQUESTS)] {
        let watch = Arc::new(AtomicBool::new(false));
        let request = Request::post("/").body(Body::new(Watched(watch.clone()))).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(watch.load(Ordering::SeqCst), polled, "{status}");
    }
}

#[tokio::test]
async fn a_rejected_upload_gets_no_100_continue() {
    let app = upload().layer(per_ip(Quota::per_hour(1), &ManualClock::new()));
    let server = Server::start(app).await;
    let ask = || async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        (stream, answer)
    };
    let (mut stream, answer) = ask().await;
    assert!(answer.starts_with("HTTP/1.1 100 "), "{answer}");
    stream.write_all(b"abc").await.unwrap();
    let answer = read_until(&mut stream, "3 bytes").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let (_stream, answer) = ask().await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

#[tokio::test]
async fn an_upload_that_is_rejected_midway_gets_its_response() {
    for version in VERSIONS {
        let app = upload().layer(per_ip(Quota::per_hour(1), &ManualClock::new()));
        let server = Server::start(app).await;
        let upload = || {
            let mut upload = request(Method::POST, "/");
            *upload.body_mut() = Full::from(vec![b'x'; 1 << 20]);
            upload
        };
        assert_eq!(send(server.address, version, upload()).await.text(), "1048576 bytes");
        assert_eq!(send(server.address, version, upload()).await.status, 429, "{version:?}");
    }
}

/// hyper gives the body piece by piece, so after the stall it has not arrived at once. The runtime has one thread.
#[tokio::test]
async fn a_drained_upload_that_has_arrived_while_the_thread_stood_still_keeps_its_connection() {
    const SIZE: usize = 60_000;
    const MAX_TIME: Duration = Duration::from_millis(50);
    let responder = HttpResponder::new().drain(SIZE as u64, MAX_TIME);
    let layer = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(1))).responder(responder);
    assert!(layer.limiter().check(&()).is_allowed());
    let server = Server::start(upload().layer(layer.clone())).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {SIZE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    while layer.stats().calls.denied == 0 {
        tokio::task::yield_now().await;
    }
    let mut stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    std::io::Write::write_all(&mut stream, &[0; SIZE]).unwrap();
    std::thread::sleep(2 * MAX_TIME);
    stream.set_nonblocking(true).unwrap();
    let mut stream = TcpStream::from_std(stream).unwrap();
    let answer = read_until(&mut stream, "[\"default\"]}").await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && !answer.contains("connection: close"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_upload_arrives_whole() {
    for version in VERSIONS {
        let bucket = LeakyBucket::new(Quota::per_second(20)).queue(3);
        let server = Server::start(upload().layer(RateLimitLayer::new(Global, bucket))).await;
        let mut uploads = tokio::task::JoinSet::new();
        for n in 0..4_usize {
            let mut upload = request(Method::POST, "/");
            *upload.body_mut() = Full::from(vec![b'x'; (1 << 20) + n]);
            uploads.spawn(async move { (n, send(server.address, version, upload).await) });
        }
        for (n, answer) in uploads.join_all().await {
            assert_eq!(answer.text(), format!("{} bytes", (1 << 20) + n), "{version:?}");
        }
    }
}
