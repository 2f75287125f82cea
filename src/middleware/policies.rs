use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use super::responder::{Report, StoreFailure};
use super::told::Told;
use crate::decision::Decision;
use crate::key::KeyError;
use crate::store::{BoxError, Decided, Few, Part, Permit};

/// What a layer asks before it lets a request pass. Implemented by this crate only.
pub trait Policies<Req>: sealed::Sealed {
    #[doc(hidden)]
    type Told;
    /// What a wait ends with.
    #[doc(hidden)]
    type Waited;
    #[doc(hidden)]
    type Error: Into<BoxError>;
    #[doc(hidden)]
    type Wait: Future<Output = Result<Self::Waited, Self::Error>>;

    #[doc(hidden)]
    fn decide(&self, request: &Req, patience: Patience<'_>) -> Verdict<Self::Told, Self::Wait>;

    #[doc(hidden)]
    fn waited(&self, waited: Self::Waited, request: &Req) -> Waited<Self::Told>;

    #[doc(hidden)]
    fn report<T>(&self, told: &Self::Told, tell: impl FnOnce(&[Report<'_>]) -> T) -> T;

    /// The decision of a policy in shadow mode that would have denied the call.
    #[doc(hidden)]
    fn shadow_denial<'a>(&self, told: &'a Self::Told) -> Option<&'a Decision>;

    /// Each policy's decision, in their order.
    #[doc(hidden)]
    fn each(told: &mut Self::Told, look: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Told>>));

    #[doc(hidden)]
    fn observe_denial(&self, told: &Self::Told);

    #[doc(hidden)]
    fn observe_failure(&self, error: BoxError) -> StoreFailure<'_>;

    #[doc(hidden)]
    fn observe_wait(&self, told: &Self::Told);

    /// Whether a call is let through though the store could not decide.
    #[doc(hidden)]
    fn is_lenient(&self) -> bool {
        false
    }
}

/// Policies that may look at the response, of type `Res`, to tell what a call cost. Implemented by this crate only.
#[diagnostic::on_unimplemented(
    message = "a call limited by `{Self}` cannot be settled by a response of type `{Res}`",
    note = "the function given to `settle` must take the service's response: `|response: &{Res}| ..`"
)]
pub trait Settle<Res>: sealed::Sealed {
    #[doc(hidden)]
    fn settles(&self) -> bool;

    #[doc(hidden)]
    fn settle(&self, told: &mut dyn Iterator<Item = Option<&mut Told>>, response: &Res);
}

/// How long a caller is willing to wait: asked only where calls wait.
pub(super) type Patience<'a> = &'a dyn Fn() -> Option<Duration>;

pub(super) mod sealed {
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
pub enum Waited<T> {
    Admitted(T, Permit),
    Denied(T),
}

/// Policies that have names.
pub trait Names {
    /// The same, with no name that is taken, nor one twice.
    #[doc(hidden)]
    #[must_use]
    fn distinct(self, taken: &mut HashSet<String>) -> Self;
}

/// A policy that can be decided together with others. Implemented by this crate only, for policies with state in
/// memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be decided together with other policies, for requests of type `{Req}`",
    note = "the key extractor must know the requests, and the limiter must have its state in memory"
)]
pub trait Member<Req>: Names + sealed::Sealed {
    /// What is to be asked for a request. `None`: it is not limited, or in shadow mode.
    #[doc(hidden)]
    fn gather<'a>(
        &'a self,
        request: &Req,
        patience: Patience<'_>,
        parts: &mut Few<Option<Part<'a>>>,
    ) -> Result<(), KeyError>;

    #[doc(hidden)]
    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, told: &mut Vec<Option<Told>>);

    /// Lets policies in shadow mode decide a request that the others let pass, each for itself.
    #[doc(hidden)]
    fn shadow(&self, request: &Req, told: &mut dyn Iterator<Item = &mut Option<Told>>, permit: &mut Permit);

    #[doc(hidden)]
    fn reports<'a>(&'a self, told: &mut dyn Iterator<Item = &'a Option<Told>>, reports: &mut Few<Report<'a>>);

    #[doc(hidden)]
    fn observe_denials(&self, told: &mut dyn Iterator<Item = &Option<Told>>);

    #[doc(hidden)]
    fn observe_waits(&self, told: &mut dyn Iterator<Item = &Option<Told>>);

    #[doc(hidden)]
    fn blame(&self, error: BoxError) -> StoreFailure<'_>;
}
