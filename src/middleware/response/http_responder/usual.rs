//! The usual rejection, which is a denial by a policy with one limit and the default settings. The header fields of a
//! usual rejection are built once for each policy, and then copied, so that the names of fields are not hashed for each
//! response.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Method, Request, Response, StatusCode};

use super::HttpResponder;
use crate::middleware::accept::prefers_html;
use crate::middleware::body::{OuterBody, ResponseBody};
use crate::middleware::drain::announces_body;
use crate::middleware::formats::Draft;
use crate::middleware::policy::policy_name::PolicyName;
use crate::middleware::response::Rejection;
use crate::middleware::response::options::{BodyFormat, Options, SendHeaders};
use crate::middleware::response::report::PolicyReport;
use crate::middleware::response::retry_after::{MAX_RETRY_AFTER, retry_after};
use crate::middleware::response::structured_field::{self, RATELIMIT};

impl Options {
    /// Returns whether a usual rejection has the fields, the body and the extensions that these options ask for, and no
    /// others.
    fn are_usual(&self) -> bool {
        self.draft == Some(Draft::V11)
            && self.legacy.is_none()
            && self.custom.is_none()
            && self.retry_after
            && !self.retry_after_ms
            && !self.insert_details
            && self.jitter.is_zero()
            && matches!(self.send_headers, SendHeaders::Always | SendHeaders::OnRejection)
            && matches!(self.body, BodyFormat::ByAccept | BodyFormat::ProblemJson)
    }
}

/// A rejection that is made from prebuilt header fields.
pub(super) struct Usual<'a> {
    report: &'a PolicyReport<'a>,
    label: &'a PolicyName,
    wait: Duration,
}

impl<F, D, B> HttpResponder<F, D, B> {
    /// Returns the rejection of a request that is not a gRPC request, if the rejection is a usual one.
    #[inline]
    pub(super) fn usual<'a, ReqBody>(
        &self,
        request: &Request<ReqBody>,
        rejection: &Rejection<'a>,
    ) -> Option<Usual<'a>> {
        let Rejection::Limited([report]) = rejection else { return None };
        // If the wait is known, the reason for the denial is neither a closed limiter nor a full table nor a cost above
        // the limit.
        let wait = report.decision().retry_after()?.min(self.options.max_reported_wait);
        let label = report.sole_label()?;
        let is_html = self.options.body == BodyFormat::ByAccept && prefers_html(request.headers());
        let is_usual = self.options.are_usual() && !is_html && *request.method() != Method::HEAD;
        (is_usual && !wait.is_zero() && !announces_body(request)).then_some(Usual { report, label, wait })
    }
}

impl Usual<'_> {
    /// Returns the response to the rejected request.
    #[inline]
    pub(super) fn response<ResBody, B: OuterBody<ResBody>>(&self) -> Response<B::Body> {
        let Self { report, label, wait } = *self;
        let mut response = Response::new(B::rejected(ResponseBody::full(label.exceeded.clone())));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        let headers = response.headers_mut();
        *headers = label.denied.clone();
        for (name, value) in headers {
            if *name == RETRY_AFTER {
                *value = retry_after(wait);
            } else if *name == RATELIMIT {
                let window = (!report.is_concurrent()).then_some(wait.min(MAX_RETRY_AFTER));
                *value = structured_field::item(&label.item, report.decision().remaining(), window);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::decision::Decision;
    use crate::middleware::policy::info::PolicyInfo;
    use crate::middleware::policy::outcome::Outcome;
    use crate::middleware::response::Responder;
    use crate::quota::Quota;

    #[test]
    fn a_usual_rejection_is_the_same_as_any_other() {
        let info = PolicyInfo::new(&TokenBucket::new(Quota::per_minute(7)), Arc::default());
        let usual = HttpResponder::new().max_reported_wait(Duration::from_secs(5_000));
        // With this option, the response has an extension, and is not made from the prebuilt fields.
        let other = usual.insert_details(true);
        for wait in [1, 999_999_999, 1_000_000_000, 1_000_000_001, 2_500_000_000_000, u64::MAX - 1] {
            for remaining in [0, 3] {
                let outcome = Outcome::new(Decision::deny(7, remaining, Some(wait), wait), false);
                let reports = [PolicyReport::new(&info, &outcome)];
                let answer = |responder: HttpResponder| {
                    let rejection = Rejection::Limited(&reports);
                    let is_usual = responder.usual(&Request::new(()), &rejection).is_some();
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
}
