//! A policy that is not joined with others.

use std::time::Duration;

use super::Policy;
use super::info::PolicyInfo;
use super::outcome::Outcome;
use super::request_options::{RequestOptions, SettleResponse};
use super::set::{PolicySet, Progress, SettlePolicies, Verdict};
use super::wait::{PolicyWait, WaitResult};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::key::{KeyExtractor, StoreKey};
use crate::store::{Acquired, BoxError, KeyedStore, Permit, Reservation, Store};

impl<K, A: Algorithm, C, S: Store<A>> Policy<K, A, C, S> {
    /// Decides a request whose key is known.
    #[inline]
    pub(super) fn decide_alone<Req>(
        &self,
        info: &PolicyInfo,
        request: &Req,
        key: &StoreKey<K::Key>,
        max_wait: Option<Duration>,
    ) -> Progress<[Option<Outcome>; 1], PolicyWait<S::Wait, A>>
    where
        K: KeyExtractor<Req>,
        C: RequestOptions<Req, K::Key, A>,
        S: KeyedStore<A, StoreKey<K::Key>>,
    {
        let options = self.options.options(request, key.key());
        let in_shadow = info.is_in_shadow();
        // In shadow mode every request is admitted at once, so a request must not wait.
        let max_wait = if in_shadow { Some(Duration::ZERO) } else { max_wait };
        let decided = match self.limiter.decide(key, self.attempt(info, &options, in_shadow, max_wait)) {
            Acquired::Ready(decision, reservation) => (decision, reservation),
            Acquired::Pending(wait) => {
                let borrows = if options.has_priority { options.cost } else { 0 };
                return Progress::Pending(PolicyWait::new(wait, options.algorithm, borrows, &info.calls));
            }
        };
        info.count(&decided.0, in_shadow);
        Progress::Ready(self.verdict(info, in_shadow, options.algorithm.as_ref(), decided))
    }

    /// Returns the verdict on a decided request. In shadow mode, a denial is counted, and the request is admitted.
    #[inline]
    fn verdict(
        &self,
        info: &PolicyInfo,
        in_shadow: bool,
        algorithm: Option<&A>,
        (decision, reservation): (Decision, Reservation),
    ) -> Verdict<[Option<Outcome>; 1]> {
        let is_allowed = decision.is_allowed();
        // A permit is kept with the response. Any other reservation is kept with the outcome, until the response
        // settles the cost.
        let (permit, reservation) = match reservation.is_empty() {
            true => (Permit::default(), None),
            false if reservation.is_permit() => (Permit::new(reservation), None),
            false => (Permit::default(), Some(reservation)),
        };
        let mut outcome = self.outcome(decision, algorithm, reservation);
        outcome.is_shadow = in_shadow;
        if in_shadow && !is_allowed {
            info.record_shadow_denial(&decision);
        }
        Verdict::Decided { is_admitted: is_allowed || in_shadow, outcomes: [Some(outcome)], permit }
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

    #[inline]
    fn decide(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
    ) -> Progress<Self::Outcomes, Self::Wait> {
        let info = &infos[0];
        match self.key(info, request) {
            Ok(Some(key)) => self.decide_alone(info, request, &key, max_wait),
            Ok(None) => {
                let permit = Permit::default();
                Progress::Ready(Verdict::Decided { is_admitted: true, outcomes: [None], permit })
            }
            Err(error) => Progress::Ready(Verdict::KeyError(error)),
        }
    }

    fn waited(
        &self,
        infos: &[PolicyInfo],
        _: &Req,
        waited: Result<WaitResult<A>, BoxError>,
    ) -> Verdict<Self::Outcomes> {
        let info = &infos[0];
        match waited {
            Ok(WaitResult { decision, algorithm, reservation, borrows }) => {
                info.log_store_decided();
                info.count_wait(&decision);
                let in_shadow = info.is_in_shadow();
                let mut verdict = self.verdict(info, in_shadow, algorithm.as_ref(), (decision, reservation));
                if let Verdict::Decided { outcomes: [Some(outcome)], .. } = &mut verdict {
                    outcome.borrowed = borrows;
                }
                verdict
            }
            Err(error) => Verdict::StoreError(error),
        }
    }

    fn watch(&self, infos: &[PolicyInfo], request: &Req, outcomes: &[Option<Outcome>]) {
        self.watch_key(&infos[0], request, outcomes[0].as_ref());
    }
}

impl<Res, K, A: Algorithm, C: SettleResponse<Res>, S: Store<A>> SettlePolicies<Res> for Policy<K, A, C, S> {
    fn settle(&self, outcomes: &mut [Option<Outcome>], response: &Res) {
        if let [Some(outcome)] = outcomes
            && let Some(reservation) = outcome.reservation.take()
            && let Some(actual) = self.options.actual(response)
            && let Some(decision) = reservation.settle(actual)
        {
            outcome.decision = decision.with_delay(Nanos::from(outcome.decision.delay()).0);
            if !outcome.is_tiered {
                outcome.quotas = self.replaced_quotas();
            }
        }
    }
}
