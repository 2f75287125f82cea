use std::fmt;

use crate::decision::Decision;

/// What an admitted call holds or was charged: a permit that is released at its end, or a charge that can be settled.
///
/// A store creates it while it decides, so that it knows the reading of the clock at which the call was charged. It is
/// empty for most calls. When it is dropped, a permit is released, and a charge stands.
///
/// ```
/// use tower_throttle::store::Reservation;
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

/// The end of an admitted call.
trait Charge: Send + Sync {
    /// Settles the call at its true cost.
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision>;

    /// Releases what the call holds.
    fn release(self: Box<Self>);

    /// Returns whether there is something to release.
    fn is_permit(&self) -> bool;
}

struct OnRelease<F>(F);

struct OnSettle<F>(F);

struct Merged(Reservation, Reservation);

impl Reservation {
    /// Creates the reservation of a call in progress, which calls `release` when it is dropped or settled. For authors of
    /// stores.
    pub fn on_release(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(OnRelease(release))))
    }

    /// Creates the reservation of a charge, which calls `settle` with the true cost, in units of the quota. For authors of
    /// stores.
    ///
    /// `settle` returns what [`Reservation::settle`] is to return.
    pub fn on_settle(settle: impl FnOnce(u64) -> Option<Decision> + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(OnSettle(settle))))
    }

    /// Settles the call at its true cost of `actual` units.
    ///
    /// If the call was charged more, the difference is refunded, as far as it still counts; if it was charged less, the
    /// difference is charged, as far as units are available. Returns an admission that describes the key afterwards, read
    /// under the same lock; `None` from a store that does not answer immediately, and if nothing is to be settled.
    pub fn settle(mut self, actual: u64) -> Option<Decision> {
        self.0.take()?.settle(actual)
    }

    /// Drops the reservation without releasing anything: the call stays in progress.
    pub fn forget(mut self) {
        self.0 = None;
    }

    /// Returns whether there is nothing to release and nothing to settle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether something is released when this is dropped.
    pub(crate) fn is_permit(&self) -> bool {
        self.0.as_ref().is_some_and(|charge| charge.is_permit())
    }

    /// Merges two reservations into one.
    pub(super) fn and(mut self, mut other: Self) -> Self {
        match (self.0.take(), other.0.take()) {
            (Some(one), Some(other)) => Self(Some(Box::new(Merged(Self(Some(one)), Self(Some(other)))))),
            (one, other) => Self(one.or(other)),
        }
    }
}

impl Drop for Reservation {
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

/// If the release of one panics, the other is released all the same, as both are dropped.
impl Charge for Merged {
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        let Self(one, other) = *self;
        let _settled = one.settle(actual);
        other.settle(actual)
    }

    fn release(self: Box<Self>) {
        drop(self);
    }

    fn is_permit(&self) -> bool {
        self.0.is_permit() || self.1.is_permit()
    }
}
