//! Extraction of a [`Decision`], a [`Meter`] and a [`Rejecter`] in axum's handlers.

use std::convert::Infallible;
use std::fmt;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::decision::Decision;
use crate::middleware::{Meter, Rejecter};

/// Extracts the decision on the request. If several limits decided the request, the decision is that of the limit that
/// queued the request longest. If no limit queued the request, the decision is that of the limit with the fewest
/// remaining units. Use `Option<Decision>` for routes on which some requests are not limited, or whose limit can be
/// [switched off](crate::RateLimitLayer::enabled).
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_throttle::{Decision, Quota, RateLimitLayer};
///
/// async fn hello(decision: Decision) -> String {
///     format!("{} calls left\n", decision.remaining())
/// }
///
/// let app: Router = Router::new()
///     .route("/", get(hello))
///     .layer(RateLimitLayer::per_ip(Quota::per_minute(100)));
/// ```
impl<S: Send + Sync> FromRequestParts<S> for Decision {
    type Rejection = MissingDecision;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingDecision> {
        parts.extensions.get().copied().ok_or(MissingDecision)
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().copied())
    }
}

/// Extracts the meter of the request. If no [metered](crate::RateLimitLayer::metered) layer limits the request, the meter
/// is a new one, by which nothing is charged.
impl<S: Send + Sync> FromRequestParts<S> for Meter {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.extensions))
    }
}

/// Extracts what answers a denied call as a layer would.
impl<S: Send + Sync> FromRequestParts<S> for Rejecter {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::new(parts.clone()))
    }
}

/// The rejection of the extractor [`Decision`]: the request has no decision. The response is a 500. The reason is
/// usually that the route has no `RateLimitLayer`, or that the request is not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingDecision;

impl fmt::Display for MissingDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "nothing was decided of this request: put a `RateLimitLayer` around the route, or take `Option<Decision>` \
             where requests are not always limited",
        )
    }
}

impl std::error::Error for MissingDecision {}

impl IntoResponse for MissingDecision {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}
