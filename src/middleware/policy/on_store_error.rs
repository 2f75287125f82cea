/// The treatment of requests that the store could not decide, since it failed or did not answer in time.
///
/// State in memory never fails. A store in Redis may also have a limiter in memory that decides instead: its
/// [fallback](crate::guide::many_machines).
///
/// ```no_run
/// use tower_throttle::middleware::OnStoreError;
/// # #[cfg(feature = "redis")]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # use tower_throttle::algorithm::TokenBucket;
/// # use tower_throttle::key::PeerIp;
/// # use tower_throttle::store::redis::RedisStore;
/// # use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
/// let redis = RedisStore::connect("redis://127.0.0.1").await?;
/// let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_minute(100))).name("api").store(redis).build()?;
/// // while Redis is gone, the service goes on without its limit
/// let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter).on_store_error(OnStoreError::Allow);
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Rejects the request: HTTP 503, gRPC `UNAVAILABLE`. This is the default: while the store fails, no request is admitted
    /// that it would have denied.
    #[default]
    Reject,
    /// Admits the request without a limit, and reports none to the caller. Use this for limits that protect nothing which
    /// breaks while they are off.
    Allow,
}
