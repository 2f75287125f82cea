//! One promise of a store, as a test.

use std::future::Future;
use std::pin::Pin;

use super::tested::Env;

/// The future of a case. The future panics if the store breaks the promise.
type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One promise, and the function that tests the promise.
pub(super) struct Case<M> {
    pub(super) name: &'static str,
    pub(super) run: fn(Env<M>) -> CaseFuture,
}
