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
use crate::store::{MemoryStore, SettleStore, Store};

/// A tower layer that limits requests: per key, which `K` extracts from the request, with the algorithm `A`.
///
/// ```
/// use http::Request;
/// use tower_throttle::algorithm::SlidingWindow;
/// use tower_throttle::key::{Paths, PeerIp};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::new(PeerIp::new(), SlidingWindow::new(Quota::per_minute(100)))
///     .cost(|request: &Request<axum::body::Body>| if request.uri().path() == "/export" { 10 } else { 1 })
///     .unless(Paths::new(["/health", "/metrics"]))
///     .name("per-ip");
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
///
/// | you want | method |
/// |---|---|
/// | a limit per IP address of the TCP peer | [`per_ip`](RateLimitLayer::per_ip) |
/// | a limit per user, header, route, or any other [key](crate::key), or another [algorithm](crate::algorithm) | [`new`](RateLimitLayer::new) |
/// | one limiter for several layers, or to call it directly | [`with_limiter`](RateLimitLayer::with_limiter), [`limiter`](RateLimitLayer::limiter) |
/// | some requests to cost more than others | [`cost`](RateLimitLayer::cost) |
/// | different limits for different callers or requests | [`tier`](RateLimitLayer::tier) |
/// | a cost that is known only with the response | [`settle`](RateLimitLayer::settle) |
/// | some requests to wait for the next window | [`priority`](RateLimitLayer::priority) |
/// | some requests not to be limited | [`unless`](RateLimitLayer::unless) |
/// | to choose what happens to requests without a key | [`missing_key`](RateLimitLayer::missing_key) |
/// | to try a limit out before it is enforced | [`shadow`](RateLimitLayer::shadow) |
/// | a name for the policy in header fields and bodies | [`name`](RateLimitLayer::name), [`try_name`](RateLimitLayer::try_name) |
/// | not to report the policy to callers | [`hidden`](RateLimitLayer::hidden) |
/// | other responses or header fields, or a service that is not HTTP | [`responder`](RateLimitLayer::responder) |
/// | several limits of which a request must meet all | [`and`](RateLimitLayer::and) |
/// | to count requests without a key and forbidden callers | [`key_stats`](RateLimitLayer::key_stats) |
///
/// # Order of the methods
///
/// Call `cost` before `tier`, `settle` and `priority`, and call `and` after all methods that configure one of the
/// joined layers; only `and` and `responder` can follow it. The other methods can be called in any order.
///
/// # Shared state
///
/// State lives in the layer and is shared by its clones and by all services it is applied to. axum applies a
/// layer once per route: all routes together have one budget per key. For a budget each, apply a layer each.
///
/// # Type parameters
///
/// The type can be named: `fn limiter() -> RateLimitLayer<PeerIp, TokenBucket>`. `C` is what a request
/// [costs](RateLimitLayer::cost), `R` makes the [responses](RateLimitLayer::responder), `S` stores the state.
pub struct RateLimitLayer<K, A: Algorithm, C = UnitCost, R = HttpResponder, S = MemoryStore<A>> {
    policy: Arc<Policy<K, A, C, S>>,
    responder: R,
}

impl RateLimitLayer<PeerIp, TokenBucket> {
    /// Creates a layer with a token bucket for each IP address of a TCP peer.
    #[must_use]
    pub fn per_ip(quota: Quota) -> Self {
        Self::new(PeerIp::new(), TokenBucket::new(quota))
    }
}

impl<K, A: Algorithm> RateLimitLayer<K, A> {
    /// Creates a layer that limits each `key` with `algorithm`, with state in memory.
    #[must_use]
    pub fn new(key: K, algorithm: A) -> Self {
        Self::with_limiter(key, RateLimiter::new(algorithm))
    }
}

impl<K, A: Algorithm, S: Store<A>> RateLimitLayer<K, A, UnitCost, HttpResponder, S> {
    /// Creates a layer from `key` and a limiter, which other layers, or code that calls it directly, can share.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_minute(100))).max_keys(1_000_000).build();
    /// let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
    /// println!("{} addresses are known", limiter.len());
    /// ```
    #[must_use]
    pub fn with_limiter(key: K, limiter: RateLimiter<A, S>) -> Self {
        Self { policy: Arc::new(Policy::new(key, limiter)), responder: HttpResponder::new() }
    }
}

