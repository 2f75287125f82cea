//! The replacement of a limiter's algorithm.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::error::RedisError;
use super::limit::RedisLimit;
use super::plan::Plan;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::store::ReplaceAlgorithm;

/// The states of keys are converted when the keys are next used. Other processes continue with their own algorithm.
impl<A: StoredAlgorithm> ReplaceAlgorithm<A> for RedisLimit<A> {
    /// Replaces the algorithm. If the states of the new algorithm cannot be kept in Redis, the old algorithm stays in
    /// use, and the error is logged (feature `tracing`). The fallback keeps its own algorithm.
    fn replace(&self, algorithm: A) {
        let shared = &self.shared;
        match Plan::new(algorithm, shared.links.any().source, shared.scripts) {
            Ok(plan) => {
                shared.name.set(plan.prefix());
                *shared.plan.write().unwrap_or_else(PoisonError::into_inner) = plan;
                shared.is_replaced.store(true, Ordering::Release);
                shared.denials.clear();
            }
            Err(error) => log_not_replaced(&error),
        }
    }
}

#[cfg(feature = "tracing")]
fn log_not_replaced(error: &RedisError) {
    tracing::error!(%error, "tower-throttle: the algorithm was not replaced");
}

#[cfg(not(feature = "tracing"))]
fn log_not_replaced(_: &RedisError) {}
