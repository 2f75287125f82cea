use std::cmp::Reverse;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};

use super::body::ResponseBody;
use super::grpc::{self, Code};
use super::responder::{Refusal, Report, Responder};
use super::{headers, problem};
use crate::decision::Decision;
use crate::store::Permit;

/// Answers refused HTTP requests, and never changes the service's error type.
///
/// | the call was | HTTP | gRPC (by content type) |
/// |---|---|---|
/// | denied | 429, `Retry-After` (whole seconds, rounded up, at least 1; absent where waiting does not help or nobody knows how long), problem+json | 8 `RESOURCE_EXHAUSTED` |
/// | without a key | 500, problem+json that names the fix | 13 `INTERNAL` |
/// | of a caller that is [not served](crate::key::KeyError::forbidden) | 403, problem+json | 7 `PERMISSION_DENIED` |
/// | not decided, since the store failed | 503, problem+json | 14 `UNAVAILABLE` |
/// | refused, since the limiter was [closed](crate::limiter::RateLimiter::close) | 503, problem+json | 14 `UNAVAILABLE` |
///
/// Where calls wait in line, a gRPC call waits no longer than its `grpc-timeout`: one whose turn would come later is
/// refused at once. The [`Decision`] on a call that was admitted is in its request's extensions: of several policies,
/// the one that held it longest, or else is nearest to exhaustion.
///
/// Answers to admitted and to denied calls carry `RateLimit` and `RateLimit-Policy`, in the form of
/// draft-ietf-httpapi-ratelimit-headers-11, but redirects (3xx). They are added to what is there, never put in its
/// place.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpResponder;

impl<ReqBody, ResBody, Err> Responder<Request<ReqBody>, Response<ResBody>, Err> for HttpResponder {
    type Response = Response<ResponseBody<ResBody>>;
    type Error = Err;

    #[inline]
    fn admitted(&self, reports: &[Report<'_>], mut response: Response<ResBody>) -> Self::Response {
        if !response.status().is_redirection() {
            headers::add_fields(response.headers_mut(), reports);
        }
        response.map(ResponseBody::inner)
    }

    fn patience(&self, request: &Request<ReqBody>) -> Option<Duration> {
        grpc::timeout(request.headers())
    }

    /// Of several policies, in one layer or in several, the decision that matters most.
    #[inline]
    fn admit(&self, request: &mut Request<ReqBody>, reports: &[Report<'_>]) {
        let urgency = |decision: &Decision| (decision.delay(), Reverse(decision.remaining()));
        let Some(most) = reports.iter().map(Report::decision).max_by_key(|decision| urgency(decision)) else {
            return;
        };
        let known = request.extensions().get::<Decision>();
        if known.is_none_or(|known| urgency(known) <= urgency(most)) {
            request.extensions_mut().insert(*most);
        }
    }

    fn hold(&self, response: Self::Response, permit: Permit) -> Self::Response {
        response.map(|body| body.holding(permit))
    }

    #[inline]
    fn failed(&self, error: Err) -> Err {
        error
    }

    fn refused(&self, request: &Request<ReqBody>, refusal: Refusal<'_>) -> Result<Self::Response, Err> {
        let mut answer = match &refusal {
            Refusal::Limit(reports) if is_closed(reports) => {
                let closed = reports.iter().find(|report| report.decision().is_closed());
                let body = closed.map_or_else(Bytes::new, |closed| closed.label().reduced.clone());
                Answer::new(StatusCode::SERVICE_UNAVAILABLE, body, Code::Unavailable, "shutting down")
            }
            Refusal::Limit(reports) => {
                let denials = || reports.iter().filter(|report| !report.decision().is_allowed());
                let body = match (denials().next(), denials().nth(1)) {
                    (Some(denial), None) => denial.label().exceeded.clone(),
                    _ => problem::quota_exceeded(&denials().map(Report::name).collect::<Vec<_>>()),
                };
                Answer::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    body,
                    Code::ResourceExhausted,
                    "rate limit exceeded",
                )
            }
            Refusal::Key(error) => {
                let reason = error.to_string();
                let (status, code) = match error.is_forbidden() {
                    true => (StatusCode::FORBIDDEN, Code::PermissionDenied),
                    false => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
                };
                Answer::new(status, problem::plain(status, &reason), code, reason)
            }
            Refusal::Store(failure) => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                failure.label.reduced.clone(),
                Code::Unavailable,
                "rate limiter unavailable",
            ),
        }
        .into_response(request);
        if let Refusal::Limit(reports) = refusal
            && !is_closed(reports)
        {
            let waits = reports.iter().filter(|report| !report.decision().is_allowed());
            // All that denied must allow: the longest wait, and none if one never will.
            let wait = waits.map(|report| report.decision().retry_after()).try_fold(None, |longest, wait| {
                wait.map(|wait| Some(longest.map_or(wait, |longest| wait.max(longest))))
            });
            headers::add_retry_after(answer.headers_mut(), wait.flatten());
            headers::add_fields(answer.headers_mut(), reports);
        }
        Ok(answer)
    }
}

fn is_closed(reports: &[Report<'_>]) -> bool {
    reports.iter().any(|report| report.decision().is_closed())
}

/// One refusal, in both languages.
struct Answer<M> {
    status: StatusCode,
    body: Bytes,
    code: Code,
    message: M,
}

impl<M: Into<std::borrow::Cow<'static, str>>> Answer<M> {
    fn new(
        status: StatusCode,
        body: Bytes,
        code: Code,
        message: M,
    ) -> Answer<std::borrow::Cow<'static, str>> {
        Answer { status, body, code, message: message.into() }
    }
}

impl Answer<std::borrow::Cow<'static, str>> {
    fn into_response<ReqBody, ResBody>(self, request: &Request<ReqBody>) -> Response<ResponseBody<ResBody>> {
        if let Some(content_type) = grpc::content_type(request.headers()) {
            let mut response = Response::new(ResponseBody::empty());
            grpc::add_status(response.headers_mut(), content_type, self.code, &self.message);
            return response;
        }
        let mut response = Response::new(ResponseBody::full(self.body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
        response
    }
}
