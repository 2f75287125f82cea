//! Limits concurrent downloads: two at a time for each address, and ten in total.
//!
//! A download is in progress until its last byte is sent or its client disconnects. Start the server:
//!
//! ```text
//! cargo run --example concurrency
//! ```
//!
//! In another terminal, start three downloads at once, of five seconds each:
//!
//! ```text
//! for i in 1 2 3; do curl -s -o /dev/null -w '%{http_code} after %{time_total} s\n' http://127.0.0.1:3004/ & done; wait
//! ```
//!
//! You will see a 429 at once, and a 200 twice after five seconds. If you interrupt a download (Ctrl-C), a new download
//! is admitted at once. Press Ctrl-C in the server's terminal: the server rejects new downloads (503), and ends when
//! the downloads in progress have ended.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::{Router, routing::get};
use hyper::body::Frame;
use tokio::net::TcpListener;
use tokio::time::{Interval, interval};
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::key::PeerIp;

const ADDRESS: &str = "127.0.0.1:3004";

/// A body that takes five seconds: ten frames a second.
struct Slow {
    ticks: Interval,
    left: u32,
}

impl hyper::body::Body for Slow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.ticks.poll_tick(cx));
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'.'; 1_024])))))
    }
}

async fn download() -> Body {
    Body::new(Slow { ticks: interval(Duration::from_millis(100)), left: 50 })
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("concurrency: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let layer = RateLimitLayer::new(PeerIp::new(), Concurrency::per_key(2).total(10)).name("downloads");
    let limiter = layer.limiter().clone();
    let app = Router::new().route("/", get(download)).layer(layer);
    let listener = TcpListener::bind(ADDRESS).await.map_err(|error| {
        format!("cannot listen on {ADDRESS}: {error}. Is another program using that port?")
    })?;
    println!("2 downloads at a time for each address, on http://{ADDRESS}/ (Ctrl-C ends it). Try:");
    println!(
        "for i in 1 2 3; do curl -s -o /dev/null -w '%{{http_code}} after %{{time_total}} s\\n' http://{ADDRESS}/ & done; wait"
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async move {
            let _ = tokio::signal::ctrl_c().await;
            // After `close`, all new calls are answered with 503. If this limit queued calls, the queued calls would be
            // answered with 503 as well.
            limiter.close();
        })
        .await
        .map_err(|error| error.to_string())
}
