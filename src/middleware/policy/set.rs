use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use super::outcome::Outcome;
use crate::decision::Decision;
use crate::key::KeyError;
use crate::middleware::response::{PolicyReport, StoreError};
use crate::store::{BoxError, Decided, Few, JointRequest, Permit};

/// The policies that decide a request. Implemented by this crate only.
pub trait PolicySet<Req>: sealed::Sealed {
    #[doc(hidden)]
    type Outcome;
    /// The result of a wait.
    #[doc(hidden)]
    type WaitOutcome;
    #[doc(hidden)]
    type Error: Into<BoxError>;
    #[doc(hidden)]
    type Wait: Future<Output = Result<Self::WaitOutcome, Self::Error>>;

    #[doc(hidden)]
    fn decide(&self, request: &Req, max_wait: MaxWaitFn<'_>) -> Verdict<Self::Outcome, Self::Wait>;

    #[doc(hidden)]
    fn waited(&self, waited: Self::WaitOutcome, request: &Req) -> WaitOutcome<Self::Outcome>;

    #[doc(hidden)]
    fn report<T>(&self, outcome: &Self::Outcome, f: impl FnOnce(&[PolicyReport<'_>]) -> T) -> T;

    /// Returns the decision of a policy in shadow mode that would have denied the call.
    #[doc(hidden)]
    fn shadow_denial<'a>(&self, outcome: &'a Self::Outcome) -> Option<&'a Decision>;

    /// Calls the function with the outcome of each policy, in the order of the policies.
    #[doc(hidden)]
    fn each(outcome: &mut Self::Outcome, f: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Outcome>>));

    #[doc(hidden)]
    fn log_denial(&self, outcome: &Self::Outcome);

    #[doc(hidden)]
    fn observe_failure(&self, error: BoxError) -> StoreError<'_>;

    #[doc(hidden)]
    fn log_wait(&self, outcome: &Self::Outcome);

    /// Returns whether a call is admitted if the store fails.
    #[doc(hidden)]
    fn fails_open(&self) -> bool {
        false
    }
}

/// Policies that can settle the cost of a call by its response, of type `Res`. Implemented by this crate only.
#[diagnostic::on_unimplemented(
    message = "a call limited by `{Self}` cannot be settled by a response of type `{Res}`",
    note = "the function given to `settle` must take the service's response: `|response: &{Res}| ..`"
)]
pub trait SettlePolicies<Res>: sealed::Sealed {
    #[doc(hidden)]
    fn settles(&self) -> bool;

    #[doc(hidden)]
    fn settle(&self, outcome: &mut dyn Iterator<Item = Option<&mut Outcome>>, response: &Res);
}

/// A function that returns the caller's maximum wait. It is called only if calls can be queued.
pub(in crate::middleware) type MaxWaitFn<'a> = &'a dyn Fn() -> Option<Duration>;

pub(in crate::middleware) mod sealed {
    pub trait Sealed {}
}

/// The result of deciding a request.
#[derive(Debug)]
pub enum Verdict<T, W> {
    /// The request is not limited.
    Pass,
    Admitted(T, Permit),
    Denied(T),
    Later(W),
    NoKey(KeyError),
}

/// The result of deciding a request that waited.
#[derive(Debug)]
pub enum WaitOutcome<T> {
    Admitted(T, Permit),
    Denied(T),
}

/// Policies that have names.
pub trait Deduplicate {
    /// Numbers names that are in `taken` or that occur twice, and adds all names to `taken`.
    #[doc(hidden)]
    #[must_use]
    fn deduplicate(self, taken: &mut HashSet<String>) -> Self;
}

/// A policy that can be decided together with others. Implemented by this crate only, for policies with state in
/// memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be decided together with other policies, for requests of type `{Req}`",
    note = "the key extractor must know the requests, and the limiter must have its state in memory"
)]
pub trait JointPolicy<Req>: Deduplicate + sealed::Sealed {
    /// Adds each policy's part of the joint decision; `None` if it does not limit the request or is in shadow mode.
    #[doc(hidden)]
    fn gather<'a>(
        &'a self,
        request: &Req,
        max_wait: MaxWaitFn<'_>,
        parts: &mut Few<Option<JointRequest<'a>>>,
    ) -> Result<(), KeyError>;

    #[doc(hidden)]
    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, outcome: &mut Vec<Option<Outcome>>);

    /// Lets policies in shadow mode decide a request that the others have admitted, each on its own.
    #[doc(hidden)]
    fn shadow(
        &self,
        request: &Req,
        outcome: &mut dyn Iterator<Item = &mut Option<Outcome>>,
        permit: &mut Permit,
    );

    #[doc(hidden)]
    fn reports<'a>(
        &'a self,
        outcome: &mut dyn Iterator<Item = &'a Option<Outcome>>,
        reports: &mut Few<PolicyReport<'a>>,
    );

    #[doc(hidden)]
    fn log_denials(&self, outcome: &mut dyn Iterator<Item = &Option<Outcome>>);

    #[doc(hidden)]
    fn log_waits(&self, outcome: &mut dyn Iterator<Item = &Option<Outcome>>);

    #[doc(hidden)]
    fn blame(&self, error: BoxError) -> StoreError<'_>;
}
