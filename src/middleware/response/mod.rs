//! What a caller gets.

pub(in crate::middleware) mod error;
pub(in crate::middleware) mod grpc;
pub(in crate::middleware) mod grpc_status;
pub(in crate::middleware) mod headers;
pub(in crate::middleware) mod http_responder;
pub(in crate::middleware) mod jitter;
pub(in crate::middleware) mod options;
pub(in crate::middleware) mod problem_json;
pub(in crate::middleware) mod rejection_body;
pub(in crate::middleware) mod request_head;
pub(in crate::middleware) mod structured_field;

use std::time::Duration;

use http::StatusCode;

use super::drain::Drain;
use super::policy::outcome::Outcome;
use super::policy::policy_name::{PolicyName, PolicyNames};
use crate::algorithm::{QuotaPolicy, QuotaUnit};
use crate::decision::Decision;
use crate::key::KeyError;
use crate::store::{BoxError, Permit};

/// Makes the answers: of calls that were admitted, and of those that were refused.
///
/// [`HttpResponder`](super::HttpResponder) answers refused HTTP requests and leaves the error type alone;
/// [`ErrorResponder`](super::ErrorResponder) returns an error, for services that are not HTTP.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot answer requests of type `{Req}` with responses of type `{Res}`",
    note = "the default `HttpResponder` wants an HTTP service; for others add `.responder(ErrorResponder)` to the layer"
)]
pub trait Responder<Req, Res, Err> {
    /// What the limited service returns.
    type Response;
    /// How the limited service fails.
    type Error;

    /// How long the caller is willing to wait in line; `None`: as long as the rule lets it. Asked only where calls
    /// wait.
    fn max_wait(&self, _request: &Req) -> Option<Duration> {
        None
    }

    /// A request that was admitted, before it is passed on: what is to be known of that is put into it.
    fn on_admit(&self, _request: &mut Req, _reports: &[PolicyReport<'_>]) {}

    /// A request that is let through though a limit in [shadow mode](super::RateLimitLayer::shadow) would have denied
    /// or held it, before it is passed on.
    fn on_shadow_deny(&self, _request: &mut Req, _denial: &Decision) {}

    /// Keeps the permit of a call for as long as its response lasts. Unless implemented, the call is over when there
    /// is a response: so a responder that asks another must ask it for this, too.
    fn hold_permit(&self, response: Self::Response, permit: Permit) -> Self::Response {
        drop(permit);
        response
    }

    /// The response of the service behind, to a call that was admitted. No reports: it was not limited.
    fn map_response(&self, reports: &[PolicyReport<'_>], response: Res) -> Self::Response;

    /// The failure of the service behind.
    fn map_error(&self, error: Err) -> Self::Error;

    /// The answer to a call that was refused. Its body has not been read.
    ///
    /// # Errors
    ///
    /// If a refusal is an error, for this kind of service.
    fn reject(&self, request: &Req, rejection: Rejection<'_>) -> Result<Self::Response, Self::Error>;

    /// Reads the rest of a refused request, after [`reject`](Self::reject) and before that answer is returned. `None`,
    /// unless implemented: the request is dropped and the answer returned at once. A responder that asks another must
    /// ask it for this, too, and for [`drained`](Self::drained).
    fn drain(&self, _request: Req) -> Option<Drain> {
        None
    }

    /// The answer to a refused request that was [read](Self::drain) to its end.
    fn drained(&self, _answer: &mut Self::Response) {}
}

/// Why a call was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejection<'a> {
    /// A policy denied it. All policies that were asked report.
    Limited(&'a [PolicyReport<'a>]),
    /// Its key could not be had, by a mistake of the configuration or of the [client](KeyError::is_invalid), or its
    /// caller is [not served](KeyError::is_forbidden). The error's text is for the log, and names headers and types.
    Key(KeyError),
    /// The store could not decide.
    Store(StoreError<'a>),
}

impl<'a> Rejection<'a> {
    /// The status that a refusal of this kind has: 429 if a policy denied it, 403 if the caller is not
    /// [served](KeyError::is_forbidden), 400 if the key could not be had by a mistake of the [client](KeyError::is_invalid),
    /// 500 if by one of the configuration, 503 if the store failed or the limiter was closed.
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

    /// How long until all policies that denied would allow the call, exactly. `None` where waiting does not help, or
    /// nobody knows how long.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let mut longest = None;
        for denial in
            self.policies().iter().map(PolicyReport::decision).filter(|decision| !decision.is_allowed())
        {
            longest = longest.max(Some(denial.retry_after()?));
        }
        longest
    }

    /// What each policy that was asked decided; none, if the key or the store was missing.
    #[must_use]
    pub fn policies(&self) -> &'a [PolicyReport<'a>] {
        match self {
            Self::Limited(reports) => reports,
            Self::Key(_) | Self::Store(_) => &[],
        }
    }

    /// Whether no wait helps, since the call costs more than one of the limits that denied it can ever admit.
    #[must_use]
    pub fn unsatisfiable_cost(&self) -> bool {
        self.policies().iter().any(|report| report.decision().never_fits())
    }

    /// How long at least until all policies that denied would allow the call, of those that know.
    pub(super) fn known_wait(&self) -> Option<Duration> {
        self.policies().iter().filter_map(|report| report.decision().retry_after()).max()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_closed())
    }

    /// Returns whether a limiter is closed or has no room for the key.
    pub(super) fn is_unavailable(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_unavailable())
    }
}

/// A store that could not decide.
#[derive(Debug)]
pub struct StoreError<'a> {
    pub(super) label: &'a PolicyName,
    pub(super) is_hidden: bool,
    pub(super) error: BoxError,
}

impl StoreError<'_> {
    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.label.name()
    }

    /// What the store said.
    #[must_use]
    pub fn into_error(self) -> BoxError {
        self.error
    }
}

/// What one policy decided. Of a policy with several limits on its key: what the one decided that
/// [matters](Decision::limit_index) most.
#[derive(Clone, Copy, Debug)]
pub struct PolicyReport<'a> {
    names: &'a PolicyNames,
    outcome: &'a Outcome,
}

impl<'a> PolicyReport<'a> {
    pub(super) fn new(names: &'a PolicyNames, outcome: &'a Outcome) -> Self {
        Self { names, outcome }
    }

    pub(super) fn label(&self) -> &'a PolicyName {
        // A rule of one's own may have said nonsense.
        self.names.all().get(self.outcome.decision.limit_index()).unwrap_or(self.names.first())
    }

    /// Whether callers are not to be told of it. See [`hidden`](super::RateLimitLayer::hidden).
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.names.is_hidden()
    }

    /// All limits of the policy, each with the quota that it has now; `None`: that of its label.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&'a PolicyName, Option<QuotaPolicy>)> {
        let quotas = self.outcome.quotas.as_deref().unwrap_or_default();
        self.names.all().iter().enumerate().map(|(at, label)| (label, quotas.get(at).copied()))
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.label().name()
    }

    /// Its quota and window, as clients are told.
    #[must_use]
    pub fn policy(&self) -> QuotaPolicy {
        let index = self.outcome.decision.limit_index();
        self.limits().nth(index).and_then(|(_, quota)| quota).unwrap_or(self.label().policy())
    }

    /// Whether it counts requests in progress.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        self.policy().unit == QuotaUnit::ConcurrentRequests
    }

    /// Its decision.
    pub fn decision(&self) -> &Decision {
        &self.outcome.decision
    }

    /// Over how long the client should spread what remains; `None` where waiting does not help.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        // A tuple does not know of a member that it has none.
        self.outcome.window.filter(|_| !self.is_concurrent())
    }
}
