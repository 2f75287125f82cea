//! The layers: [`RateLimitLayer`] with one policy, and [`Layers`] with several.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tower_layer::Layer;

use super::info::{OnStoreError, PolicyInfo};
use super::joint::And;
use super::meter::Unmetered;
use super::options::{CostFn, Metered, PriorityFn, SettleFn, TierFn, UnitCost};
use super::outcome::Outcome;
use super::policies::{Policies, PolicyCount};
use super::policy::Policy;
#[cfg(feature = "axum")]
use super::respond::IntoAxumBody;
use super::respond::{HttpResponder, OnReject, RejectHead, Rejection, RequestHead, SetOn, Unset, reports};
use super::service::RateLimit;
use super::shadow::Shadow;
use super::shutdown::Shutdown;
use crate::algorithm::{Algorithm, Tiered, TokenBucket};
use crate::error::ConfigError;
use crate::key::{KeyExtractor, MissingKey, PeerIp, Unless};
use crate::limiter::{Denied, Limiter, RateLimiter, Reservation, Settles};
use crate::quota::Quota;
use crate::stats::{PolicyStats, Timeline};

/// A tower layer that limits requests. `K` extracts the key of a request, and the algorithm `A` limits each key.
///
/// ```
/// use axum::body::Body;
/// use http::Request;
/// use tower_throttle::algorithm::SlidingWindow;
/// use tower_throttle::key::{Paths, PeerIp};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::new(PeerIp::new(), SlidingWindow::new(Quota::per_minute(100)))
///     .cost(|request: &Request<Body>| if request.uri().path() == "/export" { 10 } else { 1 })
///     .unless(Paths::new(["/health", "/metrics"]))
///     .name("per-ip");
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
///
/// | you want | method |
/// |---|---|
/// | a limit per IP address of the TCP peer | [`per_ip`](RateLimitLayer::per_ip) |
/// | a limit per user, header, route, or any other [key](crate::key), or another [algorithm](crate::algorithm) | [`new`](RateLimitLayer::new) |
/// | to share one limiter among several layers, or to call the limiter directly | [`with_limiter`](RateLimitLayer::with_limiter), [`limiter`](RateLimitLayer::limiter) |
/// | some requests to cost more than others | [`cost`](RateLimitLayer::cost) |
/// | different limits for different callers or requests | [`tier`](RateLimitLayer::tier) |
/// | a cost that is known only with the response | [`settle`](RateLimitLayer::settle) |
/// | a cost that is known only when the response has ended | [`metered`](RateLimitLayer::metered) |
/// | some requests to wait for the next window | [`priority`](RateLimitLayer::priority) |
/// | some requests not to be limited | [`unless`](RateLimitLayer::unless) |
/// | to switch a limit off by a flag | [`enabled`](RateLimitLayer::enabled) |
/// | to choose what happens to requests without a key | [`missing_key`](RateLimitLayer::missing_key) |
/// | to choose what happens to requests that the limiter cannot decide | [`on_store_error`](RateLimitLayer::on_store_error) |
/// | to try a limit out before it is enforced | [`shadow`](RateLimitLayer::shadow) |
/// | a name for the policy in header fields and bodies | [`name`](RateLimitLayer::name), [`try_name`](RateLimitLayer::try_name) |
/// | not to report the policy to callers | [`hidden`](RateLimitLayer::hidden) |
/// | other responses or header fields, or a service that is not HTTP | [`responder`](RateLimitLayer::responder) |
/// | the counts of each of the last 60 seconds | [`timeline`](RateLimitLayer::timeline) |
/// | the keys that are denied most often | [`on_reject`](RateLimitLayer::on_reject), with [`TopKeys::watch`](crate::stats::TopKeys::watch) |
/// | the layer's answer in a service that calls the limiter itself | [`reject`](RateLimitLayer::reject) |
/// | to observe rejections | [`on_reject`](RateLimitLayer::on_reject) |
/// | a layer of an axum app, which may be optional, boxed, or in a list | `axum_body` (feature `axum`): responses keep axum's body type |
/// | several limits, all of which must admit a request | [`and`](RateLimitLayer::and) |
/// | the numbers of admitted, denied and other requests | [`stats`](RateLimitLayer::stats) |
///
/// # Order of the methods
///
/// No order loses a setting: what would lose one does not compile. Call `cost` before `tier`, `settle`, `metered` and
/// `priority`, and call `responder` once, and before `axum_body`. Configure each layer before you join it by `and`, but
/// set `responder`, `on_reject` and `axum_body` on the first layer or on the result. After `and`, only these methods
/// can be called: `and`, `enabled`, `responder`, `on_reject`, `axum_body`, `stats` and `record_metrics`. The methods
/// not mentioned here can be called in any order before `and`.
///
/// If a method is called twice, the last call counts, with these exceptions: conditions of `unless`,
/// functions of `on_reject` and `shutdown`s add up.
///
/// # Shared state
///
/// A layer contains the state of its keys. The layer's clones share this state, as do all services to which the layer
/// is applied. axum applies a layer once per route, and all these routes share one budget per key. For a budget per
/// route, apply a separate layer to each route.
///
/// # Type parameters
///
/// The type can be written out: `fn limiter() -> RateLimitLayer<PeerIp, TokenBucket>`. `C` returns the
/// [cost](RateLimitLayer::cost) and the other options of a request, `R` makes the
/// [responses](RateLimitLayer::responder), and `L` is the limiter. `R` is `HttpResponder<Unset>`, with
/// [`Unset`](crate::middleware::types::Unset), until a responder, a function of `on_reject` or `axum_body` is set. They
/// give it another type.
pub struct RateLimitLayer<K, A: Algorithm, C = UnitCost, R = HttpResponder<Unset>, L = RateLimiter<A>> {
    policies: Arc<Policies<Policy<K, A, C, L>>>,
    responder: R,
}

