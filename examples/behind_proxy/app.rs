//! The app: it answers with the address that its limiter goes by.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Router, routing::get};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::ClientIp;
use tower_throttle::{Quota, RateLimitLayer};

/// An app that is limited for each client that `client` finds, and says whom it found.
pub(crate) fn app(client: ClientIp, quota: Quota) -> Router {
    let layer = RateLimitLayer::new(client.clone(), TokenBucket::new(quota));
    Router::new().route("/", get(seen)).layer(layer).with_state(client)
}

async fn seen(State(client): State<ClientIp>, request: Request) -> Result<String, (StatusCode, String)> {
    match client.resolve(&request) {
        Ok(address) => Ok(format!("{address}\n")),
        // The limiter has asked the same before, and answered: a request that is here has an address.
        Err(error) if error.is_invalid() => Err((StatusCode::BAD_REQUEST, error.to_string())),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}
