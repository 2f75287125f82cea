use std::error::Error;
use std::fmt;
use std::future::{Future, pending};

use super::reservation::Reservation;
use crate::decision::Decision;

/// A permit of a call in progress. The permit is released when it is dropped.
///
/// With algorithms that [need a release](crate::algorithm::Algorithm::NEEDS_RELEASE), such as
/// [`Concurrency`](crate::algorithm::Concurrency), a permit holds the units of the call. With other algorithms, a
/// permit is empty. A permit may be sent to another thread, kept in a response's body, or dropped during a panic.
/// Wherever a permit is dropped, its units become available again.
#[must_use = "a permit that is dropped at once holds nothing"]
#[derive(Default)]
pub struct Permit(Reservation);

impl Permit {
    /// Returns the permit of a call that was admitted by `decision`. The `reservation` is released when the permit is
    /// dropped. This function is for authors of stores.
    ///
    /// # Errors
    ///
    /// Returns the decision if it is a denial.
    pub fn decided(decision: Decision, reservation: Reservation) -> Result<Self, Denied> {
        if decision.is_allowed() { Ok(Self(reservation)) } else { Err(Denied(decision)) }
    }

    /// Drops the permit without releasing it: the call stays in progress until
    /// [`release`](crate::limiter::RateLimiter::release) is called.
    pub fn forget(self) {
        self.0.forget();
    }

    /// Returns the fencing token of the permit: a number that is larger than the tokens of all permits that the server
    /// has granted for the key before. Only permits [in Redis] have a token.
    ///
    /// [in Redis]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisPermits.html
    ///
    /// A process that is suspended may go on after its permit was lost. So pass the token to the resource that the
    /// permit protects, with each write. If the limit is one call at a time, the resource must refuse a token that is
    /// smaller than the largest token that it has received.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.0.fencing_token()
    }

    /// Returns a future that is ready when the permit is lost. For a permit in memory, the future is never ready.
    ///
    /// A permit [in Redis] is lost if it could not be renewed in time, for example because the server could not be
    /// reached, or if the server has lost its data. The future is ready before the server gives the permit to another
    /// call, apart from [these cases]. The future does not borrow the permit. If the permit is dropped, the future is
    /// ready when the lease of the permit would have ended.
    ///
    /// [in Redis]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisPermits.html
    /// [these cases]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisPermits.html#what-is-not-promised
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lost = self.0.lost();
        async move {
            match lost {
                Some(lost) => lost.await,
                None => pending().await,
            }
        }
    }

    /// Merges the reservations of several permits into one permit.
    pub(crate) fn merged(permits: impl IntoIterator<Item = Reservation>) -> Self {
        Self(Reservation::merged(permits.into_iter().collect()))
    }

    /// Returns whether the permit holds no units, so that there is nothing to release.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.0.is_permit()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

/// The error of a call that did not get a permit: the decision that denied the call.
///
/// ```
/// use tower_throttle::RateLimiter;
/// use tower_throttle::algorithm::Concurrency;
///
/// let limiter = RateLimiter::new(Concurrency::per_key(1));
/// let _permit = limiter.try_acquire_permit("user:42")?;
/// let denied = limiter.try_acquire_permit("user:42").unwrap_err();
/// assert_eq!(denied.decision().remaining(), 0);
/// # Ok::<(), tower_throttle::store::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied(Decision);

impl Denied {
    /// Returns the decision.
    pub const fn decision(&self) -> &Decision {
        &self.0
    }
}

impl From<Denied> for Decision {
    fn from(denied: Denied) -> Self {
        denied.0
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.retry_after() {
            Some(wait) => write!(f, "the rate limit is reached: retry after {wait:?}"),
            None if self.0.is_closed() => f.write_str("the rate limiter is closed"),
            None => f.write_str("the rate limit is reached"),
        }
    }
}

impl Error for Denied {}
