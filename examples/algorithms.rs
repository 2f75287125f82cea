//! Compares four algorithms with the same quota, on four routes with one layer each.
//!
//! The quota is 4 per 4 s for each IP address. Start the server:
//!
//! ```text
//! cargo run --example algorithms
//! ```
//!
//! In another terminal, make one call, wait 3.5 s, make six calls at once, wait one second, and make six calls at once
//! again:
//!
//! ```text
//! ask() { curl -s -o /dev/null -w '%{http_code} after %{time_total} s\n' http://127.0.0.1:3001/$1; }
//! six() { for i in 1 2 3 4 5 6; do ask $1 & done; wait; }
//! for route in fixed sliding token leaky; do echo $route; ask $route; sleep 3.5; six $route; sleep 1; six $route; done
//! ```
//!
//! This is the number of calls that are admitted:
//!
//! | route     | first | of six | of six | why                                                              |
//! |-----------|-------|--------|--------|------------------------------------------------------------------|
//! | `fixed`   | 1     | 3      | 4      | a new window began before the last six: seven in about a second  |
//! | `sliding` | 1     | 3      | 1      | never more than four in any 4 s: only the first call is 4 s old  |
//! | `token`   | 1     | 4      | 1      | the bucket was full again, then got one token in a second        |
//! | `leaky`   | 1     | 5      | 5      | one at once, four after 1, 2, 3 and 4 s; one is denied           |
//!
//! Ctrl-C ends the server.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::error::QuotaError;
use tower_throttle::key::PeerIp;
use tower_throttle::{Quota, RateLimitLayer};

const ADDRESS: &str = "127.0.0.1:3001";

const COMMANDS: &str = r"ask() { curl -s -o /dev/null -w '%{http_code} after %{time_total} s\n' http://127.0.0.1:3001/$1; }
six() { for i in 1 2 3 4 5 6; do ask $1 & done; wait; }
for route in fixed sliding token leaky; do echo $route; ask $route; sleep 3.5; six $route; sleep 1; six $route; done";

fn app() -> Result<Router, QuotaError> {
    let quota = Quota::per(4, Duration::from_secs(4))?;
    let peer = PeerIp::new;
    // Each layer on a route has its own budget. A single layer on the whole router would have one budget for all
    // routes.
    Ok(Router::new()
        .route("/fixed", get(hello).layer(RateLimitLayer::new(peer(), FixedWindow::new(quota))))
        .route("/sliding", get(hello).layer(RateLimitLayer::new(peer(), SlidingWindow::new(quota))))
        .route("/token", get(hello).layer(RateLimitLayer::new(peer(), TokenBucket::new(quota))))
        .route("/leaky", get(hello).layer(RateLimitLayer::new(peer(), LeakyBucket::new(quota)))))
}

async fn hello() -> &'static str {
    "hello\n"
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("algorithms: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let app = app().map_err(|error| error.to_string())?;
    let listener = TcpListener::bind(ADDRESS).await.map_err(|error| {
        format!("cannot listen on {ADDRESS}: {error}. Is another program using that port?")
    })?;
    println!("4 per 4s for each IP address, on http://{ADDRESS}/ (Ctrl-C ends it). Try:\n{COMMANDS}");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await
        .map_err(|error| error.to_string())
}
