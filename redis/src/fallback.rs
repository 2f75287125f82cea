use super::error::RedisError;
use super::limit::RedisLimit;
use super::store::RedisStore;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::store::{MakeStore, StoreSettings};

/// A [`RedisStore`] with a limiter in memory, which decides the calls that Redis could not decide.
/// [`RedisStore::fallback`] creates this store.
#[derive(Clone, Debug)]
pub struct WithFallback<A: StoredAlgorithm> {
    pub(super) store: RedisStore,
    pub(super) fallback: RateLimiter<A>,
}

impl RedisStore {
    /// Returns a store for [`Builder::store`](tower_throttle::limiter::Builder::store) that passes a call to `limiter`
    /// if Redis cannot decide the call.
    ///
    /// `limiter` charges only the calls that are passed to it, so give it one machine's share of the quota.
    ///
    /// No method fails: what Redis cannot do is done in `limiter`, and is then `Ok`. This is true of `check`,
    /// `acquire`, `peek`, `refund` and `reset`. A reset is always made in `limiter` as well. A reset during an outage
    /// is made only in `limiter`, and is `Ok` as well: Redis keeps the state of the key, so the key is limited in Redis
    /// again as soon as Redis works. Reset the key once more then, or use a store without a fallback if you have to
    /// know.
    ///
    /// `limiter` gets the text of each key, as it is in Redis. So ask `limiter` about a key by its
    /// [`KeyText`](tower_throttle::store::KeyText), with the settings of the store:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::store::KeyText;
    /// use tower_throttle_redis::RedisStore;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let local = RateLimiter::new(FixedWindow::new(Quota::per_minute(5)));
    /// // There is no server at this address.
    /// let redis = RedisStore::builder("redis://127.0.0.1:1").prefix("shop").connect_lazily()?;
    /// let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(10)))
    ///     .name("login")
    ///     .store(redis.fallback(local.clone()))
    ///     .build()?;
    /// limiter.check("user:42").await?;
    /// let text = KeyText::new("login").prefix("shop").of("user:42");
    /// assert_eq!(local.peek(&text).remaining(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fallback<A: StoredAlgorithm>(self, limiter: RateLimiter<A>) -> WithFallback<A> {
        WithFallback { store: self, fallback: limiter }
    }
}

impl<A: StoredAlgorithm> MakeStore<A> for WithFallback<A> {
    type Store = RedisLimit<A>;
    type Error = RedisError;

    fn make_store(self, settings: StoreSettings<A>) -> Result<RedisLimit<A>, RedisError> {
        self.store.limit(settings, Some(self.fallback))
    }
}
