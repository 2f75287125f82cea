//! Calls of tests that are generic over the algorithm, also over one whose calls are in progress until they end.

use std::hash::Hash;

use tower_throttle::algorithm::Algorithm;
use tower_throttle::limiter::{Acquired, Attempt, LimiterFor, MemoryKey, Reservation};
use tower_throttle::{Decision, RateLimiter};

/// How a test makes calls that do not wait. A branch by [`Algorithm::NEEDS_RELEASE`] does not do, since a branch that
/// is never taken is compiled as well.
pub(crate) trait Calls {
    /// Makes a call. The call is in progress until the reservation is dropped.
    fn check<A: Algorithm, K: Hash + ?Sized>(
        limiter: &RateLimiter<A>,
        key: &K,
        cost: u64,
    ) -> (Decision, Reservation);
}

/// Calls that take units, by `check_n`.
pub(crate) struct OfUnits;

/// Calls in progress.
pub(crate) struct InProgress;

impl Calls for OfUnits {
    fn check<A: Algorithm, K: Hash + ?Sized>(
        limiter: &RateLimiter<A>,
        key: &K,
        cost: u64,
    ) -> (Decision, Reservation) {
        (limiter.check_n(key, cost), Reservation::default())
    }
}

impl Calls for InProgress {
    fn check<A: Algorithm, K: Hash + ?Sized>(
        limiter: &RateLimiter<A>,
        key: &K,
        cost: u64,
    ) -> (Decision, Reservation) {
        limiter.reserve_attempt(key, Attempt::new(cost))
    }
}

/// Makes a call that may wait. The call is in progress until the reservation is dropped.
pub(crate) async fn acquire<A: Algorithm, K: MemoryKey + ?Sized>(
    limiter: &RateLimiter<A>,
    key: &K,
    attempt: Attempt<'_, A>,
) -> (Decision, Reservation) {
    match LimiterFor::acquire(limiter, key, attempt.wait()) {
        Acquired::Ready(decision, reservation) => (decision, reservation),
        Acquired::Pending(wait) => match wait.await {
            Ok(decided) => decided.into_parts(),
            Err(never) => match never {},
        },
    }
}
