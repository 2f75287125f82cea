//! A bound for all keys together.

use std::sync::Arc;

use crate::sys::lock::atomic::{AtomicU64, Ordering};

/// A bound for all keys together: on the number of queued calls, or on the units of the calls that are in progress or
/// wait.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Semaphore {
    count: Arc<AtomicU64>,
    limit: u64,
}

/// The units of one call in the count of a semaphore. They are subtracted from the count when the share is dropped.
#[derive(Debug)]
pub(super) struct Share {
    count: Arc<AtomicU64>,
    cost: u64,
}

/// The place of one queued call in the count of a semaphore. The count is lowered when the slot is dropped.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    count: Arc<AtomicU64>,
}

impl Semaphore {
    pub(crate) fn new(limit: u64) -> Self {
        Self { count: Arc::default(), limit }
    }

    /// Returns a semaphore with the same count and another limit.
    pub(crate) fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Acquires a place for one queued call. Returns `None` if the limit is reached.
    pub(crate) fn try_acquire_one(&self) -> Option<QueueSlot> {
        self.try_add(1).then(|| QueueSlot { count: Arc::clone(&self.count) })
    }

    /// Acquires the share of a call of `cost`. Returns `None` if the count would then exceed the limit.
    pub(super) fn try_acquire(&self, cost: u64) -> Option<Share> {
        self.try_add(cost).then(|| self.share(cost))
    }

    /// Returns the share of a call whose `cost` has been [added](Semaphore::try_add) to the count.
    pub(super) fn share(&self, cost: u64) -> Share {
        Share { count: Arc::clone(&self.count), cost }
    }

    /// Adds `cost` to the count if the sum does not exceed the limit. Returns whether `cost` was added. If it was
    /// added, the caller must later create the [share](Semaphore::share) of the call and drop it.
    pub(crate) fn try_add(&self, cost: u64) -> bool {
        let available = |count: u64| count.checked_add(cost).filter(|count| *count <= self.limit);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, available).is_ok()
    }

    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn available(&self) -> u64 {
        self.limit.saturating_sub(self.len())
    }
}

/// Semaphores are equal if they count the same calls with the same limit.
impl PartialEq for Semaphore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.count, &other.count) && self.limit == other.limit
    }
}

impl Share {
    /// Returns the units of the share in the count of `semaphore`, which are 0 if they are in another count.
    pub(super) fn units_in(&self, semaphore: &Semaphore) -> u64 {
        if Arc::ptr_eq(&self.count, &semaphore.count) { self.cost } else { 0 }
    }

    /// Drops the share without subtracting its units from the count. The caller must subtract them later.
    pub(super) fn forget(mut self) {
        self.cost = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        sub(&self.count, self.cost);
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        sub(&self.count, 1);
    }
}

/// Subtracts `cost`, saturating at zero, so that a call that is released twice does not make the count wrap around.
fn sub(count: &AtomicU64, cost: u64) {
    let less = |count: u64| Some(count.saturating_sub(cost));
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}
