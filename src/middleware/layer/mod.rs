mod observe;
mod requests;

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use crate::algorithm::{Algorithm, TokenBucket};
use crate::error::ConfigError;
use crate::key::{MissingKey, PeerIp};
use crate::limiter::RateLimiter;
use crate::middleware::policy::Policy;
use crate::middleware::policy::info::PolicyInfo;
use crate::middleware::policy::on_store_error::OnStoreError;
use crate::middleware::policy::request_options::UnitCost;
use crate::middleware::policy::set::Policies;
use crate::middleware::response::http_responder::HttpResponder;
use crate::middleware::service::RateLimit;
use crate::quota::Quota;
use crate::store::{MemoryStore, Store};

/// A tower layer that limits requests. `K` extracts the key of a request, and the algorithm `A` limits each key.
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
/// | to share one limiter among several layers, or to call the limiter directly | [`with_limiter`](RateLimitLayer::with_limiter), [`limiter`](RateLimitLayer::limiter) |
/// | some requests to cost more than others | [`cost`](RateLimitLayer::cost) |
/// | different limits for different callers or requests | [`tier`](RateLimitLayer::tier) |
/// | a cost that is known only with the response | [`settle`](RateLimitLayer::settle) |
/// | some requests to wait for the next window | [`priority`](RateLimitLayer::priority) |
/// | some requests not to be limited | [`unless`](RateLimitLayer::unless) |
/// | to choose what happens to requests without a key | [`missing_key`](RateLimitLayer::missing_key) |
/// | to choose what happens to requests that the store cannot decide | [`on_store_error`](RateLimitLayer::on_store_error) |
/// | to try a limit out before it is enforced | [`shadow`](RateLimitLayer::shadow) |
/// | a name for the policy in header fields and bodies | [`name`](RateLimitLayer::name), [`try_name`](RateLimitLayer::try_name) |
/// | not to report the policy to callers | [`hidden`](RateLimitLayer::hidden) |
/// | other responses or header fields, or a service that is not HTTP | [`responder`](RateLimitLayer::responder) |
/// | the counts of each of the last 60 seconds | [`timeline`](RateLimitLayer::timeline) |
/// | the keys that are denied most often | [`top_keys`](RateLimitLayer::top_keys), [`top_keys_by`](RateLimitLayer::top_keys_by) |
/// | to observe rejections | [`on_reject`](RateLimitLayer::on_reject) |
/// | several limits, all of which must admit a request | [`and`](RateLimitLayer::and) |
/// | the numbers of admitted, denied and other requests | [`stats`](RateLimitLayer::stats) |
///
/// # Order of the methods
///
/// Call `cost` before `tier`, `settle` and `priority`, call `top_keys` and `top_keys_by` before `tier`, and call
/// `responder` before `on_reject`. Configure each layer before you join it by `and`. After `and`, only these methods
/// can be called: `and`, `responder`, `on_reject`, `stats` and `record_metrics`. The methods not mentioned here can be
/// called in any order before `and`.
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
/// [responses](RateLimitLayer::responder), and `S` stores the state.
pub struct RateLimitLayer<K, A: Algorithm, C = UnitCost, R = HttpResponder, S = MemoryStore<A>> {
    pub(super) policies: Arc<Policies<Policy<K, A, C, S>>>,
    pub(super) responder: R,
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

impl<K, A: Algorithm, S: Store<A>> RateLimitLayer<K, A, UnitCost, HttpResponder, S> {
    /// Creates a layer from the key extractor `key` and a limiter. Other layers, and code that calls the limiter
    /// directly, can share the limiter.
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
        Self { policies: Arc::new(Policy::new(key, limiter)), responder: HttpResponder::new() }
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    fn map_policy<L, D>(
        self,
        f: impl FnOnce(Policy<K, A, C, S>) -> Policy<L, A, D, S>,
    ) -> RateLimitLayer<L, A, D, R, S> {
        let Policies { infos, set } = Arc::unwrap_or_clone(self.policies);
        RateLimitLayer { policies: Arc::new(Policies { infos, set: f(set) }), responder: self.responder }
    }

    fn with_info(self, f: impl FnOnce(&mut PolicyInfo)) -> Self {
        let mut policies = Arc::unwrap_or_clone(self.policies);
        f(&mut policies.infos[0]);
        Self { policies: Arc::new(policies), responder: self.responder }
    }

    /// Hides this policy from callers: no header field reports the policy, and no body and no gRPC details name it.
    ///
    /// Use this method for limits whose state callers must not see, such as one limit for all callers together. A
    /// rejection still reports the time to wait.
    #[must_use]
    pub fn hidden(self) -> Self {
        self.with_info(|info| info.names.hide())
    }

    /// Sets what happens to requests that have no key because of a configuration mistake. The default is to
    /// [reject](MissingKey::Reject) them. The setting does not affect requests in which the client made the key
    /// [invalid](crate::key::KeyError::invalid). These requests are always rejected, with HTTP 400 or gRPC
    /// `INVALID_ARGUMENT`.
    ///
    /// ```
    /// use tower_throttle::key::MissingKey;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).missing_key(MissingKey::Shared);
    /// ```
    #[must_use]
    pub fn missing_key(self, missing: MissingKey) -> Self {
        self.with_info(|info| info.missing = missing)
    }

    /// Sets what happens to requests that the store cannot decide. The default is to [reject](OnStoreError::Reject)
    /// them.
    ///
    /// With the feature `tracing`, the layer logs the first such request, and then none until the store has recovered.
    /// The store has recovered when it has decided a certain number of requests in a row. The layer logs the recovery,
    /// too. The number is 1 after the first logged failure, and doubles with each further logged failure, up to 1,024.
    /// So a store that fails again and again does not fill the log. The setting has no effect with state in memory,
    /// which never fails. If layers are [joined](RateLimitLayer::and), a request that the store cannot decide is
    /// admitted only if each of the layers has `OnStoreError::Allow` or is in shadow mode.
    #[must_use]
    pub fn on_store_error(self, treatment: OnStoreError) -> Self {
        self.with_info(|info| info.on_store_error = treatment)
    }

    /// Sets the policy's name in header fields and bodies. The default is `default`.
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
        let layer = self.with_info(|info| renamed = info.names.rename(name));
        renamed.map(|()| layer)
    }
}

impl<K, A: Algorithm, C, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    /// Sets the [`Responder`](crate::middleware::Responder), which makes the responses. The default is
    /// [`HttpResponder`]. Use [`ErrorResponder`](crate::middleware::ErrorResponder) for services that are not HTTP.
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
        RateLimitLayer { policies: self.policies, responder }
    }

    /// Returns the limiter of this layer. Code without a layer can call the limiter directly.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter<A, S> {
        &self.policies.set.limiter
    }
}

impl<Svc, K, A: Algorithm, C, R: Clone, S> Layer<Svc> for RateLimitLayer<K, A, C, R, S> {
    type Service = RateLimit<Svc, Policy<K, A, C, S>, R>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.policies), self.responder.clone())
    }
}

impl<K, A: Algorithm, C, R: Clone, S> Clone for RateLimitLayer<K, A, C, R, S> {
    fn clone(&self) -> Self {
        Self { policies: Arc::clone(&self.policies), responder: self.responder.clone() }
    }
}

impl<K, A: Algorithm, C, R, S: Store<A>> fmt::Debug for RateLimitLayer<K, A, C, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policies", &self.policies).finish_non_exhaustive()
    }
}
