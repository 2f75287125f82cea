use smallvec::SmallVec;

use super::Algorithm;
use super::semaphore::Share;

/// The share of a call in the [totals](super::Concurrency::total) of its algorithm, released when dropped.
#[derive(Debug, Default)]
pub struct SharedPermit {
    shares: SmallVec<[Share; 1]>,
}

impl SharedPermit {
    /// Returns the share of a call of `cost` that a check by `algorithm` has admitted. The check has added the share to
    /// the totals.
    pub fn of_admitted<A: Algorithm>(algorithm: &A, cost: u64) -> Self {
        let mut shares = SmallVec::new();
        algorithm.for_each_total(&mut |total| shares.push(total.share(cost)));
        Self { shares }
    }

    /// Adds the share of a queued call of `cost` to each total of `algorithm`. Returns `None`, and adds nothing, if a
    /// total has fewer units available.
    pub(crate) fn try_acquire<A: Algorithm>(algorithm: &A, cost: u64) -> Option<Self> {
        let mut shares = Some(SmallVec::new());
        algorithm.for_each_total(&mut |total| {
            shares = shares.take().zip(total.try_acquire(cost)).map(|(mut shares, share)| {
                shares.push(share);
                shares
            });
        });
        shares.map(|shares| Self { shares })
    }

    /// Drops the permit without releasing its share. The caller must release the share later.
    pub(crate) fn forget(self) {
        self.shares.into_iter().for_each(Share::forget);
    }
}
