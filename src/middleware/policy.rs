use std::fmt;

use super::cost::{Cost, One};
use super::label::Label;
use super::responder::{Report, StoreFailure};
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::error::NameError;
use crate::key::{KeyError, KeyExtractor};
use crate::limiter::RateLimiter;
use crate::observe::Observer;
use crate::store::{Answer, BoxError, Call, MemoryStore, Store};

/// One limit: who is asking, the limiter, what a request costs, and the name.
pub struct Policy<K, A: Algorithm, C = One, S = MemoryStore<A>> {
    key: K,
    limiter: RateLimiter<A, S>,
    cost: C,
    label: Label,
    observer: Observer,
}

/// What a layer asks before it lets a request pass. Implemented by this crate only.
pub trait Policies<Req>: sealed::Sealed {
    #[doc(hidden)]
    type Error: Into<BoxError>;
    #[doc(hidden)]
    type Wait: Future<Output = Result<Decision, Self::Error>>;

    #[doc(hidden)]
    fn decide(&self, request: &Req) -> Verdict<Self::Wait>;

    #[doc(hidden)]
    fn report<'a>(&'a self, decision: &'a Decision) -> Report<'a>;

    #[doc(hidden)]
    fn observe_denial(&self, denial: &Decision);

    #[doc(hidden)]
    fn observe_no_key(&self, error: &KeyError);

    #[doc(hidden)]
    fn observe_failure(&self, error: BoxError) -> StoreFailure<'_>;
}

mod sealed {
    pub trait Sealed {}
}

/// What became of a request.
#[derive(Debug)]
pub enum Verdict<W> {
    /// It is not limited.
    Pass,
    Decided(Decision),
    Later(W),
    NoKey(KeyError),
}

impl<K, A: Algorithm, S> Policy<K, A, One, S> {
    pub(super) fn new(key: K, limiter: RateLimiter<A, S>) -> Self {
        let label = Label::unnamed(limiter.algorithm().policy());
        Self { key, limiter, cost: One, label, observer: Observer::default() }
    }
}

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    pub(super) fn named(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { label: Label::new(name, self.label.policy())?, ..self })
    }

    pub(super) fn costing<D>(self, cost: D) -> Policy<K, A, D, S> {
        let Self { key, limiter, cost: _, label, observer } = self;
        Policy { key, limiter, cost, label, observer }
    }

    pub(super) fn limiter(&self) -> &RateLimiter<A, S> {
        &self.limiter
    }
}

impl<K, A: Algorithm, C, S> sealed::Sealed for Policy<K, A, C, S> {}

impl<Req, K, A, C, S> Policies<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: Cost<Req>,
    S: Store<A, K::Key>,
{
    type Error = S::Error;
    type Wait = S::Wait;

    #[inline]
    fn decide(&self, request: &Req) -> Verdict<S::Wait> {
        match self.key.extract(request) {
            Ok(Some(key)) => match self.limiter.decide(&key, Call::new(self.cost.cost(request))) {
                Answer::Now(decision) => Verdict::Decided(decision),
                Answer::Later(wait) => Verdict::Later(wait),
            },
            Ok(None) => Verdict::Pass,
            Err(error) => Verdict::NoKey(error),
        }
    }

    #[inline]
    fn report<'a>(&'a self, decision: &'a Decision) -> Report<'a> {
        let window = self.limiter.algorithm().window(decision);
        Report { label: &self.label, decision, window }
    }

    fn observe_denial(&self, denial: &Decision) {
        if denial.retry_after().is_none() {
            self.observer.never_fits(self.label.name());
        }
    }

    fn observe_no_key(&self, error: &KeyError) {
        self.observer.no_key(self.label.name(), error);
    }

    fn observe_failure(&self, error: BoxError) -> StoreFailure<'_> {
        self.observer.no_store(self.label.name(), &error);
        StoreFailure { label: &self.label, error }
    }
}

impl<K: Clone, A: Algorithm, C: Clone, S> Clone for Policy<K, A, C, S> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            limiter: self.limiter.clone(),
            cost: self.cost.clone(),
            label: self.label.clone(),
            observer: Observer::default(),
        }
    }
}

impl<K, A: Algorithm, C, S> fmt::Debug for Policy<K, A, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.label.name())
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
