//! Several policies that decide together. Each policy has its own key.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::info::{Mode, PolicyInfo};
use super::outcome::{Outcome, limited};
use super::policies::{
    PolicyCount, PolicySet, Progress, RejectReason, SettlePolicies, Undecided, Verdict, undecided,
};
use crate::key::KeyError;
use crate::limiter::Reservation;
use crate::limiter::joint::{AllDecisions, Few, JointDecided, JointKind, JointOutcome};
use crate::stats::{CallCounts, CallOutcome, LimiterStats};

/// Two policies, each of which can itself be an `And`. Created by [`and`](crate::middleware::RateLimitLayer::and).
///
/// If both policies allow a request, the request is admitted, and both policies charge it. If one policy denies the
/// request, neither policy charges it. A policy in shadow mode denies no request.
#[derive(Clone, Debug)]
pub struct And<P, Q>(P, Q);

impl<P, Q> And<P, Q> {
    pub(super) fn new(first: P, second: Q) -> Self {
        Self(first, second)
    }
}

/// Policies that can decide a request together with others. Only this crate implements the trait, and only for policies
/// with state in memory or in Redis.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be decided together with other policies, for requests of type `{Req}`",
    note = "the key extractor must know the requests, and all limiters must have their state in memory, or all in one `RedisStore`"
)]
pub trait JointPolicy<Req>: PolicyCount {
    /// The kind of limiter that all policies have.
    type Kind: JointKind;

    /// Appends one element to `parts` for each policy: the policy's part of the joint decision. The element is `None`
    /// if the policy does not limit the request. The element is also `None` if the policy is in shadow mode, unless the
    /// limiters of this kind decide such policies together with the others. Returns the error of the extractor if a
    /// policy rejects the request because of its key. A policy in shadow mode does not.
    fn gather<'a>(
        &'a self,
        infos: &'a [PolicyInfo],
        modes: &[Mode],
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, Self::Kind>,
    ) -> Result<(), KeyError>;

    /// Puts the outcome of each policy into its place in `outcomes`, which is empty. An outcome is made from the decision
    /// of its policy.
    fn finish(
        &self,
        infos: &[PolicyInfo],
        decided: &mut [Option<JointDecided>],
        outcomes: &mut [Option<Outcome>],
    );

    /// Lets the policies in shadow mode decide a request that all other policies have admitted. The policies that have
    /// not decided yet decide one after another, and not together. Also counts the denials in shadow mode.
    fn decide_shadows(
        &self,
        infos: &[PolicyInfo],
        modes: &[Mode],
        request: &Req,
        outcomes: &mut [Option<Outcome>],
    );

    /// Lets the meter of the request settle the call of each outcome whose policy is metered.
    fn meter_each(&self, infos: &[PolicyInfo], request: &mut Req, outcomes: &mut [Option<Outcome>]);
}

/// The parts of policies in a joint decision.
pub(super) type JointParts<'a, K> = Few<Option<<K as JointKind>::Part<'a>>>;

/// Returns the mode of the first policy of a list of modes, which is empty if all policies are
/// [plain](PolicyInfo::is_plain).
pub(super) fn first_mode(modes: &[Mode]) -> Mode {
    modes.first().copied().unwrap_or(Mode::Enforced)
}

/// The outcomes of policies that decided together. The outcomes of two policies need no allocation.
#[derive(Debug, Default)]
pub struct JointOutcomes(SmallVec<[Option<Outcome>; 2]>);

impl AsRef<[Option<Outcome>]> for JointOutcomes {
    #[inline]
    fn as_ref(&self) -> &[Option<Outcome>] {
        &self.0
    }
}

impl AsMut<[Option<Outcome>]> for JointOutcomes {
    #[inline]
    fn as_mut(&mut self) -> &mut [Option<Outcome>] {
        &mut self.0
    }
}

impl<P: PolicyCount, Q: PolicyCount> PolicyCount for And<P, Q> {
    const COUNT: usize = P::COUNT + Q::COUNT;
    const CAN_FAIL: bool = P::CAN_FAIL || Q::CAN_FAIL;

    #[inline]
    fn may_queue(&self, infos: &[PolicyInfo]) -> bool {
        let (first, second) = infos.split_at(P::COUNT);
        self.0.may_queue(first) || self.1.may_queue(second)
    }

    fn limiter_stats(&self, all: &mut Vec<LimiterStats>) {
        self.0.limiter_stats(all);
        self.1.limiter_stats(all);
    }
}

impl<Req, P: JointPolicy<Req>, Q: JointPolicy<Req, Kind = P::Kind>> JointPolicy<Req> for And<P, Q> {
    type Kind = P::Kind;

