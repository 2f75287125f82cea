//! What a caller gets.

use std::time::Duration;

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
}

/// Why a call was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal<'a> {
    /// A policy denied it. All policies that were asked report.
    Limit(&'a [Report<'a>]),
    /// Its key could not be had, or its caller is [not served](KeyError::is_forbidden).
    Key(KeyError),
    /// The store could not decide.
    Store(StoreFailure<'a>),
}

/// A store that could not decide.
#[derive(Debug)]
pub struct StoreFailure<'a> {
    pub(super) label: &'a Label,
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
        self.told.window
    }
}
