use std::fmt;

use crate::decision::Decision;

/// A record of what an admitted call was charged, for settling it when its true cost is known.
///
/// A store creates it while it decides, so that it knows the reading of the clock at which the call was
/// charged. If it is dropped without being settled, the charge stands.
#[must_use = "a reservation that is dropped leaves the charge as it is"]
pub struct Reservation {
    settle: Box<dyn FnOnce(u64) -> Option<Decision> + Send + Sync>,
}

impl Reservation {
    /// Creates a reservation that calls `settle` with the true cost, in units of the quota. For authors of stores.
    ///
    /// `settle` returns what [`Reservation::settle`] is to return.
    pub fn new(settle: impl FnOnce(u64) -> Option<Decision> + Send + Sync + 'static) -> Self {
        Self { settle: Box::new(settle) }
    }

    /// Settles the call at its true cost of `actual` units.
    ///
    /// If the call was charged more, the difference is refunded, as far as it still counts; if it was charged
    /// less, the difference is charged, as far as units are available. Returns an admission that describes the
    /// key afterwards, read under the same lock; `None` from a store that does not answer immediately.
    pub fn settle(self, actual: u64) -> Option<Decision> {
        (self.settle)(actual)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").finish_non_exhaustive()
    }
}