impl RateLimitLayer<PeerIp, TokenBucket> {
    /// Creates a layer with a token bucket for each IP address of a TCP peer. All IPv6 addresses of a /64 share a
    /// bucket.
    #[must_use]
    pub fn per_ip(quota: Quota) -> Self {
        Self::new(PeerIp::new(), TokenBucket::new(quota))
    }
}

impl<K, A: Algorithm> RateLimitLayer<K, A> {
    /// Creates a layer with state in memory. `key` extracts the key of a request, and `algorithm` limits each key.
    #[must_use]
    pub fn new(key: K, algorithm: A) -> Self {
        Self::with_limiter(key, RateLimiter::new(algorithm))
    }
}

impl<K, A: Algorithm, L: Limiter<Algorithm = A>> RateLimitLayer<K, A, UnitCost, HttpResponder<Unset>, L> {
    /// Creates a layer from the key extractor `key` and a limiter. Other layers, and code that calls the limiter
    /// directly, can share the limiter.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_minute(100)))
    ///     .max_keys(1_000_000)
    ///     .build();
    /// let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone());
    /// println!("{} addresses are known", limiter.len());
    /// ```
    #[must_use]
    pub fn with_limiter(key: K, limiter: L) -> Self {
        Self { policies: Arc::new(Policy::new(key, limiter)), responder: HttpResponder::unset() }
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, L: Limiter<Algorithm = A>> RateLimitLayer<K, A, C, R, L> {
    fn map_policy<M, D>(
        self,
        f: impl FnOnce(Policy<K, A, C, L>) -> Policy<M, A, D, L>,
    ) -> RateLimitLayer<M, A, D, R, L> {
        let policies = Arc::unwrap_or_clone(self.policies).map(f);
        RateLimitLayer { policies: Arc::new(policies), responder: self.responder }
    }

    fn with_info(self, f: impl FnOnce(&mut PolicyInfo)) -> Self {
        let mut policies = Arc::unwrap_or_clone(self.policies);
        f(&mut policies.infos_mut()[0]);
        Self { policies: Arc::new(policies), responder: self.responder }
    }

    /// Hides this policy from callers: no header field reports the policy, and no body and no gRPC details name it.
    ///
    /// Use this method for limits whose state callers must not see, such as one limit for all callers together. A
    /// rejection still reports the time to wait.
    #[must_use]
    pub fn hidden(self) -> Self {
        self.with_info(|info| info.names_mut().hide())
    }

    /// Sets whether this limit is enabled, so that a flag can switch it off. The default is `true`.
    ///
    /// A limit that is not enabled admits all requests, including those of [forbidden](crate::key::PeerIp::deny)
    /// callers. It extracts no keys, charges and counts nothing, and reports nothing to callers. The type of the layer
    /// is the same with either value, and the layer still gives the responses [its
    /// body](crate::middleware::ResponseBody), which allocates nothing.
    ///
    /// The method belongs to one policy. So call it before [`and`](RateLimitLayer::and), or call
    /// [`Layers::enabled`](crate::middleware::Layers::enabled) for all policies that are joined. The names of all
    /// policies stay as they are. To switch a limit off while it is used, call [`Shadow::set`] or use
    /// [`unless`](RateLimitLayer::unless).
    ///
    /// If no limit decides a request, the request has no [`Decision`](crate::Decision). The first request that passes
    /// is logged (feature `tracing`), and the metric `tower_throttle_enforced` is 0 (feature `metrics`).
    ///
    /// ```
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let is_limited = std::env::var_os("NO_LIMIT").is_none();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).enabled(is_limited);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn enabled(self, is_enabled: bool) -> Self {
        self.with_info(|info| info.settings.is_enabled = is_enabled)
    }

    /// Sets what happens to requests that have no key because of a configuration mistake. The default is to
    /// [reject](MissingKey::Reject) them. The setting does not affect requests in which the client made the key
    /// [invalid](crate::key::KeyError::invalid), or does not say [who its caller
    /// is](crate::key::KeyError::unauthorized). Unless the limit is in [shadow mode](RateLimitLayer::shadow), these
    /// requests are always rejected, with HTTP 400 or 401.
    ///
    /// ```
    /// use tower_throttle::key::MissingKey;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).missing_key(MissingKey::Shared);
    /// ```
    #[must_use]
    pub fn missing_key(self, missing: MissingKey) -> Self {
        self.with_info(|info| info.settings.missing = missing)
    }

    /// Sets what happens to requests that the limiter cannot decide, because its store failed. The default is to
    /// [reject](OnStoreError::Reject) them.
    ///
    /// With the feature `tracing`, the layer logs the first such request, and then at most one a minute until the store
    /// has recovered. The store has recovered when it has decided a certain number of requests in a row. The layer logs
    /// the recovery, too. The number is 1 after the first failure, and doubles with each further failure after a
    /// recovery, up to 1,024. So a store that fails again and again does not fill the log. The setting has no effect
    /// with state in memory, which never fails. If layers are [joined](RateLimitLayer::and), a request that the limiter
    /// cannot decide is admitted only if each of the layers has `OnStoreError::Allow` or is in shadow mode.
    #[must_use]
    pub fn on_store_error(self, treatment: OnStoreError) -> Self {
        self.with_info(|info| info.settings.on_store_error = treatment)
    }

    /// Sets the policy's name in header fields and bodies. The default is the name of the limiter, if it has one that
    /// is valid here, and otherwise `default`.
    ///
    /// If an inner layer has reported a limit of the same name in the header fields, a number is appended to the name
    /// of this one: `default-2`. So of two nested layers without names, the inner one is `default` in each response,
    /// and in the body of its 429. The outer one is `default-2` beside it. It is `default` only in its own 429, which
    /// has no field of the inner one. Metrics and events have no numbers, so give each layer a name.
    ///
    /// The requests are counted from 0 from here on. So two clones with different names have
    /// [counts](RateLimitLayer::stats) of their own, while they share the limiter, its budgets, and what it counts
    /// itself: its keys, its queue, its units.
    ///
    /// # Panics
    ///
    /// Panics if `name` does not consist of 1 to 256 printable ASCII characters, because header fields contain the
    /// name. For a name from outside the program, use [`try_name`](RateLimitLayer::try_name).
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
    /// Returns an error if `name` does not consist of 1 to 256 printable ASCII characters.
    pub fn try_name(self, name: &str) -> Result<Self, ConfigError> {
        let mut renamed = Ok(());
        let layer = self.with_info(|info| renamed = info.rename(name));
        renamed.map(|()| layer)
    }

    fn map_options<D>(self, f: impl FnOnce(C) -> D) -> RateLimitLayer<K, A, D, R, L> {
        self.map_policy(|policy| policy.map_options(f))
    }

    /// Exempts requests that match `condition` from this limit.
    ///
    /// The condition is either a closure that states the type of its argument, or one of [`Paths`](crate::key::Paths),
    /// [`Preflight`](crate::key::Preflight), [`GrpcHealth`](crate::key::GrpcHealth) and
    /// [`GrpcReflection`](crate::key::GrpcReflection). If `unless` is called twice, requests that match either
    /// condition are exempt. Exempt requests need no key. But an exempt request is still rejected if its caller is [on
    /// a deny list](crate::key::PeerIp::deny). To switch a limit off for all requests, use
    /// [`enabled`](RateLimitLayer::enabled).
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
    ///     .unless(|request: &Request<axum::body::Body>| {
    ///         request.extensions().get::<Staff>().is_some()
    ///     });
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn unless<F>(self, condition: F) -> RateLimitLayer<Unless<K, F>, A, C, R, L> {
        self.map_policy(|policy| policy.map_key(|key| Unless::new(key, condition)))
    }

    /// Sets the function that returns whether a request has priority. Requests with priority can wait for the next
    /// window instead of being rejected, if the algorithm is a window with [priority](crate::algorithm#priority), alone
    /// or within [`Tiered`] or [`Lockout`](crate::algorithm::Lockout). With any other algorithm, priority has no
    /// effect, and a warning is logged at most once a minute (feature `tracing`). If you also set a
    /// [`cost`](RateLimitLayer::cost), set the cost first.
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
    #[must_use]
    pub fn priority<F, Req>(self, has_priority: F) -> RateLimitLayer<K, A, PriorityFn<C, F>, R, L>
    where
        F: Fn(&Req) -> bool,
    {
        self.map_options(|options| PriorityFn::new(options, has_priority))
    }

    /// Sets shadow mode. While `shadow` is on, this limit decides and counts calls, but neither denies nor delays any
    /// call, and answers none. The counts show what the limit would do. nginx calls this mode dry run.
    ///
    /// A call that would be denied or queued is admitted at once, and charges nothing. Such a call is
    /// [counted](Shadow::denied), and an event of level `debug` is emitted (feature `tracing`). An
    /// [`HttpResponder`](crate::middleware::HttpResponder) adds the extension
    /// [`ShadowDenied`](crate::middleware::ShadowDenied) to the request. Callers see nothing of this limit. When shadow
    /// mode is turned [off](Shadow::set), the limit is enforced, and the units that were charged in shadow mode count.
    ///
    /// A request without a valid key passes as well, and so does a request of a [forbidden](crate::key::PeerIp::deny)
    /// caller. So a deny list that must hold is a layer of its own, which is not in shadow mode. Such a request is not
    /// decided: it is [counted](crate::stats::KeyStats) as what it would have been answered with, and is a log event
    /// (feature `tracing`). With [`MissingKey::Shared`], requests without a key are decided, as they are outside
    /// shadow mode. If the limiter cannot decide a call, this limit admits it.
    ///
    /// If the layer is joined with others, this limit decides only the calls that the limits outside shadow mode
    /// admit. In memory, it extracts the keys of these calls only, so that it counts no mistake in a key of other
    /// calls. If the request has no valid key for this limit, the others decide it alone.
    ///
    /// A trial needs a limiter of its own. If this limit shares its limiter with an enforced limit of the same layer,
    /// the units of each call are charged twice in memory, so the enforced limit denies calls too early. In Redis, they
    /// are charged once.
    ///
    /// The first request after each time that shadow mode was turned on is an event of level `info`. While shadow mode
    /// is on, the metric `tower_throttle_enforced` is 0 (feature `metrics`).
    ///
    /// ```
    /// use tower_throttle::middleware::Shadow;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let shadow = Shadow::on();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).shadow(&shadow);
    /// // a day later, if no legitimate caller would have been denied
    /// println!("{} calls would have been denied", shadow.denied());
    /// shadow.set(false);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn shadow(self, shadow: &Shadow) -> Self {
        self.with_info(|info| info.settings.shadow = Some(shadow.clone()))
    }

