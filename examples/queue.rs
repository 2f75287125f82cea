//! Queues calls to a slow backend. The backend accepts ten calls a second if they are 100 ms apart, and no burst.
//!
//! Calls that come too early are queued instead of being denied: at most three calls, each for at most half a second.
//! Start the server:
//!
//! ```text
//! cargo run --example queue
//! ```
//!
//! In another terminal, make five calls at once:
//!
//! ```text
//! for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{http_code} after %{time_total} s\n' http://127.0.0.1:3002/ & done; wait
//! ```
//!
//! You will see a 200 and a 429 at once, and then a 200 after 0.1, 0.2 and 0.3 s. For each call that reaches the
//! backend, the server prints the time since the previous call, about 100 ms. Ctrl-C ends the server.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

const ADDRESS: &str = "127.0.0.1:3002";

fn app() -> Router {
    let queue = LeakyBucket::new(Quota::per_second(10)).queue(3).max_wait(Duration::from_millis(500));
    // All callers have one queue, because the queue protects the backend. `PeerIp::new()` would give each address a
    // queue of its own.
    Router::new().route("/", get(backend)).layer(RateLimitLayer::new(Global, queue))
}

/// The slow backend. For each call, the backend prints the time since the previous call.
async fn backend() -> &'static str {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);

    let now = Instant::now();
    let last = LAST.lock().ok().and_then(|mut last| last.replace(now));
    match last {
        Some(last) => println!("a call, {:.1} ms after the one before", (now - last).as_secs_f64() * 1_000.0),
        None => println!("the first call"),
    }
    "done\n"
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("queue: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let listener = TcpListener::bind(ADDRESS).await.map_err(|error| {
        format!("cannot listen on {ADDRESS}: {error}. Is another program using that port?")
    })?;
    println!("10 a second, 3 may wait, on http://{ADDRESS}/ (Ctrl-C ends it). Try:");
    println!(
        "for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}} after %{{time_total}} s\\n' \
         http://{ADDRESS}/ & done; wait"
    );
    axum::serve(listener, app())
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await
        .map_err(|error| error.to_string())
}
