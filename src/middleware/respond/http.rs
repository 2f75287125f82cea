//! [`HttpResponder`], which answers HTTP and gRPC requests: its options, and the responses that it makes.

use std::cell::Cell;
use std::cmp::Reverse;
use std::time::Duration;

use http::header::{CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use super::accept::prefers_html;
use super::fields::{FieldFormats, HeaderFormat};
use super::grpc::{self, GrpcMode};
use super::rejection_body::{
    BodyFormat, DefaultRejection, RejectHead, RejectionFn, RejectionResponse, RequestHead, Shape, Unset,
};
use super::{Decisions, Pass, PolicyReport, Rejected, Rejection, Responder};
use crate::decision::Decision;
use crate::limiter::Permit;
#[cfg(feature = "axum")]
use crate::middleware::body::AxumBody;
use crate::middleware::body::{OuterBody, ResponseBody, WrapBody};
use crate::middleware::drain::{self, Drain, DrainBody, LeaveUnread, UnreadBody};
use crate::middleware::field_values::{NO_STORE, retry_after, retry_after_millis};
use crate::middleware::names::PolicyName;
use crate::middleware::reported::Reported;
use crate::middleware::shadow::ShadowDenied;
use crate::observe::RejectedBy;
use crate::sys::random::random_u64;

/// A responder that answers rejected HTTP and gRPC requests, and keeps the error type of the service.
///
/// | the call was | HTTP | gRPC (by content type) |
/// |---|---|---|
/// | denied | 429 or the [status](Self::denied_status) that you choose, `Retry-After` (whole seconds, rounded up, at least 1; absent if waiting does not help), problem+json or text | 8 `RESOURCE_EXHAUSTED` |
/// | denied, because its key is [locked out](crate::algorithm::Lockout) | as above, or the [status](Self::lockout_status) that you choose | 8 `RESOURCE_EXHAUSTED`, or 7 `PERMISSION_DENIED` if the status is 403 |
/// | without a valid key, because of the [client](crate::key::KeyError::is_invalid) | 400, problem+json | 3 `INVALID_ARGUMENT` |
/// | without what says [who its caller is](crate::key::KeyError::unauthorized) | 401, `WWW-Authenticate`, problem+json | 16 `UNAUTHENTICATED` |
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
/// draft-ietf-httpapi-ratelimit-headers-11. On an admitted request, a policy that queues requests may be [in
/// `RateLimit-Policy` only](HeaderFormat::Draft11). Redirects (3xx except 304) do not have these fields. Fields that
/// the response already has are kept. If the response already reports a policy of the same name, as with two layers of
/// one name, a number is appended to the name that this layer reports: `default-2`. A rejection of a `HEAD` request has
/// no body.
///
/// Each rejection has `Cache-Control: no-store`, unless a custom response sets another value. If the length of the wait
/// is unknown, `Retry-After` is [one second](Self::retry_after_unknown) by default. The length is unknown if it depends
/// on calls in progress, if the limiter was closed, if its key table is full, or if the store failed. Clients that
/// prefer `text/html`, as browsers do, get one line of text instead of JSON. The body of a rejected request is not
/// read. So, over HTTP/1.x, the response to a request with a body has `Connection: close`, unless the body is
/// [drained](Self::drain). A `POST`, `PUT`, `PATCH` or `QUERY` with neither `Content-Length` nor `Transfer-Encoding` is
/// taken to have a body, whose length an outer layer has removed.
///
/// Most of this can be configured:
///
/// ```
/// use std::time::Duration;
/// use http::{Response, StatusCode};
/// use tower_throttle::middleware::{HeaderFormat, HttpResponder, ResetFormat, SendHeaders};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let responder = HttpResponder::new()
///     .headers([HeaderFormat::XRateLimit(ResetFormat::EpochSeconds)])
///     .send_headers(SendHeaders::OnRejection)
///     .jitter(Duration::from_secs(2))
///     .rejection_response(|rejection, head| {
///         let text = match rejection.status() {
///             StatusCode::TOO_MANY_REQUESTS => {
///                 format!("{} is busy, retry later\n", head.uri().path())
///             }
///             // an invalid, forbidden or missing key, or a limiter that could not decide
///             status => format!("{status}\n"),
///         };
///         let mut response = Response::new(text);
///         *response.status_mut() = rejection.status();
///         response
///     });
/// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder);
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HttpResponder<F = DefaultRejection, D = LeaveUnread, B = WrapBody> {
    options: Options,
    answer: F,
    unread: D,
    body: B,
}

impl HttpResponder {
    /// Creates a responder that makes the responses described in the docs of [`HttpResponder`].
    #[must_use]
    pub const fn new() -> Self {
        Self { options: Options::new(), answer: DefaultRejection, unread: LeaveUnread, body: WrapBody }
    }
}

impl HttpResponder<Unset> {
    /// Creates the responder of a layer whose responder is not set.
    pub(in crate::middleware) const fn unset() -> Self {
        Self { options: Options::new(), answer: Unset, unread: LeaveUnread, body: WrapBody }
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
        self.options.formats = FieldFormats::of(formats);
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
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, routing::get};
    /// use tower_throttle::middleware::Decisions;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// async fn hello(decisions: Decisions) -> String {
    ///     let left = decisions.get("per-ip").map_or(0, |decision| decision.remaining());
    ///     format!("{left} calls left\n")
    /// }
    ///
    /// let app: Router = Router::new().route("/", get(hello)).layer(
    ///     RateLimitLayer::per_ip(Quota::per_minute(100))
    ///         .name("per-ip")
    ///         .responder(HttpResponder::new().insert_details(true)),
    /// );
    /// # }
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
    /// Each rejection of the layer gets this response, and not only those with 429: a request whose key is invalid
    /// (400), whose caller is forbidden (403), that lacks its key because of a mistake in the configuration (500), or
    /// that the limiter could not decide (503). So the function must not write "too many requests" for all of them: it
    /// matches on the status, or on the [`Rejection`]. The variant `Limited` has the status 503 if a limiter was
    /// closed, or if its key table is full, as [`is_closed`](crate::Decision::is_closed) and
    /// [`is_table_full`](crate::Decision::is_table_full) of its decisions tell.
    ///
    /// The [status](Rejection::status), the [wait](Rejection::retry_after) and the [waits of the
    /// policies](PolicyReport::window) that the function reads are those of the default response with the same options.
    /// So a body that contains the wait agrees with `Retry-After`:
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderValue, Response, StatusCode};
    /// use tower_throttle::HttpResponder;
    ///
    /// let responder = HttpResponder::new().jitter(Duration::from_secs(10)).rejection_response(
    ///     |rejection, _| {
    ///         // rounded up to seconds, as in `Retry-After`
    ///         let wait =
    ///             rejection.retry_after().map(|wait| wait.as_nanos().div_ceil(1_000_000_000));
    ///         let body = match (rejection.status(), wait) {
    ///             (StatusCode::TOO_MANY_REQUESTS, Some(wait)) => {
    ///                 format!("{{\"error\":\"rate limited\",\"retry_after\":{wait}}}")
    ///             }
    ///             // 400, 403, 500, 503, or a 429 whose wait is unknown
    ///             (status, _) => format!("{{\"error\":\"{status}\"}}"),
    ///         };
    ///         let mut response = Response::new(body);
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///             .headers_mut()
    ///             .insert("content-type", HeaderValue::from_static("application/json"));
    ///         response
    ///     },
    /// );
    /// ```
    ///
    /// No `Content-Type` is added. A wait in milliseconds is rounded up as well, by `div_ceil(1_000_000)`, and agrees
    /// with [`retry-after-ms`](HeaderFormat::RetryAfterMs); rounded down, it would be too early. Inside
    /// `Router::nest`, the path of the request lacks the prefix, which axum's `OriginalUri` in its extensions has.
    ///
    /// The body of the response is a string, bytes or `()`. With the feature `axum`, the body can also be
    /// `axum::body::Body`, if this is the body type of the service, or with `axum_body`.
    #[must_use]
    pub fn rejection_response<G, T>(self, answer: G) -> HttpResponder<RejectionFn<G>, D, B>
    where
        G: Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<T>,
    {
        let Self { options, unread, body, .. } = self;
        HttpResponder { options, answer: RejectionFn::new(answer), unread, body }
    }

    /// Sets the `Retry-After` of a rejection if waiting helps, but the length of the wait is unknown. The length is
    /// unknown if it depends on calls in progress, if the limiter was closed, if its key table is full, or if the store
    /// failed. The default is one second. With `None`, such a rejection has no `Retry-After`, and many clients then
    /// retry at once.
    ///
    /// The time is a hint, and is sent only in `Retry-After` and `retry-after-ms`. If several policies denied the call,
    /// and the wait of some of them is known, the hint is raised to the longest known wait. The [jitter](Self::jitter)
    /// is added to the hint, and the [maximum reported wait](Self::max_reported_wait) caps the sum. A request gets no
    /// hint if it has no valid key, or if its caller is forbidden. It gets none either if it costs more than a limit
    /// can ever admit, unless the limiter of another policy is closed or its key table is full. gRPC responses have no
    /// hint, because gRPC clients read other fields.
    #[must_use]
    pub const fn retry_after_unknown(mut self, hint: Option<Duration>) -> Self {
        self.options.retry_after_unknown = hint;
        self
    }

    /// Sets the maximum wait that a rejection reports in its header fields and in its gRPC details. If the true wait is
    /// longer than `max`, a client retries after `max`, and may be rejected again. By default there is no maximum.
    #[must_use]
    pub const fn max_reported_wait(mut self, max: Duration) -> Self {
        self.options.max_reported_wait = max;
        self
    }

    /// Sets the status of the rejection of a denied request, from 400 to 599. The default is 429. A request that costs
    /// more than a limit can ever admit has a [status of its own](Self::never_fits_status), and so has one whose key is
    /// locked out, if [`lockout_status`](Self::lockout_status) is called.
    ///
    /// Status 429 says that *this caller* has sent too many requests. If all callers share a limit, such as one for the
    /// requests in progress, status 503 says that the server is busy. The rest of the response stays the same. gRPC
    /// calls get `RESOURCE_EXHAUSTED` with any status. In joined layers, the status is that of all their denials.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_throttle::algorithm::Concurrency;
    /// use tower_throttle::key::Global;
    /// use tower_throttle::{HttpResponder, RateLimitLayer};
    ///
    /// let busy = HttpResponder::new().denied_status(StatusCode::SERVICE_UNAVAILABLE);
    /// let layer = RateLimitLayer::new(Global, Concurrency::per_key(100)).responder(busy);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `status` is not from 400 to 599. In a constant, this is an error of the compiler:
    ///
    /// ```compile_fail
    /// use http::StatusCode;
    /// use tower_throttle::HttpResponder;
    ///
    /// const FINE: HttpResponder = HttpResponder::new().denied_status(StatusCode::OK);
    /// ```
    #[must_use]
    #[track_caller]
    pub const fn denied_status(mut self, status: StatusCode) -> Self {
        assert_is_error(status);
        self.options.denied_status = status;
        self
    }

    /// Sets the status of the rejection of a request that costs more than a limit can ever admit, so that waiting does
    /// not help. The default is 429. Many clients retry any 429, but not a 413. The setting does not apply to gRPC
    /// responses. A [custom response](Self::rejection_response) has the status that its function sets, which can be
    /// [`Rejection::status`].
    ///
    /// If the request does not fit one of several policies, the whole rejection has this status, unless the limiter of
    /// another one is closed or its key table is full, or the rejection has the status of a
    /// [lockout](Self::lockout_status).
    ///
    /// # Panics
    ///
    /// Panics if `status` is not from 400 to 599.
    #[must_use]
    #[track_caller]
    pub const fn never_fits_status(mut self, status: StatusCode) -> Self {
        assert_is_error(status);
        self.options.never_fits_status = status;
        self
    }

    /// Sets the status of the rejection of a request whose key is [locked out](crate::Decision::is_locked_out). The
    /// default is that of any other [denial](Self::denied_status). If this method sets 403, gRPC calls get the code
    /// `PERMISSION_DENIED`, and otherwise `RESOURCE_EXHAUSTED`.
    ///
    /// Such a rejection reports its wait as any other denial does: `Retry-After` is the rest of the lockout. If one of
    /// several policies locks the key out, the whole rejection has this status, unless the limiter of another one is
    /// closed or its key table is full.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::StatusCode;
    /// use tower_throttle::algorithm::{Algorithm, FixedWindow};
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let logins =
    ///     FixedWindow::new(Quota::per_minute(5)).block_for(Duration::from_secs(3_600)).after(10);
    /// let layer = RateLimitLayer::new(PeerIp::new(), logins)
    ///     .responder(HttpResponder::new().lockout_status(StatusCode::FORBIDDEN));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `status` is not from 400 to 599.
    #[must_use]
    #[track_caller]
    pub const fn lockout_status(mut self, status: StatusCode) -> Self {
        assert_is_error(status);
        self.options.lockout_status = Some(status);
        self
    }

    /// Sets the format of the body of a rejection that has the [status](Self::never_fits_status) of a request that does
    /// not fit. The default is the [format](Self::body) of all other rejections.
    #[must_use]
    pub const fn never_fits_body(mut self, format: BodyFormat) -> Self {
        self.options.never_fits_body = Some(format);
        self
    }

    /// Lets the responder read and discard the body of a rejected request before the response is returned. At most
    /// `max_bytes` of the body are read, for at most `max_time`. By default the body is not read. Over HTTP/1.x, the
    /// response then has `Connection: close`.
    ///
    /// A client that is still sending its body when the server closes the connection may lose the response. A proxy in
    /// this situation may return 502 to its own client. Over HTTP/2, hyper ends the connection, with the requests of
    /// all others on it, after too much data for streams whose bodies were left unread. If the body is read to its end,
    /// the client gets the response, and the connection can be used again. The guide has figures: [behind a
    /// proxy](crate::guide::proxy#uploads).
    ///
    /// If `Content-Length` is above `max_bytes`, or if the client sent [`Expect`](http::header::EXPECT) over HTTP/1.x,
    /// the response is returned at once. If reading shows that the body is too long, takes too much time or fails, the
    /// response is returned at that point. If the runtime's thread stood still past `max_time`, what has arrived
    /// meanwhile is still read, for at most `max_time` more. This responder and its clones together read at most 1,024
    /// bodies at the same time. Further bodies are left unread. A body that is not read to its end is treated as
    /// without `drain`: over HTTP/1.x, the response has `Connection: close`. A request that keeps its body open until
    /// it is answered, such as a bidirectional gRPC stream, is rejected after `max_time`.
    ///
    /// The body itself tells whether it is empty. So a body that an outer layer has decompressed is read, and its
    /// decompressed bytes count. A body that an outer layer has read already is not read again.
    ///
    /// The request's body must be an [`http_body::Body`] that is `Send` and `'static`, as the bodies of axum, hyper and
    /// tonic are.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let responder = HttpResponder::new().drain(2 * 1024 * 1024, Duration::from_millis(500));
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    ///
    /// # Panics
    ///
    /// The method itself does not panic. But the limited service panics if it has to read the body of a rejected
    /// request outside a tokio runtime whose timer is enabled.
    #[must_use]
    pub fn drain(self, max_bytes: u64, max_time: Duration) -> HttpResponder<F, DrainBody, B> {
        let unread = DrainBody::new(max_bytes, max_time);
        HttpResponder { options: self.options, answer: self.answer, unread, body: self.body }
    }
}

