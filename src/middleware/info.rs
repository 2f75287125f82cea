//! The part of a policy that has the same type for all policies: the name, the settings and the counters.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::names::PolicyNames;
use super::shadow::Shadow;
use crate::algorithm::AlgorithmInfo;
use crate::decision::Decision;
use crate::error::{BoxError, ConfigError};
use crate::key::{KeyError, MissingKey, StoreKey};
use crate::limiter::Limiter;
#[cfg(feature = "metrics")]
use crate::metrics::{self, Passed};
use crate::observe::{Observer, long_wait};
use crate::stats::{CallCounts, CallOutcome, CallStats, KeyStats, LimiterStats, PolicyStats, Timeline};
use crate::sys::lock::SpinLock;

/// The name, the settings and the counters of one policy.
pub struct PolicyInfo {
    names: PolicyNames,
    latest: LatestNames,
    pub(super) settings: Settings,
    /// `None` if nothing is counted. All clones of the layer with the same name share the counters.
    counters: Option<Arc<Counters>>,
    observer: Observer,
}

/// What the methods of a layer set for its policy.
#[derive(Clone)]
pub(super) struct Settings {
    /// `false` if the policy limits no requests.
    pub(super) is_enabled: bool,
    pub(super) missing: MissingKey,
    pub(super) on_store_error: OnStoreError,
    pub(super) shadow: Option<Shadow>,
    /// `true` if a function chooses the algorithm for each request. The chosen algorithm can differ from the limiter's
    /// own.
    pub(super) is_tiered: bool,
    /// `true` if a meter settles the requests.
    pub(super) is_metered: bool,
    pub(super) timeline: Option<Timeline>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            is_enabled: true,
            missing: MissingKey::default(),
            on_store_error: OnStoreError::default(),
            shadow: None,
            is_tiered: false,
            is_metered: false,
            timeline: None,
        }
    }
}

/// What a policy counts of its requests.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) calls: CallCounts,
    keys: KeyCounters,
    store_errors: AtomicU64,
    #[cfg(feature = "metrics")]
    passed: Arc<Passed>,
}

impl PolicyInfo {
    pub(super) fn new(algorithm: Arc<AlgorithmInfo>) -> Self {
        Self { counters: Some(Arc::default()), ..Self::uncounted(algorithm) }
    }

    fn uncounted(algorithm: Arc<AlgorithmInfo>) -> Self {
        Self {
            latest: LatestNames::new(algorithm.generation()),
            names: PolicyNames::unnamed(algorithm),
            settings: Settings::default(),
            counters: None,
            observer: Observer::default(),
        }
    }

    /// Creates the info of a policy whose limiter is `limiter`, with the name of the limiter. A name that no header
    /// field can carry is not used, as if the limiter had none.
    pub(super) fn of(limiter: &impl Limiter) -> Self {
        let algorithm = limiter.info();
        long_wait(limiter.name(), algorithm.longest_wait());
        Self::new(algorithm).named_as(limiter)
    }

    /// Creates the info for one rejection, which only the limiter counts.
    #[cfg(feature = "axum")]
    pub(super) fn of_rejection(limiter: &impl Limiter) -> Self {
        Self::uncounted(limiter.info()).named_as(limiter)
    }

    fn named_as(mut self, limiter: &impl Limiter) -> Self {
        if let Some(name) = limiter.name() {
            let _ = self.names.rename(name);
        }
        self
    }

    pub(super) fn name(&self) -> &str {
        self.names.first().name()
    }

    /// Returns the names for the algorithm that the limiter had when the policy was created.
    pub(super) fn names(&self) -> &PolicyNames {
        &self.names
    }

    pub(super) fn names_mut(&mut self) -> &mut PolicyNames {
        self.latest = LatestNames::new(self.latest.first);
        &mut self.names
    }

    /// Sets the name. The requests are counted from 0, because clones of the layer may have other names.
    pub(super) fn rename(&mut self, name: &str) -> Result<(), ConfigError> {
        self.names_mut().rename(name)?;
        self.counters = Some(Arc::default());
        Ok(())
    }

    /// Returns the names for the present algorithm of the policy's limiter, or `None` if [`names`](Self::names) are
    /// those names.
    #[inline]
    pub(super) fn current_names(&self, limiter: &impl Limiter) -> Option<Arc<PolicyNames>> {
        self.refresh(limiter);
        self.latest_names()
    }

    /// Makes the names for the present algorithm of the policy's limiter, if it was replaced since the latest names
    /// were made.
    #[inline]
    pub(super) fn refresh(&self, limiter: &impl Limiter) {
        if limiter.generation() != self.latest.generation() {
            self.make_names(limiter);
        }
    }

    #[cold]
    fn make_names(&self, limiter: &impl Limiter) {
        self.latest.set(&limiter.info(), &self.names);
    }

    /// Returns the names that were made last, or `None` if these are the first [`names`](Self::names).
    #[inline]
    pub(super) fn latest_names(&self) -> Option<Arc<PolicyNames>> {
        self.latest.get()
    }

    /// Returns whether a request can be queued.
    #[inline]
    pub(super) fn may_queue(&self) -> bool {
        self.settings.is_tiered || self.names.algorithm().may_queue()
    }

