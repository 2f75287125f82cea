//! The responses to callers: what a responder is, and the reports that it receives. The modules in this folder have the
//! responders, and the parts of their responses.

pub(super) mod error;

mod accept;
mod fields;
mod grpc;
mod http;
mod on_reject;
#[cfg(feature = "axum")]
mod rejecter;
mod rejection_body;
mod watch;

use std::iter;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ::http::StatusCode;
use smallvec::SmallVec;

use super::drain::Drain;
use super::info::PolicyInfo;
use super::names::PolicyName;
use super::outcome::{Outcome, limited};
use super::reported::Reported;
use crate::algorithm::QuotaPolicy;
use crate::decision::Decision;
use crate::error::BoxError;
use crate::key::KeyError;
use crate::limiter::Permit;

pub use fields::{FieldNames, HeaderFormat, ResetFormat};
pub use grpc::GrpcMode;
#[cfg(feature = "axum")]
pub use http::IntoAxumBody;
pub use http::{HttpResponder, SendHeaders};
pub use on_reject::{OnReject, SetOn};
#[cfg(feature = "axum")]
pub use rejecter::{HandlerResponder, Rejecter};
pub use rejection_body::{
    BodyFormat, DefaultRejection, IntoRejectionBody, RejectHead, RejectionFn, RejectionResponse, RequestHead,
    Unset,
};

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

    /// Converts the result of the inner service, if [`passes`](Self::passes) returns `true`.
    #[doc(hidden)]
    const PASS: Option<Pass<Res, Err, Self::Response, Self::Error>> = None;

    /// `true` if [`drain`](Self::drain) may return a future.
    #[doc(hidden)]
    const DRAINS: bool = true;

    /// Returns whether [`PASS`](Self::PASS) converts the results of all admitted calls that have no permit, as
    /// [`convert`](Self::convert) and [`map_error`](Self::map_error) would.
    #[doc(hidden)]
    fn passes(&self) -> bool {
        false
    }

    /// Returns whether [`on_admit`](Self::on_admit) does nothing.
    #[doc(hidden)]
    fn admits_as_is(&self) -> bool {
        false
    }

    /// Keeps the current span for handlers that reject the request, if it declares the field of such a rejection.
    #[doc(hidden)]
    fn keep_span(&self, _request: &mut Req) {}

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

    /// Converts the response of the inner service to an admitted call, and holds the permit of the call, which is empty
    /// if the call has none. A responder overrides this method if it needs the permit to convert the body.
    #[doc(hidden)]
    #[inline]
    fn convert(&self, reports: &[PolicyReport<'_>], response: Res, permit: Permit) -> Self::Response {
        let response = self.map_response(reports, response);
        if permit.is_empty() { response } else { self.hold_permit(response, permit) }
    }

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
    /// response is then passed on at once. A responder that delegates to another responder must delegate this method
    /// and [`drained`](Self::drained).
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

/// A conversion of the result of the inner service that needs neither the responder nor the decisions. The result of a
/// poll is converted where it is, so that a response is moved less often.
type Pass<Res, Err, Response, Error> = fn(Poll<Result<Res, Err>>) -> Poll<Result<Response, Error>>;

/// The reason why a call was rejected.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejection<'a> {
    /// A policy denied the call. There is a report of each policy that decided the call and is not in shadow mode.
    Limited(&'a [PolicyReport<'a>]),
    /// The key is missing because of a configuration mistake, the [client](KeyError::is_invalid) made the key invalid,
    /// the request does not say [who its caller is](KeyError::is_unauthorized), or the caller is
    /// [forbidden](KeyError::is_forbidden). The message of the error is for the log, and not for callers, because it
    /// names headers and types.
    Key(KeyError),
    /// The limiter could not decide the call, because its store failed.
    Store(StoreError<'a>),
}