    /// Sets a timeline. For each of the last 60 seconds, by default, the timeline counts what this policy does, and
    /// records the response times of the inner service. If several policies have the same timeline, their counts are
    /// added up.
    ///
    /// ```
    /// use tower_throttle::stats::Timeline;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let last_minute = Timeline::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).timeline(&last_minute);
    /// for (start, second) in last_minute.recent() {
    ///     println!("{start:?}: {} admitted, {} denied", second.admitted, second.denied);
    /// }
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn timeline(self, timeline: &Timeline) -> Self {
        self.with_info(|info| info.settings.timeline = Some(timeline.clone()))
    }

    /// Joins two layers: a request is admitted only if both layers allow the request. If one layer denies the request,
    /// neither layer charges it.
    ///
    /// Both policies decide the request in one step, so no other call for one of the two keys is decided in between.
    /// The responder of this layer makes the responses, and so `other` must have no [`responder`](Self::responder), no
    /// [`on_reject`](Self::on_reject) and no `axum_body`: set them on this layer or on the joined one. If both policies
    /// have the same name, the name of the second gets a number: `default`, `default-2`.
    ///
    /// A request that has a valid key for neither policy gets one response: 403 if one of them forbids the caller, or
    /// else that to the [client's mistake](crate::key::KeyError), or else that to the mistake in the configuration. Of
    /// two mistakes of one kind, the first counts.
    ///
    /// If one policy queues the request, the other policy charges the request as soon as the request joins the queue.
    /// If the request is cancelled while it is queued, as much of this charge as still counts is refunded. With
    /// [tiers](crate::algorithm::Tiered), the refund goes to the tier that the key used last. If both policies queue
    /// the request, the request is admitted as soon as both queues can admit it. On average, the inner service then
    /// receives no more requests than either queue alone would admit, but the intervals between the requests are less
    /// even than with a single queue. In rare cases, a request [displaces](crate::algorithm::QueueOverflow::DropOldest)
    /// the oldest one of a full queue, and is then denied by the other policy.
    ///
    /// Both layers must have [`RateLimiter`](crate::RateLimiter)s, or both limiters of one `RedisStore` of the crate
    /// `tower-throttle-redis`: see [many machines]. The layer of a [`FairLimiter`](crate::limiter::FairLimiter) is
    /// applied by itself, [inside of a layer with a rate](crate::guide::concurrency#fair-capacity). Call
    /// [`unless`](RateLimitLayer::unless) and [`missing_key`](RateLimitLayer::missing_key) on each layer before you
    /// join the layers.
    ///
    /// [many machines]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html#several-limits
    ///
    /// ```
    /// use tower_throttle::algorithm::SlidingWindow;
    /// use tower_throttle::key::{Global, PeerIp};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let all = RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000)));
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(5)).and(all.name("all"));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn and<O: IntoPolicySet>(self, other: O) -> Joined<Policy<K, A, C, L>, O, R> {
        let policies = Arc::unwrap_or_clone(self.policies).joined(other.into_policy_set(), And::new);
        Layers { policies: Arc::new(policies), responder: self.responder }
    }
}

