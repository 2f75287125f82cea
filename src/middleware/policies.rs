//! The policies of a layer, and the traits by which they decide a request.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::info::{Counters, Mode, PolicyInfo};
use super::outcome::Outcome;
use crate::error::BoxError;
use crate::key::KeyError;
use crate::limiter::joint::Few;
use crate::observe;
use crate::stats::{CallOutcome, LimiterStats, PolicyStats};

/// The policies of a layer. `infos` contains the [`PolicyInfo`] of each policy, in the order of the policies. `set`
/// contains the keys, the limiters and the options, and decides the requests.
#[derive(Clone, Debug)]
pub struct Policies<P> {
    infos: Box<[PolicyInfo]>,
    set: P,
}

impl<P: PolicyCount> Policies<P> {
    /// Returns the counts of each policy.
    pub(super) fn stats(&self) -> Vec<PolicyStats> {
        let mut limiters = Vec::new();
        self.set.limiter_stats(&mut limiters);
        self.infos.iter().zip(limiters).map(|(info, limiter)| info.stats(limiter)).collect()
    }
}

impl<P> Policies<P> {
    pub(super) fn single(info: PolicyInfo, policy: P) -> Self {
        Self { infos: Box::new([info]), set: policy }
    }

    /// Returns what decides the requests, and the [`PolicyInfo`] of each policy.
    #[inline(always)]
    pub(super) fn parts(&self) -> (&P, &[PolicyInfo]) {
        (&self.set, &self.infos)
    }

    /// Returns the [`PolicyInfo`] of each policy.
    pub(super) fn infos_mut(&mut self) -> &mut [PolicyInfo] {
        &mut self.infos
    }

    pub(super) fn map<Q>(self, f: impl FnOnce(P) -> Q) -> Policies<Q> {
        Policies { infos: self.infos, set: f(self.set) }
    }

    /// Joins two lists of policies. If several limits have the same name, a number is appended to all but the first.
    pub(super) fn joined<Q, T>(self, other: Policies<Q>, f: impl FnOnce(P, Q) -> T) -> Policies<T> {
        let mut infos: Vec<_> = self.infos.into_iter().chain(other.infos).collect();
        let mut taken = HashSet::new();
        for info in &mut infos {
            info.names_mut().deduplicate(&mut taken);
        }
        Policies { infos: infos.into(), set: f(self.set, other.set) }
    }
}

/// One policy or several policies. Their number is the constant `COUNT`.
pub trait PolicyCount {
    const COUNT: usize;

    /// `true` if the limiter of a policy can fail to decide a request.
    const CAN_FAIL: bool;

    /// Returns whether a request can be queued. If not, [`PolicySet::decide_request`] does not use `max_wait`.
    fn may_queue(&self, infos: &[PolicyInfo]) -> bool;

    /// Appends, for each policy, the counts of its limiter.
    fn limiter_stats(&self, all: &mut Vec<LimiterStats>);
}

/// Policies that decide requests of type `Req`. Only this crate implements the trait.
///
/// `infos` contains the [`PolicyInfo`] of each policy, in the order of the policies.
pub trait PolicySet<Req>: MeterPolicies<Req> {
    /// The outcome of each policy. It is `None` if the policy has not decided the request, for example because the
    /// request is exempt. The default value contains no outcome.
    type Outcomes: AsRef<[Option<Outcome>]> + AsMut<[Option<Outcome>]> + Default;

    type Wait: Future;

    /// Decides a request. If the request is queued, it waits at most `max_wait`. If the decision is made at once, the
    /// outcomes are written to `outcomes`, which must be `Outcomes::default()` when the method is called.
    fn decide_request(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        outcomes: &mut Self::Outcomes,
    ) -> Progress<Self::Wait>;

    /// Returns the verdict on a request that had to wait, from the result of its wait. The outcomes are written to
    /// `outcomes`, which must be `Outcomes::default()` when the method is called.
    fn waited(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        waited: <Self::Wait as Future>::Output,
        outcomes: &mut Self::Outcomes,
    ) -> Verdict;
}

/// Policies whose options know the meters of requests of type `Req`. Only this crate implements the trait.
pub trait MeterPolicies<Req>: PolicyCount {
    /// Lets the meter of the request settle the call of each outcome whose policy is metered. The request is admitted.
    fn meter(&self, infos: &[PolicyInfo], request: &mut Req, outcomes: &mut [Option<Outcome>]);
}

/// Policies that can settle the cost of a request when its response, of type `Res`, is known. Only this crate
/// implements the trait.
#[diagnostic::on_unimplemented(
    message = "a call limited by `{Self}` cannot be settled by a response of type `{Res}`",
    note = "the function given to `settle` must take the service's response: `|response: &{Res}| ..`"
)]
pub trait SettlePolicies<Res>: PolicyCount {
    /// Settles the call of each outcome that has a reservation, if the policy's options return an actual cost for the
    /// response. `outcomes` has one element for each policy.
    fn settle(&self, outcomes: &mut [Option<Outcome>], response: &Res);
}

/// The counters of the policies of a request that is not decided yet. If this value is dropped before the decision,
/// each of the policies counts the request as cancelled.
#[derive(Debug)]
pub(super) struct Undecided(Few<Arc<Counters>>);

impl Undecided {
    pub(super) fn new<'a>(policies: impl IntoIterator<Item = &'a PolicyInfo>) -> Self {
        Self(policies.into_iter().filter_map(PolicyInfo::counters).cloned().collect())
    }

    /// Records that the request is decided.
    pub(super) fn end(&mut self) {
        self.0.clear();
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.iter().for_each(|counters| counters.calls.add(CallOutcome::Cancelled));
    }
}

/// A verdict, or the wait for a verdict.
#[derive(Debug)]
pub enum Progress<W> {
    Ready(Verdict),
    Pending(W),
}

/// The result of the decisions on a request. `Ok` if the request is admitted.
pub(super) type Verdict = Result<(), RejectReason>;

/// The reason why a request is not admitted.
#[derive(Debug)]
pub enum RejectReason {
    /// A policy denied the request.
    Denied,
    KeyError(KeyError),
    /// The limiter could not decide the request. The number is the index of the first policy that then rejects it.
    StoreError(usize, BoxError),
}

/// Returns the verdict on a request that the limiter could not decide, and counts and logs the request for each policy
/// that limits it. Joined policies have one store, which fails for all of them.
pub(super) fn undecided<'a>(
    policies: impl IntoIterator<Item = (&'a PolicyInfo, Mode)>,
    error: BoxError,
) -> Verdict {
    observe::record_decision(|| Some("store_error"));
    let mut rejecting = None;
    for (at, (info, mode)) in policies.into_iter().enumerate() {
        if mode != Mode::Off && !info.admits_undecided(mode == Mode::Shadow, &error) {
            rejecting.get_or_insert(at);
        }
    }
    rejecting.map_or(Ok(()), |at| Err(RejectReason::StoreError(at, error)))
}
