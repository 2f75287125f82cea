pub(in crate::middleware) mod and;
mod joint;
pub(in crate::middleware) mod key_stats;
pub(in crate::middleware) mod outcome;
pub(in crate::middleware) mod policy_name;
pub(in crate::middleware) mod request_options;
pub(in crate::middleware) mod set;
pub(in crate::middleware) mod shadow;
mod single;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::policy::key_stats::KeyCounters;
use super::policy::outcome::{Charge, Outcome};
use super::policy::policy_name::PolicyNames;
use super::policy::request_options::{RequestOptions, UnitCost};
use super::policy::set::{MaxWaitFn, sealed};
use super::policy::shadow::Shadow;
use super::response::StoreError;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::error::PolicyNameError;
use crate::key::{KeyError, KeyExtractor, MissingKey, StoreKey};
use crate::limiter::RateLimiter;
use crate::observe::Observer;
use crate::store::{BoxError, MemoryStore, Reservation};

/// One policy: the key, the limiter, the cost of a request, and the name.
pub struct Policy<K, A: Algorithm, C = UnitCost, S = MemoryStore<A>> {
    key: K,
    limiter: RateLimiter<A, S>,
    options: C,
    names: PolicyNames,
    missing: MissingKey,
    shadow: Option<Shadow>,
    counters: Arc<KeyCounters>,
    observer: Observer,
}

