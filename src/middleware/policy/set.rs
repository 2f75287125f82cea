//! The policies of a layer, and how they decide a request.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use smallvec::SmallVec;

use super::info::PolicyInfo;
use super::outcome::Outcome;
use crate::key::KeyError;
use crate::stats::{PolicyStats, StoreStats};
use crate::store::{BoxError, Decided, Few, JointRequest, Permit};

/// The policies of a layer. `infos` has the part of each policy whose type is the same for all policies, in order.
/// `set` has the keys, the limiters and the options, and decides.
#[derive(Clone, Debug)]
pub struct Policies<P> {
    pub(in crate::middleware) infos: Box<[PolicyInfo]>,
    pub(in crate::middleware) set: P,
}

impl<P: PolicyCount> Policies<P> {
    /// Returns what each policy has counted.
    pub(in crate::middleware) fn stats(&self) -> Vec<PolicyStats> {
        let mut stores = Vec::new();
        self.set.store_stats(&mut stores);
        self.infos.iter().zip(stores).map(|(info, store)| info.stats(store)).collect()
    }
}

impl<P> Policies<P> {
    pub(in crate::middleware) fn single(info: PolicyInfo, policy: P) -> Self {
        Self { infos: Box::new([info]), set: policy }
    }

    /// Joins two lists of policies. A name that is already used is numbered.
    pub(in crate::middleware) fn joined<Q, T>(
        self,
        other: Policies<Q>,
        f: impl FnOnce(P, Q) -> T,
    ) -> Policies<T> {
        let mut infos: Vec<_> = self.infos.into_iter().chain(other.infos).collect();
        let mut taken = HashSet::new();
        for info in &mut infos {
            info.names.deduplicate(&mut taken);
        }
        Policies { infos: infos.into(), set: f(self.set, other.set) }
    }
}

/// Policies whose number is a constant.
pub trait PolicyCount {
    const COUNT: usize;

    /// Returns whether a request can be queued, so that its maximum wait matters.
    fn may_queue(&self, infos: &[PolicyInfo]) -> bool;

    /// Appends the counts of the store of each policy.
    fn store_stats(&self, all: &mut Vec<StoreStats>);
}

/// Policies that decide requests of type `Req`. Only this crate implements the trait.
///
/// `infos` has the [`PolicyInfo`] of each policy, in order.
pub trait PolicySet<Req>: PolicyCount {
    /// The outcome of each policy: `None` for a policy that did not limit the request. The default contains no outcome.
    type Outcomes: AsRef<[Option<Outcome>]> + AsMut<[Option<Outcome>]> + Default;

    type Wait: Future;

    /// Decides a request. If the request is queued, it waits at most `max_wait`. Otherwise, the outcomes are written to
    /// `outcomes`, which is the default before.
    fn decide(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        outcomes: &mut Self::Outcomes,
    ) -> Progress<Self::Wait>;

    /// Returns the verdict on a request that was queued, from the result of its wait. The outcomes are written to
    /// `outcomes`, which is the default before.
    fn waited(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        waited: <Self::Wait as Future>::Output,
        outcomes: &mut Self::Outcomes,
    ) -> Verdict;

    /// Lets the extractors that watch keys count the keys that were denied.
    fn watch(&self, infos: &[PolicyInfo], request: &Req, outcomes: &[Option<Outcome>]);
}

/// Policies that can settle the cost of a request by its response, of type `Res`. Only this crate implements the trait.
#[diagnostic::on_unimplemented(
    message = "a call limited by `{Self}` cannot be settled by a response of type `{Res}`",
    note = "the function given to `settle` must take the service's response: `|response: &{Res}| ..`"
)]
pub trait SettlePolicies<Res>: PolicyCount {
    /// Settles the outcomes that have a reservation. `outcomes` has one element for each policy.
    fn settle(&self, outcomes: &mut [Option<Outcome>], response: &Res);
}

/// Policies that can be decided together with others. Only this crate implements the trait, for policies with state in
/// memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be decided together with other policies, for requests of type `{Req}`",
    note = "the key extractor must know the requests, and the limiter must have its state in memory; in Redis, several limits on one \
            key are a tuple of algorithms"
)]
pub trait JointPolicy<Req>: PolicyCount {
    /// Appends each policy's part of the joint decision: `None` if the policy does not limit the request or is in
    /// shadow mode.
    fn gather<'a>(
        &'a self,
        infos: &'a [PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut Few<Option<JointRequest<'a>>>,
    ) -> Result<(), KeyError>;

    /// Appends the outcome of each policy, made from its decision.
    fn finish(&self, decided: &mut [Option<Decided>], outcomes: &mut JointOutcomes);

    /// Lets each policy in shadow mode decide a request that the other policies have admitted. Each policy decides
    /// alone.
    fn decide_shadows(
        &self,
        infos: &[PolicyInfo],
        request: &Req,
        outcomes: &mut [Option<Outcome>],
        permit: &mut Permit,
    );

    /// Lets the extractors that watch keys count the keys that were denied.
    fn watch_each(&self, infos: &[PolicyInfo], request: &Req, outcomes: &[Option<Outcome>]);
}

/// The outcomes of policies that were decided together. Those of two policies need no allocation.
pub(in crate::middleware) type JointOutcomes = SmallVec<[Option<Outcome>; 2]>;

/// A verdict, or the wait for it.
#[derive(Debug)]
pub enum Progress<W> {
    Ready(Verdict),
    Pending(W),
}

/// The result of a decision about a request.
#[derive(Debug)]
pub enum Verdict {
    /// All policies admitted the request. The permit is that of a call that is in progress until its response has
    /// ended.
    Admitted(Permit),
    Rejected(Rejected),
}

/// Why a request is not admitted.
#[derive(Debug)]
pub enum Rejected {
    /// A policy denied the request.
    Denied,
    KeyError(KeyError),
    StoreError(BoxError),
}
