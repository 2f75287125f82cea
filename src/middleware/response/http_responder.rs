use std::cmp::Reverse;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use super::grpc;
use super::headers;
use super::options::{BodyFormat, GrpcMode, HeaderFormat, Options, SendHeaders};
use super::rejection_body::{DefaultRejection, RejectionFn, RejectionResponse};
use super::request_head::RequestHead;
use super::structured_field;
use crate::decision::Decision;
use crate::middleware::body::ResponseBody;
use crate::middleware::drain::{self, Drain, LeaveUnread, UnreadBody};
use crate::middleware::formats::Draft;
use crate::middleware::policy::shadow::ShadowDenied;
use crate::middleware::response::{PolicyReport, Rejection, Responder};
use crate::store::Permit;

/// A responder that answers rejected HTTP requests and never changes the service's error type.
///
/// | the call was | HTTP | gRPC (by content type) |
/// |---|---|---|
/// | denied | 429, `Retry-After` (whole seconds, rounded up, at least 1; absent if waiting does not help), problem+json or text | 8 `RESOURCE_EXHAUSTED` |
/// | without a valid key, because of the [client](crate::key::KeyError::is_invalid) | 400, problem+json | 3 `INVALID_ARGUMENT` |
/// | without a key, because of a configuration mistake | 500, problem+json without details: the log (feature `tracing`) says how to fix it | 13 `INTERNAL` |
/// | from a [forbidden](crate::key::KeyError::forbidden) caller | 403, problem+json | 7 `PERMISSION_DENIED` |
/// | not decided, because the store failed | 503, problem+json | 14 `UNAVAILABLE` |
/// | rejected, because the limiter was [closed](crate::limiter::RateLimiter::close) | 503, problem+json | 14 `UNAVAILABLE` |
///
/// A gRPC caller that was denied finds the exact wait in `grpc-status-details-bin` (a `RetryInfo`, and a `QuotaFailure`
/// that names the policies), and in `grpc-retry-pushback-ms` if it is no longer than a minute; that is -1 if the wait is
/// longer or waiting does not help, so that clients do not use up their attempts. The response is one frame of headers
/// (trailers-only), so that clients respect it.
///
/// If calls are queued, a gRPC call waits no longer than its `grpc-timeout`: a call that would be admitted later is
/// rejected at once. The [`Decision`] of an admitted call is in its request's extensions. If there are several policies,
/// it is that of the policy that delayed the call longest, or else of the one nearest to exhaustion.
///
/// Responses to admitted and to denied calls carry `RateLimit` and `RateLimit-Policy`, in the form of
/// draft-ietf-httpapi-ratelimit-headers-11, except redirects (3xx except 304). They are added to existing fields and never
/// replace them; a policy that the inner service already reports with the same name is left out. A rejection of a `HEAD`
/// request has no body.
///
/// Each rejection carries `Cache-Control: no-store`, unless a custom response sets another. If the wait is unknown (calls
/// in progress, a limiter that was closed, a store that failed), `Retry-After` is
/// [one second](Self::retry_after_unknown). Clients that prefer `text/html`, as browsers do, get one line of text instead of
/// JSON. The body of a rejected request is not read: over HTTP/1.x, the response then has `Connection: close`, unless the
/// body is [drained](Self::drain).
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
pub struct HttpResponder<F = DefaultRejection, D = LeaveUnread> {
    pub(in crate::middleware) options: Options,
    pub(in crate::middleware) answer: F,
    pub(in crate::middleware) unread: D,
}

impl HttpResponder {
    /// Creates a responder with the responses described above.
    #[must_use]
    pub const fn new() -> Self {
        Self { options: Options::new(), answer: DefaultRejection, unread: LeaveUnread }
    }
}

impl Default for HttpResponder {
    fn default() -> Self {
        Self::new()
    }
}

impl<F, D> HttpResponder<F, D> {
    /// Sets the formats of the header fields that report limits to callers. The default is [`HeaderFormat::Draft11`]. If
    /// there are several drafts, the last one is used; the same holds for [custom](HeaderFormat::Custom) names.
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

    /// Sets which responses carry these header fields. The default is [all](SendHeaders::Always). `Retry-After` has its own
    /// [switch](Self::retry_after).
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

    /// Sets the maximum random time that is added to the wait reported to each rejected caller, so that clients that were
    /// rejected together do not retry together. The reported wait is never less than the true wait, unless that is
    /// [bounded](Self::max_reported_wait), and it is the same in all fields of the response. The default is zero.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::HttpResponder;
    ///
    /// // callers that are rejected at the same time come back within ten seconds, not in the same one
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

    /// Sets which requests are rejected with a gRPC response. The default is to detect them by their [content
    /// type](GrpcMode::ByContentType).
    #[must_use]
    pub const fn grpc(mut self, grpc: GrpcMode) -> Self {
        self.options.grpc = grpc;
        self
    }

    /// Sets whether the [`Decision`] is inserted into the request's extensions, for handlers. The default is `true`. It
    /// costs an allocation.
    #[must_use]
    pub const fn insert_extension(mut self, enabled: bool) -> Self {
        self.options.insert_extension = enabled;
        self
    }

