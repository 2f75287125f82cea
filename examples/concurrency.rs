//! Shares a capacity fairly: two downloads at a time, for all callers together, and a queue for each caller.
//!
//! A download is in progress until its last byte is sent or its client disconnects. Start the server:
//!
//! ```text
//! cargo run --example concurrency
//! ```
//!
//! In another terminal, start four downloads of anna at once, of five seconds each, and then one of bert:
//!
//! ```text
//! for user in anna anna anna anna bert; do curl -s -o /dev/null -H "x-user: $user" -w "$user: %{http_code} after %{time_total} s\\n" http://127.0.0.1:3004/ & sleep 0.1; done; wait
//! ```
//!
//! You will see that bert's download ends after ten seconds, together with anna's third, and before her fourth: he came
//! last, but anna had received more. At most three downloads of a caller wait, and another one gets a 429 at once. If
//! you interrupt a download (Ctrl-C), the next one begins. Press Ctrl-C in the server's terminal: the server rejects
//! waiting and new downloads (503), and ends when the downloads in progress have ended.
//!
//! The header is only for the demonstration, since a client can invent users: in an app, choose a key that a client
//! cannot multiply, such as the user of a verified token.

use std::convert::Infallible;
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
use tower_throttle::key::Header;
use tower_throttle::limiter::FairLimiter;

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
    let limiter = FairLimiter::builder(Concurrency::per_key(2).total(2).queue(3)).name("downloads").build();
    let user = Header::new("x-user").map_err(|error| error.to_string())?;
    let layer = RateLimitLayer::with_limiter(user, limiter.clone());
    let app = Router::new().route("/", get(download)).layer(layer);
    let listener = TcpListener::bind(ADDRESS).await.map_err(|error| {
        format!("cannot listen on {ADDRESS}: {error}. Is another program using that port?")
    })?;
    println!(
        "2 downloads at a time, shared fairly by all callers, on http://{ADDRESS}/ (Ctrl-C ends it). Try:"
    );
    println!(
        "for user in anna anna anna anna bert; do curl -s -o /dev/null -H \"x-user: $user\" \
         -w \"$user: %{{http_code}} after %{{time_total}} s\\n\" http://{ADDRESS}/ & sleep 0.1; done; wait"
    );
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            let _ = tokio::signal::ctrl_c().await;
            // After `close`, all waiting and all new calls are answered with 503.
            limiter.close();
        })
        .await
        .map_err(|error| error.to_string())
}
