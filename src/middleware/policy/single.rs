//! The decision of one policy by itself, and the settlement of its calls.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::Policy;
use super::info::PolicyInfo;
use super::outcome::Outcome;
use super::request_options::{RequestOptions, SettleResponse};
use super::set::{PolicySet, Progress, RejectReason, SettlePolicies, Verdict};
use super::wait::{PolicyWait, WaitResult};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::key::{KeyExtractor, StoreKey};
use crate::stats::CallOutcome;
use crate::store::{Acquired, BoxError, KeyedStore, Store};

impl<K, A: Algorithm, C, S: Store<A>> Policy<K, A, C, S> {
    /// Decides a request whose key is known. If the decision is made at once, sets `outcome`. Otherwise, returns the
    /// wait for the decision.
    #[inline(always)]
    pub(super) fn decide_alone<Req>(
        &self,
        info: &PolicyInfo,
        request: &Req,
        key: &StoreKey<K::Key>,
        max_wait: Option<Duration>,
        outcome: &mut Option<Outcome>,
    ) -> Progress<PolicyWait<S::Wait, A>>
    where
        K: KeyExtractor<Req>,
        C: RequestOptions<Req, K::Key, A>,
        S: KeyedStore<A, StoreKey<K::Key>>,
    {
        let options = self.options.options(request, key.key());
        let in_shadow = info.is_in_shadow();
        // In shadow mode, a request must not wait in a queue.
        let max_wait = if in_shadow { Some(Duration::ZERO) } else { max_wait };
        let store = self.limiter.store();
        match store.acquire(store.key(key), self.attempt(&options, in_shadow, max_wait)) {
            Acquired::Ready(decision, reservation) => {
                info.calls.add_decision(&decision, in_shadow);
                let decided =
                    outcome.insert(Outcome { decision, is_shadow: in_shadow, reservation, details: None });
                // Without this test, the assignment would drop the old value for each request.
                if let Some(details) = self.details(options.algorithm.as_ref()) {
                    decided.details = Some(details);
                }
                Progress::Ready(verdict(info, decided))
            }
            Acquired::Pending(wait) => {
                let borrows = if options.has_priority { options.cost } else { 0 };
                if S::OWNS_COUNTS {
                    info.calls.add(CallOutcome::Queued);
                }
                Progress::Pending(PolicyWait::new(wait, options.algorithm, borrows, Arc::clone(&info.calls)))
            }
        }
    }
}

/// Returns the verdict on a request. If the request is denied in shadow mode, counts the denial and admits the request.
#[inline]
fn verdict(info: &PolicyInfo, outcome: &Outcome) -> Verdict {
    match outcome.decision.is_allowed() {
        true => Ok(()),
        false if outcome.is_shadow => {
            info.record_shadow_denial(&outcome.decision);
            Ok(())
        }
        false => Err(RejectReason::Denied),
    }
}

impl<Req, K, A, C, S> PolicySet<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    S: KeyedStore<A, StoreKey<K::Key>>,
{
    type Outcomes = [Option<Outcome>; 1];
    type Wait = PolicyWait<S::Wait, A>;

    #[inline(always)]
    fn decide(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        [outcome]: &mut Self::Outcomes,
    ) -> Progress<Self::Wait> {
        let info = &infos[0];
        match self.key(info, request) {
            Ok(Some(key)) => self.decide_alone(info, request, &key, max_wait, outcome),
            Ok(None) => Progress::Ready(Ok(())),
            Err(error) => Progress::Ready(Err(RejectReason::KeyError(error))),
        }
    }

    fn waited(
        &self,
        infos: &[PolicyInfo],
        _: &Req,
        waited: Result<WaitResult<A>, BoxError>,
        [outcome]: &mut Self::Outcomes,
    ) -> Verdict {
        let info = &infos[0];
        match waited {
            Ok(WaitResult { decision, algorithm, reservation, borrows }) => {
                info.log_store_decided();
                let (is_shadow, details) = (info.is_in_shadow(), self.details(algorithm.as_ref()));
                if !S::OWNS_COUNTS && decision.is_delayed() {
                    info.calls.add(CallOutcome::Queued);
                }
                info.calls.add_decision(&decision, is_shadow);
                let decided = outcome.insert(Outcome { decision, is_shadow, reservation, details });
                decided.set_borrowed(borrows);
                verdict(info, decided)
            }
            Err(error) => Err(RejectReason::StoreError(error)),
        }
    }

    fn watch(&self, infos: &[PolicyInfo], request: &Req, outcomes: &[Option<Outcome>]) {
        self.watch_key(&infos[0], request, outcomes[0].as_ref());
    }
}

impl<Res, K, A: Algorithm, C: SettleResponse<Res>, S: Store<A>> SettlePolicies<Res> for Policy<K, A, C, S> {
    fn settle(&self, outcomes: &mut [Option<Outcome>], response: &Res) {
        if let [Some(outcome)] = outcomes
            && !outcome.reservation.is_empty()
            && let Some(actual) = self.options.actual(response)
            && let Some(decision) = mem::take(&mut outcome.reservation).settle(actual)
        {
            outcome.decision = decision.with_delay(Nanos::from(outcome.decision.delay()).0);
            if !outcome.is_tiered() {
                outcome.details = self.details(None);
            }
        }
    }
}
