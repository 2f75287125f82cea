mod respond;
mod usual;
mod waits;

use std::time::Duration;

use http::{HeaderName, Response, StatusCode};

use super::options::{BodyFormat, GrpcMode, HeaderFormat, Options, SendHeaders};
use super::rejection_body::{DefaultRejection, RejectionFn};
use super::request_head::RequestHead;
#[cfg(feature = "axum")]
use crate::middleware::body::SameBody;
use crate::middleware::body::WrapBody;
use crate::middleware::drain::LeaveUnread;
use crate::middleware::formats::Draft;
use crate::middleware::response::Rejection;

/// A responder that answers rejected HTTP and gRPC requests, and keeps the error type of the service.
///
/// | the call was | HTTP | gRPC (by content type) |
/// |---|---|---|
/// | denied | 429, `Retry-After` (whole seconds, rounded up, at least 1; absent if waiting does not help), problem+json or text | 8 `RESOURCE_EXHAUSTED` |
/// | without a valid key, because of the [client](crate::key::KeyError::is_invalid) | 400, problem+json | 3 `INVALID_ARGUMENT` |
/// | without a key, because of a configuration mistake | 500, problem+json that does not name the mistake; the log (feature `tracing`) says how to fix it | 13 `INTERNAL` |
/// | from a [forbidden](crate::key::KeyError::forbidden) caller | 403, problem+json | 7 `PERMISSION_DENIED` |
/// | not decided, because the store failed | 503, problem+json | 14 `UNAVAILABLE` |
/// | rejected, because the limiter was [closed](crate::limiter::RateLimiter::close), or its [key table is full](crate::Decision::is_table_full) | 503, problem+json | 14 `UNAVAILABLE` |
///
/// The response to a denied gRPC call reports the wait in `grpc-status-details-bin`, to the nanosecond. This field
/// contains a `RetryInfo` with the wait, if the wait is known, and a `QuotaFailure` with the names of the policies that
/// denied the call. If the wait is at most a minute, `grpc-retry-pushback-ms` also contains the wait. If the wait is
/// longer, or if waiting does not help, `grpc-retry-pushback-ms` is -1, so that clients do not use up their retries.
/// The response is one frame of headers (trailers-only), because clients obey the pushback only in such a response.
///
/// If calls are queued, a gRPC call waits no longer than its `grpc-timeout`. If it is known that the call cannot be
/// admitted in time, the call is rejected at once. The [`Decision`](crate::Decision) on an admitted call is in the
/// extensions of its request. If there are several policies, in this layer or in outer layers, this is the decision of
/// the policy that delayed the call longest. If no policy delayed the call, it is the decision of the policy with the
/// fewest remaining units.
///
/// Responses to admitted and to denied calls have the fields `RateLimit` and `RateLimit-Policy`, in the form of
/// draft-ietf-httpapi-ratelimit-headers-11. Redirects (3xx except 304) do not have these fields. Fields that the
/// response already has are kept. If the response already reports a policy, this layer does not report a policy of the
/// same name. A rejection of a `HEAD` request has no body.
///
/// Each rejection has `Cache-Control: no-store`, unless a custom response sets another value. If the length of the wait
/// is unknown, `Retry-After` is [one second](Self::retry_after_unknown) by default. The length is unknown if it depends
/// on calls in progress, if the limiter was closed, if its key table is full, or if the store failed. Clients that
/// prefer `text/html`, as browsers do, get one line of text instead of JSON. The body of a rejected request is not
/// read. So, over HTTP/1.x, the response to a request with a body has `Connection: close`, unless the body is
/// [drained](Self::drain).
///
/// Most of this can be configured:
///
/// ```
/// use std::time::Duration;
/// use http::Response;
/// use tower_throttle::middleware::{HeaderFormat, HttpResponder, ResetFormat, SendHeaders};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let responder = HttpResponder::new()
///     .headers([HeaderFormat::XRateLimit(ResetFormat::EpochSeconds)])
///     .send_headers(SendHeaders::OnRejection)
///     .jitter(Duration::from_secs(2))
///     .rejection_response(|rejection, head| {
///         let text = format!("too many requests for {}, retry later\n", head.uri().path());
///         let mut response = Response::new(text);
///         *response.status_mut() = rejection.status();
///         response
///     });
/// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder);
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HttpResponder<F = DefaultRejection, D = LeaveUnread, B = WrapBody> {
    pub(in crate::middleware) options: Options,
    pub(in crate::middleware) answer: F,
    pub(in crate::middleware) unread: D,
    pub(in crate::middleware) body: B,
}

impl HttpResponder {
    /// Creates a responder that makes the responses described in the docs of [`HttpResponder`].
    #[must_use]
    pub const fn new() -> Self {
        Self { options: Options::new(), answer: DefaultRejection, unread: LeaveUnread, body: WrapBody }
    }
}

impl Default for HttpResponder {
    fn default() -> Self {
        Self::new()
    }
}

impl<F, D, B> HttpResponder<F, D, B> {
    /// Sets the formats of the header fields that report limits to callers. The default is [`HeaderFormat::Draft11`].
    /// If the list contains several drafts, only the last draft is used. The same is true of several
    /// [`Custom`](HeaderFormat::Custom) formats, and of several [`XRateLimit`](HeaderFormat::XRateLimit) formats.
    #[must_use]
    pub fn headers(mut self, formats: impl IntoIterator<Item = HeaderFormat>) -> Self {
        let options = &mut self.options;
        (options.draft, options.legacy, options.custom, options.retry_after_ms) = (None, None, None, false);
        for format in formats {
            match format {
                HeaderFormat::Draft11 => options.draft = Some(Draft::V11),
                HeaderFormat::Draft07 => options.draft = Some(Draft::V07),
                HeaderFormat::Draft06 => options.draft = Some(Draft::V06),
                HeaderFormat::XRateLimit(reset) => options.legacy = Some(reset),
                HeaderFormat::Custom(names) => options.custom = Some(names),
                HeaderFormat::RetryAfterMs => options.retry_after_ms = true,
            }
        }
        self
    }