impl<K, A: Algorithm, S> Policy<K, A, UnitCost, S> {
    pub(super) fn new(key: K, limiter: RateLimiter<A, S>) -> Self {
        let names = PolicyNames::unnamed(&*limiter.algorithm());
        Self {
            key,
            limiter,
            options: UnitCost,
            names,
            missing: MissingKey::default(),
            shadow: None,
            counters: Arc::default(),
            observer: Observer::default(),
        }
    }
}

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    pub(super) fn named(self, name: &str) -> Result<Self, PolicyNameError> {
        Ok(Self { names: self.names.named(name)?, ..self })
    }

    pub(super) fn map_options<D>(self, f: impl FnOnce(C) -> D) -> Policy<K, A, D, S> {
        let Self { key, limiter, options, names, missing, shadow, counters, observer } = self;
        Policy { key, limiter, options: f(options), names, missing, shadow, counters, observer }
    }

    pub(super) fn map_key<L>(self, f: impl FnOnce(K) -> L) -> Policy<L, A, C, S> {
        let Self { key, limiter, options, names, missing, shadow, counters, observer } = self;
        Policy { key: f(key), limiter, options, names, missing, shadow, counters, observer }
    }

    pub(super) fn hidden(self) -> Self {
        Self { names: self.names.hidden(), ..self }
    }

    pub(super) fn shadowed(self, shadow: Shadow) -> Self {
        Self { shadow: Some(shadow), ..self }
    }

    pub(super) fn on_missing_key(self, missing: MissingKey) -> Self {
        Self { missing, ..self }
    }

    pub(super) fn counters(&self) -> &KeyCounters {
        &self.counters
    }

    pub(super) fn limiter(&self) -> &RateLimiter<A, S> {
        &self.limiter
    }

    #[inline]
    fn outcome(
        &self,
        decision: Decision,
        algorithm: Option<&A>,
        reservation: Option<Reservation>,
    ) -> Outcome {
        let outcome = match algorithm {
            Some(algorithm) => Outcome::new(algorithm, decision, true),
            None => Outcome::new(&*self.limiter.algorithm(), decision, self.limiter.is_replaced()),
        };
        let charge = reservation.map(|reservation| Charge {
            reservation,
            algorithm: algorithm.map(|algorithm| Box::new(algorithm.clone()) as Box<_>),
        });
        Outcome { charge, ..outcome }
    }

    /// Returns the switch of shadow mode, if it is on.
    #[inline]
    fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref().filter(|shadow| shadow.is_on())
    }

    /// Returns the outcome of a decision, and whether the call is admitted, which it always is in shadow mode.
    #[inline]
    fn apply_shadow(
        &self,
        decision: Decision,
        algorithm: Option<&A>,
        reservation: Option<Reservation>,
        shadow: Option<&Shadow>,
    ) -> (Outcome, bool) {
        let allowed = decision.is_allowed();
        let mut outcome = self.outcome(decision, algorithm, reservation.filter(|_| allowed));
        let Some(shadow) = shadow else { return (outcome, allowed) };
        outcome.is_shadow = true;
        if !allowed {
            shadow.count();
            self.observer.shadow(self.names.first().name(), &decision);
        }
        (outcome, true)
    }

    /// Returns the algorithm that was chosen for the request, or `None` for the limiter's own.
    #[inline]
    fn algorithm<Req>(&self, request: &Req, caller: &StoreKey<K::Key>) -> Option<A>
    where
        K: KeyExtractor<Req>,
        C: RequestOptions<Req, K::Key, A>,
    {
        match caller {
            StoreKey::Key(key) => self.options.algorithm(request, key),
            StoreKey::Missing => None,
        }
    }

    /// Returns the caller's maximum wait, if `algorithm`, or the limiter's own, can queue calls.
    #[inline]
    fn max_wait(&self, algorithm: Option<&A>, max_wait: MaxWaitFn<'_>) -> Option<Duration> {
        let holds_requests =
            |algorithm: &A| algorithm.queue_config().is_some_and(|queue| queue.holds_requests());
        match algorithm {
            Some(algorithm) if holds_requests(algorithm) => max_wait(),
            Some(_) => None,
            // Reading a replaced algorithm costs more than asking the caller.
            None if self.limiter.is_replaced() => max_wait(),
            None if holds_requests(&self.limiter.algorithm()) => max_wait(),
            None => None,
        }
    }

    fn failure(&self, error: BoxError) -> StoreError<'_> {
        StoreError { label: self.names.first(), is_hidden: self.names.is_hidden(), error }
    }

    fn observe(&self, decision: &Decision) {
        let denied = !decision.is_allowed() && decision.retry_after().is_none();
        if denied && !decision.is_unavailable() && !self.limiter.algorithm().needs_release() {
            self.observer.unsatisfiable_cost(self.names.first().name());
        }
    }

    /// Returns the key that the request is charged to, or `None` if it is not limited.
    #[inline]
    fn caller<Req>(&self, request: &Req) -> Result<Option<StoreKey<K::Key>>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => Ok(key.map(StoreKey::Key)),
            Err(error) => self.no_key(error),
        }
    }

    /// Returns the key as [`caller`](Self::caller) does, without counting or logging: that has been done.
    fn key_of_uncounted<Req>(&self, request: &Req) -> Option<StoreKey<K::Key>>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => key.map(StoreKey::Key),
            Err(error) if error.is_forbidden() || error.is_invalid() => None,
            Err(_) => (self.missing == MissingKey::Shared).then_some(StoreKey::Missing),
        }
    }

    #[cold]
    fn no_key<T>(&self, error: KeyError) -> Result<Option<StoreKey<T>>, KeyError> {
        if error.is_forbidden() {
            self.counters.record_forbidden();
            return Err(error);
        }
        if error.is_invalid() {
            self.counters.count_invalid();
            self.observer.invalid_key(self.names.first().name(), &error);
            return Err(error);
        }
        self.counters.record_missing(self.missing);
        self.observer.key_error(self.names.first().name(), &error, self.missing);
        match self.missing {
            MissingKey::Reject => Err(error),
            MissingKey::Shared => Ok(Some(StoreKey::Missing)),
            MissingKey::Pass => Ok(None),
        }
    }
}

impl<K, A: Algorithm, C, S> sealed::Sealed for Policy<K, A, C, S> {}

impl<K: Clone, A: Algorithm, C: Clone, S> Clone for Policy<K, A, C, S> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            limiter: self.limiter.clone(),
            options: self.options.clone(),
            names: self.names.clone(),
            missing: self.missing,
            shadow: self.shadow.clone(),
            counters: Arc::clone(&self.counters),
            observer: Observer::default(),
        }
    }
}

impl<K, A: Algorithm, C, S> fmt::Debug for Policy<K, A, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.names.first().name())
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
