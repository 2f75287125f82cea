//! Users by their plan, strangers by their address, and a limit for each route.
//!
//! Anna's plan is free: five requests at once, then one every twelve seconds. Bert pays: twenty at once. Who is neither is limited by address:
//! three at once. Beside that, each route serves twelve a minute, whoever calls. Start it:
//!
//! ```text
//! cargo run --example per_user
//! ```
//!
//! In another terminal, as a stranger and as Anna. You will see three times 200, then five times:
//!
//! ```text
//! ask() { curl -s -o /dev/null -w '%{http_code} ' "$@"; }
//! for i in 1 2 3 4; do ask http://127.0.0.1:3007/; done
//! for i in 1 2 3 4 5 6; do ask -H 'Authorization: Bearer anna' http://127.0.0.1:3007/; done
//! ```
//!
//! Bert gets twelve items, then 429: for the limiter, all of them are the one route `/items/{id}`. Of his own budget, eight are left for `/`,
//! which has four left.
//!
//! ```text
//! for i in $(seq 14); do ask -H 'Authorization: Bearer bert' http://127.0.0.1:3007/items/$i; done
//! for i in $(seq 6); do ask -H 'Authorization: Bearer bert' http://127.0.0.1:3007/; done
//! ```
//!
//! What a caller is told of both limits:
//!
//! ```text
//! curl -i -H 'Authorization: Bearer anna' http://127.0.0.1:3007/items/1
//! ```
//!
//! A wrong token makes a stranger, so that whoever tries out tokens is limited, too. Another address: `cargo run --example per_user -- 127.0.0.1:8080`.
//! Ctrl-C ends it.

use std::net::SocketAddr;
use std::process::ExitCode;

use axum::extract::{Path, Request};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Extension, Router, routing::get};
use tokio::net::TcpListener;
use tower_throttle::algorithm::{Tiered, TokenBucket};
use tower_throttle::key::{self, PeerIp, Route, first_of};
use tower_throttle::{Quota, RateLimitLayer};

const ADDRESS: &str = "127.0.0.1:3007";

const STRANGERS: Quota = Quota::per_minute(3);
const FREE: Quota = Quota::per_minute(5);
const PAID: Quota = Quota::per_minute(20);
const ROUTE: Quota = Quota::per_minute(12);

#[derive(Clone, Copy)]
struct User {
    id: u64,
    name: &'static str,
    quota: Quota,
}

/// Stands for a database, or for a signature that is checked.
fn user(token: &str) -> Option<User> {
    match token {
        "anna" => Some(User { id: 1, name: "Anna", quota: FREE }),
        "bert" => Some(User { id: 2, name: "Bert", quota: PAID }),
        _ => None,
    }
}

/// Finds out who it is, for everything that comes after it.
async fn sign_in(mut request: Request, next: Next) -> Response {
    let token =
        request.headers().get(AUTHORIZATION).and_then(|line| line.to_str().ok()?.strip_prefix("Bearer "));
    if let Some(user) = token.and_then(user) {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

fn app() -> Router {
    // Whose budget: the user's, or the address's. What a caller sends as a token is no key before it was checked.
    let caller = first_of((key::Extension::<User, _>::new(|user| user.id), PeerIp::new()));
    // By which rule: the plan's. Who changes plans takes along what was used.
    let plans = RateLimitLayer::new(caller, Tiered::new(TokenBucket::new(STRANGERS)))
        .tier(|request: &Request, _caller| {
            let user = request.extensions().get::<User>();
            TokenBucket::new(user.map_or(STRANGERS, |user| user.quota))
        })
        .name("plan");
    let routes = RateLimitLayer::new(Route::new(), TokenBucket::new(ROUTE)).name("route");

    Router::new()
        .route("/", get(|user| async move { format!("hello, {}\n", name(user)) }))
        .route(
            "/items/{id}",
            get(|Path(id): Path<u32>, user| async move { format!("item {id} for {}\n", name(user)) }),
        )
        // Both or none: who is refused by one of them has used nothing of the other.
        .layer(plans.and(routes))
        // The last one that is added is the first one that is asked.
        .layer(from_fn(sign_in))
}

fn name(user: Option<Extension<User>>) -> &'static str {
    user.map_or("stranger", |Extension(user)| user.name)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("per_user: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let address = std::env::args().nth(1).unwrap_or_else(|| ADDRESS.to_owned());
    let listener = TcpListener::bind(&address).await.map_err(|error| {
        format!(
            "cannot listen on {address}: {error}. Another one: cargo run --example per_user -- 127.0.0.1:8080"
        )
    })?;
    println!(
        "strangers {STRANGERS}, Anna {FREE}, Bert {PAID}, each route {ROUTE}, on http://{address}/ (Ctrl-C ends it). Try:"
    );
    println!("  curl -i http://{address}/");
    println!("  curl -i -H 'Authorization: Bearer anna' http://{address}/");
    println!("  curl -i -H 'Authorization: Bearer bert' http://{address}/items/1");

    // Strangers are limited by the peer's address: hence the connect info.
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await
        .map_err(|error| error.to_string())
}