    fn gather<'a>(
        &'a self,
        infos: &'a [PolicyInfo],
        modes: &[Mode],
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, P::Kind>,
    ) -> Result<(), KeyError> {
        let (infos, others) = infos.split_at(P::COUNT);
        let (modes, others_modes) = modes.split_at(P::COUNT.min(modes.len()));
        let first = self.0.gather(infos, modes, request, max_wait, parts);
        if matches!(&first, Err(error) if error.is_forbidden()) {
            return first;
        }
        // The second policy is asked even if the request has no key for the first. If the second policy forbids the
        // caller, its error replaces that of the first policy.
        match self.1.gather(others, others_modes, request, max_wait, parts) {
            Err(error) if error.is_forbidden() => Err(error),
            second => first.and(second),
        }
    }

    fn finish(
        &self,
        infos: &[PolicyInfo],
        decided: &mut [Option<JointDecided>],
        outcomes: &mut [Option<Outcome>],
    ) {
        let (infos, others) = infos.split_at(P::COUNT);
        let (outcomes, others_outcomes) = outcomes.split_at_mut(P::COUNT);
        let (first, second) = decided.split_at_mut(P::COUNT);
        self.0.finish(infos, first, outcomes);
        self.1.finish(others, second, others_outcomes);
    }

    fn decide_shadows(
        &self,
        infos: &[PolicyInfo],
        modes: &[Mode],
        request: &Req,
        outcomes: &mut [Option<Outcome>],
    ) {
        let (first, second) = infos.split_at(P::COUNT);
        let (modes, others_modes) = modes.split_at(P::COUNT.min(modes.len()));
        let (outcomes, others) = outcomes.split_at_mut(P::COUNT);
        self.0.decide_shadows(first, modes, request, outcomes);
        self.1.decide_shadows(second, others_modes, request, others);
    }

    #[inline(always)]
    fn meter_each(&self, infos: &[PolicyInfo], request: &mut Req, outcomes: &mut [Option<Outcome>]) {
        let (first, second) = infos.split_at(P::COUNT);
        let (outcomes, others) = outcomes.split_at_mut(P::COUNT);
        self.0.meter_each(first, request, outcomes);
        self.1.meter_each(second, request, others);
    }
}

impl<P, Q> And<P, Q> {
    /// Returns the verdict on a request that the policies outside shadow mode have decided. If these policies have
    /// admitted the request, lets the policies in shadow mode decide it, unless they have already done so.
    fn verdict<Req>(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        mut decided: AllDecisions,
        asked: &Asked,
        outcomes: &mut [Option<Outcome>],
    ) -> Verdict
    where
        Self: JointPolicy<Req>,
    {
        self.finish(infos, &mut decided, outcomes);
        let is_allowed = |outcome: &Outcome| outcome.is_shadow() || outcome.decision().is_allowed();
        let is_admitted = outcomes.iter().flatten().all(is_allowed);
        count(infos, outcomes, is_admitted);
        if !is_admitted {
            count_undecided(infos, outcomes, asked);
            return Err(RejectReason::Denied);
        }
        if !asked.modes.is_empty() {
            self.decide_shadows(infos, &asked.modes, request, outcomes);
        }
        Ok(())
    }
}

impl<Req, P: JointPolicy<Req>, Q: JointPolicy<Req, Kind = P::Kind>> PolicySet<Req> for And<P, Q> {
    type Outcomes = JointOutcomes;
    type Wait = JointPolicyWait<<P::Kind as JointKind>::Wait>;

    fn decide_request(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        JointOutcomes(outcomes): &mut JointOutcomes,
    ) -> Progress<Self::Wait> {
        let modes: Few<_> = match infos.iter().all(PolicyInfo::is_plain) {
            true => Few::new(),
            false => infos.iter().map(PolicyInfo::mode).collect(),
        };
        let mut parts = Few::new();
        if let Err(error) = self.gather(infos, &modes, request, max_wait, &mut parts) {
            return Progress::Ready(Err(RejectReason::KeyError(error)));
        }
        (0..Self::COUNT).for_each(|_| outcomes.push(None));
        let outcome = P::Kind::decide(&mut parts, &mut |at, decision| {
            let names = infos[at].latest_names();
            Outcome::new(decision, false, Reservation::default()).with_names(names).put(&mut outcomes[at]);
        });
        match outcome {
            JointOutcome::Reported(is_admitted) => {
                count(infos, outcomes, is_admitted);
                if !is_admitted {
                    return Progress::Ready(Err(RejectReason::Denied));
                }
                if !modes.is_empty() {
                    self.decide_shadows(infos, &modes, request, outcomes);
                }
                Progress::Ready(Ok(()))
            }
            JointOutcome::Ready(decided) => {
                let asked = Asked::new(Few::new(), &parts, modes);
                Progress::Ready(self.verdict(infos, request, decided, &asked, outcomes))
            }
            JointOutcome::Pending(wait, queued) => {
                queued.iter().for_each(|at| infos[*at].calls().add(CallOutcome::Queued));
                let asked = Asked::new(queued, &parts, modes);
                let limited = infos.iter().zip(&asked.is_limited).filter(|(_, is_limited)| **is_limited);
                let undecided = Undecided::new(limited.map(|(info, _)| Arc::clone(info.calls())).collect());
                Progress::Pending(JointPolicyWait { wait, asked, undecided })
            }
        }
    }

