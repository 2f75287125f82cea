use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::policy::Policy;
use super::policy::key_stats::KeyStats;
use super::policy::request_options::{CostFn, PriorityFn, SettleFn, TierFn, UnitCost};
use super::policy::shadow::Shadow;
use super::response::http_responder::HttpResponder;
use super::service::RateLimit;
use crate::algorithm::{Algorithm, HasPriority, Tiered, TokenBucket};
use crate::error::PolicyNameError;
use crate::key::{KeyExtractor, MissingKey, PeerIp, Unless};
use crate::limiter::RateLimiter;
use crate::quota::Quota;
use crate::store::MemoryStore;

/// Limits the services it is applied to: by the key that `K` finds, by the rule of `A`.
///
/// State lives in the layer and is shared by its clones and by all services it is applied to. axum applies a
/// layer once per route: all routes together have one budget per key. For a budget each, apply a layer each.
///
/// Nameable: `fn limiter() -> RateLimitLayer<PeerIp, TokenBucket>`. `C` is what a request
/// [costs](RateLimitLayer::cost), `R` makes the [answers](RateLimitLayer::responder), `S` keeps the state.
///
/// See the [module documentation](super) for an example.
pub struct RateLimitLayer<K, A: Algorithm, C = UnitCost, R = HttpResponder, S = MemoryStore<A>> {
    policy: Arc<Policy<K, A, C, S>>,
    responder: R,
}

impl RateLimitLayer<PeerIp, TokenBucket> {
    /// A token bucket for each address of a TCP peer.
    #[must_use]
    pub fn per_ip(quota: Quota) -> Self {
        Self::new(PeerIp::new(), TokenBucket::new(quota))
    }
}

impl<K, A: Algorithm> RateLimitLayer<K, A> {
    /// Limits by `key` and `algorithm`, with state in memory.
    #[must_use]
    pub fn new(key: K, algorithm: A) -> Self {
        Self::with_limiter(key, RateLimiter::new(algorithm))
    }
}

impl<K, A: Algorithm, S> RateLimitLayer<K, A, UnitCost, HttpResponder, S> {
    /// Limits by `key` and a limiter that others may share: other layers, or code that asks it directly.
    #[must_use]
    pub fn with_limiter(key: K, limiter: RateLimiter<A, S>) -> Self {
        Self { policy: Arc::new(Policy::new(key, limiter)), responder: HttpResponder::new() }
    }
}

impl<K: Clone, A: Algorithm, R, S> RateLimitLayer<K, A, UnitCost, R, S> {
    /// What a request costs, in units of the quota; 1 unless set. A cost of 0 is always allowed.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .cost(|request: &Request<axum::body::Body>| if request.uri().path() == "/export" { 10 } else { 1 });
    /// ```
    #[must_use]
    pub fn cost<F, Req>(self, cost: F) -> RateLimitLayer<K, A, CostFn<F>, R, S>
    where
        F: Fn(&Req) -> u64,
    {
        self.on(|_| CostFn::new(cost))
    }
}