impl<'a> Rejection<'a> {
    /// Returns the HTTP status of this rejection:
    ///
    /// - 400 if the [client](KeyError::is_invalid) made the key invalid,
    /// - 401 if the request does not say [who its caller is](KeyError::is_unauthorized),
    /// - 403 if the caller is [forbidden](KeyError::is_forbidden),
    /// - 500 if there is no key because of a configuration mistake,
    /// - 503 if the store failed, if a limiter was closed, or if its key table is full,
    /// - 429 if a policy denied the call for any other reason.
    ///
    /// To the function of a [custom response](crate::middleware::HttpResponder::rejection_response), returns the status
    /// that a default response would have with the same options of the responder.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        if let Some(reported) = self.reported() {
            return reported.status();
        }
        match self {
            Self::Limited(_) if self.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Limited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Key(error) if error.is_forbidden() => StatusCode::FORBIDDEN,
            Self::Key(error) if error.is_invalid() => StatusCode::BAD_REQUEST,
            Self::Key(error) if error.is_unauthorized() => StatusCode::UNAUTHORIZED,
            Self::Key(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the time until all policies that denied the call would allow the same call. This time is exact. Returns
    /// `None` if no policy denied the call, if waiting does not help, or if the wait of one of these policies is
    /// unknown.
    ///
    /// To the function of a [custom response](crate::middleware::HttpResponder::rejection_response), returns the time
    /// that `Retry-After` reports, before it is rounded up to seconds. This time includes the
    /// [jitter](crate::middleware::HttpResponder::jitter), is at most the [maximum reported
    /// wait](crate::middleware::HttpResponder::max_reported_wait) but never zero, and is the
    /// [hint](crate::middleware::HttpResponder::retry_after_unknown) if the wait is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if let Some(reported) = self.reported() {
            return reported.retry_after();
        }
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

    /// Returns whether the call costs more than one of the limits can ever admit, and all limiters could decide it.
    /// A limiter that is closed or full is more urgent to know.
    fn never_fits(&self) -> bool {
        self.unsatisfiable_cost() && !self.is_unavailable()
    }

    /// Returns whether the call was denied because a key is locked out, or because this denial begins a lockout. See
    /// [`Decision::is_locked_out`].
    #[must_use]
    pub fn is_locked_out(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_locked_out())
    }

    /// Returns what the response reports, if this rejection is for the function of a custom response.
    fn reported(&self) -> Option<&Reported> {
        match self {
            Self::Limited(reports) => reports.first()?.reported,
            Self::Key(_) => None,
            Self::Store(error) => error.reported.as_ref(),
        }
    }

    /// Returns the reports of the policies for the function of a custom response, which reads what the response
    /// reports.
    fn reports_with<'b>(&self, reported: &'b Reported) -> SmallVec<[PolicyReport<'b>; 4]>
    where
        'a: 'b,
    {
        let with = |report: &PolicyReport<'b>| PolicyReport { reported: Some(reported), ..*report };
        self.policies().iter().map(with).collect()
    }

    /// Returns this rejection for the function of a custom response. `reports` are the [reports](Self::reports_with)
    /// that it reads.
    fn reporting<'b>(self, reported: Reported, reports: &'b [PolicyReport<'b>]) -> Rejection<'b>
    where
        'a: 'b,
    {
        match self {
            Self::Limited(_) => Rejection::Limited(reports),
            Self::Key(error) => Rejection::Key(error),
            Self::Store(error) => Rejection::Store(StoreError { reported: Some(reported), ..error }),
        }
    }

    /// Returns the longest known wait of the policies that denied the call. If another of these policies has an unknown
    /// wait, the call may have to wait longer.
    fn known_wait(&self) -> Option<Duration> {
        self.policies().iter().filter_map(|report| report.decision().retry_after()).max()
    }

    fn is_closed(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_closed())
    }

    /// Returns whether a limiter is closed or its key table is full.
    fn is_unavailable(&self) -> bool {
        self.policies().iter().any(|report| report.decision().is_unavailable())
    }
}

/// The error of a limiter that could not decide a call, and the policy of the limiter.
#[derive(Debug)]
pub struct StoreError<'a> {
    info: &'a PolicyInfo,
    error: BoxError,
    /// What the response reports, if the error is for the function of a custom response.
    reported: Option<Reported>,
}

impl<'a> StoreError<'a> {
    pub(super) fn new(info: &'a PolicyInfo, error: BoxError) -> Self {
        Self { info, error, reported: None }
    }