    fn waited(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        (waited, asked): (Result<AllDecisions, <P::Kind as JointKind>::Error>, Asked),
        JointOutcomes(outcomes): &mut JointOutcomes,
    ) -> Verdict {
        outcomes.resize_with(Self::COUNT, || None);
        let decided = match waited {
            Ok(decided) => decided,
            Err(error) => {
                // A policy that does not limit the request has no part in its end.
                let with_mode =
                    |(at, info)| (info, if asked.is_limited[at] { asked.mode(at) } else { Mode::Off });
                return undecided(infos.iter().enumerate().map(with_mode), error.into());
            }
        };
        infos.iter().for_each(PolicyInfo::log_store_decided);
        for (info, one) in infos.iter().zip(&decided) {
            let is_delayed = || one.as_ref().is_some_and(|one| one.decided.decision().is_delayed());
            if asked.queued.is_empty() && is_delayed() {
                info.calls().add(CallOutcome::Queued);
            }
        }
        self.verdict(infos, request, decided, &asked, outcomes)
    }

    #[inline(always)]
    fn meter(&self, infos: &[PolicyInfo], request: &mut Req, outcomes: &mut [Option<Outcome>]) {
        self.meter_each(infos, request, outcomes);
    }
}

impl<Res, P: SettlePolicies<Res>, Q: SettlePolicies<Res>> SettlePolicies<Res> for And<P, Q> {
    fn settle(&self, outcomes: &mut [Option<Outcome>], response: &Res) {
        let (first, second) = outcomes.split_at_mut(P::COUNT);
        self.0.settle(first, response);
        self.1.settle(second, response);
    }
}

/// Counts a request in each policy that decided it. `is_admitted` says whether all of them admitted the request.
fn count(infos: &[PolicyInfo], outcomes: &[Option<Outcome>], is_admitted: bool) {
    for (info, outcome) in limited(infos, outcomes) {
        info.calls().add(match outcome.is_shadow() && is_admitted {
            true => CallOutcome::of(outcome.decision(), true),
            false => CallOutcome::of_joint(outcome.decision(), is_admitted),
        });
    }
}

/// Counts a request that was denied in each policy that has no outcome because it was not asked.
fn count_undecided(infos: &[PolicyInfo], outcomes: &[Option<Outcome>], asked: &Asked) {
    for (at, (info, outcome)) in infos.iter().zip(outcomes).enumerate() {
        // In shadow mode, a policy has no part in the denial.
        if asked.is_limited[at] && outcome.is_none() && asked.mode(at) == Mode::Enforced {
            info.calls().add(CallOutcome::DeniedByOthers);
        }
    }
}

/// The data that is remembered of a request while it waits for a joint decision.
#[derive(Debug, Default)]
pub struct Asked {
    /// The policies that have counted the request as queued already. Empty if the limiters reply later, so that they tell
    /// only with their decisions whether the request was queued.
    queued: Few<usize>,
    /// For each policy, whether it limits the request.
    is_limited: Few<bool>,
    /// The modes of the policies. Empty if all policies are [plain](PolicyInfo::is_plain).
    modes: Few<Mode>,
}

impl Asked {
    fn new<T>(queued: Few<usize>, parts: &[Option<T>], modes: Few<Mode>) -> Self {
        Self { queued, is_limited: parts.iter().map(Option::is_some).collect(), modes }
    }

    fn mode(&self, at: usize) -> Mode {
        self.modes.get(at).copied().unwrap_or(Mode::Enforced)
    }
}

pin_project! {
    /// The wait for a joint decision.
    #[derive(Debug)]
    pub struct JointPolicyWait<W> {
        #[pin]
        wait: W,
        asked: Asked,
        undecided: Undecided<Few<Arc<CallCounts>>>,
    }
}

impl<W: Future> Future for JointPolicyWait<W> {
    type Output = (W::Output, Asked);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let waited = ready!(this.wait.poll(cx));
        this.undecided.end();
        Poll::Ready((waited, std::mem::take(this.asked)))
    }
}
