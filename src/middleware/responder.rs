//! What a caller gets.

use std::time::Duration;

use http::StatusCode;

use super::drain::Drain;
use super::label::{Label, Labels};
use super::told::Told;
use crate::algorithm::{Policy, Unit};
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
    fn patience(&self, _request: &Req) -> Option<Duration> {
        None
    }

    /// A request that was admitted, before it is passed on: what is to be known of that is put into it.
    fn admit(&self, _request: &mut Req, _reports: &[Report<'_>]) {}

    /// A request that is let through though a limit in [shadow mode](super::RateLimitLayer::shadow) would have denied
    /// or held it, before it is passed on.
    fn mark(&self, _request: &mut Req, _denial: &Decision) {}

    /// Keeps the permit of a call for as long as its response lasts. Unless implemented, the call is over when there
    /// is a response: so a responder that asks another must ask it for this, too.
    fn hold(&self, response: Self::Response, permit: Permit) -> Self::Response {
        drop(permit);
        response
    }

    /// The response of the service behind, to a call that was admitted. No reports: it was not limited.
    fn admitted(&self, reports: &[Report<'_>], response: Res) -> Self::Response;

    /// The failure of the service behind.
    fn failed(&self, error: Err) -> Self::Error;

    /// The answer to a call that was refused. Its body has not been read.
    ///
    /// # Errors
    ///
    /// If a refusal is an error, for this kind of service.
    fn refused(&self, request: &Req, refusal: Refusal<'_>) -> Result<Self::Response, Self::Error>;

    /// Reads the rest of a refused request, after [`refused`](Self::refused) and before that answer is returned. `None`,
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
pub enum Refusal<'a> {
    /// A policy denied it. All policies that were asked report.
    Limit(&'a [Report<'a>]),
    /// Its key could not be had, by a mistake of the configuration or of the [client](KeyError::is_invalid), or its
    /// caller is [not served](KeyError::is_forbidden). The error's text is for the log, and names headers and types.
    Key(KeyError),
    /// The store could not decide.
    Store(StoreFailure<'a>),
}

impl<'a> Refusal<'a> {
    /// The status that a refusal of this kind has: 429 if a policy denied it, 403 if the caller is not
    /// [served](KeyError::is_forbidden), 400 if the key could not be had by a mistake of the [client](KeyError::is_invalid),
    /// 500 if by one of the configuration, 503 if the store failed or the limiter was closed.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Limit(_) if self.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Limit(_) => StatusCode::TOO_MANY_REQUESTS,
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
        for denial in self.reports().iter().map(Report::decision).filter(|decision| !decision.is_allowed()) {
            longest = longest.max(Some(denial.retry_after()?));
        }
        longest
    }

    /// What each policy that was asked decided; none, if the key or the store was missing.
    #[must_use]
    pub fn reports(&self) -> &'a [Report<'a>] {
        match self {
            Self::Limit(reports) => reports,
            Self::Key(_) | Self::Store(_) => &[],
        }
    }

    /// Whether no wait helps, since the call costs more than one of the limits that denied it can ever admit.
    #[must_use]
    pub fn never_fits(&self) -> bool {
        self.reports().iter().any(|report| report.decision().never_fits())
    }

    /// How long at least until all policies that denied would allow the call, of those that know.
    pub(super) fn known_wait(&self) -> Option<Duration> {
        self.reports().iter().filter_map(|report| report.decision().retry_after()).max()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.reports().iter().any(|report| report.decision().is_closed())
    }

    /// Returns whether a limiter is closed or has no room for the key.
    pub(super) fn is_unavailable(&self) -> bool {
        self.reports().iter().any(|report| report.decision().is_unavailable())
    }
}

/// A store that could not decide.
#[derive(Debug)]
pub struct StoreFailure<'a> {
    pub(super) label: &'a Label,
    pub(super) is_hidden: bool,
    pub(super) error: BoxError,
}

impl StoreFailure<'_> {
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
/// [matters](Decision::index) most.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    labels: &'a Labels,
    told: &'a Told,
}

impl<'a> Report<'a> {
    pub(super) fn new(labels: &'a Labels, told: &'a Told) -> Self {
        Self { labels, told }
    }

    pub(super) fn label(&self) -> &'a Label {
        // A rule of one's own may have said nonsense.
        self.labels.all().get(self.told.decision.index()).unwrap_or(self.labels.first())
    }

    /// Whether callers are not to be told of it. See [`hidden`](super::RateLimitLayer::hidden).
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.labels.is_hidden()
    }

    /// All limits of the policy, each with the quota that it has now; `None`: that of its label.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&'a Label, Option<Policy>)> {
        let quotas = self.told.quotas.as_deref().unwrap_or_default();
        self.labels.all().iter().enumerate().map(|(at, label)| (label, quotas.get(at).copied()))
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.label().name()
    }

    /// Its quota and window, as clients are told.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let index = self.told.decision.index();
        self.limits().nth(index).and_then(|(_, quota)| quota).unwrap_or(self.label().policy())
    }

    /// Whether it counts requests in progress.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        self.policy().unit == Unit::ConcurrentRequests
    }

    /// Its decision.
    pub fn decision(&self) -> &Decision {
        &self.told.decision
    }

    /// Over how long the client should spread what remains; `None` where waiting does not help.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        // A tuple does not know of a member that it has none.
        self.told.window.filter(|_| !self.is_concurrent())
    }
}