#[cfg(feature = "axum")]
impl<F, D, B> HttpResponder<F, D, B> {
    /// Gives all responses axum's body, [`axum::body::Body`]. See
    /// [`RateLimitLayer::axum_body`](crate::RateLimitLayer::axum_body).
    ///
    /// The function of a [custom response](Self::rejection_response) can then return a response with this body,
    /// whatever the body type of the inner service is.
    ///
    /// ```
    /// use axum::response::IntoResponse;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let responder = HttpResponder::new()
    ///     .axum_body()
    ///     .rejection_response(|rejection, _| (rejection.status(), "later\n").into_response());
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn axum_body(self) -> HttpResponder<F, D, AxumBody> {
        HttpResponder { options: self.options, answer: self.answer, unread: self.unread, body: AxumBody }
    }
}

/// A responder whose responses can have axum's body. Only this crate implements the trait.
#[cfg(feature = "axum")]
pub trait IntoAxumBody {
    #[doc(hidden)]
    type Responder;

    #[doc(hidden)]
    fn into_axum_body(self) -> Self::Responder;
}

#[cfg(feature = "axum")]
impl<F, D, B> IntoAxumBody for HttpResponder<F, D, B> {
    type Responder = HttpResponder<F, D, AxumBody>;

    fn into_axum_body(self) -> Self::Responder {
        self.axum_body()
    }
}

