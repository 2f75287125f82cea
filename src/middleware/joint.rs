//! Several policies that decide together. Each policy has its own key.

use std::future::Future;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::info::{Mode, PolicyInfo};
use super::outcome::{Outcome, limited};
use super::policies::{
    MeterPolicies, PolicyCount, PolicySet, Progress, RejectReason, SettlePolicies, Undecided, Verdict,
    undecided,
};
use crate::key::KeyError;
use crate::limiter::Reservation;
use crate::limiter::joint::{AllDecisions, Few, JointKind, JointOutcome};
use crate::stats::{CallOutcome, LimiterStats};

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
    note = "the key extractor must know the requests, and all limiters must be `RateLimiter`s, or all of one \
            `RedisStore`",
    note = "the layer of any other limiter, such as a `FairLimiter`, is applied by itself: the rate outside, the \
            `FairLimiter` inside"
)]
pub trait JointPolicy<Req>: MeterPolicies<Req> {
    /// The kind of limiter that all policies have.
    type Kind: JointKind;

    /// Appends one element to `parts` for each policy: the policy's part of the joint decision. The element is `None`
    /// if the policy does not limit the request. The element is also `None` if the policy is in shadow mode, unless the
    /// limiters of this kind decide such policies together with the others. Returns the error of the extractor if a
    /// policy rejects the request because of its key. A policy in shadow mode does not.
    fn gather<'a>(
        &'a self,
        members: &mut Members<'_>,
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, Self::Kind>,
    ) -> Result<(), KeyError>;

    /// Makes the outcome of each policy from the decision of its limiter. Each policy takes the next decision.
    fn finish(&self, members: &mut Members<'_>, decided: &mut Decisions);

    /// Lets the policies in shadow mode decide a request that all other policies have admitted. The policies that have
    /// not decided yet decide one after another, and not together. Also counts the denials in shadow mode.
    fn decide_shadows(&self, members: &mut Members<'_>, request: &Req);
}

/// The decisions of the limiters of all policies, in order.
pub(super) type Decisions = <AllDecisions as IntoIterator>::IntoIter;

/// The policies that decide together, in order. Each policy takes the next member, which is itself.
#[derive(Debug)]
pub struct Members<'a> {
    infos: slice::Iter<'a, PolicyInfo>,
    /// Empty if all policies are [plain](PolicyInfo::is_plain).
    modes: slice::Iter<'a, Mode>,
    outcomes: slice::IterMut<'a, Option<Outcome>>,
}

/// One of several policies, with its part in the decision on a request.
#[derive(Debug)]
pub struct Member<'a> {
    pub(super) info: &'a PolicyInfo,
    pub(super) mode: Mode,
    pub(super) outcome: &'a mut Option<Outcome>,
}

impl<'a> Members<'a> {
    fn new(infos: &'a [PolicyInfo], modes: &'a [Mode], outcomes: &'a mut [Option<Outcome>]) -> Self {
        Self { infos: infos.iter(), modes: modes.iter(), outcomes: outcomes.iter_mut() }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    #[inline]
    fn next(&mut self) -> Option<Member<'a>> {
        let mode = self.modes.next().copied().unwrap_or(Mode::Enforced);
        Some(Member { info: self.infos.next()?, mode, outcome: self.outcomes.next()? })
    }
}

/// The parts of policies in a joint decision.
pub(super) type JointParts<'a, K> = Few<Option<<K as JointKind>::Part<'a>>>;

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

impl<Req, P: MeterPolicies<Req>, Q: MeterPolicies<Req>> MeterPolicies<Req> for And<P, Q> {
    #[inline(always)]
    fn meter(&self, infos: &[PolicyInfo], request: &mut Req, outcomes: &mut [Option<Outcome>]) {
        let (first, second) = infos.split_at(P::COUNT);
        let (outcomes, others) = outcomes.split_at_mut(P::COUNT);
        self.0.meter(first, request, outcomes);
        self.1.meter(second, request, others);
    }
}

impl<Req, P: JointPolicy<Req>, Q: JointPolicy<Req, Kind = P::Kind>> JointPolicy<Req> for And<P, Q> {
    type Kind = P::Kind;

    fn gather<'a>(
        &'a self,
        members: &mut Members<'_>,
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, P::Kind>,
    ) -> Result<(), KeyError> {
        let first = self.0.gather(members, request, max_wait, parts);
        if matches!(&first, Err(error) if error.is_forbidden()) {
            return first;
        }
        // The second policy is asked even if the request has no key for the first, because its error may be graver.
        match (first, self.1.gather(members, request, max_wait, parts)) {
            (Err(first), Err(second)) => Err(first.or_graver(second)),
            (first, second) => first.and(second),
        }
    }

    fn finish(&self, members: &mut Members<'_>, decided: &mut Decisions) {
        self.0.finish(members, decided);
        self.1.finish(members, decided);
    }

    fn decide_shadows(&self, members: &mut Members<'_>, request: &Req) {
        self.0.decide_shadows(members, request);
        self.1.decide_shadows(members, request);
    }
}