    /// Counts the outcome of a request.
    #[inline]
    pub(super) fn count(&self, outcome: CallOutcome) {
        if let Some(counters) = &self.counters {
            counters.calls.add(outcome);
        }
    }

    /// Counts a decision on a request that this policy alone decides.
    #[inline]
    pub(super) fn count_decision(&self, decision: &Decision, in_shadow: bool) {
        if let Some(counters) = &self.counters {
            counters.calls.add_decision(decision, in_shadow);
        }
    }

    /// Returns the counters, if there are any.
    pub(super) fn counters(&self) -> Option<&Arc<Counters>> {
        self.counters.as_ref()
    }

    #[inline]
    pub(super) fn timeline(&self) -> Option<&Timeline> {
        self.settings.timeline.as_ref()
    }

    /// Returns whether the policy is enforced, whatever is switched.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.settings.is_enabled && self.settings.shadow.is_none()
    }

    /// Returns what the policy does with a request that begins now, and may log that the policy is not enforced. The
    /// mode of a request is the same until its end, so the switch of shadow mode is read only here.
    #[inline]
    pub(super) fn mode(&self) -> Mode {
        if !self.settings.is_enabled {
            self.observer.not_enforced(self.name(), 1, "requests are not limited: the policy is not enabled");
            return Mode::Off;
        }
        match self.settings.shadow.as_ref().and_then(Shadow::turned_on) {
            None => Mode::Enforced,
            Some(change) => {
                self.observer.not_enforced(self.name(), change, "all requests are admitted in shadow mode");
                Mode::Shadow
            }
        }
    }

    /// Counts a request without a valid key or of a forbidden caller. Unless the caller of an enforced policy is
    /// forbidden, the observer may log the error. Returns the shared key if the request is charged to this key, `None`
    /// if the request is not limited, or the error if the request is rejected.
    #[cold]
    pub(super) fn without_key<T>(
        &self,
        error: KeyError,
        in_shadow: bool,
    ) -> Result<Option<StoreKey<T>>, KeyError> {
        let missing = self.settings.missing;
        if let Some(counters) = &self.counters {
            counters.keys.record(&error, missing);
        }
        if error.is_forbidden() {
            if in_shadow {
                self.observer.forbidden_in_shadow(self.name());
            }
        } else if error.is_of_client() {
            let (is_too_few, event) = (error.is_too_few(), error.label());
            self.observer.invalid_key(self.name(), in_shadow, is_too_few, event, &error);
        } else {
            let what = match missing {
                MissingKey::Reject if in_shadow => "requests without a key are admitted in shadow mode",
                MissingKey::Reject => "requests are rejected because they have no key",
                MissingKey::Shared => "requests share one budget because they have no key",
                MissingKey::Pass => "requests are not limited because they have no key",
            };
            self.observer.missing_key(self.name(), in_shadow, error.kind(), what, &error);
            match missing {
                MissingKey::Reject => {}
                MissingKey::Shared => return Ok(Some(StoreKey::Missing)),
                MissingKey::Pass => return Ok(None),
            }
        }
        if in_shadow { Ok(None) } else { Err(error) }
    }

    /// Counts and logs a denial in shadow mode.
    #[cold]
    pub(super) fn record_shadow_denial(&self, denial: &Decision) {
        self.settings.shadow.iter().for_each(Shadow::count);
        self.observer.shadow(self.name(), denial);
    }

    /// Returns the counts of this policy. `limiter` contains those of its limiter.
    pub(super) fn stats(&self, limiter: LimiterStats) -> PolicyStats {
        let counters = self.counters.as_deref();
        PolicyStats {
            name: self.name().to_owned(),
            calls: counters.map_or_else(CallStats::default, |counters| counters.calls.stats()),
            keys: counters.map_or_else(KeyStats::default, |counters| counters.keys.counts()),
            store_errors: counters.map_or(0, |counters| counters.store_errors.load(Ordering::Relaxed)),
            store: limiter.store,
            units: limiter.units,
            is_enforced: self.settings.is_enabled
                && !self.settings.shadow.as_ref().is_some_and(Shadow::is_on),
        }
    }

    /// Passes the counts of this policy to the recorder. If `can_fail` is `false`, the limiter cannot fail.
    #[cfg(feature = "metrics")]
    pub(super) fn record(&self, stats: &PolicyStats, can_fail: bool) {
        if let Some(counters) = &self.counters {
            metrics::record(stats, can_fail, &counters.passed);
        }
    }

    /// Logs the decision of this policy on a rejected request, if the decision is a denial.
    pub(super) fn log_denial(&self, decision: &Decision) {
        if !decision.is_allowed() {
            self.observer.denied(|| self.name(), decision);
        }
    }

    pub(super) fn log_wait(&self, decision: &Decision) {
        self.observer.waited(self.name(), decision);
        #[cfg(feature = "metrics")]
        if decision.is_delayed() {
            let known = self.counters.as_ref().and_then(|counters| counters.passed.known_name());
            metrics::record_wait(known.unwrap_or(self.name()), decision.delay());
        }
    }

    /// Counts and logs a request that the limiter could not decide. Returns whether this policy admits the request.
    pub(super) fn admits_undecided(&self, in_shadow: bool, error: &BoxError) -> bool {
        let is_admitted = in_shadow || self.settings.on_store_error == OnStoreError::Allow;
        if let Some(counters) = &self.counters {
            counters.store_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.observer.store_error(self.name(), error, is_admitted);
        is_admitted
    }

    /// Tells the observer that the limiter has decided a request. If a failure was logged before, the observer may log
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
            latest: LatestNames::new(self.latest.first),
            settings: self.settings.clone(),
            counters: self.counters.clone(),
            observer: Observer::default(),
        }
    }
}