    /// Sets a function that makes the responses to rejected calls, from the rejection and the request without its body.
    /// `Retry-After` and the header fields are added to its response, unless switched off; what the function sets itself
    /// stays. gRPC callers still get the standard gRPC responses.
    ///
    /// The response's body is text, bytes or `()`; with the feature `axum`, also axum's body, if the service uses it.
    #[must_use]
    pub fn rejection_response<G, T>(self, answer: G) -> HttpResponder<RejectionFn<G>, D>
    where
        G: Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<T>,
    {
        HttpResponder { options: self.options, answer: RejectionFn::new(answer), unread: self.unread }
    }
}

impl<ReqBody, ResBody, Err, F, D> Responder<Request<ReqBody>, Response<ResBody>, Err> for HttpResponder<F, D>
where
    F: RejectionResponse<ResBody>,
    D: UnreadBody<ReqBody>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = Err;

    #[inline]
    fn map_response(&self, reports: &[PolicyReport<'_>], mut response: Response<ResBody>) -> Self::Response {
        let is_due = matches!(self.options.send_headers, SendHeaders::Always | SendHeaders::OnAdmission);
        if is_due && !is_followed(response.status()) {
            headers::add_fields(response.headers_mut(), reports, &self.options, None);
        }
        response.map(ResponseBody::inner)
    }

    fn max_wait(&self, request: &Request<ReqBody>) -> Option<Duration> {
        match self.options.grpc {
            GrpcMode::Never => None,
            GrpcMode::Always => grpc::timeout(request.headers()),
            GrpcMode::ByContentType => {
                grpc::content_type(request.headers()).and_then(|_| grpc::timeout(request.headers()))
            }
        }
    }

    /// Inserts the decision that matters most, of all policies in this layer and in outer ones.
    #[inline]
    fn on_admit(&self, request: &mut Request<ReqBody>, reports: &[PolicyReport<'_>]) {
        if !self.options.insert_extension {
            return;
        }
        let urgency = |decision: &Decision| (decision.delay(), Reverse(decision.remaining()));
        let Some(decision) =
            reports.iter().map(PolicyReport::decision).max_by_key(|decision| urgency(decision))
        else {
            return;
        };
        let known = request.extensions().get::<Decision>();
        if known.is_none_or(|known| urgency(known) <= urgency(decision)) {
            request.extensions_mut().insert(*decision);
        }
    }

    fn on_shadow_deny(&self, request: &mut Request<ReqBody>, denial: &Decision) {
        request.extensions_mut().insert(ShadowDenied(*denial));
    }

    fn hold_permit(&self, response: Self::Response, permit: Permit) -> Self::Response {
        response.map(|body| body.holding(permit))
    }

    #[inline]
    fn map_error(&self, error: Err) -> Err {
        error
    }

    fn reject(&self, request: &Request<ReqBody>, rejection: Rejection<'_>) -> Result<Self::Response, Err> {
        let options = &self.options;
        let waits = options.waits(&rejection);
        let grpc_type = grpc::response_content_type(request.headers(), options.grpc);
        let is_grpc = grpc_type.is_some();
        let mut answer = match grpc_type {
            Some(content_type) => {
                grpc::rejection(content_type, &rejection, waits.wait).map(|()| ResponseBody::empty())
            }
            None => {
                let shape = options.shape(&rejection, request.headers());
                let (answer, length) = self.answer.answer(&rejection, &RequestHead::new(request), shape);
                if request.method() == Method::HEAD { without_body(answer, length) } else { answer }
            }
        };
        let is_followed = is_followed(answer.status());
        let headers = answer.headers_mut();
        // A cache that stores it would reject other callers, and the same caller later.
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        // If the wait is unknown, gRPC clients use their pushback.
        if let Some(wait) = waits.wait.or_else(|| options.hint(&rejection).filter(|_| !is_grpc)) {
            if options.retry_after {
                headers.entry(RETRY_AFTER).or_insert_with(|| structured_field::delay(wait));
            }
            if options.retry_after_ms {
                headers.entry(RETRY_AFTER_MS).or_insert_with(|| structured_field::delay_millis(wait));
            }
        }
        if let Rejection::Limited(reports) = rejection
            && !rejection.is_unavailable()
            && matches!(options.send_headers, SendHeaders::Always | SendHeaders::OnRejection)
            && !is_followed
        {
            headers::add_fields(headers, reports, options, Some(waits));
        }
        if drain::announces_body(request) {
            drain::close(&mut answer, D::IS_READ);
        }
        Ok(answer)
    }

    #[inline]
    fn drain(&self, request: Request<ReqBody>) -> Option<Drain> {
        self.unread.drain(request)
    }

    fn drained(&self, answer: &mut Self::Response) {
        drain::keep_open(answer);
    }
}

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Returns whether clients follow the response at once to another URI, where another limit may apply. A 304 is not
/// followed.
fn is_followed(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}

/// Sets `Content-Length` to the length of the body, and removes the body.
fn without_body<B>(response: Response<ResponseBody<B>>, length: Option<u64>) -> Response<ResponseBody<B>> {
    let (mut parts, _) = response.into_parts();
    if let Some(length) = length {
        parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    Response::from_parts(parts, ResponseBody::empty())
}
