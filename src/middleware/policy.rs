//! One policy: the extractor of the key, the limiter and the options, whose types are generic. The policy's
//! [`PolicyInfo`], whose type is the same for all policies, has the name, the settings and the counters.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::info::{Mode, PolicyInfo};
use super::joint::{Decisions, JointParts, JointPolicy, Member, Members};
use super::options::{Options, RequestOptions, SettleResponse, UnitCost};
use super::outcome::Outcome;
use super::policies::{
    MeterPolicies, Policies, PolicyCount, PolicySet, Progress, RejectReason, SettlePolicies, Undecided,
    Verdict, undecided,
};
use crate::algorithm::{Algorithm, AlgorithmInfo};
use crate::decision::Decision;
use crate::error::BoxError;
use crate::key::{KeyError, KeyExtractor, StoreKey};
use crate::limiter::joint::{JointDecided, JointKind, JointLimiter};
use crate::limiter::{Acquired, Decided, Limiter, LimiterFor, RateLimiter};
use crate::stats::{CallOutcome, LimiterStats};

/// One policy: the extractor of the key, the limiter, and the functions that return the options of a request, such as
/// its cost.
pub struct Policy<K, A: Algorithm, C = UnitCost, L = RateLimiter<A>> {
    key: K,
    limiter: L,
    options: C,
    algorithm: PhantomData<fn() -> A>,
}

impl<K, A: Algorithm, L: Limiter<Algorithm = A>> Policy<K, A, UnitCost, L> {
    pub(super) fn new(key: K, limiter: L) -> Policies<Self> {
        Policies::single(
            PolicyInfo::of(&limiter),
            Self { key, limiter, options: UnitCost, algorithm: PhantomData },
        )
    }
}

impl<K, A: Algorithm, C, L> Policy<K, A, C, L> {
    #[inline]
    pub(super) fn limiter(&self) -> &L {
        &self.limiter
    }

    pub(super) fn map_key<M>(self, f: impl FnOnce(K) -> M) -> Policy<M, A, C, L> {
        Policy { key: f(self.key), limiter: self.limiter, options: self.options, algorithm: PhantomData }
    }

    pub(super) fn map_options<D>(self, f: impl FnOnce(C) -> D) -> Policy<K, A, D, L> {
        Policy { key: self.key, limiter: self.limiter, options: f(self.options), algorithm: PhantomData }
    }
}

impl<K, A: Algorithm, C, L: Limiter<Algorithm = A>> Policy<K, A, C, L> {
    /// Returns the key to which the request is charged, or `None` if the request is not limited. Returns no error
    /// in shadow mode.
    #[inline(always)]
    fn key<Req>(
        &self,
        info: &PolicyInfo,
        mode: Mode,
        request: &Req,
    ) -> Result<Option<StoreKey<K::Key>>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        Self::store_key(info, mode, self.extract(mode, request))
    }

    /// Returns what the extractor finds in the request, or no key if the policy is not enabled.
    #[inline(always)]
    fn extract<Req>(&self, mode: Mode, request: &Req) -> Result<Option<K::Key>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        if mode == Mode::Off { Ok(None) } else { self.key.extract(request) }
    }

    /// Returns what [`key`](Self::key) does, from what [`extract`](Self::extract) has returned.
    #[inline(always)]
    fn store_key<T>(
        info: &PolicyInfo,
        mode: Mode,
        extracted: Result<Option<T>, KeyError>,
    ) -> Result<Option<StoreKey<T>>, KeyError> {
        match extracted {
            Ok(Some(key)) => Ok(Some(StoreKey::Key(key))),
            Ok(None) => Ok(None),
            Err(error) => info.without_key(error, mode == Mode::Shadow),
        }
    }

    /// Decides a request whose key is known. `hash` is the [hash](Limiter::hash_of) of the key. If the decision is made
    /// at once, sets `outcome`. Otherwise, returns the wait for the decision.
    #[inline(always)]
    fn decide_alone<Req>(
        &self,
        info: &PolicyInfo,
        mode: Mode,
        request: &Req,
        (key, hash): (&StoreKey<K::Key>, u64),
        max_wait: Option<Duration>,
        outcome: &mut Option<Outcome>,
    ) -> Progress<PolicyWait<L::Wait, A>>
    where
        K: KeyExtractor<Req>,
        C: RequestOptions<Req, K::Key, A>,
        L: LimiterFor<StoreKey<K::Key>>,
    {
        // The names are read before the options: across the reading of an atomic, the compiler would keep the options
        // in memory, which takes 50 instructions more.
        let names = info.current_names(&self.limiter);
        let in_shadow = mode == Mode::Shadow;
        let options = self.options.options(request, key.key());
        // In shadow mode, a request must not wait in a queue.
        let max_wait = if in_shadow { Some(Duration::ZERO) } else { max_wait };
        match self.limiter.acquire_hashed(key, hash, options.attempt(in_shadow, max_wait)) {
            // A reference, so that the decision is copied only once, to its place.
            Acquired::Ready(ref decision, reservation) => {
                info.count_decision(decision, in_shadow);
                let verdict = verdict(info, decision, in_shadow);
                let mut decided = Outcome::new(*decision, in_shadow, reservation).with_names(names);
                decided.set_tier(options.algorithm());
                decided.put(outcome);
                Progress::Ready(verdict)
            }
            Acquired::Pending(wait) => {
                let names = names.as_deref().unwrap_or(info.names());
                Progress::Pending(Self::wait(info, mode, options, names.algorithm(), wait))
            }
        }
    }

    /// Returns the wait of a request that was not decided at once. `algorithm` is that of the limiter.
    #[cold]
    fn wait(
        info: &PolicyInfo,
        mode: Mode,
        options: Options<A>,
        algorithm: &AlgorithmInfo,
        wait: L::Wait,
    ) -> PolicyWait<L::Wait, A> {
        if L::IS_LOCAL {
            info.count(CallOutcome::Queued);
        }
        let (tier, borrows) = options.of_wait(algorithm);
        let undecided = Undecided::new([info]);
        PolicyWait { wait, mode, tier, borrows, undecided }
    }
}