impl<P, Q> And<P, Q> {
    /// Returns the verdict on a request that the policies outside shadow mode have decided, and counts the request. If
    /// these policies have admitted the request, lets the policies in shadow mode decide it, unless they have already
    /// done so.
    #[inline]
    fn verdict<Req>(
        &self,
        is_admitted: bool,
        infos: &[PolicyInfo],
        modes: &[Mode],
        request: &Req,
        outcomes: &mut [Option<Outcome>],
    ) -> Verdict
    where
        Self: JointPolicy<Req>,
    {
        count(infos, outcomes, is_admitted);
        if !is_admitted {
            return Err(RejectReason::Denied);
        }
        if !modes.is_empty() {
            self.decide_shadows(&mut Members::new(infos, modes, outcomes), request);
        }
        Ok(())
    }

    /// Returns the verdict on a request from the decisions of the limiters.
    fn decided<Req>(
        &self,
        decided: AllDecisions,
        infos: &[PolicyInfo],
        asked: &Asked,
        request: &Req,
        outcomes: &mut [Option<Outcome>],
    ) -> Verdict
    where
        Self: JointPolicy<Req>,
    {
        self.finish(&mut Members::new(infos, &asked.modes, outcomes), &mut decided.into_iter());
        let is_allowed = |outcome: &Outcome| outcome.is_shadow() || outcome.decision().is_allowed();
        let is_admitted = outcomes.iter().flatten().all(is_allowed);
        let verdict = self.verdict(is_admitted, infos, &asked.modes, request, outcomes);
        if !is_admitted {
            asked.count_undecided(Members::new(infos, &asked.modes, outcomes));
        }
        verdict
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
        let modes: Few<_> = if infos.iter().all(PolicyInfo::is_plain) {
            Few::new()
        } else {
            infos.iter().map(PolicyInfo::mode).collect()
        };
        (0..Self::COUNT).for_each(|_| outcomes.push(None));
        let mut parts = Few::new();
        let mut members = Members::new(infos, &modes, outcomes);
        if let Err(error) = self.gather(&mut members, request, max_wait, &mut parts) {
            return Progress::Ready(Err(RejectReason::KeyError(error)));
        }
        let outcome = P::Kind::decide(&mut parts, &mut |at, decision| {
            let names = infos[at].latest_names();
            Outcome::new(decision, false, Reservation::default()).with_names(names).put(&mut outcomes[at]);
        });
        match outcome {
            JointOutcome::Reported(is_admitted) => {
                Progress::Ready(self.verdict(is_admitted, infos, &modes, request, outcomes))
            }
            JointOutcome::Ready(decided) => {
                let asked = Asked::new(Few::new(), &parts, modes);
                Progress::Ready(self.decided(decided, infos, &asked, request, outcomes))
            }
            JointOutcome::Pending(wait, queued) => {
                queued.iter().for_each(|at| infos[*at].count(CallOutcome::Queued));
                let asked = Asked::new(queued, &parts, modes);
                let limited = infos.iter().zip(&asked.is_limited).filter(|(_, is_limited)| **is_limited);
                let undecided = Undecided::new(limited.map(|(info, _)| info));
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
                info.count(CallOutcome::Queued);
            }
        }
        self.decided(decided, infos, &asked, request, outcomes)
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
#[inline]
fn count(infos: &[PolicyInfo], outcomes: &[Option<Outcome>], is_admitted: bool) {
    for (info, outcome) in limited(infos, outcomes) {
        info.count(if outcome.is_shadow() && is_admitted {
            CallOutcome::of(outcome.decision(), true)
        } else {
            CallOutcome::of_joint(outcome.decision(), is_admitted)
        });
    }
}

/// The data that is remembered of a request while it waits for a joint decision.
#[derive(Debug, Default)]
pub struct Asked {
    /// The policies that have counted the request as queued already. Empty if the limiters reply later, so that they
    /// tell only with their decisions whether the request was queued.
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

    /// Counts a request that was denied in each policy that has no outcome because it was not asked.
    fn count_undecided(&self, members: Members<'_>) {
        for (member, is_limited) in members.zip(&self.is_limited) {
            // In shadow mode, a policy has no part in the denial.
            if *is_limited && member.outcome.is_none() && member.mode == Mode::Enforced {
                member.info.count(CallOutcome::DeniedByOthers);
            }
        }
    }
}

pin_project! {
    /// The wait for a joint decision.
    #[derive(Debug)]
    pub struct JointPolicyWait<W> {
        #[pin]
        wait: W,
        asked: Asked,
        undecided: Undecided,
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
