//! A policy that decides alone.

use std::iter;
use std::time::Duration;

use super::Policy;
use super::wait::{Ended, Waiting};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::key::{Caller, KeyExtractor};
use crate::middleware::policies::{Patience, Policies, Settle, Verdict, Waited};
use crate::middleware::responder::{Report, StoreFailure};
use crate::middleware::terms::{Settles, Terms};
use crate::middleware::told::{Charge, Told};
use crate::store::{Answer, BoxError, Call, Permit, Store};

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    #[inline]
    pub(super) fn decide_for<Req>(
        &self,
        request: &Req,
        caller: &Caller<K::Key>,
        patience: Patience<'_>,
    ) -> Verdict<Told, Waiting<S::Wait, A>>
    where
        K: KeyExtractor<Req>,
        C: Terms<Req, K::Key, A>,
        S: Store<A, Caller<K::Key>>,
    {
        let rule = self.rule(request, caller);
        let (cost, priority) = (self.terms.cost(request), self.terms.has_priority(request));
        let mut call = Call::with(cost, rule.as_ref(), priority);
        let shadow = self.shadow();
        // A call that is let through anyway does not wait.
        let patience: Patience<'_> = if shadow.is_some() { &|| Some(Duration::ZERO) } else { patience };
        if let Some(patience) = self.patience(rule.as_ref(), patience) {
            call = call.within(patience);
        }
        if self.terms.is_settled() {
            call = call.with_reservation();
        }
        let (decision, permit, reservation) = match self.limiter.decide(caller, call) {
            Answer::Now(decision) => (decision, Permit::default(), None),
            Answer::Holding(decision, permit) => (decision, permit, None),
            Answer::Reserved(decision, reservation) => (decision, Permit::default(), Some(reservation)),
            Answer::Later(wait) => {
                let (permit, reservation) = (S::permit, S::reservation);
                return Verdict::Later(Waiting { wait, rule, permit, reservation });
            }
        };
        match self.judge(decision, rule.as_ref(), reservation, shadow) {
            (told, true) => Verdict::Admitted(told, permit),
            (told, false) => Verdict::Denied(told),
        }
    }
}

impl<Req, K, A, C, S> Policies<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: Terms<Req, K::Key, A>,
    S: Store<A, Caller<K::Key>>,
{
    type Told = Told;
    type Waited = Ended<A>;
    type Error = S::Error;
    type Wait = Waiting<S::Wait, A>;

    #[inline]
    fn decide(&self, request: &Req, patience: Patience<'_>) -> Verdict<Told, Self::Wait> {
        let caller = match self.caller(request) {
            Ok(Some(caller)) => caller,
            Ok(None) => return Verdict::Pass,
            Err(error) => return Verdict::NoKey(error),
        };
        self.decide_for(request, &caller, patience)
    }

    fn waited(&self, ended: Ended<A>, _: &Req) -> Waited<Told> {
        let Ended { decision, rule, reservation, permit } = ended;
        match self.judge(decision, rule.as_ref(), reservation, self.shadow()) {
            (told, true) => Waited::Admitted(told, permit),
            (told, false) => Waited::Denied(told),
        }
    }

    #[inline]
    fn report<T>(&self, told: &Told, tell: impl FnOnce(&[Report<'_>]) -> T) -> T {
        if told.is_shadow { tell(&[]) } else { tell(&[Report::new(&self.labels, told)]) }
    }

    fn shadow_denial<'a>(&self, told: &'a Told) -> Option<&'a Decision> {
        told.shadow_denial()
    }

    fn each(told: &mut Told, look: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Told>>)) {
        look(&mut iter::once(Some(told)));
    }

    fn observe_denial(&self, told: &Told) {
        self.observe(&told.decision);
    }

    fn observe_wait(&self, told: &Told) {
        self.observer.waited(self.labels.first().name(), &told.decision);
    }

    fn is_lenient(&self) -> bool {
        self.shadow().is_some()
    }

    fn observe_failure(&self, error: BoxError) -> StoreFailure<'_> {
        self.observer.no_store(self.labels.first().name(), &error);
        self.failure(error)
    }
}

impl<Res, K, A: Algorithm, C: Settles<Res>, S> Settle<Res> for Policy<K, A, C, S> {
    #[inline]
    fn settles(&self) -> bool {
        self.terms.settles()
    }

    fn settle(&self, told: &mut dyn Iterator<Item = Option<&mut Told>>, response: &Res) {
        if let Some(Some(told)) = told.next()
            && let Some(Charge { reservation, rule }) = told.charge.take()
            && let Some(actual) = self.terms.actual(response)
            && let Some(decision) = reservation.settle(actual)
        {
            let rule = rule.as_deref().and_then(|rule| rule.downcast_ref());
            let decision = decision.with_delay(Nanos::from(told.decision.delay()).0);
            *told = Told { is_shadow: told.is_shadow, ..self.told(decision, rule, None) };
        }
    }
}