/// The responses that have the header fields that report limits. With any of these values, the fields are left out of
/// redirects (3xx except 304), and out of rejections for another reason than a limit, such as a missing key or a closed
/// limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendHeaders {
    /// Responses to admitted calls and to denied calls.
    #[default]
    Always,
    /// Responses to denied calls.
    OnRejection,
    /// Responses to admitted calls.
    OnAdmission,
    /// No responses.
    Never,
}

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

impl<ReqBody, ResBody, Err, F, D, B> Responder<Request<ReqBody>, Response<ResBody>, Err>
    for HttpResponder<F, D, B>
where
    F: RejectionResponse<B::Custom>,
    D: UnreadBody<ReqBody>,
    B: OuterBody<ResBody>,
{
    type Response = Response<B::Body>;
    type Error = Err;

    const PASS: Option<Pass<Response<ResBody>, Err, Self::Response, Err>> =
        Some(|polled| polled.map_ok(|response| response.map(|body| B::admitted(body, Permit::default()))));
    const DRAINS: bool = D::IS_READ;

    #[inline]
    fn passes(&self) -> bool {
        !self.options.reports_admissions()
    }

    #[inline]
    fn admits_as_is(&self) -> bool {
        !self.options.insert_details && !self.options.insert_extension
    }

    #[inline]
    fn map_response(&self, reports: &[PolicyReport<'_>], response: Response<ResBody>) -> Self::Response {
        let permit = Permit::default();
        <Self as Responder<Request<ReqBody>, _, Err>>::convert(self, reports, response, permit)
    }

    #[inline]
    fn convert(
        &self,
        reports: &[PolicyReport<'_>],
        mut response: Response<ResBody>,
        permit: Permit,
    ) -> Self::Response {
        if self.options.reports_admissions() && !is_followed(response.status()) {
            self.options.formats.add_fields(response.headers_mut(), reports, None);
        }
        response.map(|body| B::admitted(body, permit))
    }

    fn max_wait(&self, request: &Request<ReqBody>) -> Option<Duration> {
        grpc::max_wait(request.headers(), self.options.grpc)
    }

    /// Inserts the most urgent decision of this and of outer layers into the request's extensions: that with the
    /// longest delay, or else with the fewest remaining units.
    #[inline]
    fn on_admit(&self, request: &mut Request<ReqBody>, reports: &[PolicyReport<'_>]) {
        if self.options.insert_details {
            request.extensions_mut().get_or_insert_default::<Decisions>().extend(reports);
        }
        if !self.options.insert_extension {
            return;
        }
        let urgency = |decision: &Decision| (decision.delay(), Reverse(decision.remaining()));
        let Some(decision) =
            reports.iter().map(PolicyReport::decision).max_by_key(|decision| urgency(decision))
        else {
            return;
        };
        let known = request.extensions_mut().insert(*decision);
        if let Some(known) = known.filter(|known| urgency(known) > urgency(decision)) {
            request.extensions_mut().insert(known);
        }
    }

    fn keep_span(&self, request: &mut Request<ReqBody>) {
        if let Some(span) = RejectedBy::current() {
            request.extensions_mut().insert(span);
        }
    }

    fn on_shadow_deny(&self, request: &mut Request<ReqBody>, denial: &Decision) {
        request.extensions_mut().insert(ShadowDenied(*denial));
    }

    fn hold_permit(&self, response: Self::Response, permit: Permit) -> Self::Response {
        response.map(|body| B::holding(body, permit))
    }

    #[inline]
    fn map_error(&self, error: Err) -> Err {
        error
    }

    fn reject(&self, request: &Request<ReqBody>, rejection: Rejection<'_>) -> Result<Self::Response, Err> {
        let grpc_type = grpc::response_content_type(request.headers(), self.options.grpc);
        let must_close = drain::must_close::<D, _>(request);
        let mut is_html = None;
        if F::IS_DEFAULT
            && grpc_type.is_none()
            && !must_close
            && let Some(usual) = self.usual(request, &mut is_html, &rejection)
        {
            return Ok(usual.response::<ResBody, B>());
        }
        let mut answer = self.rejection(&request.into(), is_html, grpc_type, rejection);
        if must_close {
            drain::close(&mut answer, D::IS_READ);
        }
        Ok(answer.map(B::rejected))
    }

    #[inline]
    fn drain(&self, request: Request<ReqBody>) -> Option<Drain> {
        self.unread.drain(request)
    }

    fn drained(&self, answer: &mut Self::Response) {
        drain::keep_open(answer);
    }
}

impl<T, F: RejectionResponse<T>, D, B> RejectHead<T> for HttpResponder<F, D, B> {
    fn reject_head(&self, head: &RequestHead<'_>, rejection: Rejection<'_>) -> Response<ResponseBody<T>> {
        let grpc_type = grpc::response_content_type(head.headers(), self.options.grpc);
        self.rejection(head, None, grpc_type, rejection)
    }
}

impl<F, D, B> HttpResponder<F, D, B> {
    /// Returns the response to a rejected request with this head. `grpc_type` is the content type of the response if it
    /// is a gRPC response. `is_html` says whether the client prefers HTML, if that is known.
    fn rejection<T>(
        &self,
        head: &RequestHead<'_>,
        is_html: Option<bool>,
        grpc_type: Option<HeaderValue>,
        rejection: Rejection<'_>,
    ) -> Response<ResponseBody<T>>
    where
        F: RejectionResponse<T>,
    {
        let (options, is_grpc) = (&self.options, grpc_type.is_some());
        let reported = options.reported(&rejection);
        let reports;
        let rejection = if F::IS_DEFAULT {
            rejection
        } else {
            reports = rejection.reports_with(&reported);
            rejection.reporting(reported, &reports)
        };
        let mut answer = match grpc_type {
            Some(content_type) => {
                let is_forbidden = options.status_of_lockout(&rejection) == Some(StatusCode::FORBIDDEN);
                let answer = grpc::rejection(content_type, &rejection, reported.wait(), is_forbidden);
                answer.map(|()| ResponseBody::empty())
            }
            None => {
                let shape = Shape::new(reported.status(), options.format(&rejection), is_html);
                self.answer.answer(&rejection, head, shape)
            }
        };
        let is_followed = is_followed(answer.status());
        let headers = answer.headers_mut();
        // A cache that stored the rejection could return the rejection to other callers, or to the same caller after
        // the wait.
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        if let Rejection::Key(error) = &rejection
            && let Some(challenge) = error.challenge_value().filter(|_| !is_grpc)
        {
            headers.entry(WWW_AUTHENTICATE).or_insert_with(|| challenge.clone());
        }
        // If the wait is unknown, only HTTP clients get a hint. gRPC clients use the backoff of their own retry policy.
        if let Some(wait) = if is_grpc { reported.wait() } else { reported.retry_after() } {
            if options.retry_after {
                headers.entry(RETRY_AFTER).or_insert_with(|| retry_after(wait));
            }
            if options.formats.has_retry_after_ms() {
                headers.entry(RETRY_AFTER_MS).or_insert_with(|| retry_after_millis(wait));
            }
        }
        if let Rejection::Limited(reports) = rejection
            && !rejection.is_unavailable()
            && matches!(options.send_headers, SendHeaders::Always | SendHeaders::OnRejection)
            && !is_followed
        {
            options.formats.add_fields(headers, reports, Some(reported));
        }
        if let Rejection::Limited(reports) = rejection
            && options.insert_details
            && let Some(rejected) = Rejected::new(reports)
        {
            answer.extensions_mut().insert(rejected);
        }
        answer
    }

    /// Returns the rejection of a request that is not a gRPC request, if the rejection is a usual one. Sets `is_html`
    /// if it asks whether the client prefers HTML.
    #[inline]
    fn usual<'a, ReqBody>(
        &self,
        request: &Request<ReqBody>,
        is_html: &mut Option<bool>,
        rejection: &Rejection<'a>,
    ) -> Option<Usual<'a>> {
        let Rejection::Limited([report]) = rejection else { return None };
        // If the wait is known, the reason for the denial is neither a closed limiter nor a full table nor a cost above
        // the limit.
        let wait = report.decision().retry_after()?.min(self.options.max_reported_wait);
        let label = report.sole_label()?;
        let is_html =
            self.options.body == BodyFormat::ByAccept && *is_html.insert(prefers_html(request.headers()));
        let is_usual = self.options.are_usual()
            && (self.options.lockout_status.is_none() || !report.decision().is_locked_out())
            && !is_html
            && *request.method() != Method::HEAD;
        is_usual.then_some(Usual { report, label, wait })
    }
}

/// A usual rejection, which is a denial by a policy with one limit and the default settings. The header fields of a
/// usual rejection are built once for each policy, and then copied, so that the names of fields are not hashed for each
/// response.
struct Usual<'a> {
    report: &'a PolicyReport<'a>,
    label: &'a PolicyName,
    wait: Duration,
}