impl<K, A: Algorithm, C, L: Limiter<Algorithm = A>> PolicyCount for Policy<K, A, C, L> {
    const COUNT: usize = 1;
    const CAN_FAIL: bool = !L::IS_LOCAL;

    #[inline]
    fn may_queue(&self, infos: &[PolicyInfo]) -> bool {
        infos[0].may_queue()
    }

    fn limiter_stats(&self, all: &mut Vec<LimiterStats>) {
        all.push(self.limiter.stats());
    }
}

impl<Req, K, A, C, L> PolicySet<Req> for Policy<K, A, C, L>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    L: LimiterFor<StoreKey<K::Key>, Algorithm = A>,
{
    type Outcomes = [Option<Outcome>; 1];
    type Wait = PolicyWait<L::Wait, A>;

    #[inline(always)]
    fn decide_request(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        [outcome]: &mut Self::Outcomes,
    ) -> Progress<Self::Wait> {
        let (info, mode) = (&infos[0], infos[0].mode());
        let extracted = self.extract(mode, request);
        // The key is hashed before it moves: a copy of what was just written in parts would have to wait for them.
        let hash = match &extracted {
            Ok(Some(key)) => self.limiter.hash_of(key),
            _ => self.limiter.hash_of(&StoreKey::<K::Key>::Missing),
        };
        match Self::store_key(info, mode, extracted) {
            Ok(Some(key)) => self.decide_alone(info, mode, request, (&key, hash), max_wait, outcome),
            Ok(None) => Progress::Ready(Ok(())),
            Err(error) => Progress::Ready(Err(RejectReason::KeyError(error))),
        }
    }

    fn waited(
        &self,
        infos: &[PolicyInfo],
        _: &Req,
        WaitResult { decided, mode, tier, borrows }: WaitResult<A>,
        [outcome]: &mut Self::Outcomes,
    ) -> Verdict {
        let info = &infos[0];
        match decided {
            Ok(decided) => {
                info.log_store_decided();
                if !L::IS_LOCAL && decided.decision().is_delayed() {
                    info.count(CallOutcome::Queued);
                }
                let (in_shadow, (decision, reservation)) = (mode == Mode::Shadow, decided.into_parts());
                info.count_decision(&decision, in_shadow);
                let names = info.current_names(&self.limiter);
                let outcome =
                    outcome.insert(Outcome::new(decision, in_shadow, reservation).with_names(names));
                outcome.set_tier(tier.as_ref());
                outcome.set_borrowed(borrows);
                verdict(info, &decision, in_shadow)
            }
            Err(error) => undecided([(info, mode)], error),
        }
    }
}

impl<Req, K, A, C, L> MeterPolicies<Req> for Policy<K, A, C, L>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    L: Limiter<Algorithm = A>,
{
    #[inline(always)]
    fn meter(&self, infos: &[PolicyInfo], request: &mut Req, outcomes: &mut [Option<Outcome>]) {
        if let [Some(outcome)] = outcomes
            && let Some((meter, unmetered)) = self.options.meter(request)
        {
            outcome.settle_at_end(&infos[0], &meter, unmetered);
        }
    }
}