impl<K: Clone, A: Algorithm, R, L: Limiter<Algorithm = A>> RateLimitLayer<K, A, UnitCost, R, L> {
    /// Sets the function that returns the cost of a request, in units of the quota. The default is 1. With state in
    /// memory, this limit never denies a request with a cost of 0.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .cost(|request: &Request<Body>| if request.uri().path() == "/export" { 10 } else { 1 });
    /// ```
    #[must_use]
    pub fn cost<F, Req>(self, cost: F) -> RateLimitLayer<K, A, CostFn<F>, R, L>
    where
        F: Fn(&Req) -> u64,
    {
        self.map_options(|_| CostFn::new(cost))
    }
}

impl<K: Clone, A: Algorithm + PartialEq, C: Clone, R, L: Limiter<Algorithm = Tiered<A>>>
    RateLimitLayer<K, Tiered<A>, C, R, L>
{
    /// Sets the function that returns the algorithm for a request. For example, the function can return one limit for
    /// free users and another for paying users, or one for logins and another for searches.
    ///
    /// Units that a key uses in one tier count in all tiers: if a user moves to another tier, the usage is not reset.
    /// See [`Tiered`]. Clients see the quota of the chosen algorithm. If you also set a [`cost`](RateLimitLayer::cost),
    /// set the cost first.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::algorithm::{Tiered, TokenBucket};
    /// use tower_throttle::key;
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
    /// let by_user = key::Extension::<User, _>::new(|user| user.id);
    /// let layer = RateLimitLayer::new(by_user, Tiered::new(free.clone())).tier(
    ///     move |request: &Request<axum::body::Body>, _key| {
    ///         let pays = request.extensions().get().is_some_and(|user: &User| user.pays);
    ///         if pays { paid.clone() } else { free.clone() }
    ///     },
    /// );
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn tier<F, Req>(self, choose: F) -> RateLimitLayer<K, Tiered<A>, TierFn<C, F>, R, L>
    where
        K: KeyExtractor<Req>,
        F: Fn(&Req, &K::Key) -> A,
    {
        self.with_info(|info| info.settings.is_tiered = true)
            .map_options(|options| TierFn::new(options, choose))
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, L: Settles + Limiter<Algorithm = A>> RateLimitLayer<K, A, C, R, L> {
    /// Sets the function that returns the actual cost of a call, in units of the quota. The argument of the function is
    /// the response to the call. If the function returns `None`, the charge of the call stays as it is.
    ///
    /// A call is charged its [`cost`](RateLimitLayer::cost) when it is admitted. Its actual cost may be:
    ///
    /// - **Less**: the part of the difference that still counts goes back. So no call is admitted that would have been
    ///   denied if all costs had been known from the beginning. What still counts [in a
    ///   bucket](crate::guide::costs#the-estimate-and-debt) is what was not refilled meanwhile. `Smooth` gives back the
    ///   difference less the units of that time, and `Smooth::warming_up` at the rate of a warm limiter.
    /// - **More**: the difference is charged in full, as debt if need be: later requests of the key are denied, or
    ///   wait, until enough units are available again. The [`max_debt`](crate::limiter::Builder::max_debt) of the
    ///   limiter bounds the debt.
    ///
    /// If the inner service returns an error, or the client disconnects before there is a response, the charge stays as
    /// it is. Do not use this method with limits of calls in progress, which release their units when calls end.
    ///
    /// If the limiter settles a call at once, as [`RateLimiter`](crate::RateLimiter) does, the header fields of the
    /// response describe the state after the settlement. In all other cases, for example if the function returned
    /// `None` or the call was rejected, the header fields describe the state at the decision. The
    /// [`Decision`](crate::Decision) in the request's extensions describes the state at the decision, too.
    ///
    /// ```
    /// use axum::response::Response;
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // five failed logins a minute, which are answered with 401;
    /// // successful logins are free, even with a redirect
    /// let logins = RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(5)))
    ///     .settle(|response: &Response| u64::from(response.status().is_client_error()));
    /// # let _: axum::Router = axum::Router::new().layer(logins);
    /// ```
    ///
    /// Until the response to a call is ready, the whole charge of the call counts. So if no call costs more than it was
    /// charged, callers cannot exceed the limit by many calls at once. If calls cost more, a caller exceeds the limit
    /// by at most what the calls in progress cost more, and pays it back.
    ///
    /// A limiter in [Redis] charges and refunds the same units as a limiter in memory, but later: it sends the
    /// settlement to the server when the response is ready, and waits for no reply. Until the server has executed the
    /// settlement, the whole charge counts. If the server does not execute it within the [deadline], or if the process
    /// ends before, the settlement is lost: the charge stays as it is, even if the call has cost more. A [fallback]
    /// settles only the calls that it has decided.
    ///
    /// [Redis]: https://docs.rs/tower-throttle-redis
    /// [deadline]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisStoreBuilder.html#method.deadline
    /// [fallback]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisLimiterBuilder.html#method.fallback
    #[must_use]
    pub fn settle<F, Res, Actual>(self, actual: F) -> RateLimitLayer<K, A, SettleFn<C, F>, R, L>
    where
        F: Fn(&Res) -> Actual,
        Actual: Into<Option<u64>>,
    {
        self.map_options(|options| SettleFn::new(options, actual))
    }

    /// Charges each call what a [`Meter`](crate::Meter) says when the call has ended, for costs that are known only
    /// then: tokens of a language model's answer, rows of a query, bytes, seconds of a worker.
    ///
    /// The layer puts the meter into the extensions of the request, or uses the meter that is there already. A call is
    /// charged its [`cost`](RateLimitLayer::cost) when it is admitted. This estimate should be at least 1, because a
    /// call that costs nothing is always admitted. The call is settled once: when the body of the response has ended,
    /// has failed or was dropped, when the inner service has returned an error, or when the response future is dropped.
    /// So a client that disconnects pays what the meter says at that moment. The settlement refunds or charges the
    /// difference as [`settle`](RateLimitLayer::settle) does, and can bring a key into debt. Units that are counted
    /// later are charged at once.
    ///
    /// A call whose meter was not used keeps its estimate. [`unmetered`](RateLimitLayer::unmetered) can change this. If
    /// the layer has a function to [`settle`](RateLimitLayer::settle), and the function returns a cost for the head of
    /// a response, this cost is charged instead of what the meter says until then. The header fields of the response
    /// describe the state at the decision, because they are sent before the end.
    ///
    /// With a [`Responder`](crate::middleware::Responder) of your own, the permit given to
    /// [`hold_permit`](crate::middleware::Responder::hold_permit) settles the call when it is dropped. An
    /// [`ErrorResponder`](crate::middleware::ErrorResponder) holds no permit, so it settles a call at the head of the
    /// response, and units that are counted later are charged at once. Refund the estimate of unused meters then. Only
    /// HTTP and gRPC requests have extensions. For other services, call [`reserve`](crate::limiter::Call::reserve). A
    /// limit of calls in progress has no costs to settle, so it does not compile with this method.
    /// [Join](RateLimitLayer::and) it with a metered limit.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, body::Body, routing::get};
    /// use http::Request;
    /// use tower_throttle::{Meter, Quota, RateLimitLayer};
    ///
    /// async fn report(meter: Meter) -> String {
    ///     let rows = vec!["a row"; 250];
    ///     meter.set(rows.len() as u64);
    ///     rows.join("\n")
    /// }
    ///
    /// let rows = RateLimitLayer::per_ip(Quota::per_minute(10_000))
    ///     .cost(|_: &Request<Body>| 100)
    ///     .metered();
    /// let app: Router = Router::new().route("/", get(report)).layer(rows);
    /// # }
    /// ```
    #[must_use]
    pub fn metered(self) -> RateLimitLayer<K, A, Metered<C>, R, L> {
        const { assert!(!A::NEEDS_RELEASE, "a limit of calls in progress cannot be metered") };
        self.map_options(Metered::new).with_info(|info| info.settings.is_metered = true)
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, L: Limiter<Algorithm = A>> RateLimitLayer<K, A, Metered<C>, R, L> {
    /// Sets what happens to the estimate of a call whose meter was not used. The default is to
    /// [keep](Unmetered::Keep) it. Call this method right after [`metered`](RateLimitLayer::metered).
    ///
    /// ```
    /// use tower_throttle::middleware::Unmetered;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // Responses of a cache, for which no worker counts seconds, are free.
    /// let seconds =
    ///     RateLimitLayer::per_ip(Quota::per_hour(600)).metered().unmetered(Unmetered::Refund);
    /// # let _: axum::Router = axum::Router::new().layer(seconds);
    /// ```
    #[must_use]
    pub fn unmetered(self, unmetered: Unmetered) -> Self {
        self.map_options(|options| options.unmetered(unmetered))
    }
}

impl<K, A: Algorithm, C, R, L: Limiter<Algorithm = A>> RateLimitLayer<K, A, C, R, L> {
    /// Sets the [`Responder`](crate::middleware::Responder), which makes the responses. The default is
    /// [`HttpResponder`]. Use [`ErrorResponder`](crate::middleware::ErrorResponder) for services that are not HTTP.
    ///
    /// A layer takes one responder. Call this method before `axum_body`, and before or after
    /// [`on_reject`](RateLimitLayer::on_reject).
    ///
    /// ```
    /// use tower_throttle::middleware::BodyFormat;
    /// use tower_throttle::{HttpResponder, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .responder(HttpResponder::new().body(BodyFormat::PlainText));
    /// ```
    #[must_use]
    pub fn responder<T: SetOn<R>>(self, responder: T) -> RateLimitLayer<K, A, C, T::Responder, L> {
        RateLimitLayer { policies: self.policies, responder: responder.set_on(self.responder) }
    }

    /// Returns the limiter of this layer. Code without a layer can call the limiter directly.
    #[must_use]
    pub fn limiter(&self) -> &L {
        self.policies.parts().0.limiter()
    }

    /// Lets `shutdown` close the limiter of this layer. Layers that are [joined](RateLimitLayer::and) are added one by
    /// one, before they are joined.
    #[must_use]
    pub fn shutdown(self, shutdown: &Shutdown) -> Self {
        shutdown.add(self.limiter());
        self
    }

    /// Sets a function that is called with each rejection and the rejected request, before the response is made. The
    /// function cannot change the response. Use the function for a counter, a log line or an alert of your own. The
    /// function is called for HTTP, gRPC and all other services. If `on_reject` is called twice, both functions are
    /// called, the later one first.
    ///
    /// The function runs in the task that calls the service or polls its future, so the function must not block.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::middleware::Rejection;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).on_reject(
    ///     |rejection: &Rejection<'_>, request: &Request<axum::body::Body>| {
    ///         let path = request.uri().path();
    ///         for report in rejection.policies() {
    ///             if !report.decision().is_allowed() {
    ///                 eprintln!("{} denied {path}: {}", report.name(), report.decision());
    ///             }
    ///         }
    ///     },
    /// );
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn on_reject<F, Req>(self, observe: F) -> RateLimitLayer<K, A, C, OnReject<R, F>, L>
    where
        F: Fn(&Rejection<'_>, &Req),
    {
        RateLimitLayer { policies: self.policies, responder: OnReject::new(self.responder, observe) }
    }

    /// Returns the response that this layer gives to a request that its limiter denies. With it, a service that calls
    /// the limiter itself answers as the layer would: with the same status, header fields and body.
    ///
    /// `head` is a reference to a [`Request`](http::Request) or to its [`Parts`](http::request::Parts), and says
    /// whether the response is JSON, text or gRPC. Nothing is charged and counted, and no function of
    /// [`on_reject`](RateLimitLayer::on_reject) is called. The name of the limiter is recorded in the field
    /// `rate_limit.rejected_by` of the span in which a layer has seen the request, if the extensions of `head` are
    /// those of the request, or else of the current span (feature `tracing`). The response never has `Connection:
    /// close`, because the service knows whether it has read the body of the request. If the call has a
    /// [tier](crate::limiter::Call::tier), the response reports the quota of the limiter's own algorithm. In an axum
    /// handler, the extractor `Rejecter` does the same without a layer (feature `axum`).
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::Global;
    /// use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// // The layer is not applied to a service, so its key does not matter.
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(1)));
    /// let mail = RateLimitLayer::with_limiter(Global, limiter).name("mail");
    ///
    /// let send = |request: Request<&str>| -> Response<Full<Bytes>> {
    ///     let (head, recipient) = request.into_parts();
    ///     match mail.limiter().check(recipient).into_result() {
    ///         Ok(()) => Response::new(Full::from("sent")),
    ///         Err(denied) => mail.reject(&head, denied).map(Full::new),
    ///     }
    /// };
    /// assert_eq!(send(Request::new("ann@example.com")).status(), 200);
    /// let rejection = send(Request::new("ann@example.com"));
    /// assert_eq!(rejection.status(), 429);
    /// assert_eq!(rejection.headers()["retry-after"], "60");
    /// ```
    pub fn reject<'a>(&self, head: impl Into<RequestHead<'a>>, denied: Denied) -> Response<Bytes>
    where
        R: RejectHead<Bytes>,
    {
        let (policy, infos) = self.policies.parts();
        let names = infos[0].current_names(policy.limiter());
        let outcome = Outcome::new(denied.into(), false, Reservation::default()).with_names(names);
        let outcomes = [Some(outcome)];
        let reports = reports(infos, &outcomes);
        let rejection = Rejection::Limited(&reports);
        let head = head.into();
        head.record_rejected_by(policy.limiter().name().unwrap_or(infos[0].name()));
        self.responder.reject_head(&head, rejection).map(Bytes::from)
    }

    /// Returns the counts of this policy: the requests by outcome, the requests without a valid key or from forbidden
    /// callers, and the events of the limiter. All clones of this layer share these counts, unless they were given
    /// another [name](RateLimitLayer::name). Reading the counts blocks no request.
    ///
    /// A [joined](RateLimitLayer::and) layer [returns](crate::middleware::Layers::stats) the counts of all its
    /// policies. Clones of the layers that were joined share these counts.
    ///
    /// ```
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).name("per-ip");
    /// let app: axum::Router = axum::Router::new().layer(layer.clone());
    /// let stats = layer.stats();
    /// println!(
    ///     "{}: {} admitted, {} denied",
    ///     stats.name, stats.calls.admitted, stats.calls.denied
    /// );
    /// assert_eq!(stats.keys.rejected, 0, "requests without a peer address");
    /// ```
    #[must_use]
    pub fn stats(&self) -> PolicyStats {
        self.policies.parts().1[0].stats(self.limiter().stats())
    }

    /// Passes the counts of this policy to the recorder of the `metrics` facade, if a recorder is installed. Call this
    /// method before each scrape, or every few seconds. The chapter [In production](crate::guide::production) lists the
    /// names and the labels of the metrics.
    ///
    /// Install the recorder before the first call, and only one: each call adds to the recorder's counters what
    /// requests were counted since the call before, by any clone of the layer. What the limiter or its store counts,
    /// such as evicted keys, is set and not added, since several layers may have the same limiter.
    ///
    /// Give each policy a [name](RateLimitLayer::name) of its own. The requests of policies with the same name are
    /// added up, but their other metrics are those of one of them. The first call of the second one logs a warning
    /// (feature `tracing`). If this layer was cloned, and a joined clone has got a number in its name, the metrics of
    /// both have the name with which this method was called first, because both have the same counts. When a queued
    /// request is admitted, the service records its wait in a histogram. For all other requests, the service itself
    /// records nothing.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.policies.parts().1[0].record(&self.stats(), !L::IS_LOCAL);
    }
}

