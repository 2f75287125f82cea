use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use super::outcome::Outcome;
use crate::decision::Decision;
use crate::key::KeyError;
use crate::middleware::response::{PolicyReport, StoreError};
use crate::store::{BoxError, Decided, Few, JointRequest, Permit};

/// What a layer asks before it lets a request pass. Implemented by this crate only.
pub trait PolicySet<Req>: sealed::Sealed {
    #[doc(hidden)]
    type Outcome;
    /// What a wait ends with.
    #[doc(hidden)]
    type WaitOutcome;
    #[doc(hidden)]
    type Error: Into<BoxError>;
    #[doc(hidden)]
    type Wait: Future<Output = Result<Self::WaitOutcome, Self::Error>>;

    #[doc(hidden)]
    fn decide(&self, request: &Req, patience: MaxWaitFn<'_>) -> Verdict<Self::Outcome, Self::Wait>;

    #[doc(hidden)]
    fn waited(&self, waited: Self::WaitOutcome, request: &Req) -> WaitOutcome<Self::Outcome>;

    #[doc(hidden)]
    fn report<T>(&self, outcome: &Self::Outcome, tell: impl FnOnce(&[PolicyReport<'_>]) -> T) -> T;

    /// The decision of a policy in shadow mode that would have denied the call.
    #[doc(hidden)]
    fn shadow_denial<'a>(&self, outcome: &'a Self::Outcome) -> Option<&'a Decision>;

    /// Each policy's decision, in their order.
    #[doc(hidden)]
    fn each(
        outcome: &mut Self::Outcome,
        look: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Outcome>>),
    );

    #[doc(hidden)]
    fn log_denial(&self, outcome: &Self::Outcome);

    #[doc(hidden)]
    fn observe_failure(&self, error: BoxError) -> StoreError<'_>;

    #[doc(hidden)]
    fn log_wait(&self, outcome: &Self::Outcome);

    /// Whether a call is let through though the store could not decide.
    #[doc(hidden)]
    fn fails_open(&self) -> bool {
        false
    }
}

/// Policies that may look at the response, of type `Res`, to tell what a call cost. Implemented by this crate only.
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

/// How long a caller is willing to wait: asked only where calls wait.
pub(in crate::middleware) type MaxWaitFn<'a> = &'a dyn Fn() -> Option<Duration>;

pub(in crate::middleware) mod sealed {
    pub trait Sealed {}
}

/// What became of a request.
#[derive(Debug)]
pub enum Verdict<T, W> {
    /// It is not limited.
    Pass,
    Admitted(T, Permit),
    Denied(T),
    Later(W),
    NoKey(KeyError),
}

/// What became of a request that waited.
#[derive(Debug)]
pub enum WaitOutcome<T> {
    Admitted(T, Permit),
    Denied(T),
}

/// Policies that have names.
pub trait Deduplicate {
    /// The same, with no name that is taken, nor one twice.
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
    /// What is to be asked for a request. `None`: it is not limited, or in shadow mode.
    #[doc(hidden)]
    fn gather<'a>(
        &'a self,
        request: &Req,
        patience: MaxWaitFn<'_>,
        parts: &mut Few<Option<JointRequest<'a>>>,
    ) -> Result<(), KeyError>;

    #[doc(hidden)]
    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, outcome: &mut Vec<Option<Outcome>>);

    /// Lets policies in shadow mode decide a request that the others let pass, each for itself.
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
