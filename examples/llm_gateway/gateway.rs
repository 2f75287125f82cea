//! The gateway, which limits users by tokens and by streams, and counts tokens while it passes an answer on.

use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tower_throttle::algorithm::{Concurrency, TokenBucket};
use tower_throttle::key::Extension;
use tower_throttle::middleware::Unmetered;
use tower_throttle::{Meter, Quota, RateLimitLayer, RateLimiter};

/// The tokens of each user.
pub(crate) const TOKENS: Quota = Quota::per_minute(100_000);

/// The number of answers that a user can receive at the same time.
pub(crate) const STREAMS: u64 = 4;

/// The tokens of an answer for which the client sets no maximum. This is only an estimate: such an answer may be
/// longer.
pub(crate) const USUAL_ANSWER: u64 = 500;

/// The maximum length of a prompt, in bytes.
pub(crate) const MAX_PROMPT: usize = 64 * 1024;

/// The header that tells the maximum length of the answer, in tokens.
pub(crate) const MAX_TOKENS: &str = "x-max-tokens";

#[derive(Clone, Copy)]
struct User(u64);

/// Returns the user of an API key. A real gateway would ask a database.
fn user(api_key: &str) -> Option<User> {
    api_key.strip_prefix("key-")?.parse().ok().filter(|id| *id < 100).map(User)
}

/// Inserts the user into the request's extensions, for the limits. The limits count by user and not by the header
/// itself, because each key that a client invents would have a budget of its own. A limit by address belongs outside of
/// this function, against clients that guess keys.
async fn sign_in(mut request: Request, next: Next) -> Response {
    match request.headers().get("x-api-key").and_then(|value| user(value.to_str().ok()?)) {
        Some(user) => {
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        None => (StatusCode::UNAUTHORIZED, "x-api-key is missing or unknown\n").into_response(),
    }
}

/// Estimates the tokens that a request will use.
// The limit decides before the body is read, so the estimate comes from the head. `Content-Length` tells the length of
// the prompt, and HTTP does not let a client send more than that. A prompt of unknown length is estimated as the
// longest one. `x-max-tokens` tells the maximum length of the answer, to which the model keeps. Without it, the usual
// length is charged in advance. If the answer is longer, the user is in debt after it, and waits until the debt is paid
// off.
pub(crate) fn estimate(request: &Request) -> u64 {
    let headers = request.headers();
    let length = number(headers, CONTENT_LENGTH.as_str()).unwrap_or(u64::MAX).min(MAX_PROMPT as u64);
    prompt_tokens(length).saturating_add(number(headers, MAX_TOKENS).unwrap_or(USUAL_ANSWER)).max(1)
}

fn prompt_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(4)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Creates a gateway to the model at this address, for the users of `tokens`.
pub(crate) fn gateway(model: SocketAddr, tokens: RateLimiter<TokenBucket>) -> Router {
    let by_user = Extension::<User, _>::new(|user| user.0);
    // A call is charged its estimate when it is admitted, and what its meter says when its answer has ended. A call
    // that never came to the model, such as one whose prompt is too long, has not used its meter, and is free.
    let tokens = RateLimitLayer::with_limiter(by_user.clone(), tokens)
        .name("tokens")
        .cost(estimate)
        .metered()
        .unmetered(Unmetered::Refund);
    let streams = RateLimitLayer::new(by_user, Concurrency::per_key(STREAMS)).name("streams");
    Router::new()
        .route("/", post(answer))
        .with_state(Model { address: model, client: Client::builder(TokioExecutor::new()).build_http() })
        .layer(DefaultBodyLimit::max(MAX_PROMPT))
        // A call is admitted by both limits, or charged by neither.
        .layer(tokens.and(streams))
        .layer(from_fn(sign_in))
}

#[derive(Clone)]
struct Model {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Passes the prompt to the model, and the answer to the client, event by event.
async fn answer(State(model): State<Model>, meter: Meter, headers: HeaderMap, prompt: String) -> Response {
    let mut request = Request::post(format!("http://{}/", model.address));
    if let Some(max_tokens) = number(&headers, MAX_TOKENS) {
        request = request.header(MAX_TOKENS, max_tokens);
    }
    // From here on, a client that hangs up pays the prompt.
    meter.add(prompt_tokens(prompt.len() as u64));
    let request = request.body(Full::from(prompt)).expect("an address and a number are valid");
    let response = match model.client.request(request).await {
        Ok(response) if response.status() == StatusCode::OK => response,
        _ => {
            // An answer that the model did not begin is free.
            meter.set(0);
            return (StatusCode::BAD_GATEWAY, "the model has not answered\n").into_response();
        }
    };
    let mut events = Events::default();
    let counted = response.into_body().map_frame(move |frame| {
        if let Some(piece) = frame.data_ref() {
            meter.add(events.tokens(piece));
        }
        frame
    });
    // When the client hangs up, the server drops this body. The call is then settled, and the model's connection
    // closed.
    ([(CONTENT_TYPE, "text/event-stream")], Body::new(counted)).into_response()
}

/// Counts the tokens of events, which may arrive in pieces.
#[derive(Default)]
struct Events {
    /// The part of a line whose end has not arrived.
    line: Vec<u8>,
}

impl Events {
    /// Returns the number of tokens of the events whose data ends in `piece`.
    fn tokens(&mut self, piece: &[u8]) -> u64 {
        let mut tokens = 0;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                tokens += tokens_of(&self.line);
                self.line.clear();
            }
        }
        tokens
    }
}

/// Returns the number of tokens that a line reports: `data: {"text":"the sky ","tokens":2}`.
fn tokens_of(line: &[u8]) -> u64 {
    let data = line.strip_prefix(b"data:").and_then(|json| serde_json::from_slice::<Value>(json).ok());
    data.and_then(|data| data["tokens"].as_u64()).unwrap_or(0)
}