impl Usual<'_> {
    /// Returns the response to the rejected request.
    #[inline]
    fn response<ResBody, B: OuterBody<ResBody>>(&self) -> Response<B::Body> {
        let Self { report, label, wait } = *self;
        let mut response = Response::new(B::rejected(ResponseBody::full(label.exceeded_body())));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        label.set_denied_fields(response.headers_mut(), report.decision().remaining(), wait);
        response
    }
}

/// The options of an [`HttpResponder`].
#[derive(Clone, Copy, Debug)]
struct Options {
    formats: FieldFormats,
    send_headers: SendHeaders,
    retry_after: bool,
    /// The value of `Retry-After` if the wait is unknown.
    retry_after_unknown: Option<Duration>,
    /// The maximum wait that is reported.
    max_reported_wait: Duration,
    /// The status of a denial for which no other status is set.
    denied_status: StatusCode,
    /// The status of a rejection if waiting does not help, and no limiter is closed or full. `never_fits_body` is the
    /// format of the body of such a rejection.
    never_fits_status: StatusCode,
    never_fits_body: Option<BodyFormat>,
    /// The status of a denial of a key that is locked out. `None` for the status of any other denial.
    lockout_status: Option<StatusCode>,
    jitter: Duration,
    body: BodyFormat,
    grpc: GrpcMode,
    insert_extension: bool,
    insert_details: bool,
}

