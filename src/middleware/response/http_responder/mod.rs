mod respond;

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

/// A responder that answers rejected HTTP requests and never changes the service's error type.
///
/// | the call was | HTTP | gRPC (by content type) |
/// |---|---|---|
/// | denied | 429, `Retry-After` (whole seconds, rounded up, at least 1; absent if waiting does not help), problem+json or text | 8 `RESOURCE_EXHAUSTED` |
/// | without a valid key, because of the [client](crate::key::KeyError::is_invalid) | 400, problem+json | 3 `INVALID_ARGUMENT` |
/// | without a key, because of a configuration mistake | 500, problem+json without details: the log (feature `tracing`) says how to fix it | 13 `INTERNAL` |
/// | from a [forbidden](crate::key::KeyError::forbidden) caller | 403, problem+json | 7 `PERMISSION_DENIED` |
/// | not decided, because the store failed | 503, problem+json | 14 `UNAVAILABLE` |
/// | rejected, because the limiter was [closed](crate::limiter::RateLimiter::close), or its [key table is full](crate::Decision::is_table_full) | 503, problem+json | 14 `UNAVAILABLE` |
///
/// A gRPC caller that was denied finds the exact wait in `grpc-status-details-bin` (a `RetryInfo`, and a `QuotaFailure`
/// that names the policies). `grpc-retry-pushback-ms` also contains the wait, if the wait is at most a minute. If the
/// wait is longer, or if waiting does not help, `grpc-retry-pushback-ms` is -1, so that clients do not use up their
/// retries. The response is one frame of headers (trailers-only), because clients obey the pushback only in such a
/// response.
///
/// If calls are queued, a gRPC call waits no longer than its `grpc-timeout`: a call that would be admitted later is
/// rejected at once. The [`Decision`](crate::Decision) of an admitted call is in its request's extensions. If there are
/// several policies, this is the decision of the policy that delayed the call longest or, if none delayed it, of the
/// policy with the fewest remaining units.
///
/// Responses to admitted and to denied calls carry `RateLimit` and `RateLimit-Policy`, in the form of
/// draft-ietf-httpapi-ratelimit-headers-11. Redirects (3xx except 304) do not carry them. Fields that the response
/// already has are kept. If the inner service already reports a policy of the same name, this layer does not report its
/// own policy of that name. A rejection of a `HEAD` request has no body.
///
/// Each rejection carries `Cache-Control: no-store`, unless a custom response sets another value. If the wait is
/// unknown (calls in progress, a limiter that was closed or whose key table is full, a store that failed),
/// `Retry-After` is [one second](Self::retry_after_unknown). Clients that prefer `text/html`, as browsers do, get one
/// line of text instead of JSON. The body of a rejected request is not read. So, over HTTP/1.x, the response to a
/// request with a body has `Connection: close`, unless the body is [drained](Self::drain).
///
/// All of this is configurable:
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
    /// Creates a responder with the responses described above.
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
    /// If the list has several drafts, only the last draft is used. If the list has several
    /// [custom](HeaderFormat::Custom) names, only the last of these is used.
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

    /// Sets which responses carry the header fields that report limits. The default is [all](SendHeaders::Always).
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

    /// Sets whether rejections carry `Retry-After`. The default is `true`.
    #[must_use]
    pub const fn retry_after(mut self, enabled: bool) -> Self {
        self.options.retry_after = enabled;
        self
    }

    /// Sets the maximum of a random time that is added to the wait reported to each rejected caller. So clients that
    /// were rejected together do not retry together. Within a response, the same random time is added to the wait of
    /// each policy. The reported wait is never less than the true wait, unless
    /// [`max_reported_wait`](Self::max_reported_wait) is set. The default is zero.
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

    /// Sets the body of rejections. The default is problem details or text, [as the client
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

    /// Sets whether the [`Decision`](crate::Decision) is inserted into the request's extensions, for handlers. The
    /// default is `true`. Each insertion costs an allocation.
    #[must_use]
    pub const fn insert_extension(mut self, enabled: bool) -> Self {
        self.options.insert_extension = enabled;
        self
    }

    /// Sets whether two further extensions are inserted: [`Decisions`](crate::middleware::Decisions), with the
    /// decisions of all policies by name, into an admitted request; and [`Rejected`](crate::middleware::Rejected), for
    /// outer layers, into the response to a denied request. The default is `false`, since each extension costs up to
    /// three allocations.
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

    /// Sets the function that makes the responses to rejected calls. Its arguments are the rejection, and the request
    /// without its body. `Retry-After` and the header fields are added to the response, unless they are switched off.
    /// Fields that the function sets are kept. gRPC callers still get the standard gRPC responses.
    ///
    /// The response's body is text, bytes or `()`. With the feature `axum`, it can also be axum's body, if the service
    /// uses that type.
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
    /// Leaves the body type of an axum app as it is: [`axum::body::Body`], rather than a
    /// [`ResponseBody`](crate::middleware::ResponseBody) around it.
    ///
    /// The body of an admitted response is passed on unchanged, so axum does not box it again; only the body of a call
    /// that holds a permit is wrapped. With this, the layer can be used where a layer must not change the type of
    /// responses, such as tower's `option_layer` and `BoxCloneSyncServiceLayer`.
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

/// Returns whether clients at once follow a response with this status to another URI, where another limit may apply.
/// This is true for redirects, but not for 304.
fn is_followed(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}
