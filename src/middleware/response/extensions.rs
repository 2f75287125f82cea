//! The extension of a request for handlers, and the extension of a response for outer layers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::report::PolicyReport;
use crate::decision::Decision;

/// The decisions of all policies that admitted a request, by name. If
/// [`insert_details`](crate::middleware::HttpResponder::insert_details) is on, this is an extension of the request.
///
/// If several layers limit a request, the decisions of the outer layers come first. In axum, a handler takes
/// `Extension<Decisions>` as an argument. The decisions of policies that are hidden from callers are included.
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

    pub(super) fn extend(&mut self, reports: &[PolicyReport<'_>]) {
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
    /// Returns the denial with the longest wait, or `None` if no policy denied the request.
    pub(super) fn new(reports: &[PolicyReport<'_>]) -> Option<Self> {
        let denials = reports.iter().filter(|report| !report.decision().is_allowed());
        let wait = |denial: &Decision| denial.retry_after().map_or(u128::MAX, |wait| wait.as_nanos());
        let report = denials.max_by_key(|report| wait(report.decision()))?;
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
