//! The picture of the order of layers: the app of the chapter "Ordering", and the status with which each layer answers.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt};
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::Extension;
use tower_throttle::{Quota, RateLimitLayer};

use crate::sheet::{Sheet, Side};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A layer, from outside in.
#[derive(Debug)]
struct Ring {
    /// How the code of the chapter begins after `.layer(`.
    code: &'static str,
    name: &'static str,
    /// The request to which this layer answers, if any.
    answers: Option<(Kind, &'static str)>,
}

/// The request that a layer answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Preflight,
    ManyOfAddress,
    Slow,
    WithoutToken,
    ManyOfUser,
    LargeBody,
    Good,
}

const fn ring(code: &'static str, name: &'static str, answers: Option<(Kind, &'static str)>) -> Ring {
    Ring { code, name, answers }
}

const RINGS: [Ring; 8] = [
    ring("TraceLayer", "tracing", None),
    ring("cors", "CORS", Some((Kind::Preflight, "a preflight"))),
    ring("by_address", "limit by address", Some((Kind::ManyOfAddress, "the 51st at once"))),
    ring("TimeoutLayer", "timeout", Some((Kind::Slow, "after 10 s"))),
    ring("from_fn(sign_in)", "sign-in", Some((Kind::WithoutToken, "without a token"))),
    ring("by_user", "limit by user", Some((Kind::ManyOfUser, "the 11th at once"))),
    ring("RequestBodyLimitLayer", "limit on bodies", Some((Kind::LargeBody, "over 64 KB"))),
    ring("CompressionLayer", "compression", None),
];

const HANDLER: Ring = ring("", "handler", Some((Kind::Good, "served")));

#[derive(Clone)]
struct User(u64);

async fn sign_in(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|line| line.to_str().ok());
    if let Some(id) = token.and_then(|token| token.strip_prefix("Bearer user-")?.parse().ok()) {
        request.extensions_mut().insert(User(id));
        next.run(request).await
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    }
}

/// Returns the app of the chapter, with a handler that is too slow.
fn app() -> Router {
    let cors = CorsLayer::new().allow_origin(HeaderValue::from_static("https://app.example"));
    let by_address = RateLimitLayer::per_ip(Quota::per_minute(300).burst(50));
    let by_user = RateLimitLayer::new(
        Extension::<User, _>::new(|user| user.0),
        TokenBucket::new(Quota::per_minute(60).burst(10)),
    );
    let slow = || async {
        sleep(2 * TIMEOUT).await;
        "slow"
    };
    Router::new().route("/", get(|| async { "hello" })).route("/slow", get(slow)).layer(
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(cors)
            .layer(by_address)
            .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT))
            .layer(from_fn(sign_in))
            .layer(by_user)
            .layer(RequestBodyLimitLayer::new(64 * 1_024))
            .layer(CompressionLayer::new()),
    )
}

impl Kind {
    /// Sends such a request, as the last one of `self.count()`, and returns the status of the answer.
    async fn status(self) -> Result<StatusCode, Box<dyn Error>> {
        let app = app();
        let mut status = StatusCode::OK;
        for _ in 0..self.count() {
            status = app.clone().oneshot(self.request()?).await?.status();
        }
        Ok(status)
    }

    /// Returns the number of requests, the last of which is answered by the layer.
    fn count(self) -> usize {
        match self {
            Self::ManyOfAddress => 51,
            Self::ManyOfUser => 11,
            _ => 1,
        }
    }

    fn request(self) -> Result<Request, axum::http::Error> {
        let mut request = Request::builder().uri(if self == Self::Slow { "/slow" } else { "/" });
        if self != Self::WithoutToken && self != Self::ManyOfAddress {
            request = request.header(header::AUTHORIZATION, "Bearer user-1");
        }
        if self == Self::Preflight {
            request = request
                .method(Method::OPTIONS)
                .header(header::ORIGIN, "https://app.example")
                .header(header::ACCESS_CONTROL_REQUEST_METHOD, "GET");
        }
        if self == Self::LargeBody {
            request = request.header(header::CONTENT_LENGTH, 1_000_000);
        }
        let mut request = request.body(Body::empty())?;
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 50_000))));
        Ok(request)
    }
}

const TOP: i32 = 88;
const ROW: i32 = 34;
/// How much smaller than its outer layer a layer is, at the left, at the right and at the bottom.
const INSET: i32 = 8;
const LEFT: i32 = 8;
/// The right edge of the outermost layer.
const RIGHT: i32 = 306;

/// Draws a box for each layer inside that of its outer layer, and an arrow from each layer that answers.
pub(crate) fn draw() -> Result<String, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let mut sheet = Sheet::new("A request passes the layers from outside in");
    sheet.text((LEFT, 46), Side::Left, "Its answer passes only the layers outside the one that answers.");
    let depth = i32::try_from(RINGS.len())?;
    let bottom = TOP + (depth + 1) * ROW + depth * INSET;
    for n in 0..=depth {
        let width = RIGHT - LEFT - 2 * n * INSET;
        let (x, y) = (LEFT + n * INSET, TOP + n * ROW);
        // The limits of this crate have a colour.
        let is_limit = RINGS.get(usize::try_from(n)?).is_some_and(|ring| ring.code.starts_with("by_"));
        let fill = if is_limit { "fill" } else { "paper" };
        sheet.boxed((x, y), (width, bottom - n * INSET - y), fill, "ink");
    }
    let arrow = LEFT + (depth + 2) * INSET;
    sheet.text((arrow - 8, TOP - 14), Side::Left, "request");
    sheet.arrow((arrow, TOP - 8), (arrow, TOP + depth * ROW + 12), "ink");
    let mut parts = Vec::new();
    for (n, Ring { name, answers, .. }) in RINGS.iter().chain([&HANDLER]).enumerate() {
        let y = TOP + i32::try_from(n)? * ROW + 22;
        sheet.bold((arrow + 14, y), Side::Left, "ink", name);
        let Some((kind, why)) = answers else { continue };
        let status = runtime.block_on(kind.status())?;
        let color = if status.is_success() { "blue" } else { "orange" };
        sheet.arrow((arrow + 152, y - 5), (RIGHT + 24, y - 5), color);
        sheet.bold((RIGHT + 32, y), Side::Left, color, status.as_str());
        sheet.text((RIGHT + 68, y), Side::Left, why);
        parts.push(format!("{name} {} ({why})", status.as_str()));
    }
    let label = format!(
        "Layers from outside in, with the status of what each of them answers: {}.",
        parts.join(", ")
    );
    Ok(sheet.finish(bottom + 10, &label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chapter_has_the_layers_in_this_order() {
        let chapter = include_str!("../../../src/guide/ordering.md");
        let app = chapter.split("ServiceBuilder::new()").nth(1).unwrap();
        let app = app.lines().map(str::trim).take_while(|line| *line != ");");
        let layers: Vec<_> = app.filter_map(|line| line.strip_prefix(".layer(")).collect();
        assert_eq!(layers.len(), RINGS.len());
        for (layer, ring) in layers.iter().zip(&RINGS) {
            assert!(layer.starts_with(ring.code), "{layer}, {}", ring.name);
        }
    }
}
