use super::RedisStore;
use super::error::RedisError;
use super::limit::RedisLimit;
use crate::algorithm::StoredAlgorithm;
use crate::limiter::RateLimiter;
use crate::store::{MakeStore, StoreSettings};

/// A [`RedisStore`] with a limiter in memory, which decides the calls that Redis could not decide.
/// [`RedisStore::fallback`] creates this store.
#[derive(Clone, Debug)]
pub struct WithFallback<A: StoredAlgorithm> {
    pub(super) store: RedisStore,
    pub(super) fallback: RateLimiter<A>,
}

impl RedisStore {
    /// Returns a store for [`Builder::store`](crate::limiter::Builder::store) that passes a call to `limiter` if Redis
    /// cannot decide the call.
    ///
    /// `limiter` charges only the calls that are passed to it, so give it one machine's share of the quota. A reset is
    /// always made in `limiter` as well. A refund is made in `limiter` if it fails in Redis.
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
