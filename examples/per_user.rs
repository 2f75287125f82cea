//! Limits users by their plan, anonymous callers by their address, and all callers of a route together.
//!
//! Anna's plan is free: five requests at once, then one every twelve seconds. Bert pays: twenty at once. All other
//! callers are limited by address: three at once. In addition, each route serves twelve requests a minute, for all
//! callers together, and each address may send sixty requests at once, then one a second, whoever sends them. Start the
//! server:
//!
//! ```text
//! cargo run --example per_user
//! ```
//!
//! In another terminal, make four calls anonymously, then six as Anna. You will see 200 three times and then 429 for
//! the anonymous calls, and 200 five times and then 429 for Anna's:
//!
//! ```text
//! ask() { curl -s -o /dev/null -w '%{http_code} ' "$@"; }
//! for i in 1 2 3 4; do ask http://127.0.0.1:3007/; done
//! for i in 1 2 3 4 5 6; do ask -H 'Authorization: Bearer anna' http://127.0.0.1:3007/; done
//! ```
//!
//! For the limiter, all items are one route, `/items/{id}`. So Bert gets twelve items, then 429. His own budget then
//! has eight requests left. The calls of the others have left four requests on the route `/`, so Bert gets 200 four
//! times there, then 429.
//!
//! ```text
//! for i in $(seq 14); do ask -H 'Authorization: Bearer bert' http://127.0.0.1:3007/items/$i; done
//! for i in $(seq 6); do ask -H 'Authorization: Bearer bert' http://127.0.0.1:3007/; done
//! ```
//!
//! To see the header fields of all three limits:
//!
//! ```text
//! curl -i -H 'Authorization: Bearer anna' http://127.0.0.1:3007/items/1
//! ```
//!
//! A caller with a wrong token is treated as anonymous. A guess that is right would have a budget of its own, so the
//! limit by address comes before the token is looked at: an address can try sixty tokens at once, then one a second. To
//! set another address of the server, run `cargo run --example per_user -- 127.0.0.1:8080`. Ctrl-C ends the server.

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

const ANONYMOUS: Quota = Quota::per_minute(3);
const FREE: Quota = Quota::per_minute(5);
const PAID: Quota = Quota::per_minute(20);
const ROUTE: Quota = Quota::per_minute(12);
/// Above all plans, because it also counts what the other limits reject.
const EACH_ADDRESS: Quota = Quota::per_minute(60);

#[derive(Clone, Copy)]
struct User {
    id: u64,
    name: &'static str,
    quota: Quota,
}

/// Returns the user of a token. A real app would ask a database, or check a signature.
fn user(token: &str) -> Option<User> {
    match token {
        "anna" => Some(User { id: 1, name: "Anna", quota: FREE }),
        "bert" => Some(User { id: 2, name: "Bert", quota: PAID }),
        _ => None,
    }
}

/// Authenticates the caller, and inserts the user into the request's extensions for the inner layers.
async fn sign_in(mut request: Request, next: Next) -> Response {
    let token =
        request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if let Some(user) = token.and_then(user) {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

fn app() -> Router {
    // The key is the user or, for anonymous callers, the address. The token itself is not a key, so an invented token
    // has no budget of its own.
    let caller = first_of((key::Extension::<User, _>::new(|user| user.id), PeerIp::new()));
    // The tier is the user's plan. If a user changes plans, the units that the user has already used stay used.
    let plans = RateLimitLayer::new(caller, Tiered::new(TokenBucket::new(ANONYMOUS)))
        .tier(|request: &Request, _caller| {
            let user = request.extensions().get::<User>();
            TokenBucket::new(user.map_or(ANONYMOUS, |user| user.quota))
        })
        .name("plan");
    let routes = RateLimitLayer::new(Route::new(), TokenBucket::new(ROUTE)).name("route");
    let addresses = RateLimitLayer::per_ip(EACH_ADDRESS).name("address");

    Router::new()
        .route("/", get(|user| async move { format!("hello, {}\n", name(user)) }))
        .route(
            "/items/{id}",
            get(|Path(id): Path<u32>, user| async move { format!("item {id} for {}\n", name(user)) }),
        )
        // A request is charged by both limits or by neither. If one limit denies the request, the other limit does not
        // charge the request.
        .layer(plans.and(routes))
        // The layer that is added last runs first.
        .layer(from_fn(sign_in))
        .layer(addresses)
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
        "anonymous {ANONYMOUS}, Anna {FREE}, Bert {PAID}, each route {ROUTE}, each address {EACH_ADDRESS}, \
         on http://{address}/ (Ctrl-C ends it). Try:"
    );
    println!("  curl -i http://{address}/");
    println!("  curl -i -H 'Authorization: Bearer anna' http://{address}/");
    println!("  curl -i -H 'Authorization: Bearer bert' http://{address}/items/1");

    // Anonymous callers are limited by the peer's address, which is read from the connect info.
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_cannot_guess_tokens_for_ever() {
        let app = app();
        let ask = async |last: u8, token: &str| {
            let request = Request::builder().header(AUTHORIZATION, format!("Bearer {token}"));
            let mut request = request.body(Body::empty()).expect("the token is a valid header value");
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, last], 5_000))));
            let Ok(response) = app.clone().oneshot(request).await;
            response.status().as_u16()
        };
        for guess in 0..60 {
            let status = ask(1, &format!("guess-{guess}")).await;
            assert_eq!(status, if guess < 3 { 200 } else { 429 }, "{guess}");
        }
        assert_eq!(ask(1, "anna").await, 429);
        assert_eq!(ask(2, "anna").await, 200);
    }
}
