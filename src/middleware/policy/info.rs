//! The part of a policy that has the same type for all policies: the name, the settings and the counters.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::key_stats::KeyCounters;
use super::on_store_error::OnStoreError;
use super::policy_name::PolicyNames;
use super::shadow::Shadow;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::key::{KeyError, MissingKey, StoreKey};
use crate::observe::Observer;
use crate::stats::{CallCounts, PolicyStats, StoreStats, Timeline};
use crate::store::BoxError;

/// The name, the settings and the counters of one policy.
pub struct PolicyInfo {
    pub(in crate::middleware) names: PolicyNames,
    pub(in crate::middleware) missing: MissingKey,
    pub(in crate::middleware) on_store_error: OnStoreError,
    pub(in crate::middleware) shadow: Option<Shadow>,
    /// `true` if a function chooses the algorithm for each request. The chosen algorithm can differ from the limiter's
    /// own.
    pub(in crate::middleware) is_tiered: bool,
    /// The counters of calls. All clones of the layer share the fields `calls`, `keys` and `store_errors`.
    pub(in crate::middleware) calls: Arc<CallCounts>,
    keys: Arc<KeyCounters>,
    store_errors: Arc<AtomicU64>,
    pub(in crate::middleware) timeline: Option<Timeline>,
    /// `true` if the extractor counts the keys that are denied.
    pub(in crate::middleware) watches_keys: bool,
    observer: Observer,
}

impl PolicyInfo {
    pub(in crate::middleware) fn new(algorithm: &impl Algorithm, calls: Arc<CallCounts>) -> Self {
        Self {
            names: PolicyNames::unnamed(algorithm),
            missing: MissingKey::default(),
            on_store_error: OnStoreError::default(),
            shadow: None,
            is_tiered: false,
            calls,
            keys: Arc::default(),
            store_errors: Arc::default(),
            timeline: None,
            watches_keys: false,
            observer: Observer::default(),
        }
    }

    pub(in crate::middleware) fn name(&self) -> &str {
        self.names.first().name()
    }

    /// Returns whether shadow mode is on.
    #[inline]
    pub(in crate::middleware) fn is_in_shadow(&self) -> bool {
        self.shadow.as_ref().is_some_and(Shadow::is_on)
    }

    /// Returns whether requests that the store cannot decide are admitted.
    pub(in crate::middleware) fn admits_on_store_error(&self) -> bool {
        self.on_store_error == OnStoreError::Allow || self.is_in_shadow()
    }

    /// Counts a request without a valid key or of a forbidden caller. Unless the caller is forbidden, the observer may
    /// log the error. Returns the shared key if the request is charged to this key, `None` if the request is not
    /// limited, or the error if the request is rejected.
    #[cold]
    pub(super) fn without_key<T>(&self, error: KeyError) -> Result<Option<StoreKey<T>>, KeyError> {
        if error.is_forbidden() {
            self.keys.record_forbidden();
            return Err(error);
        }
        if error.is_invalid() {
            self.keys.record_invalid();
            self.observer.invalid_key(self.name(), &error);
            return Err(error);
        }
        self.keys.record_missing(self.missing);
        self.observer.key_error(self.name(), &error, self.missing);
        match self.missing {
            MissingKey::Reject => Err(error),
            MissingKey::Shared => Ok(Some(StoreKey::Missing)),
            MissingKey::Pass => Ok(None),
        }
    }

    /// Counts and logs a denial in shadow mode.
    #[cold]
    pub(super) fn record_shadow_denial(&self, denial: &Decision) {
        self.shadow.iter().for_each(Shadow::count);
        self.observer.shadow(self.name(), denial);
    }

    /// Returns the counts of this policy. `store` contains the counts of its store.
    pub(in crate::middleware) fn stats(&self, store: StoreStats) -> PolicyStats {
        PolicyStats {
            name: self.name().to_owned(),
            calls: self.calls.stats(),
            keys: self.keys.counts(),
            store_errors: self.store_errors.load(Ordering::Relaxed),
            store,
        }
    }

    /// Logs the decision of this policy on a rejected request, if the decision is a denial. If the request costs more
    /// than the limit can ever admit, logs this fact once.
    pub(in crate::middleware) fn log_denial(&self, decision: &Decision) {
        if !decision.is_allowed() {
            self.observer.denied(self.name(), decision);
        }
        if decision.never_fits() {
            self.observer.unsatisfiable_cost(self.name());
        }
    }

    pub(in crate::middleware) fn log_wait(&self, decision: &Decision) {
        self.observer.waited(self.name(), decision);
        #[cfg(feature = "metrics")]
        if decision.is_delayed() {
            crate::metrics::record_wait(self.name(), decision.delay());
        }
    }

    /// Counts and logs a request that the store could not decide.
    pub(in crate::middleware) fn record_store_error(&self, error: &BoxError) {
        self.store_errors.fetch_add(1, Ordering::Relaxed);
        self.observer.store_error(self.name(), error, self.admits_on_store_error());
    }

    /// Tells the observer that the store has decided a request. If a failure was logged before, the observer may log
    /// that the store decides again.
    #[inline]
    pub(super) fn log_store_decided(&self) {
        self.observer.store_decided(self.name());
    }
}

/// A clone has its own observer, so the clone logs each kind of mistake again.
impl Clone for PolicyInfo {
    fn clone(&self) -> Self {
        Self {
            names: self.names.clone(),
            missing: self.missing,
            on_store_error: self.on_store_error,
            shadow: self.shadow.clone(),
            is_tiered: self.is_tiered,
            calls: Arc::clone(&self.calls),
            keys: Arc::clone(&self.keys),
            store_errors: Arc::clone(&self.store_errors),
            timeline: self.timeline.clone(),
            watches_keys: self.watches_keys,
            observer: Observer::default(),
        }
    }
}

impl fmt::Debug for PolicyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyInfo").field("name", &self.name()).finish_non_exhaustive()
    }
}
