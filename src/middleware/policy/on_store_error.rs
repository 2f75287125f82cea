/// The treatment of requests that the store could not decide, because the store failed or did not answer in time.
///
/// A store in memory never fails. A store in Redis (the crate `tower-throttle-redis`) can have a [fallback], a limiter
/// in memory that decides while Redis fails. The setting does not affect requests that the fallback decides. In [shadow
/// mode](crate::middleware::RateLimitLayer::shadow), a request that the store could not decide is admitted with either
/// setting.
///
/// ```
/// use tower_throttle::middleware::OnStoreError;
/// # use tower_throttle::algorithm::TokenBucket;
/// # use tower_throttle::key::PeerIp;
/// # use tower_throttle::store::Store;
/// # use tower_throttle::{RateLimitLayer, RateLimiter};
/// # fn example<S: Store<TokenBucket>>(limiter: RateLimiter<TokenBucket, S>) {
/// // while the store of `limiter` fails, requests are not limited
/// let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter).on_store_error(OnStoreError::Allow);
/// # }
/// ```
///
/// [fallback]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html#when-redis-is-slow-or-fails
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Rejects the request: HTTP 503, gRPC `UNAVAILABLE`. This is the default, so that no request above the limit is
    /// admitted while the store fails.
    #[default]
    Reject,
    /// Admits the request without a limit, and reports no limit to the caller. Use this setting only if the service can
    /// do without the limit for a while. A process that has to start while Redis fails must connect [lazily].
    ///
    /// [lazily]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html#when-redis-is-slow-or-fails
    Allow,
}