impl Options {
    /// Returns whether responses to admitted calls can have header fields that report limits.
    #[inline]
    const fn reports_admissions(&self) -> bool {
        matches!(self.send_headers, SendHeaders::Always | SendHeaders::OnAdmission)
            && self.formats.report_limits()
    }

    const fn new() -> Self {
        Self {
            formats: FieldFormats::new(),
            send_headers: SendHeaders::Always,
            retry_after: true,
            retry_after_unknown: Some(Duration::from_secs(1)),
            max_reported_wait: Duration::MAX,
            denied_status: StatusCode::TOO_MANY_REQUESTS,
            never_fits_status: StatusCode::TOO_MANY_REQUESTS,
            never_fits_body: None,
            lockout_status: None,
            jitter: Duration::ZERO,
            body: BodyFormat::ByAccept,
            grpc: GrpcMode::ByContentType,
            insert_extension: true,
            insert_details: false,
        }
    }

    /// Returns what a rejection reports.
    fn reported(&self, rejection: &Rejection<'_>) -> Reported {
        let status = match self.status_of_lockout(rejection) {
            Some(status) => status,
            None if rejection.never_fits() => self.never_fits_status,
            None => match rejection.status() {
                StatusCode::TOO_MANY_REQUESTS => self.denied_status,
                status => status,
            },
        };
        let wait = rejection.retry_after();
        let hint = if wait.is_none() { self.hint(rejection) } else { None };
        Reported::new(status, wait, hint, jitter(self.jitter), self.max_reported_wait)
    }

