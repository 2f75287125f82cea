//! The responses of an [`HttpResponder`].

use super::{HttpResponder, RETRY_AFTER_MS, is_followed};
use crate::decision::Decision;
use crate::middleware::body::{OuterBody, ResponseBody};
use crate::middleware::drain::{self, Drain, UnreadBody};
use crate::middleware::policy::policy_name::NO_STORE;
use crate::middleware::policy::shadow::ShadowDenied;
use crate::middleware::response::extensions::{Decisions, Rejected};
use crate::middleware::response::grpc;
use crate::middleware::response::headers;
use crate::middleware::response::options::{GrpcMode, SendHeaders};
use crate::middleware::response::rejection_body::RejectionResponse;
use crate::middleware::response::report::PolicyReport;
use crate::middleware::response::request_head::RequestHead;
use crate::middleware::response::retry_after;
use crate::middleware::response::{Rejection, Responder};
use crate::store::Permit;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{Request, Response};
use std::cmp::Reverse;
use std::time::Duration;

impl<ReqBody, ResBody, Err, F, D, B> Responder<Request<ReqBody>, Response<ResBody>, Err>
    for HttpResponder<F, D, B>
where
    F: RejectionResponse<ResBody>,
    D: UnreadBody<ReqBody>,
    B: OuterBody<ResBody>,
{
    type Response = Response<B::Body>;
    type Error = Err;

    #[inline]
    fn map_response(&self, reports: &[PolicyReport<'_>], mut response: Response<ResBody>) -> Self::Response {
        let is_due = matches!(self.options.send_headers, SendHeaders::Always | SendHeaders::OnAdmission);
        if is_due && !is_followed(response.status()) {
            headers::add_fields(response.headers_mut(), reports, &self.options, None);
        }
        response.map(B::admitted)
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

    /// Inserts one decision into the request's extensions, chosen among the decisions of this layer and of outer
    /// layers. If policies delayed the request, this is the decision of the policy that delayed it longest. Otherwise,
    /// it is the decision of the policy with the fewest remaining units.
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
        let options = &self.options;
        let grpc_type = grpc::response_content_type(request.headers(), options.grpc);
        let is_grpc = grpc_type.is_some();
        if F::IS_DEFAULT
            && !is_grpc
            && let Some(usual) = self.usual(request, &rejection)
        {
            return Ok(usual.response::<ResBody, B>());
        }
        let waits = options.waits(&rejection);
        let mut answer = match grpc_type {
            Some(content_type) => {
                grpc::rejection(content_type, &rejection, waits.wait).map(|()| ResponseBody::empty())
            }
            None => {
                let shape = options.shape(&rejection, request.headers());
                self.answer.answer(&rejection, &RequestHead::new(request), shape)
            }
        };
        let is_followed = is_followed(answer.status());
        let headers = answer.headers_mut();
        // A cache that stored the rejection could return the rejection to other callers, or to the same caller after
        // the wait.
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        // If the wait is unknown, only HTTP clients get a hint. gRPC clients use the backoff of their own retry policy.
        if let Some(wait) = waits.wait.or_else(|| options.hint(&rejection).filter(|_| !is_grpc)) {
            if options.retry_after {
                headers.entry(RETRY_AFTER).or_insert_with(|| retry_after::retry_after(wait));
            }
            if options.retry_after_ms {
                headers.entry(RETRY_AFTER_MS).or_insert_with(|| retry_after::retry_after_millis(wait));
            }
        }
        if let Rejection::Limited(reports) = rejection
            && !rejection.is_unavailable()
            && matches!(options.send_headers, SendHeaders::Always | SendHeaders::OnRejection)
            && !is_followed
        {
            headers::add_fields(headers, reports, options, Some(waits));
        }
        if let Rejection::Limited(reports) = rejection
            && options.insert_details
            && let Some(rejected) = Rejected::new(reports)
        {
            answer.extensions_mut().insert(rejected);
        }
        if drain::announces_body(request) {
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
