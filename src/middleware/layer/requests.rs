//! The methods of a layer that choose by the request or by its response.

use super::RateLimitLayer;
use crate::algorithm::{Algorithm, HasPriority, Tiered};
use crate::key::{KeyExtractor, Unless};
use crate::middleware::policy::Policy;
use crate::middleware::policy::request_options::{CostFn, PriorityFn, SettleFn, TierFn, UnitCost};
use crate::store::{SettleStore, Store};

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
        self.with_info(|info| info.is_tiered = true).map_options(|options| TierFn::new(options, choose))
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
    /// [`MemoryStore`](crate::store::MemoryStore) does: they are read under the same lock. If a call is not settled,
    /// because the function returned `None` or the call was rejected, they describe the state at the decision; so does
    /// the [`Decision`](crate::Decision) in the request's extensions.
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
        self.map_policy(|Policy { key, limiter, options }| Policy { key, limiter, options: f(options) })
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
        self.map_policy(|Policy { key, limiter, options }| Policy {
            key: Unless::new(key, condition),
            limiter,
            options,
        })
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
}
