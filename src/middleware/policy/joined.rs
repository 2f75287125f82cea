//! A policy that is decided together with others.

use std::collections::HashSet;
use std::mem;

use super::Policy;
use crate::algorithm::Algorithm;
use crate::key::{KeyError, KeyExtractor};
use crate::middleware::policies::{Member, Names, Patience, Verdict};
use crate::middleware::responder::{Report, StoreFailure};
use crate::middleware::terms::Terms;
use crate::middleware::told::Told;
use crate::store::{BoxError, Call, Decided, Few, Part, Permit};

impl<Req, K, A, C> Member<Req> for Policy<K, A, C>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: Terms<Req, K::Key, A>,
{
    fn gather<'a>(
        &'a self,
        request: &Req,
        patience: Patience<'_>,
        parts: &mut Few<Option<Part<'a>>>,
    ) -> Result<(), KeyError> {
        let caller = self.caller(request)?.filter(|_| self.shadow().is_none());
        parts.push(caller.map(|caller| {
            let (cost, rule) = (self.terms.cost(request), self.rule(request, &caller));
            let mut call = Call::with(cost, rule.as_ref(), self.terms.has_priority(request));
            if let Some(patience) = self.patience(rule.as_ref(), patience) {
                call = call.within(patience);
            }
            if self.terms.is_settled() {
                call = call.with_reservation();
            }
            self.limiter.part(&caller, call)
        }));
        Ok(())
    }

    fn shadow(&self, request: &Req, told: &mut dyn Iterator<Item = &mut Option<Told>>, permit: &mut Permit) {
        let told = told.next();
        if self.shadow().is_some()
            && let Some(caller) = self.caller_again(request)
            && let (Verdict::Admitted(shadow, held), Some(told)) =
                (self.decide_for(request, &caller, &|| None), told)
        {
            *told = Some(shadow);
            *permit = mem::take(permit).and(held);
        }
    }

    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, told: &mut Vec<Option<Told>>) {
        let decided = decided.next().flatten();
        told.push(decided.map(|Decided { decision, rule, reservation }| {
            let rule = rule.as_deref().and_then(|rule| rule.downcast_ref());
            self.told(decision, rule, reservation)
        }));
    }

    fn reports<'a>(
        &'a self,
        told: &mut dyn Iterator<Item = &'a Option<Told>>,
        reports: &mut Few<Report<'a>>,
    ) {
        if let Some(Some(told)) = told.next()
            && !told.is_shadow
        {
            reports.push(Report::new(&self.labels, told));
        }
    }

    fn observe_denials(&self, told: &mut dyn Iterator<Item = &Option<Told>>) {
        if let Some(Some(told)) = told.next() {
            self.observe(&told.decision);
        }
    }

    fn observe_waits(&self, told: &mut dyn Iterator<Item = &Option<Told>>) {
        if let Some(Some(told)) = told.next() {
            self.observer.waited(self.labels.first().name(), &told.decision);
        }
    }

    fn blame(&self, error: BoxError) -> StoreFailure<'_> {
        self.failure(error)
    }
}

impl<K, A: Algorithm, C, S> Names for Policy<K, A, C, S> {
    fn distinct(self, taken: &mut HashSet<String>) -> Self {
        Self { labels: self.labels.distinct(taken), ..self }
    }
}
