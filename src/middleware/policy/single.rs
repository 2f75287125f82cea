//! The policy set of a single policy.

use std::iter;
use std::time::Duration;

use super::Policy;
use super::wait::{PolicyWait, WaitResult};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::key::{KeyExtractor, StoreKey};
use crate::middleware::policy::outcome::{Charge, Outcome};
use crate::middleware::policy::request_options::{RequestOptions, SettleResponse};
use crate::middleware::policy::set::{MaxWaitFn, PolicySet, SettlePolicies, Verdict, WaitOutcome};
use crate::middleware::response::{PolicyReport, StoreError};
use crate::store::{Acquired, Attempt, BoxError, KeyedStore, Permit, Reservation, Store};

impl<K, A: Algorithm, C, S: Store<A>> Policy<K, A, C, S> {
    #[inline]
    pub(super) fn decide_for<Req>(
        &self,
        request: &Req,
        caller: &StoreKey<K::Key>,
        max_wait: MaxWaitFn<'_>,
    ) -> Verdict<Outcome, PolicyWait<S::Wait, A>>
    where
        K: KeyExtractor<Req>,
        C: RequestOptions<Req, K::Key, A>,
        S: KeyedStore<A, StoreKey<K::Key>>,
    {
        let algorithm = self.algorithm(request, caller);
        let (cost, priority) = (self.options.cost(request), self.options.has_priority(request));
        let mut call = Attempt::with(cost, algorithm.as_ref(), priority);
        let shadow = self.shadow();
        // In shadow mode a call is admitted in any case, so it does not wait.
        let max_wait: MaxWaitFn<'_> = if shadow.is_some() { &|| Some(Duration::ZERO) } else { max_wait };
        if let Some(max_wait) = self.max_wait(algorithm.as_ref(), max_wait) {
            call = call.with_max_wait(max_wait);
        }
        if self.options.is_settled() {
            call = call.with_reservation();
        }
        let (decision, reservation) = match self.limiter.decide(caller, call) {
            Acquired::Ready(decision, reservation) => (decision, reservation),
            Acquired::Pending(wait) => return Verdict::Later(PolicyWait { wait, algorithm }),
        };
        let (permit, reservation) = split(reservation);
        match self.apply_shadow(decision, algorithm.as_ref(), reservation, shadow) {
            (outcome, true) => Verdict::Admitted(outcome, permit),
            (outcome, false) => Verdict::Denied(outcome),
        }
    }
}

/// Returns the permit of a call that holds one, and the reservation of one that can be settled.
#[inline]
fn split(reservation: Reservation) -> (Permit, Option<Reservation>) {
    if reservation.is_empty() {
        (Permit::default(), None)
    } else if reservation.is_permit() {
        (Permit::new(reservation), None)
    } else {
        (Permit::default(), Some(reservation))
    }
}

impl<Req, K, A, C, S> PolicySet<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    S: KeyedStore<A, StoreKey<K::Key>>,
{
    type Outcome = Outcome;
    type WaitOutcome = WaitResult<A>;
    type Error = S::Error;
    type Wait = PolicyWait<S::Wait, A>;

    #[inline]
    fn decide(&self, request: &Req, max_wait: MaxWaitFn<'_>) -> Verdict<Outcome, Self::Wait> {
        let caller = match self.caller(request) {
            Ok(Some(caller)) => caller,
            Ok(None) => return Verdict::Pass,
            Err(error) => return Verdict::NoKey(error),
        };
        self.decide_for(request, &caller, max_wait)
    }

    fn waited(&self, ended: WaitResult<A>, _: &Req) -> WaitOutcome<Outcome> {
        let WaitResult { decision, algorithm, reservation } = ended;
        let (permit, reservation) = split(reservation);
        match self.apply_shadow(decision, algorithm.as_ref(), reservation, self.shadow()) {
            (outcome, true) => WaitOutcome::Admitted(outcome, permit),
            (outcome, false) => WaitOutcome::Denied(outcome),
        }
    }

    #[inline]
    fn report<T>(&self, outcome: &Outcome, f: impl FnOnce(&[PolicyReport<'_>]) -> T) -> T {
        if outcome.is_shadow { f(&[]) } else { f(&[PolicyReport::new(&self.names, outcome)]) }
    }

    fn shadow_denial<'a>(&self, outcome: &'a Outcome) -> Option<&'a Decision> {
        outcome.shadow_denial()
    }

    fn each(outcome: &mut Outcome, f: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Outcome>>)) {
        f(&mut iter::once(Some(outcome)));
    }

    fn log_denial(&self, outcome: &Outcome) {
        self.observe(&outcome.decision);
    }

    fn log_wait(&self, outcome: &Outcome) {
        self.observer.waited(self.names.first().name(), &outcome.decision);
    }

    fn fails_open(&self) -> bool {
        self.shadow().is_some()
    }

    fn observe_failure(&self, error: BoxError) -> StoreError<'_> {
        self.observer.store_error(self.names.first().name(), &error);
        self.failure(error)
    }
}

impl<Res, K, A: Algorithm, C: SettleResponse<Res>, S: Store<A>> SettlePolicies<Res> for Policy<K, A, C, S> {
    #[inline]
    fn settles(&self) -> bool {
        self.options.settles()
    }

    fn settle(&self, outcome: &mut dyn Iterator<Item = Option<&mut Outcome>>, response: &Res) {
        if let Some(Some(outcome)) = outcome.next()
            && let Some(Charge { reservation, algorithm }) = outcome.charge.take()
            && let Some(actual) = self.options.actual(response)
            && let Some(decision) = reservation.settle(actual)
        {
            let algorithm = algorithm.as_deref().and_then(|algorithm| algorithm.downcast_ref());
            let decision = decision.with_delay(Nanos::from(outcome.decision.delay()).0);
            *outcome = Outcome { is_shadow: outcome.is_shadow, ..self.outcome(decision, algorithm, None) };
        }
    }
}