#[cfg(feature = "axum")]
impl<K, A: Algorithm, C, R: IntoAxumBody, L> RateLimitLayer<K, A, C, R, L> {
    /// Gives all responses axum's body: the limited service has the body type [`axum::body::Body`], whatever the body
    /// type of the inner service is. Each limit of an axum app should have it.
    ///
    /// By default, the body type is [`ResponseBody`](crate::middleware::ResponseBody), which works with the bodies of
    /// all services. But what contains a layer or nothing, such as tower's `option_layer`, and what names the type of
    /// the responses, such as `BoxCloneSyncServiceLayer`, wants a layer that does not change this type. See
    /// [optional limits](crate::guide::ordering#optional-limits-and-boxed-limits).
    ///
    /// If the body of the inner service is axum's already, it is passed on as it is, and each request takes one
    /// allocation less, because axum boxes the bodies of all other types. Any other body, such as that of a layer that
    /// compresses, is boxed once. If a call holds a permit, its body is wrapped, and the result is boxed.
    ///
    /// The method changes the responder. So call it after [`responder`](RateLimitLayer::responder).
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower::util::option_layer;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let is_limited = std::env::var_os("NO_LIMIT").is_none();
    /// let limit = RateLimitLayer::per_ip(Quota::per_minute(100)).axum_body();
    /// let app: Router = Router::new()
    ///     .route("/", get(|| async { "hello" }))
    ///     .layer(option_layer(is_limited.then_some(limit)));
    /// ```
    #[must_use]
    pub fn axum_body(self) -> RateLimitLayer<K, A, C, R::Responder, L> {
        RateLimitLayer { policies: self.policies, responder: self.responder.into_axum_body() }
    }
}

