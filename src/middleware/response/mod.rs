//! The responses to callers.

pub(in crate::middleware) mod error;
pub(in crate::middleware) mod extensions;
pub(in crate::middleware) mod grpc;
pub(in crate::middleware) mod grpc_status;
pub(in crate::middleware) mod headers;
pub(in crate::middleware) mod http_responder;
pub(in crate::middleware) mod jitter;
pub(in crate::middleware) mod on_reject;
pub(in crate::middleware) mod options;
pub(in crate::middleware) mod problem_json;
pub(in crate::middleware) mod rejection_body;
pub(in crate::middleware) mod report;
pub(in crate::middleware) mod request_head;
pub(in crate::middleware) mod retry_after;
pub(in crate::middleware) mod structured_field;

use std::time::Duration;

use http::StatusCode;

use self::report::PolicyReport;
use super::drain::Drain;
use super::policy::info::PolicyInfo;
use crate::decision::Decision;
use crate::key::KeyError;
use crate::store::{BoxError, Permit};

/// Makes the responses, both to admitted and to rejected calls.
///
/// [`HttpResponder`](super::HttpResponder) answers rejected HTTP and gRPC requests, and keeps the error type of the
/// service. [`ErrorResponder`](super::ErrorResponder) rejects calls with an error, for services that are not HTTP.
///
/// All clones of a service share one responder. So a service can be sent to another thread only if its responder is
/// `Send` and `Sync`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot answer requests of type `{Req}` with responses of type `{Res}`",
    note = "the default `HttpResponder` wants an HTTP service; for others add `.responder(ErrorResponder)` to the layer"
)]
pub trait Responder<Req, Res, Err> {
    /// The response type of the limited service.
    type Response;
    /// The error type of the limited service.
    type Error;

    /// Returns the maximum time for which the call may be queued. With `None`, only the maximum of the algorithm
    /// applies. The method is called before the call is decided, and only if calls can be queued.
    fn max_wait(&self, _request: &Req) -> Option<Duration> {
        None
    }

    /// Prepares an admitted request before it is passed to the inner service, for example by inserting extensions. The
    /// default does nothing.
    fn on_admit(&self, _request: &mut Req, _reports: &[PolicyReport<'_>]) {}

    /// Marks a request that a limit in [shadow mode](super::RateLimitLayer::shadow) would have denied or queued. The
    /// method is called before the request is passed to the inner service. The default does nothing.
    fn on_shadow_deny(&self, _request: &mut Req, _denial: &Decision) {}

    /// Holds the permit of a call until the response has ended. The default drops the permit at once, so the units of
    /// the call become available as soon as there is a response. A responder that delegates to another responder must
    /// delegate this method.
    fn hold_permit(&self, response: Self::Response, permit: Permit) -> Self::Response {
        drop(permit);
        response
    }

    /// Converts the response of the inner service to an admitted call. `reports` contains a report of each policy that
    /// decided the call and is not in shadow mode. It may be empty.
    fn map_response(&self, reports: &[PolicyReport<'_>], response: Res) -> Self::Response;

    /// Converts an error of the inner service.
    fn map_error(&self, error: Err) -> Self::Error;

    /// Returns the response to a rejected call. The body of `request` has not been read.
    ///
    /// # Errors
    ///
    /// Returns an error if this responder rejects calls with an error, as `ErrorResponder` does.
    fn reject(&self, request: &Req, rejection: Rejection<'_>) -> Result<Self::Response, Self::Error>;

    /// Returns a future that reads the rest of a rejected request and discards it. The future's output is `true` if the
    /// request was read to its end. The method is called after [`reject`](Self::reject). When the future has completed,
    /// the response that `reject` returned is passed on. The default drops the request and returns `None`, and the
    /// response is then passed on at once. A responder that delegates to another responder must delegate this method and
    /// [`drained`](Self::drained).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the rest of the request is left unread. Over HTTP/1.x, the server then closes the
    /// connection.
    fn drain(&self, _request: Req) -> Option<Drain> {
        None
    }

    /// Adjusts the response to a rejected request that was [read](Self::drain) to its end. The default does nothing.
    fn drained(&self, _answer: &mut Self::Response) {}
}

/// The reason why a call was rejected.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejection<'a> {
    /// A policy denied the call. There is a report of each policy that decided the call and is not in shadow mode.
    Limited(&'a [PolicyReport<'a>]),
    /// The key is missing because of a configuration mistake, the [client](KeyError::is_invalid) made the key invalid,
    /// or the caller is [forbidden](KeyError::is_forbidden). The message of the error is for the log, and not for
    /// callers, because it names headers and types.
    Key(KeyError),
    /// The store could not decide the call.
    Store(StoreError<'a>),
}

impl<'a> Rejection<'a> {
    /// Returns the HTTP status of this rejection:
    ///
    /// - 400 if the [client](KeyError::is_invalid) made the key invalid,
    /// - 403 if the caller is [forbidden](KeyError::is_forbidden),
    /// - 500 if there is no key because of a configuration mistake,
    /// - 503 if the store failed, if a limiter was closed, or if its key table is full,
    /// - 429 if a policy denied the call for any other reason.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Limited(_) if self.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Limited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Key(error) if error.is_forbidden() => StatusCode::FORBIDDEN,
            Self::Key(error) if error.is_invalid() => StatusCode::BAD_REQUEST,
            Self::Key(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the time until all policies that denied the call would allow the same call. This time is exact. Returns
    /// `None` if no policy denied the call, if waiting does not help, or if the wait of one of these policies is
    /// unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let mut max = None;
        for denial in
            self.policies().iter().map(PolicyReport::decision).filter(|decision| !decision.is_allowed())
        {
            max = max.max(Some(denial.retry_after()?));
        }
        max
    }

    /// Returns the report of each policy that decided the call and is not in shadow mode. The list is empty if there is
    /// no valid key, if the caller is forbidden, or if the store failed.
    #[must_use]
    pub fn policies(&self) -> &'a [PolicyReport<'a>] {
        match self {
            Self::Limited(reports) => reports,
            Self::Key(_) | Self::Store(_) => &[],
        }
    }

    /// Returns whether the call costs more than one of the limits can ever admit, so that waiting does not help.
    #[must_use]
    pub fn unsatisfiable_cost(&self) -> bool {
        self.policies().iter().any(|report| report.decision().never_fits())
    }

    /// Returns the longest known wait of the policies that denied the call. If another of these policies has an unknown
    /// wait, the call may have to wait longer.
    pub(super) fn known_wait(&self) -> Option<Duration> {
        self.policies().iter().filter_map(|report| report.decision().retry_after()).max()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_closed())
    }

    /// Returns whether a limiter is closed or its key table is full.
    pub(super) fn is_unavailable(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_unavailable())
    }
}

/// The error of a store that could not decide a call, and the policy that uses the store.
#[derive(Debug)]
pub struct StoreError<'a> {
    pub(super) info: &'a PolicyInfo,
    pub(super) error: BoxError,
}

impl StoreError<'_> {
    /// Returns the policy's name. If the layer is joined, this is the name of its first policy.
    #[must_use]
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// Returns the error of the store.
    #[must_use]
    pub fn into_error(self) -> BoxError {
        self.error
    }
}