impl<K: Clone, A: Algorithm + PartialEq, C: Clone, R, S> RateLimitLayer<K, Tiered<A>, C, R, S> {
    /// The rule that a request goes by: so that a free and a paid user, or a login and a search, differ.
    ///
    /// What a key uses by one rule counts for all: moving a user to another tier neither resets nor locks anybody.
    /// See [`Tiered`]. Clients are told the quota of the rule that was chosen. A [`cost`](RateLimitLayer::cost) is
    /// set before.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::algorithm::{Tiered, TokenBucket};
    /// use tower_throttle::key::Extension;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: u64,
    ///     pays: bool,
    /// }
    ///
    /// let free = TokenBucket::new(Quota::per_minute(10));
    /// let paid = TokenBucket::new(Quota::per_minute(1_000));
    /// let by_user = Extension::<User, _>::new(|user| user.id);
    /// let layer = RateLimitLayer::new(by_user, Tiered::new(free.clone())).tier(
    ///     move |request: &Request<axum::body::Body>, _key| {
    ///         let pays = request.extensions().get().is_some_and(|user: &User| user.pays);
    ///         if pays { paid.clone() } else { free.clone() }
    ///     },
    /// );
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn tier<F, Req>(self, choose: F) -> RateLimitLayer<K, Tiered<A>, TierFn<C, F>, R, S>
    where
        K: KeyExtractor<Req>,
        F: Fn(&Req, &K::Key) -> A,
    {
        self.on(|cost| TierFn::new(cost, choose))
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R> RateLimitLayer<K, A, C, R> {
    /// What a call cost in the end, by its response, in units of the quota; `None`: what it was charged.
    ///
    /// It is charged its [`cost`](RateLimitLayer::cost) before it is let in. When the response is there, less has the
    /// difference given back, as far as it still counts in the window that it was charged to (of a bucket, less what has
    /// flowed in meanwhile; of `Smooth::warming_up`, at the rate of a warm one); more has it taken as well, as far as it is
    /// there: nobody gets into debt. A call that fails, or whose caller hangs up, costs what it was charged.
    /// Not for limits of calls in progress, which are free when they end.
    ///
    /// The header fields of a settled answer describe the state after settling, where the store answers at once, as
    /// [`MemoryStore`] does: they are read under the same lock. Those of a call that is not settled, since the function
    /// returns `None` or the call was refused, are as of the decision; so is the [`Decision`](crate::Decision) that a
    /// handler finds.
    ///
    /// ```
    /// use axum::response::Response;
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // five failed log-ins a minute; those that succeed are free
    /// let logins = RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(5)))
    ///     .settle(|response: &Response| u64::from(!response.status().is_success()));
    /// # let _: axum::Router = axum::Router::new().layer(logins);
    /// ```
    ///
    /// So many may be in progress at a time as the limit allows: each is charged until its response is there.
    #[must_use]
    pub fn settle<F, Res, Actual>(self, actual: F) -> RateLimitLayer<K, A, SettleFn<C, F>, R>
    where
        F: Fn(&Res) -> Actual,
        Actual: Into<Option<u64>>,
    {
        self.on(|terms| SettleFn::new(terms, actual))
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S> RateLimitLayer<K, A, C, R, S> {
    fn on<D>(self, terms: impl FnOnce(C) -> D) -> RateLimitLayer<K, A, D, R, S> {
        let policy = Arc::unwrap_or_clone(self.policy).on(terms);
        RateLimitLayer { policy: Arc::new(policy), responder: self.responder }
    }

    /// Does not limit requests that meet a condition: a closure that names its argument's type, or [`Paths`](crate::key::Paths),
    /// [`Preflight`](crate::key::Preflight), [`GrpcHealth`](crate::key::GrpcHealth),
    /// [`GrpcReflection`](crate::key::GrpcReflection). Called twice, requests that meet either. They pass without a
    /// key; a caller that is [denied](crate::key::PeerIp::deny) does not. To switch a limit off by configuration there is
    /// [`shadow`](RateLimitLayer::shadow).
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::key::{Paths, Preflight};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // what a layer outside has found out
    /// #[derive(Clone)]
    /// struct Staff;
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .unless(Preflight)
    ///     .unless(Paths::new(["/health", "/metrics"]))
    ///     .unless(|request: &Request<axum::body::Body>| request.extensions().get::<Staff>().is_some());
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn unless<F>(self, condition: F) -> RateLimitLayer<Unless<K, F>, A, C, R, S> {
        let policy = Arc::unwrap_or_clone(self.policy).by(|key| Unless::new(key, condition));
        RateLimitLayer { policy: Arc::new(policy), responder: self.responder }
    }

    /// Decides, counts, marks, and lets through: what would the limit do? nginx calls it dry run.
    ///
    /// A call that would be denied, or held in line, goes on at once; it is [counted](Shadow::denied), its request carries
    /// the mark [`ShadowDenied`](super::ShadowDenied), and there is an event of level `debug` (feature `tracing`). Callers
    /// are told nothing. Denied calls are charged no more than ever. Turned [off](Shadow::set), the limit is enforced, with
    /// what was used until then. Joined with others, it neither denies nor hinders them, and is asked after they have let
    /// the call pass. Requests without a valid key, and callers that are not served, are refused all the same. A
    /// store that cannot decide refuses nobody.
    ///
    /// ```
    /// use tower_throttle::middleware::Shadow;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let shadow = Shadow::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).shadow(&shadow);
    /// // a day later: is anybody hit who should not be? if not
    /// println!("{} calls would have been refused", shadow.denied());
    /// shadow.set(false);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn shadow(self, shadow: &Shadow) -> Self {
        let policy = Arc::unwrap_or_clone(self.policy).shadowed(shadow.clone());
        Self { policy: Arc::new(policy), responder: self.responder }
    }

    /// Does not tell callers of this policy: no header fields, no name in bodies and gRPC details. For limits whose state is
    /// nobody's business, such as one for all callers together. How long to wait is told all the same.
    #[must_use]
    pub fn hidden(self) -> Self {
        let policy = Arc::unwrap_or_clone(self.policy).hidden();
        Self { policy: Arc::new(policy), responder: self.responder }
    }

    /// What becomes of requests whose key cannot be had by a mistake of the configuration; unless set, they are
    /// [rejected](MissingKey::Reject). What a client gets [wrong](crate::key::KeyError::invalid) is refused with 400 in any
    /// case.
    #[must_use]
    pub fn missing_key(self, missing: MissingKey) -> Self {
        let policy = Arc::unwrap_or_clone(self.policy).on_missing_key(missing);
        Self { policy: Arc::new(policy), responder: self.responder }
    }

    /// Which requests have priority: where the algorithm is a [window that lends](crate::algorithm::Priority), they
    /// may wait for the next window instead of being refused. A [`cost`](RateLimitLayer::cost) is set before.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::algorithm::SlidingWindow;
    /// use tower_throttle::key::Global;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let window = SlidingWindow::new(Quota::per_second(100)).priority(20);
    /// let layer = RateLimitLayer::new(Global, window)
    ///     .priority(|request: &Request<axum::body::Body>| request.uri().path() == "/pay");
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    ///
    /// With an algorithm that [has no calls with priority](HasPriority), it does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use http::Request;
    /// # use tower_throttle::algorithm::SlidingWindow;
    /// # use tower_throttle::key::Global;
    /// # use tower_throttle::{Quota, RateLimitLayer};
    /// let window = SlidingWindow::new(Quota::per_second(100));
    /// let layer = RateLimitLayer::new(Global, window)
    ///     .priority(|request: &Request<axum::body::Body>| request.uri().path() == "/pay");
    /// ```
    #[must_use]
    pub fn priority<F, Req>(self, has_priority: F) -> RateLimitLayer<K, A, PriorityFn<C, F>, R, S>
    where
        A: HasPriority,
        F: Fn(&Req) -> bool,
    {
        self.on(|terms| PriorityFn::new(terms, has_priority))
    }

    /// The policy's name in header fields and bodies; `default` unless set.
    ///
    /// # Panics
    ///
    /// If `name` is not 1 to 256 printable ASCII characters, since header fields carry it. For a name from outside
    /// the program use [`try_name`](RateLimitLayer::try_name).
    #[must_use]
    #[track_caller]
    pub fn name(self, name: &str) -> Self {
        match self.try_name(name) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// The policy's name, if it can be one.
    ///
    /// # Errors
    ///
    /// If `name` is not 1 to 256 printable ASCII characters.
    pub fn try_name(self, name: &str) -> Result<Self, PolicyNameError> {
        let policy = Arc::unwrap_or_clone(self.policy).named(name)?;
        Ok(Self { policy: Arc::new(policy), responder: self.responder })
    }
}

impl<K, A: Algorithm, C, R, S> RateLimitLayer<K, A, C, R, S> {
    pub(super) fn into_parts(self) -> (Arc<Policy<K, A, C, S>>, R) {
        (self.policy, self.responder)
    }

    /// Who makes the answers: [`HttpResponder`] unless set, [`ErrorResponder`](super::ErrorResponder) for services
    /// that are not HTTP.
    #[must_use]
    pub fn responder<T>(self, responder: T) -> RateLimitLayer<K, A, C, T, S> {
        RateLimitLayer { policy: self.policy, responder }
    }

    /// How many requests had no key, and how many callers were turned away, of all clones of this layer. It goes up
    /// while requests go on: for a dashboard, not for sums.
    #[must_use]
    pub fn key_stats(&self) -> KeyStats {
        self.policy.counters().counts()
    }

    /// The limiter, to ask it directly.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter<A, S> {
        self.policy.limiter()
    }
}

impl<Svc, K, A: Algorithm, C, R: Clone, S> Layer<Svc> for RateLimitLayer<K, A, C, R, S> {
    type Service = RateLimit<Svc, Policy<K, A, C, S>, R>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.policy), self.responder.clone())
    }
}

impl<K, A: Algorithm, C, R: Clone, S> Clone for RateLimitLayer<K, A, C, R, S> {
    fn clone(&self) -> Self {
        Self { policy: Arc::clone(&self.policy), responder: self.responder.clone() }
    }
}

impl<K, A: Algorithm, C, R, S> fmt::Debug for RateLimitLayer<K, A, C, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policy", &self.policy).finish_non_exhaustive()
    }
}