impl<Svc, K, A: Algorithm, C, R: Clone, L> Layer<Svc> for RateLimitLayer<K, A, C, R, L> {
    type Service = RateLimit<Svc, Policy<K, A, C, L>, R>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.policies), self.responder.clone())
    }
}

impl<K, A: Algorithm, C, R: Clone, L> Clone for RateLimitLayer<K, A, C, R, L> {
    fn clone(&self) -> Self {
        Self { policies: Arc::clone(&self.policies), responder: self.responder.clone() }
    }
}

impl<K, A: Algorithm, C, R, L: Limiter<Algorithm = A>> fmt::Debug for RateLimitLayer<K, A, C, R, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policies", &self.policies).finish_non_exhaustive()
    }
}

/// A layer with several policies. If one policy denies a call, no policy charges the call. Created by
/// [`and`](RateLimitLayer::and).
pub struct Layers<P, R = HttpResponder<Unset>> {
    policies: Arc<Policies<P>>,
    responder: R,
}

impl<P: Clone, R> Layers<P, R> {
    /// Joins another layer: a request is admitted only if all policies allow the request. See [`RateLimitLayer::and`].
    #[must_use]
    pub fn and<O: IntoPolicySet>(self, other: O) -> Joined<P, O, R> {
        let policies = Arc::unwrap_or_clone(self.policies).joined(other.into_policy_set(), And::new);
        Layers { policies: Arc::new(policies), responder: self.responder }
    }
}

