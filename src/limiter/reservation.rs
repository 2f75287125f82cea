use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use crate::decision::{Decision, Denied};

/// The work that is left at the end of an admitted call: to release the permit of the call, or to settle its charge.
///
/// [`reserve`](crate::limiter::Call::reserve) makes a call with an estimate of its cost, and returns a reservation,
/// whose [`settle`](Reservation::settle) charges the actual cost when it is known. When a reservation is dropped, a
/// permit is released, and a charge stays as it is.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let tokens = RateLimiter::new(TokenBucket::new(Quota::per_minute(1_000)));
/// let reservation = tokens.call("user:42").cost(200).reserve()?;
/// // The answer was longer than all that the user had left.
/// reservation.settle(1_500);
/// let next = tokens.peek("user:42");
/// assert_eq!((next.is_allowed(), next.remaining()), (false, 0));
/// # Ok::<(), tower_throttle::limiter::Denied>(())
/// ```
///
/// A limiter creates the reservation while it decides the call, because the reservation needs the clock reading at
/// which the call was charged. Most calls of layers have an empty reservation.
///
/// ```
/// use tower_throttle::limiter::Reservation;
///
/// let reservation = Reservation::on_settle(|actual| {
///     println!("the call cost {actual}");
///     None
/// });
/// assert!(reservation.settle(3).is_none());
/// assert!(Reservation::default().is_empty());
/// ```
#[must_use = "a reservation that is dropped at once releases its permit and leaves its charge as it is"]
#[derive(Default)]
pub struct Reservation(Option<Box<dyn Charge>>);

/// A permit of a call in progress. The permit is released when it is dropped.
///
/// With algorithms that [need a release](crate::algorithm::Algorithm::NEEDS_RELEASE), such as
/// [`Concurrency`](crate::algorithm::Concurrency), a permit holds the units of the call. With other algorithms, a
/// permit is empty. A permit may be sent to another thread, kept in a response's body, or dropped during a panic.
/// Wherever a permit is dropped, its units become available again.
#[must_use = "a permit that is dropped at once holds nothing"]
#[derive(Default)]
pub struct Permit(Reservation);

/// The work at the end of an admitted call.
pub trait Charge: Send + Sync {
    /// Settles the call at its actual cost. Returns what [`Reservation::settle`] returns.
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision>;

    /// Releases the units of a call in progress.
    fn release(self: Box<Self>);

    /// Returns whether the call is in progress, so that its units must be released.
    fn is_permit(&self) -> bool;

    /// Returns whether the call was charged, so that [`settle`](Self::settle) changes the charge.
    fn is_charge(&self) -> bool {
        !self.is_permit()
    }

    /// Returns the fencing token of the permit. Returns `None` if the permit has no token.
    fn fencing_token(&self) -> Option<u64> {
        None
    }

    /// Returns a future that is ready when the permit is lost. Returns `None` if the permit cannot be lost.
    fn lost(&self) -> Option<Lost> {
        None
    }

    /// Returns the function that charges units to the key of the call after the call was settled. Returns `None` if the
    /// limiter has no such function.
    fn charger(&self) -> Option<Charger> {
        None
    }
}

/// A function that charges units to the key of a call which was settled, even if they are not available.
pub type Charger = Box<dyn Fn(u64) + Send + Sync>;

/// A future that is ready when a permit is lost.
pub type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

struct OnRelease<F>(F);

struct OnSettle<F>(F);

struct Merged(SmallVec<[Reservation; 2]>);