impl fmt::Debug for PolicyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyInfo").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// What a policy does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing, not even extract its key.
    Off,
    /// The policy decides and counts the request, which passes whatever the decision is.
    Shadow,
    Enforced,
}

/// The names of a policy for the latest algorithm that it knows.
struct LatestNames {
    /// The generation of the algorithm that the limiter had when the policy was created.
    first: u64,
    /// The generation of the latest algorithm, which has changed if `names` is set.
    generation: AtomicU64,
    names: SpinLock<Option<Arc<PolicyNames>>>,
}

impl LatestNames {
    fn new(first: u64) -> Self {
        Self { first, generation: AtomicU64::new(first), names: SpinLock::new(None) }
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    #[inline]
    fn get(&self) -> Option<Arc<PolicyNames>> {
        if self.generation() == self.first { None } else { self.cloned() }
    }

    #[inline(never)]
    fn cloned(&self) -> Option<Arc<PolicyNames>> {
        self.names.lock().clone()
    }

    /// Makes the names for `algorithm` from the first ones, unless there are those of this algorithm or of a later one.
    /// The generation is that of `algorithm`, since the limiter may be replaced just now, so that its own is another
    /// one.
    fn set(&self, algorithm: &Arc<AlgorithmInfo>, first: &PolicyNames) {
        let mut latest = self.names.lock();
        if algorithm.generation() > self.generation() {
            *latest = Some(Arc::new(first.replaced(algorithm)));
            self.generation.store(algorithm.generation(), Ordering::Release);
        }
    }
}

/// The treatment of requests that the limiter could not decide, because its store failed or did not answer in time.
///
/// A limiter in memory never fails. A limiter in Redis (the crate `tower-throttle-redis`) can have a [fallback], a
/// limiter in memory that decides while Redis fails. The setting does not affect requests that the fallback decides. In
/// [shadow mode](crate::middleware::RateLimitLayer::shadow), a request that the limiter could not decide is admitted
/// with either setting.
///
/// ```
/// use tower_throttle::middleware::OnStoreError;
/// # use tower_throttle::algorithm::TokenBucket;
/// # use tower_throttle::key::PeerIp;
/// # use tower_throttle::RateLimitLayer;
/// # use tower_throttle::limiter::Limiter;
/// # fn example<L: Limiter<Algorithm = TokenBucket>>(limiter: L) {
/// // while the store of `limiter` fails, requests are not limited
/// let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter)
///     .on_store_error(OnStoreError::Allow);
/// # }
/// ```
///
/// [fallback]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html#when-redis-is-slow-or-fails
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Rejects the request: HTTP 503, gRPC `UNAVAILABLE`. This is the default, so that no request above the limit is
    /// admitted while the store fails.
    #[default]
    Reject,
    /// Admits the request without a limit, and reports no limit to the caller. Use this setting only if the service can
    /// do without the limit for a while. A process that has to start while Redis fails must connect [lazily].
    ///
    /// With Redis, a key that was just denied stays denied for at most a second: its process remembers the denial, and
    /// does not ask Redis. Until the store's circuit breaker opens, a request waits for up to the deadline of its call
    /// before it is admitted, even if the connection is refused.
    ///
    /// [lazily]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html#when-redis-is-slow-or-fails
    Allow,
}

/// The counters of requests without a valid key and of requests from forbidden callers.
#[derive(Debug, Default)]
struct KeyCounters {
    rejected: AtomicU64,
    shared: AtomicU64,
    unlimited: AtomicU64,
    forbidden: AtomicU64,
    invalid: AtomicU64,
    unauthorized: AtomicU64,
}

impl KeyCounters {
    /// Counts a request that was rejected or treated otherwise because of `error`.
    fn record(&self, error: &KeyError, missing: MissingKey) {
        let counter = if error.is_forbidden() {
            &self.forbidden
        } else if error.is_invalid() {
            &self.invalid
        } else if error.is_unauthorized() {
            &self.unauthorized
        } else {
            match missing {
                MissingKey::Reject => &self.rejected,
                MissingKey::Shared => &self.shared,
                MissingKey::Pass => &self.unlimited,
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> KeyStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KeyStats {
            rejected: count(&self.rejected),
            shared: count(&self.shared),
            unlimited: count(&self.unlimited),
            forbidden: count(&self.forbidden),
            invalid: count(&self.invalid),
            unauthorized: count(&self.unauthorized),
        }
    }
}
