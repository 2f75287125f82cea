/// The treatment of requests that the store could not decide, because the store failed or did not answer in time.
///
/// A store in memory never fails. A store in Redis can have a [fallback](crate::guide::many_machines), a limiter in
/// memory that decides while Redis fails. The setting does not affect requests that the fallback decides. In [shadow
/// mode](crate::middleware::RateLimitLayer::shadow), a request that the store could not decide is admitted with either
/// setting.
///
/// ```no_run
/// use tower_throttle::middleware::OnStoreError;
/// # #[cfg(feature = "redis")]
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # use tower_throttle::algorithm::TokenBucket;
/// # use tower_throttle::key::PeerIp;
/// # use tower_throttle::store::redis::RedisStore;
/// # use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
/// // the service starts even if Redis fails at that time
/// let redis = RedisStore::builder("redis://127.0.0.1").connect_lazily()?;
/// let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_minute(100))).name("api").store(redis).build()?;
/// // while Redis fails, requests are not limited
/// let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter).on_store_error(OnStoreError::Allow);
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Rejects the request: HTTP 503, gRPC `UNAVAILABLE`. This is the default, so that no request above the limit is
    /// admitted while the store fails.
    #[default]
    Reject,
    /// Admits the request without a limit, and reports no limit to the caller. Use this setting only if the service can
    /// do without the limit for a while. A process that has to start while Redis fails must connect
    /// [lazily](crate::guide::many_machines#when-redis-is-slow-or-fails).
    Allow,
}
