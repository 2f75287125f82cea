//! Extraction of a [`Decision`], [`Decisions`], a [`Meter`] and a [`Rejecter`] in axum's handlers. None of them fails.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use crate::decision::Decision;
use crate::middleware::{Decisions, Meter, Rejecter};

/// Extracts the decision on the request, or `None` if no limit decided it: the request is exempt, or its limit is in
/// [shadow mode](crate::RateLimitLayer::shadow) or [not enabled](crate::RateLimitLayer::enabled). If several limits
/// decided the request, the decision is that of the limit that queued the request longest. If no limit queued the
/// request, the decision is that of the limit with the fewest remaining units.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_throttle::{Decision, Quota, RateLimitLayer};
///
/// async fn hello(decision: Option<Decision>) -> String {
///     match decision {
///         Some(decision) => format!("{} calls left\n", decision.remaining()),
///         None => "hello\n".to_owned(),
///     }
/// }
///
/// let app: Router = Router::new()
///     .route("/", get(hello))
///     .layer(RateLimitLayer::per_ip(Quota::per_minute(100)));
/// ```
impl<S: Send + Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().copied())
    }
}

/// Extracts the decisions of all policies. They are empty if no limit decided the request, and unless
/// [`insert_details`](crate::HttpResponder::insert_details) is on.
impl<S: Send + Sync> FromRequestParts<S> for Decisions {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Extracts the meter of the request. If no [metered](crate::RateLimitLayer::metered) layer limits the request, the
/// meter is a new one, by which nothing is charged.
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
