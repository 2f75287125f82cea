//! One policy: the extractor of the key, the limiter and the options, whose types are generic. The policy's
//! [`PolicyInfo`], whose type is the same for all policies, has the name, the settings and the counters.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::info::PolicyInfo;
use super::joint::{JointOutcomes, JointParts, JointPolicy};
use super::options::{Options, RequestOptions, SettleResponse, UnitCost};
use super::outcome::{Outcome, OutcomeDetails};
use super::policies::{Policies, PolicyCount, PolicySet, Progress, RejectReason, SettlePolicies, Verdict};
use crate::algorithm::{Algorithm, holds_requests};
use crate::decision::Decision;
use crate::key::{KeyError, KeyExtractor, StoreKey};
use crate::limiter::RateLimiter;
use crate::stats::{CallCounts, CallOutcome, StoreStats};
use crate::store::{
    Acquired, BoxError, Decided, JointKind, JointStore, KeyedStore, MemoryStore, Reservation, Store,
};

/// One policy: the extractor of the key, the limiter, and the functions that return the options of a request, such as
/// its cost.
pub struct Policy<K, A: Algorithm, C = UnitCost, S = MemoryStore<A>> {
    key: K,
    limiter: RateLimiter<A, S>,
    options: C,
}

impl<K, A: Algorithm, S: Store<A>> Policy<K, A, UnitCost, S> {
    pub(super) fn new(key: K, limiter: RateLimiter<A, S>) -> Policies<Self> {
        let info = PolicyInfo::new(&*limiter.algorithm(), limiter.store().new_counts());
        Policies::single(info, Self { key, limiter, options: UnitCost })
    }
}

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    #[inline]
    pub(super) fn limiter(&self) -> &RateLimiter<A, S> {
        &self.limiter
    }

    pub(super) fn map_key<L>(self, f: impl FnOnce(K) -> L) -> Policy<L, A, C, S> {
        Policy { key: f(self.key), limiter: self.limiter, options: self.options }
    }

    pub(super) fn map_options<D>(self, f: impl FnOnce(C) -> D) -> Policy<K, A, D, S> {
        Policy { key: self.key, limiter: self.limiter, options: f(self.options) }
    }

    /// Lets the extractor count the key of a request that this policy denied, if the extractor counts denied keys.
    fn watch_key<Req>(&self, info: &PolicyInfo, request: &Req, outcome: Option<&Outcome>)
    where
        K: KeyExtractor<Req>,
    {
        if info.watches_keys()
            && outcome.is_some_and(|outcome| !outcome.decision().is_allowed())
            && let Some(StoreKey::Key(key)) = self.key_uncounted(info, request)
        {
            self.key.on_denied(&key);
        }
    }

    /// Returns the key of the request, as [`key`](Self::key) does, but neither counts nor logs an error, because `key`
    /// has already done so. If the key cannot be extracted, returns the shared key if the request is charged to this
    /// key, and otherwise `None`.
    fn key_uncounted<Req>(&self, info: &PolicyInfo, request: &Req) -> Option<StoreKey<K::Key>>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => key.map(StoreKey::Key),
            Err(error) => info.without_key_uncounted(&error),
        }
    }
}

