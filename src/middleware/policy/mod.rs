mod alone;
mod joined;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::counts::KeyCounters;
use super::label::Labels;
use super::policies::{Patience, sealed};
use super::responder::StoreFailure;
use super::shadow::Shadow;
use super::terms::{One, Terms};
use super::told::{Charge, Told};
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::error::NameError;
use crate::key::{Caller, KeyError, KeyExtractor, MissingKey};
use crate::limiter::RateLimiter;
use crate::observe::Observer;
use crate::store::{BoxError, MemoryStore, Reservation};

/// One policy: who is asking, the limiter, what a request costs, and the name.
pub struct Policy<K, A: Algorithm, C = One, S = MemoryStore<A>> {
    key: K,
    limiter: RateLimiter<A, S>,
    terms: C,
    labels: Labels,
    missing: MissingKey,
    shadow: Option<Shadow>,
    counters: Arc<KeyCounters>,
    observer: Observer,
}

impl<K, A: Algorithm, S> Policy<K, A, One, S> {
    pub(super) fn new(key: K, limiter: RateLimiter<A, S>) -> Self {
        let labels = Labels::unnamed(&*limiter.algorithm());
        Self {
            key,
            limiter,
            terms: One,
            labels,
            missing: MissingKey::default(),
            shadow: None,
            counters: Arc::default(),
            observer: Observer::default(),
        }
    }
}

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    pub(super) fn named(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { labels: self.labels.named(name)?, ..self })
    }

    pub(super) fn on<D>(self, terms: impl FnOnce(C) -> D) -> Policy<K, A, D, S> {
        let Self { key, limiter, terms: old, labels, missing, shadow, counters, observer } = self;
        Policy { key, limiter, terms: terms(old), labels, missing, shadow, counters, observer }
    }

    pub(super) fn by<L>(self, by: impl FnOnce(K) -> L) -> Policy<L, A, C, S> {
        let Self { key, limiter, terms, labels, missing, shadow, counters, observer } = self;
        Policy { key: by(key), limiter, terms, labels, missing, shadow, counters, observer }
    }

    pub(super) fn hidden(self) -> Self {
        Self { labels: self.labels.hidden(), ..self }
    }

    pub(super) fn shadowed(self, shadow: Shadow) -> Self {
        Self { shadow: Some(shadow), ..self }
    }

    pub(super) fn without_key(self, missing: MissingKey) -> Self {
        Self { missing, ..self }
    }

    pub(super) fn counters(&self) -> &KeyCounters {
        &self.counters
    }

    pub(super) fn limiter(&self) -> &RateLimiter<A, S> {
        &self.limiter
    }

    #[inline]
    fn told(&self, decision: Decision, rule: Option<&A>, reservation: Option<Reservation>) -> Told {
        let told = match rule {
            Some(rule) => Told::new(rule, decision, true),
            None => Told::new(&*self.limiter.algorithm(), decision, self.limiter.is_replaced()),
        };
        let charge = reservation.map(|reservation| Charge {
            reservation,
            rule: rule.map(|rule| Box::new(rule.clone()) as Box<_>),
        });
        Told { charge, ..told }
    }

    /// The switch, if it is on.
    #[inline]
    fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref().filter(|shadow| shadow.is_on())
    }

    /// What is told of a decision, and whether the call goes on: in shadow mode, whatever was decided.
    #[inline]
    fn judge(
        &self,
        decision: Decision,
        rule: Option<&A>,
        reservation: Option<Reservation>,
        shadow: Option<&Shadow>,
    ) -> (Told, bool) {
        let allowed = decision.is_allowed();
        let mut told = self.told(decision, rule, reservation.filter(|_| allowed));
        let Some(shadow) = shadow else { return (told, allowed) };
        told.is_shadow = true;
        if !allowed {
            shadow.count();
            self.observer.shadow(self.labels.first().name(), &decision);
        }
        (told, true)
    }

    /// The rule that was chosen for the request; `None`: the limiter's.
    #[inline]
    fn rule<Req>(&self, request: &Req, caller: &Caller<K::Key>) -> Option<A>
    where
        K: KeyExtractor<Req>,
        C: Terms<Req, K::Key, A>,
    {
        match caller {
            Caller::Known(key) => self.terms.rule(request, key),
            Caller::Unknown => None,
        }
    }

    /// How long the caller waits at most, if calls by that rule, or the limiter's, may be held.
    #[inline]
    fn patience(&self, rule: Option<&A>, patience: Patience<'_>) -> Option<Duration> {
        match rule {
            Some(rule) if rule.queues() => patience(),
            Some(_) => None,
            // Of a rule that was replaced, asking costs more than the caller does.
            None if self.limiter.is_replaced() => patience(),
            None if self.limiter.algorithm().queues() => patience(),
            None => None,
        }
    }

    fn failure(&self, error: BoxError) -> StoreFailure<'_> {
        StoreFailure { label: self.labels.first(), is_hidden: self.labels.is_hidden(), error }
    }

    fn observe(&self, decision: &Decision) {
        let denied = !decision.is_allowed() && decision.retry_after().is_none();
        if denied && !decision.is_unavailable() && !self.limiter.algorithm().holds() {
            self.observer.never_fits(self.labels.first().name());
        }
    }

    /// Whose budget the request draws on; `None`: it is not limited.
    #[inline]
    fn caller<Req>(&self, request: &Req) -> Result<Option<Caller<K::Key>>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => Ok(key.map(Caller::Known)),
            Err(error) => self.no_key(error),
        }
    }

    /// The same once more, of a request that was counted.
    fn caller_again<Req>(&self, request: &Req) -> Option<Caller<K::Key>>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => key.map(Caller::Known),
            Err(error) if error.is_forbidden() || error.is_invalid() => None,
            Err(_) => (self.missing == MissingKey::Shared).then_some(Caller::Unknown),
        }
    }

    #[cold]
    fn no_key<T>(&self, error: KeyError) -> Result<Option<Caller<T>>, KeyError> {
        if error.is_forbidden() {
            self.counters.forbid();
            return Err(error);
        }
        if error.is_invalid() {
            self.counters.count_invalid();
            self.observer.invalid_key(self.labels.first().name(), &error);
            return Err(error);
        }
        self.counters.miss(self.missing);
        self.observer.no_key(self.labels.first().name(), &error, self.missing);
        match self.missing {
            MissingKey::Reject => Err(error),
            MissingKey::Shared => Ok(Some(Caller::Unknown)),
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
            terms: self.terms.clone(),
            labels: self.labels.clone(),
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
            .field("name", &self.labels.first().name())
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
