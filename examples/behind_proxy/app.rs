//! The app, which responds with the address that its limiter uses.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Router, routing::get};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::ClientIp;
use tower_throttle::{Quota, RateLimitLayer};

/// Creates an app whose requests are limited by the address that `client` finds. The app responds with that address.
pub(crate) fn app(client: ClientIp, quota: Quota) -> Router {
    let layer = RateLimitLayer::new(client.clone(), TokenBucket::new(quota));
    Router::new().route("/", get(client_address)).layer(layer).with_state(client)
}

async fn client_address(
    State(client): State<ClientIp>,
    request: Request,
) -> Result<String, (StatusCode, String)> {
    match client.resolve(&request) {
        Ok(address) => Ok(format!("{address}\n")),
        // The limiter has already resolved the address, so a request that reaches this handler has one.
        Err(error) if error.is_invalid() => Err((StatusCode::BAD_REQUEST, error.to_string())),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}