impl<Res, K, A: Algorithm, C: SettleResponse<Res>, L: Limiter<Algorithm = A>> SettlePolicies<Res>
    for Policy<K, A, C, L>
{
    fn settle(&self, outcomes: &mut [Option<Outcome>], response: &Res) {
        if let [Some(outcome)] = outcomes {
            outcome.settle(|| self.options.actual(response));
        }
    }
}

impl<Req, K, A, C, L> JointPolicy<Req> for Policy<K, A, C, L>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    L: JointLimiter<StoreKey<K::Key>, Algorithm = A>,
{
    type Kind = L::Kind;

    fn gather<'a>(
        &'a self,
        members: &mut Members<'_>,
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, L::Kind>,
    ) -> Result<(), KeyError> {
        let Some(Member { info, mode, .. }) = members.next() else { return Ok(()) };
        info.refresh(&self.limiter);
        let in_shadow = mode == Mode::Shadow;
        // A policy that decides afterwards extracts the key then.
        let mode = if in_shadow && !L::Kind::DECIDES_SHADOWS { Mode::Off } else { mode };
        parts.push(self.key(info, mode, request)?.map(|key| {
            let options = self.options.options(request, key.key());
            self.limiter.joint_part(&key, options.attempt(in_shadow, max_wait))
        }));
        Ok(())
    }

    fn finish(&self, members: &mut Members<'_>, decided: &mut Decisions) {
        let (Some(Member { info, outcome, .. }), Some(decided)) = (members.next(), decided.next()) else {
            return;
        };
        let Some(JointDecided { decided, algorithm: tier, borrowed, is_shadow }) = decided else { return };
        let (decision, reservation) = decided.into_parts();
        let names = info.current_names(&self.limiter);
        let mut made = Outcome::new(decision, is_shadow, reservation).with_names(names);
        made.set_tier(tier.as_deref().and_then(|tier| tier.downcast_ref::<A>()));
        made.set_borrowed(borrowed);
        made.put(outcome);
    }

    fn decide_shadows(&self, members: &mut Members<'_>, request: &Req) {
        let Some(Member { info, mode, outcome, .. }) = members.next() else { return };
        if let Some(outcome) = outcome {
            if outcome.is_shadow() && !outcome.decision().is_allowed() {
                info.record_shadow_denial(outcome.decision());
            }
        } else if mode == Mode::Shadow
            && !L::Kind::DECIDES_SHADOWS
            && let Ok(Some(key)) = self.key(info, mode, request)
        {
            // A policy in shadow mode neither rejects nor queues the request.
            let hash = self.limiter.hash_of(&key);
            let _ = self.decide_alone(info, mode, request, (&key, hash), None, outcome);
        }
    }
}

impl<K: Clone, A: Algorithm, C: Clone, L: Clone> Clone for Policy<K, A, C, L> {
    fn clone(&self) -> Self {
        let (key, limiter, options) = (self.key.clone(), self.limiter.clone(), self.options.clone());
        Self { key, limiter, options, algorithm: PhantomData }
    }
}

impl<K, A: Algorithm, C, L: Limiter<Algorithm = A>> fmt::Debug for Policy<K, A, C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("algorithm", &self.limiter.info()).finish_non_exhaustive()
    }
}

/// Returns the verdict on a request. If the request is denied in shadow mode, counts the denial and admits the request.
#[inline]
fn verdict(info: &PolicyInfo, decision: &Decision, in_shadow: bool) -> Verdict {
    if decision.is_allowed() {
        Ok(())
    } else if in_shadow {
        info.record_shadow_denial(decision);
        Ok(())
    } else {
        Err(RejectReason::Denied)
    }
}

/// The result of a wait: the decision on the call, the algorithm that the call chose, and the units that it borrows.
#[derive(Debug)]
pub struct WaitResult<A> {
    decided: Result<Decided, BoxError>,
    mode: Mode,
    tier: Option<A>,
    /// The number of units that the call has borrowed from the next window if it was delayed: the cost of a call with
    /// priority, and 0 for any other call. If the call was not delayed, this number has no meaning.
    borrows: u64,
}

pin_project! {
    /// A wait for a decision that is not made at once, because the call is queued or the limiter replies later, with
    /// the call's algorithm.
    #[derive(Debug)]
    pub struct PolicyWait<W, A> {
        #[pin]
        wait: W,
        mode: Mode,
        tier: Option<A>,
        borrows: u64,
        undecided: Undecided,
    }
}

impl<W, A, E> Future for PolicyWait<W, A>
where
    W: Future<Output = Result<Decided, E>>,
    E: Into<BoxError>,
{
    type Output = WaitResult<A>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let decided = ready!(this.wait.poll(cx));
        this.undecided.end();
        let (decided, mode) = (decided.map_err(Into::into), *this.mode);
        Poll::Ready(WaitResult { decided, mode, tier: this.tier.take(), borrows: *this.borrows })
    }
}
