use std::cmp::Reverse;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use super::answer::{Answer, Custom, Standard};
use super::body::ResponseBody;
use super::drain::{self, Drain, LeaveUnread, UnreadBody};
use super::formats::Draft;
use super::grpc;
use super::head::Head;
use super::options::{BodyFormat, Fields, Grpc, Options, When};
use super::responder::{Refusal, Report, Responder};
use super::shadow::ShadowDenial;
use super::{field, headers};
use crate::decision::Decision;
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
/// use tower_throttle::middleware::{Fields, HttpResponder, Reset, When};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let responder = HttpResponder::new()
///     .fields([Fields::XRateLimit(Reset::EpochSeconds)])
///     .when(When::OnRejection)
///     .jitter(Duration::from_secs(2))
///     .answer(|refusal, head| {
///         let text = format!("{} has to wait, says the bouncer\n", head.uri().path());
///         let mut response = Response::new(text);
///         *response.status_mut() = refusal.status();
///         response
///     });
/// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).responder(responder);
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HttpResponder<F = Standard, D = LeaveUnread> {
    pub(super) options: Options,
    pub(super) answer: F,
    pub(super) unread: D,
}

impl HttpResponder {
    /// With the answers described above.
    #[must_use]
    pub const fn new() -> Self {
        Self { options: Options::new(), answer: Standard, unread: LeaveUnread }
    }
}

impl Default for HttpResponder {
    fn default() -> Self {
        Self::new()
    }
}

impl<F, D> HttpResponder<F, D> {
    /// In which forms callers are told of their limits; [`Fields::Draft11`] unless set. Of several drafts the last one
    /// counts, and of several [custom](Fields::Custom) names, too.
    #[must_use]
    pub fn fields(mut self, fields: impl IntoIterator<Item = Fields>) -> Self {
        let options = &mut self.options;
        (options.draft, options.legacy, options.custom, options.retry_after_ms) = (None, None, None, false);
        for form in fields {
            match form {
                Fields::Draft11 => options.draft = Some(Draft::V11),
                Fields::Draft07 => options.draft = Some(Draft::V07),
                Fields::Draft06 => options.draft = Some(Draft::V06),
                Fields::XRateLimit(reset) => options.legacy = Some(reset),
                Fields::Custom(names) => options.custom = Some(names),
                Fields::RetryAfterMs => options.retry_after_ms = true,
            }
        }
        self
    }

    /// Which answers carry them; [all](When::Always) unless set. `Retry-After` has a [switch](Self::retry_after) of its
    /// own.
    #[must_use]
    pub const fn when(mut self, when: When) -> Self {
        self.options.when = when;
        self
    }

    /// Whether refusals carry `Retry-After`; they do unless set.
    #[must_use]
    pub const fn retry_after(mut self, told: bool) -> Self {
        self.options.retry_after = told;
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

    /// Which callers are answered as gRPC has it; those whose [content type](Grpc::ByContentType) says so unless set.
    #[must_use]
    pub const fn grpc(mut self, grpc: Grpc) -> Self {
        self.options.grpc = grpc;
        self
    }

    /// Whether handlers find the [`Decision`] in the request's extensions; they do unless set. It costs an allocation.
    #[must_use]
    pub const fn extension(mut self, told: bool) -> Self {
        self.options.extension = told;
        self
    }

    /// Has a function make the refusals, from what was refused and all of the request but its body. `Retry-After` and the
    /// header fields are added after it, unless switched off; what it has set itself stays. gRPC callers are answered as
    /// before.
    ///
    /// The response's body is text, bytes or `()`; with the feature `axum`, also that of axum, if it is the service's.
    #[must_use]
    pub fn answer<G, T>(self, answer: G) -> HttpResponder<Custom<G>, D>
    where
        G: Fn(&Refusal<'_>, &Head<'_>) -> Response<T>,
    {
        HttpResponder { options: self.options, answer: Custom::new(answer), unread: self.unread }
    }
}

impl<ReqBody, ResBody, Err, F, D> Responder<Request<ReqBody>, Response<ResBody>, Err> for HttpResponder<F, D>
where
    F: Answer<ResBody>,
    D: UnreadBody<ReqBody>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = Err;

    #[inline]
    fn admitted(&self, reports: &[Report<'_>], mut response: Response<ResBody>) -> Self::Response {
        let is_due = matches!(self.options.when, When::Always | When::OnAdmission);
        if is_due && !is_followed(response.status()) {
            headers::add_fields(response.headers_mut(), reports, &self.options, None);
        }
        response.map(ResponseBody::inner)
    }

    fn patience(&self, request: &Request<ReqBody>) -> Option<Duration> {
        match self.options.grpc {
            Grpc::Never => None,
            Grpc::Always => grpc::timeout(request.headers()),
            Grpc::ByContentType => {
                grpc::content_type(request.headers()).and_then(|_| grpc::timeout(request.headers()))
            }
        }
    }

    /// Of several policies, in one layer or in several, the decision that matters most.
    #[inline]
    fn admit(&self, request: &mut Request<ReqBody>, reports: &[Report<'_>]) {
        if !self.options.extension {
            return;
        }
        let urgency = |decision: &Decision| (decision.delay(), Reverse(decision.remaining()));
        let Some(most) = reports.iter().map(Report::decision).max_by_key(|decision| urgency(decision)) else {
            return;
        };
        let known = request.extensions().get::<Decision>();
        if known.is_none_or(|known| urgency(known) <= urgency(most)) {
            request.extensions_mut().insert(*most);
        }
    }

    fn mark(&self, request: &mut Request<ReqBody>, denial: &Decision) {
        request.extensions_mut().insert(ShadowDenial(*denial));
    }

    fn hold(&self, response: Self::Response, permit: Permit) -> Self::Response {
        response.map(|body| body.holding(permit))
    }

    #[inline]
    fn failed(&self, error: Err) -> Err {
        error
    }

    fn refused(&self, request: &Request<ReqBody>, refusal: Refusal<'_>) -> Result<Self::Response, Err> {
        let options = &self.options;
        let waits = options.waits(&refusal);
        let grpc_type = grpc::answer_type(request.headers(), options.grpc);
        let is_grpc = grpc_type.is_some();
        let mut answer = match grpc_type {
            Some(content_type) => {
                grpc::refusal(content_type, &refusal, waits.wait).map(|()| ResponseBody::empty())
            }
            None => {
                let shape = options.shape(&refusal, request.headers());
                let (answer, length) = self.answer.answer(&refusal, &Head::of(request), shape);
                if request.method() == Method::HEAD { without_body(answer, length) } else { answer }
            }
        };
        let is_followed = is_followed(answer.status());
        let headers = answer.headers_mut();
        // A cache that keeps it would refuse others, and the same caller later.
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        // Without a wait that is known, gRPC callers go by their pushback.
        if let Some(wait) = waits.wait.or_else(|| options.hint(&refusal).filter(|_| !is_grpc)) {
            if options.retry_after {
                headers.entry(RETRY_AFTER).or_insert_with(|| field::delay(wait));
            }
            if options.retry_after_ms {
                headers.entry(RETRY_AFTER_MS).or_insert_with(|| field::delay_millis(wait));
            }
        }
        if let Refusal::Limit(reports) = refusal
            && !refusal.is_unavailable()
            && matches!(options.when, When::Always | When::OnRejection)
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
