use smallvec::SmallVec;

use super::Algorithm;
use super::semaphore::Share;

/// The units of a call in the [totals](super::Concurrency::total) of its algorithm. They are subtracted from the totals
/// when the permit is dropped.
#[derive(Debug, Default)]
pub struct SharedPermit {
    shares: SmallVec<[Share; 1]>,
}

impl SharedPermit {
    /// Returns the permit of a call of `cost` that `algorithm` has admitted. The totals must count the units of the
    /// call already, as they do after a check.
    pub fn of_admitted<A: Algorithm>(algorithm: &A, cost: u64) -> Self {
        let mut shares = SmallVec::new();
        algorithm.for_each_total(&mut |total| shares.push(total.share(cost)));
        Self { shares }
    }

    /// Adds `cost` to each total of `algorithm`, for a call that will be queued. If a total has fewer units available,
    /// adds nothing and returns `None`.
    pub(crate) fn try_acquire<A: Algorithm>(algorithm: &A, cost: u64) -> Option<Self> {
        let mut permit = Some(Self::default());
        algorithm.for_each_total(&mut |total| {
            let Some(Self { shares }) = &mut permit else { return };
            match total.try_acquire(cost) {
                Some(share) => shares.push(share),
                None => permit = None,
            }
        });
        permit
    }

    /// Drops the permit without subtracting its units from the totals. The caller must subtract them later.
    pub(crate) fn forget(self) {
        self.shares.into_iter().for_each(Share::forget);
    }
}