    /// Sets which responses have the header fields that report limits. The default is [`Always`](SendHeaders::Always).
    /// `Retry-After` has its own [switch](Self::retry_after).
    ///
    /// ```
    /// use tower_throttle::HttpResponder;
    /// use tower_throttle::middleware::SendHeaders;
    ///
    /// let responder = HttpResponder::new().send_headers(SendHeaders::OnRejection);
    /// ```
    #[must_use]
    pub const fn send_headers(mut self, send_headers: SendHeaders) -> Self {
        self.options.send_headers = send_headers;
        self
    }

    /// Sets whether rejections have `Retry-After`. The default is `true`.
    #[must_use]
    pub const fn retry_after(mut self, enabled: bool) -> Self {
        self.options.retry_after = enabled;
        self
    }

    /// Sets the maximum of a random time that is added to the wait that a rejection reports, so that clients that were
    /// rejected together do not retry together. Within one response, the same random time is added to the wait of each
    /// policy. The default maximum is zero.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::HttpResponder;
    ///
    /// // callers that are rejected at the same time retry at random times within ten seconds
    /// let responder = HttpResponder::new().jitter(Duration::from_secs(10));
    /// ```
    #[must_use]
    pub const fn jitter(mut self, max: Duration) -> Self {
        self.options.jitter = max;
        self
    }

    /// Sets the format of the bodies of rejections. The default is problem details or text, [as the client
    /// prefers](BodyFormat::ByAccept).
    #[must_use]
    pub const fn body(mut self, format: BodyFormat) -> Self {
        self.options.body = format;
        self
    }

    /// Sets which requests are rejected with a gRPC response. By default these are the requests with a gRPC [content
    /// type](GrpcMode::ByContentType).
    #[must_use]
    pub const fn grpc(mut self, grpc: GrpcMode) -> Self {
        self.options.grpc = grpc;
        self
    }

    /// Sets whether the [`Decision`](crate::Decision) on an admitted request is inserted into the request's extensions,
    /// so that handlers can read it. The default is `true`. Each insertion costs an allocation.
    #[must_use]
    pub const fn insert_extension(mut self, enabled: bool) -> Self {
        self.options.insert_extension = enabled;
        self
    }

    /// Sets whether two further extensions are inserted. An admitted request gets
    /// [`Decisions`](crate::middleware::Decisions), with the decisions of all policies by name. The response to a
    /// denied request gets [`Rejected`](crate::middleware::Rejected), for outer layers. The default is `false`, because
    /// each extension costs up to three allocations.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower_throttle::middleware::Decisions;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// async fn hello(decisions: axum::Extension<Decisions>) -> String {
    ///     let left = decisions.get("per-ip").map_or(0, |decision| decision.remaining());
    ///     format!("{left} calls left\n")
    /// }
    ///
    /// let app: Router = Router::new().route("/", get(hello)).layer(
    ///     RateLimitLayer::per_ip(Quota::per_minute(100))
    ///         .name("per-ip")
    ///         .responder(HttpResponder::new().insert_details(true)),
    /// );
    /// ```
    #[must_use]
    pub const fn insert_details(mut self, enabled: bool) -> Self {
        self.options.insert_details = enabled;
        self
    }

    /// Sets the function that makes the responses to rejected calls. The arguments of the function are the rejection,
    /// and the request without its body. `Retry-After` and the fields that report limits are added to the response of
    /// the function, as they are to a default response. Fields that the function sets are kept. gRPC callers still get
    /// the standard gRPC responses.
    ///
    /// The body of the response is a string, bytes or `()`. With the feature `axum`, the body can also be
    /// `axum::body::Body`, if this is the body type of the service.
    #[must_use]
    pub fn rejection_response<G, T>(self, answer: G) -> HttpResponder<RejectionFn<G>, D, B>
    where
        G: Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<T>,
    {
        let Self { options, unread, body, .. } = self;
        HttpResponder { options, answer: RejectionFn::new(answer), unread, body }
    }
}

#[cfg(feature = "axum")]
impl<F, D, B> HttpResponder<F, D, B> {
    /// Leaves the body type of an axum app as it is. The limited service then has the body type [`axum::body::Body`],
    /// and not [`ResponseBody`](crate::middleware::ResponseBody).
    ///
    /// The body of the response to an admitted call is passed on unchanged, so axum does not box it again. If the call
    /// holds a permit, the body is wrapped. With this setting, the layer can be used where a layer must not change the
    /// type of responses, for example with tower's `option_layer` and `BoxCloneSyncServiceLayer`.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower::util::option_layer;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let is_limited = std::env::var_os("NO_LIMIT").is_none();
    /// let limit = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(HttpResponder::new().same_body());
    /// let app: Router =
    ///     Router::new().route("/", get(|| async { "hello" })).layer(option_layer(is_limited.then_some(limit)));
    /// ```
    #[must_use]
    pub fn same_body(self) -> HttpResponder<F, D, SameBody> {
        HttpResponder { options: self.options, answer: self.answer, unread: self.unread, body: SameBody }
    }
}

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Returns whether clients follow a response with this status by a request to another URI, to which another limit may
/// apply. The result is `true` for all 3xx statuses except 304.
#[inline]
fn is_followed(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}