    /// Returns the policy's name. If the layer is joined, this is the name of the first policy that rejects the call
    /// because of the error.
    #[must_use]
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// Returns the error of the limiter.
    #[must_use]
    pub fn into_error(self) -> BoxError {
        self.error
    }
}

/// A policy and its decision on a call. If the policy has several limits on its key, the decision reports the limit
/// that [matters most](Decision::limit_index).
#[derive(Clone, Copy, Debug)]
pub struct PolicyReport<'a> {
    info: &'a PolicyInfo,
    outcome: &'a Outcome,
    /// What the response reports, if the report is for the function of a custom response.
    reported: Option<&'a Reported>,
}

impl<'a> PolicyReport<'a> {
    fn new(info: &'a PolicyInfo, outcome: &'a Outcome) -> Self {
        Self { info, outcome, reported: None }
    }

    fn label(&self) -> &'a PolicyName {
        self.outcome.names(self.info).of_limit(self.outcome.decision().limit_index())
    }

    /// Returns the name of the policy, if the policy is not hidden, has only one limit, and the request was decided by
    /// this limit. Otherwise, returns `None`.
    fn sole_label(&self) -> Option<&'a PolicyName> {
        match self.outcome.names(self.info).all() {
            [label] if !self.is_hidden() && self.outcome.quotas().is_empty() => Some(label),
            _ => None,
        }
    }

    /// Returns whether the policy is hidden from callers. See [`hidden`](crate::middleware::RateLimitLayer::hidden).
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.info.names().is_hidden()
    }

    /// Returns all limits of the policy, each with its quota, if a function chose other limits for the request.
    fn limits(&self) -> impl Iterator<Item = (&'a PolicyName, Option<QuotaPolicy>)> {
        let quotas = self.outcome.quotas();
        self.outcome
            .names(self.info)
            .all()
            .iter()
            .enumerate()
            .map(|(at, label)| (label, quotas.get(at).copied()))
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.label().name()
    }

    fn shared_name(&self) -> Arc<str> {
        self.label().shared_name()
    }

    /// Returns the quota and the window of the reported limit.
    #[must_use]
    pub fn policy(&self) -> QuotaPolicy {
        *self.quota()
    }

    #[inline]
    fn quota(&self) -> &'a QuotaPolicy {
        let current = self.outcome.quotas().get(self.outcome.decision().limit_index());
        current.unwrap_or_else(|| self.label().policy())
    }

    /// Returns whether the reported limit bounds requests in progress.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        self.quota().is_concurrent()
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        self.outcome.decision()
    }

    /// For an admission, returns the time over which the client should spread the remaining units. For a denial,
    /// returns the wait. Returns `None` if waiting does not help, if the time is not known, or if the limit [bounds
    /// requests in progress](Self::is_concurrent).
    ///
    /// To the function of a [custom response](crate::middleware::HttpResponder::rejection_response), returns the wait
    /// that the header fields report, before it is rounded up to seconds.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        let window = self.exact_window();
        match self.reported {
            Some(reported) if !self.decision().is_allowed() => window.map(|wait| reported.with_jitter(wait)),
            _ => window,
        }
    }

    /// Returns the [`window`](Self::window) without jitter and maximum.
    #[inline]
    fn exact_window(&self) -> Option<Duration> {
        let (policy, decision) = (self.quota(), self.decision());
        if policy.is_concurrent() {
            return None;
        }
        // If no unit remains after an admission, a window of zero means that it is not known when the next unit is
        // available.
        let is_known =
            |window: &Duration| !window.is_zero() || decision.remaining() > 0 || !decision.is_allowed();
        policy.effective_window(decision).filter(is_known)
    }

    /// Returns whether a response to an admitted request reports only the quota of the policy: if the policy has
    /// nothing left, has a unit again in less than a second, and queues a request until then. A client that obeys
    /// `r=0;t=1` would make one request a second, although the queue takes the request of a client that comes earlier.
    #[inline]
    fn is_paced(&self) -> bool {
        let decision = self.decision();
        decision.remaining() == 0
            && decision.is_allowed()
            && self.exact_window().is_some_and(|window| {
                let queues_for = self.outcome.queues_for(self.info);
                window < Duration::from_secs(1) && window <= Duration::from_nanos(queues_for)
            })
    }
}

