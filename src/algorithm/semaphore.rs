use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::sync::atomic::{AtomicU64, Ordering};

/// So many calls of all keys together, and no more: those that wait for a limiter, or those in progress.
#[derive(Clone, Debug)]
pub(crate) struct Semaphore {
    count: Arc<AtomicU64>,
    limit: u64,
}

/// A call's place in a crowd, free again when dropped.
#[derive(Debug, Default)]
pub struct SharedPermit {
    /// In each crowd, and how much of it.
    taken: SmallVec<[(Arc<AtomicU64>, u64); 1]>,
}

/// One's place among those who stand in line, free again when dropped.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    count: Arc<AtomicU64>,
}

impl Semaphore {
    pub(crate) fn new(limit: u64) -> Self {
        Self { count: Arc::default(), limit }
    }

    /// The same, of at most so many.
    pub(crate) fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// A place in line; `None`: there is no room.
    pub(crate) fn try_acquire_one(&self) -> Option<QueueSlot> {
        self.try_add(1).then(|| QueueSlot { count: Arc::clone(&self.count) })
    }

    /// A place for a call of `cost`; `None`: there is no room.
    pub(crate) fn try_acquire(&self, cost: u64) -> Option<SharedPermit> {
        self.try_add(cost).then(|| SharedPermit { taken: smallvec![(Arc::clone(&self.count), cost)] })
    }

    /// Lets a call in that will [leave](Semaphore::sub).
    pub(crate) fn try_add(&self, cost: u64) -> bool {
        let available = |count: u64| count.checked_add(cost).filter(|count| *count <= self.limit);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, available).is_ok()
    }

    pub(crate) fn sub(&self, cost: u64) {
        sub(&self.count, cost);
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

/// Of the same calls, and the same bound.
impl PartialEq for Semaphore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.count, &other.count) && self.limit == other.limit
    }
}

impl SharedPermit {
    /// The place stays taken: the call will leave by itself.
    pub(crate) fn forget(mut self) {
        self.taken.clear();
    }

    /// That place as well.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.taken.append(&mut other.taken);
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        for (count, cost) in self.taken.drain(..) {
            sub(&count, cost);
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        sub(&self.count, 1);
    }
}

/// Never below zero: whoever leaves twice takes nobody along.
fn sub(count: &AtomicU64, cost: u64) {
    let less = |count: u64| Some(count.saturating_sub(cost));
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}