impl<K, A: Algorithm, C, S: Store<A>> Policy<K, A, C, S> {
    /// Returns the key to which the request is charged, or `None` if the request is not limited.
    #[inline(always)]
    fn key<Req>(&self, info: &PolicyInfo, request: &Req) -> Result<Option<StoreKey<K::Key>>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => Ok(key.map(StoreKey::Key)),
            Err(error) => info.without_key(error),
        }
    }

    /// Returns the options of the request. The request has priority only if its algorithm treats calls with priority
    /// differently from other calls.
    #[inline(always)]
    fn request_options<Req>(&self, request: &Req, key: &StoreKey<K::Key>) -> Options<A>
    where
        K: KeyExtractor<Req>,
        C: RequestOptions<Req, K::Key, A>,
    {
        let options = self.options.options(request, key.key());
        options.known_by(|algorithm| self.limiter.knows_priority(algorithm))
    }

    /// Returns the details of an outcome, with the quotas of the algorithm that decided the request. That is
    /// `algorithm` or, if this is `None`, the limiter's own algorithm. Returns `None` if the quotas are still those of
    /// the policy's `PolicyInfo`.
    #[inline(always)]
    fn details(&self, algorithm: Option<&A>) -> Option<Box<OutcomeDetails>> {
        match (algorithm, self.limiter.algorithm()) {
            (Some(algorithm), _) => Some(OutcomeDetails::boxed(algorithm, true)),
            (None, Cow::Owned(replacement)) => Some(OutcomeDetails::boxed(&replacement, false)),
            (None, Cow::Borrowed(_)) => None,
        }
    }

    /// Decides a request whose key is known. If the decision is made at once, sets `outcome`. Otherwise, returns the
    /// wait for the decision.
    #[inline(always)]
    fn decide_alone<Req>(
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
        let options = self.request_options(request, key);
        let in_shadow = info.is_in_shadow();
        // In shadow mode, a request must not wait in a queue.
        let max_wait = if in_shadow { Some(Duration::ZERO) } else { max_wait };
        let store = self.limiter.store();
        match store.acquire(store.key(key), options.attempt(S::OWNS_COUNTS, in_shadow, max_wait)) {
            Acquired::Ready(decision, reservation) => {
                info.calls().add_decision(&decision, in_shadow);
                let decided = outcome.insert(Outcome::with(decision, in_shadow, reservation, None));
                // Without this test, the assignment would drop the old value for each request.
                if let Some(details) = self.details(options.algorithm()) {
                    decided.set_details(Some(details));
                }
                Progress::Ready(verdict(info, decided))
            }
            Acquired::Pending(wait) => {
                if S::OWNS_COUNTS {
                    info.calls().add(CallOutcome::Queued);
                }
                let (algorithm, borrows) = options.of_wait();
                Progress::Pending(PolicyWait::new(wait, algorithm, borrows, Arc::clone(info.calls())))
            }
        }
    }
}

impl<K, A: Algorithm, C, S: Store<A>> PolicyCount for Policy<K, A, C, S> {
    const COUNT: usize = 1;
    const CAN_FAIL: bool = S::CAN_FAIL;

    #[inline]
    fn may_queue(&self, infos: &[PolicyInfo]) -> bool {
        infos[0].is_tiered() || holds_requests(&*self.limiter.algorithm())
    }

    fn store_stats(&self, all: &mut Vec<StoreStats>) {
        all.push(self.limiter.store().stats());
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
    fn decide_request(
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
                    info.calls().add(CallOutcome::Queued);
                }
                info.calls().add_decision(&decision, is_shadow);
                let decided = outcome.insert(Outcome::with(decision, is_shadow, reservation, details));
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
            && outcome.settle(|| self.options.actual(response))
            && !outcome.is_tiered()
        {
            outcome.set_details(self.details(None));
        }
    }
}

impl<Req, K, A, C, S> JointPolicy<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    S: JointStore<A, StoreKey<K::Key>>,
{
    type Kind = S::Kind;

