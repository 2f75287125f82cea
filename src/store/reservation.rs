use std::fmt;

use crate::decision::Decision;

/// What an admitted call was charged, kept so that it can be settled when its true cost is known.
///
/// A store creates it while it decides, so that it knows the reading of the clock at which the call was charged.
/// Dropped without being settled, the charge stands.
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

    /// Settles the call: it cost `actual` units.
    ///
    /// Less than it was charged has the difference given back, as far as it still counts; more has the difference
    /// taken, as far as it is there. Returns an admission that describes the key afterwards, read under the same lock;
    /// `None` from a store that does not answer at once.
    pub fn settle(self, actual: u64) -> Option<Decision> {
        (self.settle)(actual)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").finish_non_exhaustive()
    }
}
