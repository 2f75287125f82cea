//! Limits an axum app per IP address, the most common use.
//!
//! Each address has a bucket of five: five requests are admitted at once, then one every five seconds. Start the
//! server:
//!
//! ```text
//! cargo run --example per_ip
//! ```
//!
//! In another terminal, make seven calls. You will see 200 five times, then 429:
//!
//! ```text
//! for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/; done
//! ```
//!
//! To see the full response to a denied call, and the same response over HTTP/2 (`Retry-After` decreases from call to
//! call, down to 1):
//!
//! ```text
//! curl -i http://127.0.0.1:3000/
//! curl -i --http2-prior-knowledge http://127.0.0.1:3000/
//! ```
//!
//! To set another address and another quota, run `cargo run --example per_ip -- 127.0.0.1:8080 "100/min burst 20"`.
//! Ctrl-C ends the server.

use std::net::SocketAddr;
use std::process::ExitCode;

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_throttle::{Quota, RateLimitLayer};

const ADDRESS: &str = "127.0.0.1:3000";
const QUOTA: Quota = Quota::per_minute(12).burst(5);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("per_ip: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| ADDRESS.to_owned());
    let quota: Quota = match arguments.next() {
        Some(text) => text.parse().map_err(|error| format!("{error}"))?,
        None => QUOTA,
    };

    // With `axum_body`, responses keep axum's body type, and axum need not box their bodies.
    let limit = RateLimitLayer::per_ip(quota).axum_body();
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limit);

    let listener = TcpListener::bind(&address).await.map_err(|error| {
        format!(
            "cannot listen on {address}: {error}. Another one: cargo run --example per_ip -- 127.0.0.1:8080"
        )
    })?;
    println!("{quota} for each IP address, on http://{address}/ (Ctrl-C ends it). Try:");
    println!("  curl -i http://{address}/");
    println!("  curl -i --http2-prior-knowledge http://{address}/");

    // The limiter reads the peer's address from the connect info.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await
        .map_err(|error| error.to_string())
}