/// The reports of the policies that decided a request.
pub(super) enum Reports<'a> {
    One(Option<PolicyReport<'a>>),
    /// The reports, and their number. The rest of the array repeats the first report.
    Few([PolicyReport<'a>; 4], usize),
    Many(Vec<PolicyReport<'a>>),
}

impl<'a> Deref for Reports<'a> {
    type Target = [PolicyReport<'a>];

    #[inline]
    fn deref(&self) -> &[PolicyReport<'a>] {
        match self {
            Self::One(report) => report.as_slice(),
            Self::Few(reports, count) => &reports[..*count],
            Self::Many(reports) => reports,
        }
    }
}

/// Returns the reports of the policies that decided a request, without those in shadow mode.
// This function is inlined, so that responders that do not read the reports do not pay for them.
#[inline(always)]
pub(super) fn reports<'a>(infos: &'a [PolicyInfo], outcomes: &'a [Option<Outcome>]) -> Reports<'a> {
    let report = |(info, outcome): (&'a PolicyInfo, &'a Outcome)| {
        (!outcome.is_shadow()).then(|| PolicyReport::new(info, outcome))
    };
    if let [_] = outcomes {
        return Reports::One(limited(infos, outcomes).find_map(report));
    }
    let mut all = limited(infos, outcomes).filter_map(report);
    let Some(first) = all.next() else { return Reports::One(None) };
    let (mut few, mut count) = ([first; 4], 1);
    if outcomes.len() > few.len() {
        return Reports::Many(iter::once(first).chain(all).collect());
    }
    for report in all {
        few[count] = report;
        count += 1;
    }
    Reports::Few(few, count)
}

/// The decisions of all policies that admitted a request, by name. If
/// [`insert_details`](crate::middleware::HttpResponder::insert_details) is on, this is an extension of the request.
///
/// If several layers limit a request, the decisions of the outer layers come first. In axum, a handler takes
/// `Decisions` as an argument: they are empty if no policy decided the request. The decisions of policies that are
/// hidden from callers are included.
#[derive(Clone, Debug, Default)]
pub struct Decisions(SmallVec<[(Arc<str>, Decision); 2]>);

impl Decisions {
    /// Returns the decision of the first policy with the name `policy`, or `None` if there is no such policy.
    #[must_use]
    pub fn get(&self, policy: &str) -> Option<&Decision> {
        self.iter().find(|(name, _)| *name == policy).map(|(_, decision)| decision)
    }

    /// Returns an iterator over the name and the decision of each policy.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Decision)> {
        self.0.iter().map(|(name, decision)| (&**name, decision))
    }

    fn extend(&mut self, reports: &[PolicyReport<'_>]) {
        self.0.extend(reports.iter().map(|report| (report.shared_name(), *report.decision())));
    }
}

/// The policy that denied a request, and its decision. If
/// [`insert_details`](crate::middleware::HttpResponder::insert_details) is on, this is an extension of the response.
///
/// The extension is for outer layers, such as a layer that records metrics. It is not sent to the caller, and can
/// contain a policy that is hidden from callers. If several policies denied the request, the extension contains the
/// policy with the longest wait. A wait that is unknown or does not help is treated as the longest.
#[derive(Clone, Debug)]
pub struct Rejected {
    policy: Arc<str>,
    decision: Decision,
}

impl Rejected {
    /// Returns the denial of a limiter that is closed or full or, if there is none, the denial with the longest wait.
    /// Returns `None` if no policy denied the request.
    fn new(reports: &[PolicyReport<'_>]) -> Option<Self> {
        let denials = reports.iter().filter(|report| !report.decision().is_allowed());
        let wait = |denial: &Decision| denial.retry_after().map_or(u128::MAX, |wait| wait.as_nanos());
        let rank = |denial: &Decision| (denial.is_unavailable(), wait(denial));
        let report = denials.max_by_key(|report| rank(report.decision()))?;
        Some(Self { policy: report.shared_name(), decision: *report.decision() })
    }

    /// Returns the name of the policy that denied the request.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the decision of the policy, which is a denial.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}