    /// Returns the `Retry-After` of a rejection whose wait is unknown, without jitter: the configured hint or, if it is
    /// longer, the longest wait that is known. Returns `None` if no hint is configured, if the call never fits, if it
    /// has no valid key, or if the caller is forbidden.
    fn hint(&self, rejection: &Rejection<'_>) -> Option<Duration> {
        if matches!(rejection, Rejection::Key(_)) || rejection.never_fits() {
            return None;
        }
        Some(self.retry_after_unknown?.max(rejection.known_wait().unwrap_or_default()))
    }

    /// Returns the status of a rejection if it is for a lockout, and if a status is configured for lockouts.
    fn status_of_lockout(&self, rejection: &Rejection<'_>) -> Option<StatusCode> {
        self.lockout_status.filter(|_| rejection.is_locked_out() && !rejection.is_unavailable())
    }

    /// Returns the format of the body of a rejection.
    fn format(&self, rejection: &Rejection<'_>) -> BodyFormat {
        match self.never_fits_body {
            Some(format) if rejection.never_fits() && self.status_of_lockout(rejection).is_none() => format,
            _ => self.body,
        }
    }

    /// Returns whether a usual rejection has the fields, the body and the extensions that these options ask for, and no
    /// others.
    fn are_usual(&self) -> bool {
        self.formats.is_default()
            && self.denied_status == StatusCode::TOO_MANY_REQUESTS
            && self.retry_after
            && !self.insert_details
            && self.jitter.is_zero()
            && matches!(self.send_headers, SendHeaders::Always | SendHeaders::OnRejection)
            && matches!(self.body, BodyFormat::ByAccept | BodyFormat::ProblemJson)
    }
}