impl<P: Clone, R> Layers<P, R> {
    /// Disables all policies that are joined so far, if `is_enabled` is `false`. See [`RateLimitLayer::enabled`]. With
    /// `true`, the method changes nothing: a policy that was disabled before it was joined stays so.
    ///
    /// ```
    /// use tower_throttle::algorithm::SlidingWindow;
    /// use tower_throttle::key::{Global, PeerIp};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let is_limited = std::env::var_os("NO_LIMIT").is_none();
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(5))
    ///     .and(RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000))))
    ///     .enabled(is_limited);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn enabled(self, is_enabled: bool) -> Self {
        let mut policies = Arc::unwrap_or_clone(self.policies);
        if !is_enabled {
            policies.infos_mut().iter_mut().for_each(|info| info.settings.is_enabled = false);
        }
        Layers { policies: Arc::new(policies), responder: self.responder }
    }
}

impl<P: PolicyCount, R> Layers<P, R> {
    /// Returns the counts of each policy, in the order in which the policies were joined. If a clone of a layer was
    /// joined, the joined policy and the original layer share their counters.
    ///
    /// ```
    /// use tower_throttle::algorithm::SlidingWindow;
    /// use tower_throttle::key::{Global, PeerIp};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let all = RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000)));
    /// let layer =
    ///     RateLimitLayer::per_ip(Quota::per_second(5)).name("per-ip").and(all.name("all"));
    /// for policy in layer.stats() {
    ///     println!(
    ///         "{}: {} admitted, {} denied",
    ///         policy.name, policy.calls.admitted, policy.calls.denied
    ///     );
    /// }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Vec<PolicyStats> {
        self.policies.stats()
    }

    /// Passes the counts of each policy to the recorder of the `metrics` facade. See
    /// [`RateLimitLayer::record_metrics`].
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        let (_, infos) = self.policies.parts();
        infos.iter().zip(self.stats()).for_each(|(info, stats)| info.record(&stats, P::CAN_FAIL));
    }
}

