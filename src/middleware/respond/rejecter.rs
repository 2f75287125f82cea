//! Rejections by axum's handlers, which call a limiter themselves.

use std::fmt;
use std::slice;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::request::Parts;

use super::http::HttpResponder;
use super::{RejectHead, Rejection, RequestHead, reports};
use crate::limiter::{Denied, Limiter, Reservation};
use crate::middleware::body::{AxumBody, OuterBody};
use crate::middleware::info::PolicyInfo;
use crate::middleware::outcome::Outcome;

/// Answers denied calls in an axum handler as a layer would. A handler that calls a limiter itself, for example because
/// the key is in the body of the request, takes a `Rejecter` as an argument.
///
/// The response has the status, the header fields and the body that a layer with the same limiter gives to the same
/// request: problem details, a line of text or a gRPC status, as the client wants. The name of the policy is that of
/// the limiter.
///
/// ```
/// use axum::extract::State;
/// use axum::response::Response;
/// use axum::{Router, routing::post};
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::{Quota, RateLimiter, Rejecter};
///
/// async fn send(
///     rejecter: Rejecter,
///     State(mail): State<RateLimiter<TokenBucket>>,
///     recipient: String,
/// ) -> Result<&'static str, Response> {
///     mail.check(&recipient).into_result().map_err(|denied| rejecter.reject(&mail, denied))?;
///     Ok("sent")
/// }
///
/// let mail = RateLimiter::builder(TokenBucket::new(Quota::per_hour(5))).name("mail").build();
/// let app: Router = Router::new().route("/send", post(send)).with_state(mail);
/// ```
///
/// The form of the response is that of [`HttpResponder::new()`](HttpResponder::new), unless a [`HandlerResponder`] is
/// in the extensions of the request. Nothing is charged and counted: the limiter has counted its call. If a span
/// declares the field `rate_limit.rejected_by`, the name of the limiter is recorded in it: that in which a layer has
/// seen the request, which stays open as long as the `Rejecter` exists, or else the current one (feature `tracing`).
/// The response never has `Connection: close`, because the handler knows whether it has read the body of the request.
/// If the call has a [tier](crate::limiter::Call::tier), the response reports the quota of the limiter's own algorithm.
/// If layers around the handler limit the request, they add their own header fields, as to any response.
///
/// The extractor copies the head of each request, as axum's own extractor of [`Parts`] does. Other services, and
/// handlers that need another name than that of the limiter, call
/// [`RateLimitLayer::reject`](crate::RateLimitLayer::reject).
#[derive(Clone)]
pub struct Rejecter {
    head: Parts,
}

impl Rejecter {
    /// Creates a rejecter for a request with this head.
    #[must_use]
    pub fn new(head: Parts) -> Self {
        Self { head }
    }

    /// Returns the response to a request whose call `limiter` has denied.
    #[must_use]
    pub fn reject<L: Limiter>(&self, limiter: &L, denied: Denied) -> Response {
        let info = PolicyInfo::of_rejection(limiter);
        let outcomes = [Some(Outcome::new(denied.into(), false, Reservation::default()))];
        let reports = reports(slice::from_ref(&info), &outcomes);
        let rejection = Rejection::Limited(&reports);
        let head = RequestHead::from(&self.head);
        head.record_rejected_by(limiter.name().unwrap_or(info.name()));
        match self.head.extensions.get::<HandlerResponder>() {
            Some(HandlerResponder(responder)) => responder(&head, rejection),
            None => answer(&HttpResponder::new(), &head, rejection),
        }
    }
}

impl fmt::Debug for Rejecter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejecter")
            .field("method", &self.head.method)
            .field("uri", &self.head.uri)
            .finish_non_exhaustive()
    }
}

/// The responder with which the [`Rejecter`]s of an app answer. An app whose layers have a responder of their own adds
/// it as an extension of all requests:
///
/// ```
/// use std::time::Duration;
/// use axum::{Extension, Router};
/// use tower_throttle::middleware::HandlerResponder;
/// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
///
/// let responder = HttpResponder::new().jitter(Duration::from_secs(5));
/// let app: Router = Router::new()
///     // .route(..)
///     .layer(RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder))
///     .layer(Extension(HandlerResponder::new(responder)));
/// ```
///
/// Clones are the same responder.
#[derive(Clone)]
pub struct HandlerResponder(Arc<RejectFn>);

type RejectFn = dyn Fn(&RequestHead<'_>, Rejection<'_>) -> Response + Send + Sync;

impl HandlerResponder {
    /// Creates the extension. `responder` is an [`HttpResponder`] with any options.
    #[must_use]
    pub fn new<R>(responder: R) -> Self
    where
        R: RejectHead<Body> + Send + Sync + 'static,
    {
        Self(Arc::new(move |head: &RequestHead<'_>, rejection: Rejection<'_>| {
            answer(&responder, head, rejection)
        }))
    }
}

impl fmt::Debug for HandlerResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerResponder").finish_non_exhaustive()
    }
}

fn answer(responder: &impl RejectHead<Body>, head: &RequestHead<'_>, rejection: Rejection<'_>) -> Response {
    responder.reject_head(head, rejection).map(<AxumBody as OuterBody<Body>>::rejected)
}
