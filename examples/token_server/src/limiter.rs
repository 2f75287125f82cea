//! The counts of one limit, in memory or in Redis.

use tower_throttle::algorithm::FixedWindow;
use tower_throttle::{Decision, Quota, RateLimiter};
use tower_throttle_redis::{RedisError, RedisLimiter, RedisStore};

/// The storage of all counts.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Memory,
    Redis(RedisStore),
}

/// The counts of one limit. Clones share the counts.
///
/// Windows begin at multiples of the unit of time since 1970, as in envoyproxy/ratelimit.
#[derive(Clone, Debug)]
pub(crate) enum Limiter {
    Memory(RateLimiter<FixedWindow>),
    Redis(RedisLimiter<FixedWindow>),
}

fn window(quota: Quota) -> FixedWindow {
    FixedWindow::new(quota).aligned()
}

impl Backend {
    /// Creates the counts of the limit with that name.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis already has a limiter with this name and another quota.
    pub(crate) fn limiter(&self, name: &str, quota: Quota) -> Result<Limiter, RedisError> {
        let window = window(quota);
        Ok(match self {
            Self::Memory => Limiter::Memory(RateLimiter::builder(window).name(name).build()),
            Self::Redis(store) => Limiter::Redis(store.limiter(name, window).build()?),
        })
    }
}

impl Limiter {
    /// Counts `hits` requests. If only some of them are within the limit, these are counted, and the decision is a
    /// denial. With 0 hits, nothing is counted, and the decision says whether one request would be admitted.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis does not decide in time.
    pub(crate) async fn check(&self, key: &str, hits: u64) -> Result<Decision, RedisError> {
        if hits == 0 {
            return match self {
                Self::Memory(limiter) => Ok(limiter.peek(key)),
                Self::Redis(limiter) => limiter.peek(key).await,
            };
        }
        let decision = self.check_n(key, hits).await?;
        if !decision.is_allowed() && decision.remaining() > 0 {
            // If another request has taken some of these units in the meantime, this call is denied, and counts
            // nothing.
            let _ = self.check_n(key, decision.remaining()).await?;
        }
        Ok(decision)
    }

    async fn check_n(&self, key: &str, hits: u64) -> Result<Decision, RedisError> {
        match self {
            Self::Memory(limiter) => Ok(limiter.check_n(key, hits)),
            Self::Redis(limiter) => limiter.check_n(key, hits).await,
        }
    }

    /// Replaces the quota. Requests that were counted stay counted.
    pub(crate) fn replace(&self, quota: Quota) {
        match self {
            Self::Memory(limiter) => limiter.replace(window(quota)),
            Self::Redis(limiter) => limiter.replace(window(quota)),
        }
    }
}