impl<P, R> Layers<P, R> {
    /// Sets the responder, which makes the responses. See [`RateLimitLayer::responder`].
    #[must_use]
    pub fn responder<T: SetOn<R>>(self, responder: T) -> Layers<P, T::Responder> {
        Layers { policies: self.policies, responder: responder.set_on(self.responder) }
    }

    /// Sets a function that is called with each rejection and the rejected request. See [`RateLimitLayer::on_reject`].
    #[must_use]
    pub fn on_reject<F, Req>(self, observe: F) -> Layers<P, OnReject<R, F>>
    where
        F: Fn(&Rejection<'_>, &Req),
    {
        Layers { policies: self.policies, responder: OnReject::new(self.responder, observe) }
    }
}

#[cfg(feature = "axum")]
impl<P, R: IntoAxumBody> Layers<P, R> {
    /// Gives all responses axum's body. See [`RateLimitLayer::axum_body`].
    #[must_use]
    pub fn axum_body(self) -> Layers<P, R::Responder> {
        Layers { policies: self.policies, responder: self.responder.into_axum_body() }
    }
}

impl<Svc, P, R: Clone> Layer<Svc> for Layers<P, R> {
    type Service = RateLimit<Svc, P, R>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.policies), self.responder.clone())
    }
}

impl<P, R: Clone> Clone for Layers<P, R> {
    fn clone(&self) -> Self {
        Self { policies: Arc::clone(&self.policies), responder: self.responder.clone() }
    }
}

impl<P: fmt::Debug, R> fmt::Debug for Layers<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("policies", &self.policies).finish_non_exhaustive()
    }
}

/// A layer whose policies can be joined with those of another layer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layer whose policies can be joined with those of another",
    note = "join `RateLimitLayer`s: `layer.and(RateLimitLayer::with_limiter(key, limiter))`",
    note = "if it has `responder`, `on_reject` or `axum_body`, set it on the joined layer: `a.and(b).responder(..)`"
)]
pub trait IntoPolicySet {
    #[doc(hidden)]
    type PolicySet;

    #[doc(hidden)]
    fn into_policy_set(self) -> Policies<Self::PolicySet>;
}

impl<K: Clone, A: Algorithm, C: Clone, L: Limiter<Algorithm = A>> IntoPolicySet
    for RateLimitLayer<K, A, C, HttpResponder<Unset>, L>
{
    type PolicySet = Policy<K, A, C, L>;

    fn into_policy_set(self) -> Policies<Policy<K, A, C, L>> {
        Arc::unwrap_or_clone(self.policies)
    }
}

impl<P: Clone> IntoPolicySet for Layers<P> {
    type PolicySet = P;

    fn into_policy_set(self) -> Policies<P> {
        Arc::unwrap_or_clone(self.policies)
    }
}

/// The layer that results from joining the policies `P` and a layer, with the responder `R`.
type Joined<P, O, R> = Layers<And<P, <O as IntoPolicySet>::PolicySet>, R>;
