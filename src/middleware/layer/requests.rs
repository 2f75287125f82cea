//! The methods of a layer for costs, tiers, settlement, exemptions, denied keys and priority.

use super::RateLimitLayer;
use crate::algorithm::{Algorithm, HasPriority, Tiered};
use crate::key::{HashLabel, KeyExtractor, LabelFn, Unless, Watched};
use crate::middleware::policy::Policy;
use crate::middleware::policy::request_options::{CostFn, PriorityFn, SettleFn, TierFn, UnitCost};
use crate::stats::TopKeys;
use crate::store::{SettleStore, Store};

impl<K: Clone, A: Algorithm, R, S: Store<A>> RateLimitLayer<K, A, UnitCost, R, S> {
    /// Sets the function that returns the cost of a request, in units of the quota. The default is 1. With state in
    /// memory, this limit never denies a request with a cost of 0.
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
        self.with_info(|info| info.is_tiered = true).map_options(|options| TierFn::new(options, choose))
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: SettleStore<A>> RateLimitLayer<K, A, C, R, S> {
    /// Sets the function that returns the actual cost of a call, in units of the quota. The argument of the function is
    /// the response to the call. If the function returns `None`, the charge of the call stays as it is.
    ///
    /// A call is charged its [`cost`](RateLimitLayer::cost) when it is admitted. If the actual cost is lower, the
    /// difference is refunded to the window in which the call was charged, as far as the charge still counts. A bucket
    /// refunds the difference less the units that have been refilled since the charge, and `Smooth::warming_up` refunds
    /// the difference at the rate of a warm limiter. If the actual cost is higher, the difference is charged. If fewer
    /// units than the difference are available, only these units are charged, so the remaining units never become
    /// negative. If the inner service returns an error, or the client disconnects before there is a response, the
    /// charge stays as it is. Do not use this method with limits of calls in progress, which release their units when
    /// calls end.
    ///
    /// If the store settles a call at once, as [`MemoryStore`](crate::store::MemoryStore) does, the header fields of
    /// the response describe the state after the settlement. In all other cases, for example if the function returned
    /// `None` or the call was rejected, the header fields describe the state at the decision. The
    /// [`Decision`](crate::Decision) in the request's extensions describes the state at the decision, too.
    ///
    /// ```
    /// use axum::response::Response;
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// // five failed logins a minute, which are answered with 401; successful logins are free, also with a redirect
    /// let logins = RateLimitLayer::new(PeerIp::new(), FixedWindow::new(Quota::per_minute(5)))
    ///     .settle(|response: &Response| u64::from(response.status().is_client_error()));
    /// # let _: axum::Router = axum::Router::new().layer(logins);
    /// ```
    ///
    /// Until the response to a call is ready, the whole charge of the call counts. So if no call costs more than it was
    /// charged, callers cannot exceed the limit by many calls at once.
    ///
    /// A store in [Redis] charges and refunds the same units as a store in memory, but later: it
    /// sends the settlement to the server when the response is ready, and waits for no reply. Until the server has
    /// executed the settlement, the whole charge counts. If the server does not execute it within the store's
    /// [deadline], or if the process ends before, the settlement is lost: the charge stays as it is, also if the call
    /// has cost more. A [fallback] settles only the calls that it has decided.
    ///
    /// [Redis]: https://docs.rs/tower-throttle-redis
    /// [deadline]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisStoreBuilder.html#method.deadline
    /// [fallback]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisStore.html#method.fallback
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
        self.map_policy(|Policy { key, limiter, options }| Policy { key, limiter, options: f(options) })
    }

    /// Exempts requests that match `condition` from this limit.
    ///
    /// The condition is either a closure that states the type of its argument, or one of [`Paths`](crate::key::Paths),
    /// [`Preflight`](crate::key::Preflight), [`GrpcHealth`](crate::key::GrpcHealth) and
    /// [`GrpcReflection`](crate::key::GrpcReflection). If `unless` is called twice, requests that match either
    /// condition are exempt. Exempt requests need no key. But an exempt request is still rejected if its caller is [on
    /// a deny list](crate::key::PeerIp::deny). To switch a limit off by configuration, use
    /// [`shadow`](RateLimitLayer::shadow).
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
        self.map_policy(|Policy { key, limiter, options }| Policy {
            key: Unless::new(key, condition),
            limiter,
            options,
        })
    }

    /// Sets `top` as the list of the keys that this policy denies most often. The list shows a hash of each key, with a
    /// random seed. See [`TopKeys`].
    ///
    /// Call `top_keys` before [`tier`](RateLimitLayer::tier). Denials in shadow mode are counted, too.
    #[must_use]
    pub fn top_keys(self, top: &TopKeys) -> RateLimitLayer<Watched<K, HashLabel>, A, C, R, S> {
        self.watched(top, HashLabel)
    }

    /// Sets `top` as the list of the keys that this policy denies most often. The list shows each key by the string
    /// that the function `label` returns.
    ///
    /// The string is shown as it is. So it must not contain what readers of the list must not see, such as an API key.
    /// Call `top_keys_by` before [`tier`](RateLimitLayer::tier). Denials in shadow mode are counted, too.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_throttle::stats::TopKeys;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let top = TopKeys::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).top_keys_by(&top, |ip: &IpAddr| ip.to_string());
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn top_keys_by<F, Key, T>(
        self,
        top: &TopKeys,
        label: F,
    ) -> RateLimitLayer<Watched<K, LabelFn<F>>, A, C, R, S>
    where
        F: Fn(&Key) -> T,
        T: Into<String>,
    {
        self.watched(top, LabelFn(label))
    }

    fn watched<L>(self, top: &TopKeys, label: L) -> RateLimitLayer<Watched<K, L>, A, C, R, S> {
        self.with_info(|info| info.watches_keys = true).map_policy(|Policy { key, limiter, options }| {
            Policy { key: Watched::new(key, top, label), limiter, options }
        })
    }

    /// Sets the function that returns whether a request has priority. The algorithm must be a [window with
    /// priority](crate::algorithm::Priority), alone or within [`Tiered`] or [`Lockout`](crate::algorithm::Lockout).
    /// Requests with priority can wait for the next window instead of being rejected. If you also set a
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
    ///
    /// The method does not compile with an algorithm that does not implement [`HasPriority`]:
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
}
