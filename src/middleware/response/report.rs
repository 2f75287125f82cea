//! The reports of the policies. A report has the decision of a policy as it is reported to callers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::QuotaPolicy;
use crate::decision::Decision;
use crate::middleware::policy::info::PolicyInfo;
use crate::middleware::policy::outcome::{Outcome, limited};
use crate::middleware::policy::policy_name::PolicyName;

/// A policy and its decision on a call. If the policy has several limits on its key, the decision reports the limit
/// that [matters most](Decision::limit_index).
#[derive(Clone, Copy, Debug)]
pub struct PolicyReport<'a> {
    info: &'a PolicyInfo,
    outcome: &'a Outcome,
}

impl<'a> PolicyReport<'a> {
    pub(super) fn new(info: &'a PolicyInfo, outcome: &'a Outcome) -> Self {
        Self { info, outcome }
    }

    pub(in crate::middleware) fn label(&self) -> &'a PolicyName {
        // The index may be out of range with a custom algorithm.
        let names = &self.info.names;
        names.all().get(self.outcome.decision.limit_index()).unwrap_or(names.first())
    }

    /// Returns the name of the policy, if the policy is not hidden, has only one limit, and this limit still has the
    /// quota for which the [`PolicyName`] was made. Otherwise, returns `None`.
    pub(in crate::middleware) fn sole_label(&self) -> Option<&'a PolicyName> {
        match self.info.names.all() {
            [label] if !self.is_hidden() && self.outcome.quotas().is_empty() => Some(label),
            _ => None,
        }
    }

    /// Returns whether the policy is hidden from callers. See [`hidden`](crate::middleware::RateLimitLayer::hidden).
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.info.names.is_hidden()
    }

    /// Returns all limits of the policy, each with its current quota. `None` means that the limit still has the quota
    /// for which the [`PolicyName`] was made.
    pub(in crate::middleware) fn limits(
        &self,
    ) -> impl Iterator<Item = (&'a PolicyName, Option<QuotaPolicy>)> {
        let quotas = self.outcome.quotas();
        self.info.names.all().iter().enumerate().map(|(at, label)| (label, quotas.get(at).copied()))
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.label().name()
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        self.label().shared_name()
    }

    /// Returns the quota and the window of the reported limit.
    #[must_use]
    pub fn policy(&self) -> QuotaPolicy {
        let current = self.outcome.quotas().get(self.decision().limit_index());
        current.copied().unwrap_or_else(|| self.label().policy())
    }

    /// Returns whether the reported limit bounds requests in progress.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        self.policy().is_concurrent()
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        &self.outcome.decision
    }

    /// For an admission, returns the time over which the client should spread the remaining units. For a denial,
    /// returns the wait. Returns `None` if waiting does not help, if the time is not known, or if the limit [bounds
    /// requests in progress](Self::is_concurrent).
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        let (policy, decision) = (self.policy(), self.decision());
        if policy.is_concurrent() {
            return None;
        }
        // If no unit remains, a window of zero means that it is not known when the next unit is available.
        policy.effective_window(decision).filter(|window| !window.is_zero() || decision.remaining() > 0)
    }
}

/// The reports of the policies that decided a request.
pub(in crate::middleware) enum Reports<'a> {
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
pub(in crate::middleware) fn reports<'a>(
    infos: &'a [PolicyInfo],
    outcomes: &'a [Option<Outcome>],
) -> Reports<'a> {
    let report = |(info, outcome): (&'a PolicyInfo, &'a Outcome)| {
        (!outcome.is_shadow).then(|| PolicyReport::new(info, outcome))
    };
    if let [_] = outcomes {
        return Reports::One(limited(infos, outcomes).find_map(report));
    }
    let all = || limited(infos, outcomes).filter_map(report);
    let Some(first) = all().next() else { return Reports::One(None) };
    let (mut few, mut count) = ([first; 4], 0);
    if outcomes.len() > few.len() {
        return Reports::Many(all().collect());
    }
    for report in all() {
        few[count] = report;
        count += 1;
    }
    Reports::Few(few, count)
}