    fn gather<'a>(
        &'a self,
        infos: &'a [PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, S::Kind>,
    ) -> Result<(), KeyError> {
        let (info, in_shadow) = (&infos[0], infos[0].is_in_shadow());
        let key = self.key(info, request)?.filter(|_| !in_shadow || S::Kind::DECIDES_SHADOWS);
        parts.push(key.map(|key| {
            let options = self.request_options(request, &key);
            let attempt = options.attempt(S::OWNS_COUNTS, in_shadow, max_wait);
            self.limiter.store().joint_part(&key, attempt, info.calls())
        }));
        Ok(())
    }

    fn finish(&self, decided: &mut [Option<Decided>], outcomes: &mut JointOutcomes) {
        outcomes.push(decided[0].take().map(
            |Decided { decision, algorithm, reservation, borrowed, is_shadow }| {
                let algorithm = algorithm.as_deref().and_then(|algorithm| algorithm.downcast_ref());
                let details = self.details(algorithm);
                let mut outcome = Outcome::with(decision, is_shadow, reservation, details);
                outcome.set_borrowed(borrowed);
                outcome
            },
        ));
    }

    fn decide_shadows(&self, infos: &[PolicyInfo], request: &Req, outcomes: &mut [Option<Outcome>]) {
        let info = &infos[0];
        if let [Some(outcome)] = outcomes
            && outcome.is_shadow()
            && !outcome.decision().is_allowed()
        {
            info.record_shadow_denial(outcome.decision());
        } else if !S::Kind::DECIDES_SHADOWS
            && info.is_in_shadow()
            && let [outcome @ None] = outcomes
            && let Some(key) = self.key_uncounted(info, request)
        {
            // A policy in shadow mode neither rejects nor queues the request.
            let _ = self.decide_alone(info, request, &key, None, outcome);
        }
    }

    fn watch_each(&self, infos: &[PolicyInfo], request: &Req, outcomes: &[Option<Outcome>]) {
        self.watch_key(&infos[0], request, outcomes[0].as_ref());
    }
}

impl<K: Clone, A: Algorithm, C: Clone, S: Clone> Clone for Policy<K, A, C, S> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), limiter: self.limiter.clone(), options: self.options.clone() }
    }
}

impl<K, A: Algorithm, C, S: Store<A>> fmt::Debug for Policy<K, A, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// Returns the verdict on a request. If the request is denied in shadow mode, counts the denial and admits the request.
#[inline]
fn verdict(info: &PolicyInfo, outcome: &Outcome) -> Verdict {
    match outcome.decision().is_allowed() {
        true => Ok(()),
        false if outcome.is_shadow() => {
            info.record_shadow_denial(outcome.decision());
            Ok(())
        }
        false => Err(RejectReason::Denied),
    }
}

/// The result of a wait: the decision on the call, its algorithm, its reservation, and the units that it borrows.
#[derive(Debug)]
pub struct WaitResult<A> {
    decision: Decision,
    algorithm: Option<A>,
    reservation: Reservation,
    /// The number of units that the call has borrowed from the next window if it was delayed: the cost of a call with
    /// priority, and 0 for any other call. If the call was not delayed, this number has no meaning.
    borrows: u64,
}

pin_project! {
    /// A wait for a decision that is not made at once, because the call is queued or the store replies later, with the
    /// call's algorithm.
    #[derive(Debug)]
    pub struct PolicyWait<W, A> {
        #[pin]
        wait: W,
        algorithm: Option<A>,
        borrows: u64,
        undecided: Undecided,
    }
}

impl<W, A> PolicyWait<W, A> {
    /// Creates the wait of a call. If the call is delayed, it borrows `borrows` units. If the wait is dropped before
    /// the decision, the call is counted in `calls` as cancelled.
    fn new(wait: W, algorithm: Option<A>, borrows: u64, calls: Arc<CallCounts>) -> Self {
        Self { wait, algorithm, borrows, undecided: Undecided(Some(calls)) }
    }
}

/// The counters of a call that is not decided yet. If this value is dropped before the decision, the call is counted as
/// cancelled. `None` once the call has been decided.
#[derive(Debug)]
struct Undecided(Option<Arc<CallCounts>>);

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.iter().for_each(|calls| calls.add(CallOutcome::Cancelled));
    }
}

impl<W, A, E> Future for PolicyWait<W, A>
where
    W: Future<Output = Result<(Decision, Reservation), E>>,
    E: Into<BoxError>,
{
    type Output = Result<WaitResult<A>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let decided = ready!(this.wait.poll(cx));
        this.undecided.0 = None;
        let (decision, reservation) = decided.map_err(Into::into)?;
        Poll::Ready(Ok(WaitResult {
            decision,
            algorithm: this.algorithm.take(),
            reservation,
            borrows: *this.borrows,
        }))
    }
}
