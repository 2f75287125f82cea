//! Several policies, each with its own key, of which a call is charged all or none.

use std::collections::HashSet;
use std::convert::Infallible;

use super::outcome::Outcome;
use super::set::Deduplicate;
use super::set::JointPolicy;
use super::set::MaxWaitFn;
use super::set::PolicySet;
use super::set::SettlePolicies;
use super::set::Verdict;
use super::set::WaitOutcome;
use super::set::sealed;
use crate::decision::Decision;
use crate::key::KeyError;
use crate::middleware::response::{PolicyReport, StoreError};
use crate::store::AllDecisions;
use crate::store::BoxError;
use crate::store::Decided;
use crate::store::Few;
use crate::store::JointOutcome;
use crate::store::JointRequest;
use crate::store::JointWait;
use crate::store::Permit;
use crate::store::decide_joint;

/// Two policies, or more: each can be an `And` again. Created by [`and`](crate::middleware::RateLimitLayer::and).
///
/// A request is admitted if both policies allow it, and is then charged by both. If one denies it, neither charges it.
#[derive(Clone, Debug)]
pub struct And<P, Q>(P, Q);

impl<P: Deduplicate, Q: Deduplicate> And<P, Q> {
    pub(in crate::middleware) fn new(first: P, second: Q) -> Self {
        let mut taken = HashSet::new();
        let first = first.deduplicate(&mut taken);
        Self(first, second.deduplicate(&mut taken))
    }
}

impl<P, Q> sealed::Sealed for And<P, Q> {}

impl<P: Deduplicate, Q: Deduplicate> Deduplicate for And<P, Q> {
    fn deduplicate(self, taken: &mut HashSet<String>) -> Self {
        let first = self.0.deduplicate(taken);
        Self(first, self.1.deduplicate(taken))
    }
}

impl<Req, P: JointPolicy<Req>, Q: JointPolicy<Req>> JointPolicy<Req> for And<P, Q> {
    fn gather<'a>(
        &'a self,
        request: &Req,
        max_wait: MaxWaitFn<'_>,
        parts: &mut Few<Option<JointRequest<'a>>>,
    ) -> Result<(), KeyError> {
        let first = self.0.gather(request, max_wait, parts);
        if matches!(&first, Err(error) if error.is_forbidden()) {
            return first;
        }
        // The second always runs: its 403 for a forbidden caller takes precedence over a missing key.
        match self.1.gather(request, max_wait, parts) {
            Err(error) if error.is_forbidden() => Err(error),
            second => first.and(second),
        }
    }

    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, outcome: &mut Vec<Option<Outcome>>) {
        self.0.tell(decided, outcome);
        self.1.tell(decided, outcome);
    }

    fn shadow(
        &self,
        request: &Req,
        outcome: &mut dyn Iterator<Item = &mut Option<Outcome>>,
        permit: &mut Permit,
    ) {
        self.0.shadow(request, outcome, permit);
        self.1.shadow(request, outcome, permit);
    }

    fn reports<'a>(
        &'a self,
        outcome: &mut dyn Iterator<Item = &'a Option<Outcome>>,
        reports: &mut Few<PolicyReport<'a>>,
    ) {
        self.0.reports(outcome, reports);
        self.1.reports(outcome, reports);
    }

    fn log_denials(&self, outcome: &mut dyn Iterator<Item = &Option<Outcome>>) {
        self.0.log_denials(outcome);
        self.1.log_denials(outcome);
    }

    fn log_waits(&self, outcome: &mut dyn Iterator<Item = &Option<Outcome>>) {
        self.0.log_waits(outcome);
        self.1.log_waits(outcome);
    }

    fn blame(&self, error: BoxError) -> StoreError<'_> {
        self.0.blame(error)
    }
}

impl<P, Q> And<P, Q> {
    fn outcome<Req>(&self, decided: Few<Option<Decided>>) -> Vec<Option<Outcome>>
    where
        Self: JointPolicy<Req>,
    {
        let mut outcome = Vec::with_capacity(decided.len());
        self.tell(&mut decided.into_iter(), &mut outcome);
        outcome
    }

    /// Returns the outcome of a call that all policies admitted that are not in shadow mode.
    fn admitted<Req>(
        &self,
        request: &Req,
        (decided, mut permit): AllDecisions,
    ) -> (Vec<Option<Outcome>>, Permit)
    where
        Self: JointPolicy<Req>,
    {
        let mut outcome = self.outcome(decided);
        self.shadow(request, &mut outcome.iter_mut(), &mut permit);
        (outcome, permit)
    }
}

impl<Req, P: JointPolicy<Req>, Q: JointPolicy<Req>> PolicySet<Req> for And<P, Q> {
    type Outcome = Vec<Option<Outcome>>;
    type WaitOutcome = AllDecisions;
    type Error = Infallible;
    type Wait = Box<JointWait>;

    fn decide(&self, request: &Req, max_wait: MaxWaitFn<'_>) -> Verdict<Self::Outcome, Self::Wait> {
        let mut parts = Few::new();
        if let Err(error) = self.gather(request, max_wait, &mut parts) {
            return Verdict::NoKey(error);
        }
        if parts.iter().all(Option::is_none) {
            let nothing = parts.iter().map(|_| None).collect();
            let (outcome, permit) = self.admitted(request, (nothing, Permit::default()));
            let in_shadow = outcome.iter().any(Option::is_some);
            return if in_shadow { Verdict::Admitted(outcome, permit) } else { Verdict::Pass };
        }
        match decide_joint(parts) {
            JointOutcome::Admitted(decided) => {
                let (outcome, permit) = self.admitted(request, decided);
                Verdict::Admitted(outcome, permit)
            }
            JointOutcome::Denied(decided) => Verdict::Denied(self.outcome(decided)),
            JointOutcome::Pending(wait) => Verdict::Later(wait),
        }
    }

    fn waited(&self, decided: AllDecisions, request: &Req) -> WaitOutcome<Self::Outcome> {
        if decided.0.iter().flatten().all(|decided| decided.decision.is_allowed()) {
            let (outcome, permit) = self.admitted(request, decided);
            WaitOutcome::Admitted(outcome, permit)
        } else {
            WaitOutcome::Denied(self.outcome(decided.0))
        }
    }

    fn report<T>(&self, outcome: &Self::Outcome, f: impl FnOnce(&[PolicyReport<'_>]) -> T) -> T {
        let mut reports = Few::new();
        self.reports(&mut outcome.iter(), &mut reports);
        f(&reports)
    }

    fn shadow_denial<'a>(&self, outcome: &'a Self::Outcome) -> Option<&'a Decision> {
        outcome.iter().flatten().filter_map(Outcome::shadow_denial).next_back()
    }

    fn each(outcome: &mut Self::Outcome, f: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Outcome>>)) {
        f(&mut outcome.iter_mut().map(Option::as_mut));
    }

    fn log_denial(&self, outcome: &Self::Outcome) {
        self.log_denials(&mut outcome.iter());
    }

    fn log_wait(&self, outcome: &Self::Outcome) {
        self.log_waits(&mut outcome.iter());
    }

    fn observe_failure(&self, error: BoxError) -> StoreError<'_> {
        self.blame(error)
    }
}

impl<Res, P: SettlePolicies<Res>, Q: SettlePolicies<Res>> SettlePolicies<Res> for And<P, Q> {
    fn settles(&self) -> bool {
        self.0.settles() || self.1.settles()
    }

    fn settle(&self, outcome: &mut dyn Iterator<Item = Option<&mut Outcome>>, response: &Res) {
        self.0.settle(outcome, response);
        self.1.settle(outcome, response);
    }
}
