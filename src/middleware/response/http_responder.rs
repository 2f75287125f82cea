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

/// Answers refused HTTP requests, and never changes the service's error type.
///
/// | the call was | HTTP | gRPC (by content type) |
/// |---|---|---|
/// | denied | 429, `Retry-After` (whole seconds, rounded up, at least 1; absent where waiting does not help), problem+json or text | 8 `RESOURCE_EXHAUSTED` |
/// | without a key, by a mistake of the [client](crate::key::KeyError::is_invalid) | 400, problem+json | 3 `INVALID_ARGUMENT` |
/// | without a key, by a mistake of the configuration | 500, problem+json that names nothing: the log (feature `tracing`) names the fix | 13 `INTERNAL` |
/// | of a caller that is [not served](crate::key::KeyError::forbidden) | 403, problem+json | 7 `PERMISSION_DENIED` |
/// | not decided, since the store failed | 503, problem+json | 14 `UNAVAILABLE` |
/// | refused, since the limiter was [closed](crate::limiter::RateLimiter::close) | 503, problem+json | 14 `UNAVAILABLE` |
///
/// A gRPC caller that was denied finds the exact wait in `grpc-status-details-bin` (a `RetryInfo`, and a `QuotaFailure` that
/// names the policies), and in `grpc-retry-pushback-ms` if it is no longer than a minute; that is -1 where it is longer or no
/// wait will ever help, so that clients do not use up their attempts. The answer is one frame of headers (trailers-only), so
/// that clients heed it.
///
/// Where calls wait in line, a gRPC call waits no longer than its `grpc-timeout`: one whose turn would come later is
/// refused at once. The [`Decision`] on a call that was admitted is in its request's extensions: of several policies,
/// the one that held it longest, or else is nearest to exhaustion.
///
/// Answers to admitted and to denied calls carry `RateLimit` and `RateLimit-Policy`, in the form of
/// draft-ietf-httpapi-ratelimit-headers-11, but redirects (3xx without 304). They are added to what is there, never put in
/// its place; a policy that the service behind tells of by the same name is left out. A `HEAD` is refused without a body.
///
/// Each refusal carries `Cache-Control: no-store`, unless an answer of one's own sets another. Where nothing tells how long
/// to wait (calls in progress, a limiter that was closed, a store that failed), `Retry-After` is
/// [one second](Self::retry_after_unknown). Clients that prefer `text/html`, as browsers do, get one line of text instead of
/// JSON. The body of a refused request is not read: over HTTP/1.x, the answer then says `Connection: close`, unless the body
/// is [drained](Self::drain).
///
/// Each of that can be told otherwise:
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
///         let text = format!("{} has to wait, says the bouncer\n", head.uri().path());
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
    /// With the answers described above.
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
    /// In which forms callers are told of their limits; [`HeaderFormat::Draft11`] unless set. Of several drafts the last one
    /// counts, and of several [custom](HeaderFormat::Custom) names, too.
    #[must_use]
    pub fn headers(mut self, fields: impl IntoIterator<Item = HeaderFormat>) -> Self {
        let options = &mut self.options;
        (options.draft, options.legacy, options.custom, options.retry_after_ms) = (None, None, None, false);
        for form in fields {
            match form {
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

    /// Which answers carry them; [all](SendHeaders::Always) unless set. `Retry-After` has a [switch](Self::retry_after) of its
    /// own.
    #[must_use]
    pub const fn send_headers(mut self, send_headers: SendHeaders) -> Self {
        self.options.send_headers = send_headers;
        self
    }

    /// Whether refusals carry `Retry-After`; they do unless set.
    #[must_use]
    pub const fn retry_after(mut self, outcome: bool) -> Self {
        self.options.retry_after = outcome;
        self
    }

    /// Tells each refused caller to wait up to `most` longer, at random: so that those who were refused together do not
    /// come back together. Never less than the true wait, unless that is [bounded](Self::max_reported_wait), and the same in
    /// all that the answer says of it. Zero unless set.
    #[must_use]
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.options.jitter = most;
        self
    }

    /// What stands in the body of a refusal; problem details or text, [as the client prefers](BodyFormat::ByAccept), unless
    /// set.
    #[must_use]
    pub const fn body(mut self, format: BodyFormat) -> Self {
        self.options.body = format;
        self
    }

    /// Which callers are answered as gRPC has it; those whose [content type](GrpcMode::ByContentType) says so unless set.
    #[must_use]
    pub const fn grpc(mut self, grpc: GrpcMode) -> Self {
        self.options.grpc = grpc;
        self
    }

    /// Whether handlers find the [`Decision`] in the request's extensions; they do unless set. It costs an allocation.
    #[must_use]
    pub const fn insert_extension(mut self, outcome: bool) -> Self {
        self.options.insert_extension = outcome;
        self
    }

    /// Has a function make the refusals, from what was refused and all of the request but its body. `Retry-After` and the
    /// header fields are added after it, unless switched off; what it has set itself stays. gRPC callers are answered as
    /// before.
    ///
    /// The response's body is text, bytes or `()`; with the feature `axum`, also that of axum, if it is the service's.
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

    /// Of several policies, in one layer or in several, the decision that matters most.
    #[inline]
    fn on_admit(&self, request: &mut Request<ReqBody>, reports: &[PolicyReport<'_>]) {
        if !self.options.insert_extension {
            return;
        }
        let urgency = |decision: &Decision| (decision.delay(), Reverse(decision.remaining()));
        let Some(most) = reports.iter().map(PolicyReport::decision).max_by_key(|decision| urgency(decision))
        else {
            return;
        };
        let known = request.extensions().get::<Decision>();
        if known.is_none_or(|known| urgency(known) <= urgency(most)) {
            request.extensions_mut().insert(*most);
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
                let (answer, length) = self.answer.answer(&rejection, &RequestHead::of(request), shape);
                if request.method() == Method::HEAD { without_body(answer, length) } else { answer }
            }
        };
        let is_followed = is_followed(answer.status());
        let headers = answer.headers_mut();
        // A cache that keeps it would refuse others, and the same caller later.
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        // Without a wait that is known, gRPC callers go by their pushback.
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

/// Whether clients follow it elsewhere at once, where another limit may hold. A 304 is followed nowhere.
fn is_followed(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}

/// Tells how long the body would be, and leaves it out.
fn without_body<B>(response: Response<ResponseBody<B>>, length: Option<u64>) -> Response<ResponseBody<B>> {
    let (mut parts, _) = response.into_parts();
    if let Some(length) = length {
        parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    Response::from_parts(parts, ResponseBody::empty())
}
