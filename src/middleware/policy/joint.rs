//! The part of a policy in a joint decision.

use std::collections::HashSet;

use super::Policy;
use crate::algorithm::Algorithm;
use crate::key::{KeyError, KeyExtractor};
use crate::middleware::policy::outcome::Outcome;
use crate::middleware::policy::request_options::RequestOptions;
use crate::middleware::policy::set::{Deduplicate, JointPolicy, MaxWaitFn, Verdict};
use crate::middleware::response::{PolicyReport, StoreError};
use crate::store::{Attempt, BoxError, Decided, Few, JointRequest, Permit};

impl<Req, K, A, C> JointPolicy<Req> for Policy<K, A, C>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
{
    fn gather<'a>(
        &'a self,
        request: &Req,
        max_wait: MaxWaitFn<'_>,
        parts: &mut Few<Option<JointRequest<'a>>>,
    ) -> Result<(), KeyError> {
        let caller = self.caller(request)?.filter(|_| self.shadow().is_none());
        parts.push(caller.map(|caller| {
            let (cost, algorithm) = (self.options.cost(request), self.algorithm(request, &caller));
            let mut call = Attempt::with(cost, algorithm.as_ref(), self.options.has_priority(request));
            if let Some(max_wait) = self.max_wait(algorithm.as_ref(), max_wait) {
                call = call.with_max_wait(max_wait);
            }
            if self.options.is_settled() {
                call = call.with_reservation();
            }
            self.limiter.part(&caller, call)
        }));
        Ok(())
    }

    fn shadow(
        &self,
        request: &Req,
        outcome: &mut dyn Iterator<Item = &mut Option<Outcome>>,
        permit: &mut Permit,
    ) {
        let outcome = outcome.next();
        if self.shadow().is_some()
            && let Some(caller) = self.key_of_uncounted(request)
            && let (Verdict::Admitted(shadow, held), Some(outcome)) =
                (self.decide_for(request, &caller, &|| None), outcome)
        {
            *outcome = Some(shadow);
            permit.merge(held);
        }
    }

    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, outcome: &mut Vec<Option<Outcome>>) {
        let decided = decided.next().flatten();
        outcome.push(decided.map(|Decided { decision, algorithm, reservation }| {
            let algorithm = algorithm.as_deref().and_then(|algorithm| algorithm.downcast_ref());
            self.outcome(decision, algorithm, reservation)
        }));
    }

    fn reports<'a>(
        &'a self,
        outcome: &mut dyn Iterator<Item = &'a Option<Outcome>>,
        reports: &mut Few<PolicyReport<'a>>,
    ) {
        if let Some(Some(outcome)) = outcome.next()
            && !outcome.is_shadow
        {
            reports.push(PolicyReport::new(&self.names, outcome));
        }
    }

    fn log_denials(&self, outcome: &mut dyn Iterator<Item = &Option<Outcome>>) {
        if let Some(Some(outcome)) = outcome.next() {
            self.observe(&outcome.decision);
        }
    }

    fn log_waits(&self, outcome: &mut dyn Iterator<Item = &Option<Outcome>>) {
        if let Some(Some(outcome)) = outcome.next() {
            self.observer.waited(self.names.first().name(), &outcome.decision);
        }
    }

    fn blame(&self, error: BoxError) -> StoreError<'_> {
        self.failure(error)
    }
}

impl<K, A: Algorithm, C, S> Deduplicate for Policy<K, A, C, S> {
    fn deduplicate(self, taken: &mut HashSet<String>) -> Self {
        Self { names: self.names.deduplicate(taken), ..self }
    }
}