/// Panics if a rejection cannot have this status, because it is not that of an error.
#[track_caller]
const fn assert_is_error(status: StatusCode) {
    assert!(
        matches!(status.as_u16(), 400..=599),
        "a rejection has a status from 400 to 599, such as 429 or 503"
    );
}

/// Returns whether clients follow a response with this status by a request to another URI, to which another limit may
/// apply. The result is `true` for all 3xx statuses except 304.
#[inline]
fn is_followed(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}

/// Returns a uniformly random duration from zero to `max`, inclusive. It is added to reported waits, so that clients
/// that were rejected together do not retry together.
fn jitter(max: Duration) -> Duration {
    if max.is_zero() {
        return max;
    }
    let nanos = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    let spread = (u128::from(random()) * (u128::from(nanos) + 1)) >> 64;
    Duration::from_nanos(u64::try_from(spread).unwrap_or(nanos))
}

thread_local! {
    static STATE: Cell<u64> = Cell::new(random_u64() | 1);
}

/// Returns a random number, computed by xorshift64* (Vigna, 2016). The numbers are uniform, but they can be predicted,
/// so they must not be used for secrets.
fn random() -> u64 {
    STATE.with(|state| {
        let mut word = state.get();
        word ^= word >> 12;
        word ^= word << 25;
        word ^= word >> 27;
        state.set(word);
        word.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{AlgorithmInfo, TokenBucket};
    use crate::decision::Decision;
    use crate::limiter::Reservation;
    use crate::middleware::info::PolicyInfo;
    use crate::middleware::outcome::Outcome;
    use crate::quota::Quota;
    use std::convert::Infallible;

    #[test]
    fn a_usual_rejection_is_the_same_as_any_other() {
        let info = PolicyInfo::new(AlgorithmInfo::of(&TokenBucket::new(Quota::per_minute(7))));
        let usual = HttpResponder::new().max_reported_wait(Duration::from_secs(5_000));
        // With this option, the response has an extension, and is not made from the prebuilt fields.
        let other = usual.insert_details(true);
        for wait in [0, 1, 999_999_999, 1_000_000_000, 1_000_000_001, 2_500_000_000_000, u64::MAX - 1] {
            for remaining in [0, 3] {
                let denial = Decision::deny(7, remaining, Some(wait), wait);
                let outcome = Outcome::new(denial, false, Reservation::default());
                let reports = [PolicyReport::new(&info, &outcome)];
                let answer = |responder: HttpResponder| {
                    let rejection = Rejection::Limited(&reports);
                    let is_usual = responder.usual(&Request::new(()), &mut None, &rejection).is_some();
                    let answer: Result<Response<ResponseBody<()>>, Infallible> =
                        responder.reject(&Request::new(()), rejection);
                    let (head, body) = answer.unwrap().into_parts();
                    (is_usual, format!("{} {:?} {body:?}", head.status, head.headers))
                };
                let ((is_usual, response), (is_other_usual, expected)) = (answer(usual), answer(other));
                assert!(is_usual && !is_other_usual);
                assert_eq!(response, expected);
            }
        }
    }

    #[test]
    fn a_rejection_has_no_status_that_says_that_all_is_well() {
        const BUSY: HttpResponder = HttpResponder::new().denied_status(StatusCode::SERVICE_UNAVAILABLE);
        type Set = fn(HttpResponder, StatusCode) -> HttpResponder;
        let all: [Set; 3] =
            [HttpResponder::denied_status, HttpResponder::never_fits_status, HttpResponder::lockout_status];
        for set in all {
            for (status, is_allowed) in [
                (200, false),
                (302, false),
                (399, false),
                (400, true),
                (429, true),
                (599, true),
                (600, false),
            ] {
                let status = StatusCode::from_u16(status).unwrap();
                let is_set = std::panic::catch_unwind(|| set(BUSY, status)).is_ok();
                assert_eq!(is_set, is_allowed, "{status}");
            }
        }
    }

    #[test]
    fn jitter_is_uniform_between_zero_and_the_maximum() {
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
        let max = Duration::from_nanos(9);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[jitter(max).as_nanos() as usize] += 1;
        }
        // Each value is expected a thousand times; the bounds are six standard deviations.
        assert!(seen.iter().all(|count| (820..1_180).contains(count)), "{seen:?}");
        assert!(jitter(Duration::MAX) > Duration::ZERO);
    }
}