impl<K: Clone, A: Algorithm, R, S: Store<A>> RateLimitLayer<K, A, UnitCost, R, S> {
    /// Sets the function that returns the cost of a request, in units of the quota. The default is 1. A request with
    /// a cost of 0 is always allowed.
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
        self.map_options(|_| CostFn::new(cost))
    }
}

impl<K: Clone, A: Algorithm + PartialEq, C: Clone, R, S: Store<Tiered<A>>>
    RateLimitLayer<K, Tiered<A>, C, R, S>
{
    /// Sets the function that chooses the algorithm for a request: one limit for free users and another for paying
    /// users, or one for logins and another for searches.
    ///
    /// What a key uses in one tier counts in all of them: moving a user to another tier neither resets the usage nor
    /// locks the user out. See [`Tiered`]. The quota that is reported to clients is that of the chosen algorithm. Set a
    /// [`cost`](RateLimitLayer::cost) first.
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
        self.map_options(|cost| TierFn::new(cost, choose))
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: SettleStore<A>> RateLimitLayer<K, A, C, R, S> {
    /// Sets the function that returns the actual cost of a call from its response, in units of the quota; `None` leaves
    /// the call at what it was charged.
    ///
    /// A call is charged its [`cost`](RateLimitLayer::cost) before it is admitted. If the actual cost is lower, the
    /// difference is refunded to the window it was charged to, as far as it still counts (with a bucket, less what has
    /// been refilled meanwhile; with `Smooth::warming_up`, at the rate of a warm one). If it is higher, the difference is
    /// charged as far as units are available; a key never goes negative. A call that fails, or whose client disconnects,
    /// costs what it was charged. Do not use it with limits of calls in progress, which release their units when they
    /// end.
    ///
    /// The header fields of a settled response describe the state after settling, if the store settles at once, as
    /// [`MemoryStore`] does: they are read under the same lock. If a call is not settled, because the function returned
    /// `None` or the call was rejected, they describe the state at the decision; so does the
    /// [`Decision`](crate::Decision) in the request's extensions.
    ///
    /// ```
    /// use axum::response::Response;
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // five failed logins a minute; successful logins are free
    /// let logins = RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(5)))
    ///     .settle(|response: &Response| u64::from(!response.status().is_success()));
    /// # let _: axum::Router = axum::Router::new().layer(logins);
    /// ```
    ///
    /// No more calls can be in progress at a time than the limit allows: each is charged until its response is ready.
    #[must_use]
    pub fn settle<F, Res, Actual>(self, actual: F) -> RateLimitLayer<K, A, SettleFn<C, F>, R, S>
    where
        F: Fn(&Res) -> Actual,
        Actual: Into<Option<u64>>,
    {
        self.map_options(|options| SettleFn::new(options, actual))
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    fn map_options<D>(self, f: impl FnOnce(C) -> D) -> RateLimitLayer<K, A, D, R, S> {
        let policy = Arc::unwrap_or_clone(self.policy).map_options(f);
        RateLimitLayer { policy: Arc::new(policy), responder: self.responder }
    }

    /// Exempts requests that match `condition` from the limit.
    ///
    /// The condition is a closure that names its argument's type, or [`Paths`](crate::key::Paths),
    /// [`Preflight`](crate::key::Preflight), [`GrpcHealth`](crate::key::GrpcHealth) or
    /// [`GrpcReflection`](crate::key::GrpcReflection). If it is called twice, requests that match either condition are
    /// exempt. They need no key, but a caller that is [on a deny list](crate::key::PeerIp::deny) is still rejected. To
    /// switch a limit off by configuration, use [`shadow`](RateLimitLayer::shadow).
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::key::{Paths, Preflight};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // inserted by an outer layer
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
        let policy = Arc::unwrap_or_clone(self.policy).map_key(|key| Unless::new(key, condition));
        RateLimitLayer { policy: Arc::new(policy), responder: self.responder }
    }

    /// Decides and counts, but admits every call, to show what the limit would do. nginx calls it dry run.
    ///
    /// A call that would be denied or queued is admitted at once: it is [counted](Shadow::denied), its request carries
    /// the extension [`ShadowDenied`](super::ShadowDenied), and an event of level `debug` is emitted (feature `tracing`).
    /// Nothing is reported to callers. Denied calls are charged no more than without shadow mode. Once it is turned
    /// [off](Shadow::set), the limit is enforced, and the units used until then count. Joined with other limits, it
    /// neither denies nor delays a call, and decides after the others have admitted it. Requests without a valid key and
    /// forbidden callers are still rejected. If the store fails, the call is admitted.
    ///
    /// ```
    /// use tower_throttle::middleware::Shadow;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let shadow = Shadow::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).shadow(&shadow);
    /// // a day later, if no legitimate caller would have been denied
    /// println!("{} calls would have been denied", shadow.denied());
    /// shadow.set(false);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn shadow(self, shadow: &Shadow) -> Self {
        let policy = Arc::unwrap_or_clone(self.policy).shadowed(shadow.clone());
        Self { policy: Arc::new(policy), responder: self.responder }
    }

    /// Hides this policy from callers: it has no header fields, and no name in bodies and gRPC details.
    ///
    /// Use it for limits whose state callers must not see, such as one limit for all callers together. The time to wait
    /// is still reported.
    #[must_use]
    pub fn hidden(self) -> Self {
        let policy = Arc::unwrap_or_clone(self.policy).hidden();
        Self { policy: Arc::new(policy), responder: self.responder }
    }

    /// Sets what happens to requests whose key is not available because of a configuration mistake. The default is to
    /// [reject](MissingKey::Reject) them. A request in which the client made the key
    /// [invalid](crate::key::KeyError::invalid) is always rejected with 400.
    ///
    /// ```
    /// use tower_throttle::key::MissingKey;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).missing_key(MissingKey::Shared);
    /// ```
    #[must_use]
    pub fn missing_key(self, missing: MissingKey) -> Self {
        let policy = Arc::unwrap_or_clone(self.policy).on_missing_key(missing);
        Self { policy: Arc::new(policy), responder: self.responder }
    }

    /// Sets the function that returns whether a request has priority. If the algorithm is a
    /// [window that lends](crate::algorithm::Priority), requests with priority can wait for the next window instead of
    /// being rejected. Set a [`cost`](RateLimitLayer::cost) first.
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
    /// It does not compile with an algorithm that [has no calls with priority](HasPriority):
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
        self.map_options(|options| PriorityFn::new(options, has_priority))
    }

    /// Sets the policy's name in header fields and bodies. The default is `default`.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not 1 to 256 printable ASCII characters, since header fields carry it. For a name from outside
    /// the program, use [`try_name`](RateLimitLayer::try_name).
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).name("per-ip");
    /// ```
    #[must_use]
    #[track_caller]
    pub fn name(self, name: &str) -> Self {
        match self.try_name(name) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sets the policy's name, or returns an error if `name` is not valid.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not 1 to 256 printable ASCII characters.
    pub fn try_name(self, name: &str) -> Result<Self, PolicyNameError> {
        let policy = Arc::unwrap_or_clone(self.policy).named(name)?;
        Ok(Self { policy: Arc::new(policy), responder: self.responder })
    }
}

impl<K, A: Algorithm, C, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    pub(super) fn into_parts(self) -> (Arc<Policy<K, A, C, S>>, R) {
        (self.policy, self.responder)
    }

    /// Sets the [`Responder`](super::Responder), which makes the responses. The default is [`HttpResponder`]; use
    /// [`ErrorResponder`](super::ErrorResponder) for services that are not HTTP.
    ///
    /// ```
    /// use tower_throttle::middleware::BodyFormat;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .responder(HttpResponder::new().body(BodyFormat::PlainText));
    /// ```
    #[must_use]
    pub fn responder<T>(self, responder: T) -> RateLimitLayer<K, A, C, T, S> {
        RateLimitLayer { policy: self.policy, responder }
    }

    /// Returns how many requests had no key and how many callers were forbidden, over all clones of this layer. The
    /// counters change while requests are served: use them for a dashboard, not for exact sums.
    #[must_use]
    pub fn key_stats(&self) -> KeyStats {
        self.policy.counters().counts()
    }

    /// Returns the limiter, to call it directly.
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

impl<K, A: Algorithm, C, R, S: Store<A>> fmt::Debug for RateLimitLayer<K, A, C, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policy", &self.policy).finish_non_exhaustive()
    }
}