impl Reservation {
    /// Creates the reservation of a call in progress. `release` is called when the reservation is dropped or settled.
    /// This function is for authors of limiters.
    pub fn on_release(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(OnRelease(release))))
    }

    /// Creates the reservation of a charge that can be settled. `settle` is called with the actual cost, in units of
    /// the quota. This function is for authors of limiters.
    ///
    /// The method [`Reservation::settle`] returns the result of the function `settle`.
    pub fn on_settle(settle: impl FnOnce(u64) -> Option<Decision> + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(OnSettle(settle))))
    }

    /// Creates the reservation of a call with this charge.
    pub(crate) fn of(charge: impl Charge + 'static) -> Self {
        Self(Some(Box::new(charge)))
    }

    /// Returns the largest fencing token of the permits, or `None` if no permit has a token.
    fn fencing_token(&self) -> Option<u64> {
        self.0.as_ref()?.fencing_token()
    }

    /// Returns a future that is ready when one of the permits is lost, or `None` if none of them can be lost.
    fn lost(&self) -> Option<Lost> {
        self.0.as_ref()?.lost()
    }

    /// Returns the reservation if `decision` admits its call. This function is for authors of limiters.
    ///
    /// # Errors
    ///
    /// Returns the decision if it is a denial.
    pub fn decided(self, decision: Decision) -> Result<Self, Denied> {
        decision.into_result().map(|()| self)
    }

    /// Settles the call at its actual cost of `actual` units.
    ///
    /// If the call was charged more than `actual`, the units of the difference that still count are refunded. If the
    /// call was charged less than `actual`, the difference is charged in full, now. What is not available becomes debt:
    /// later calls of the key are denied, or wait, until enough units are available again. The
    /// [`max_debt`](crate::limiter::Builder::max_debt) of the limiter bounds the debt.
    ///
    /// If the key was [reset](crate::RateLimiter::reset) since the call was charged, or the algorithm
    /// [replaced](crate::RateLimiter::replace), nothing is refunded, because the units that the key has used now are
    /// those of other calls. The same holds for a call that was queued before a replacement, and costs more than the
    /// new algorithm can ever admit: it was charged less than its cost. Of the latest resets of single keys, the table
    /// remembers at least 64. Beyond them, calls of other keys count as made before a reset, too. A full table that
    /// evicts the key remembers nothing of it, and Redis remembers no resets. There, a settlement may give back units
    /// of calls that were made since.
    ///
    /// Returns an allowed decision that describes the key right after the settlement. Returns `None` if the limiter
    /// replies later, if the limiter no longer keeps the key, or if there is nothing to settle. A call in progress, as
    /// with [`Concurrency`](crate::algorithm::Concurrency), ends, whatever `actual` is.
    pub fn settle(mut self, actual: u64) -> Option<Decision> {
        self.0.take()?.settle(actual)
    }

    /// Returns whether there is nothing to release and nothing to settle.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether a permit is released when the reservation is dropped.
    #[inline]
    pub(crate) fn is_permit(&self) -> bool {
        self.0.as_ref().is_some_and(|charge| charge.is_permit())
    }

    /// Returns whether the call was charged, so that a settlement changes the charge.
    #[inline]
    pub(crate) fn is_charge(&self) -> bool {
        self.0.as_ref().is_some_and(|charge| charge.is_charge())
    }

    /// Returns the function that charges units to the key of the call after its settlement. Returns `None` if there is
    /// no such function.
    pub(crate) fn charger(&self) -> Option<Charger> {
        self.0.as_ref()?.charger()
    }

    /// Merges several reservations into one.
    fn merged(mut all: SmallVec<[Self; 2]>) -> Self {
        all.retain(|one| !one.is_empty());
        match all.len() {
            0 | 1 => all.pop().unwrap_or_default(),
            _ => Self(Some(Box::new(Merged(all)))),
        }
    }
}

impl Drop for Reservation {
    #[inline]
    fn drop(&mut self) {
        if let Some(charge) = self.0.take() {
            charge.release();
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl<F: FnOnce() + Send + Sync> Charge for OnRelease<F> {
    fn settle(self: Box<Self>, _: u64) -> Option<Decision> {
        self.release();
        None
    }

    fn release(self: Box<Self>) {
        (self.0)();
    }

    fn is_permit(&self) -> bool {
        true
    }
}

impl<F: FnOnce(u64) -> Option<Decision> + Send + Sync> Charge for OnSettle<F> {
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        (self.0)(actual)
    }

    fn release(self: Box<Self>) {}

    fn is_permit(&self) -> bool {
        false
    }
}

impl Charge for Merged {
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        self.0.into_iter().filter_map(|one| one.settle(actual)).last()
    }

    /// Drops all reservations. If the release of one reservation panics, the others are still released.
    fn release(self: Box<Self>) {
        drop(self);
    }

    fn is_permit(&self) -> bool {
        self.0.iter().any(Reservation::is_permit)
    }

    fn fencing_token(&self) -> Option<u64> {
        self.0.iter().filter_map(Reservation::fencing_token).max()
    }

    fn lost(&self) -> Option<Lost> {
        let mut all: Vec<_> = self.0.iter().filter_map(Reservation::lost).collect();
        if all.is_empty() {
            return None;
        }
        Some(Box::pin(poll_fn(move |cx: &mut Context<'_>| {
            let is_lost = all.iter_mut().any(|lost| lost.as_mut().poll(cx).is_ready());
            if is_lost { Poll::Ready(()) } else { Poll::Pending }
        })))
    }
}

impl Permit {
    /// Returns the permit of a call that was admitted by `decision`. The `reservation` is released when the permit is
    /// dropped. This function is for authors of limiters.
    ///
    /// # Errors
    ///
    /// Returns the decision if it is a denial.
    pub fn decided(decision: Decision, reservation: Reservation) -> Result<Self, Denied> {
        reservation.decided(decision).map(Self)
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn counted(count: &Arc<AtomicU32>) -> Reservation {
        let count = Arc::clone(count);
        Reservation::on_release(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn merged(all: impl IntoIterator<Item = Reservation>) -> Reservation {
        Reservation::merged(all.into_iter().collect())
    }

    #[test]
    fn a_merged_reservation_releases_all_when_dropped() {
        let count = Arc::new(AtomicU32::new(0));
        drop(merged([counted(&count), Reservation::default(), merged([counted(&count), counted(&count)])]));
        assert_eq!(count.load(Ordering::Relaxed), 3);
        assert!(merged([counted(&count)]).settle(1).is_none());
        assert_eq!(count.load(Ordering::Relaxed), 4);
        assert!(merged([]).is_empty());
    }

    #[test]
    fn all_are_released_if_one_panics() {
        let count = Arc::new(AtomicU32::new(0));
        let panics = Reservation::on_release(|| panic!("on release"));
        let all = merged([counted(&count), panics, counted(&count)]);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(all))).is_err());
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
