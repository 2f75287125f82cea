use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::sync::atomic::{AtomicU64, Ordering};

/// So many calls of all keys together, and no more: those that wait for a limiter, or those in progress.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    count: Arc<AtomicU64>,
    most: u64,
}

/// A call's place in a crowd, free again when dropped.
#[derive(Debug, Default)]
pub struct Place {
    /// In each crowd, and how much of it.
    taken: SmallVec<[(Arc<AtomicU64>, u64); 1]>,
}

/// One's place among those who stand in line, free again when dropped.
#[derive(Debug)]
pub(crate) struct Standing {
    crowd: Arc<AtomicU64>,
}

impl Crowd {
    pub(crate) fn new(most: u64) -> Self {
        Self { count: Arc::default(), most }
    }

    /// The same, of at most so many.
    pub(crate) fn of(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// A place in line; `None`: there is no room.
    pub(crate) fn stand(&self) -> Option<Standing> {
        self.enter(1).then(|| Standing { crowd: Arc::clone(&self.count) })
    }

    /// A place for a call of `cost`; `None`: there is no room.
    pub(crate) fn join(&self, cost: u64) -> Option<Place> {
        self.enter(cost).then(|| Place { taken: smallvec![(Arc::clone(&self.count), cost)] })
    }

    /// Lets a call in that will [leave](Crowd::leave).
    pub(crate) fn enter(&self, cost: u64) -> bool {
        let room = |count: u64| count.checked_add(cost).filter(|count| *count <= self.most);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    pub(crate) fn leave(&self, cost: u64) {
        leave(&self.count, cost);
    }

    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    pub(crate) fn room(&self) -> u64 {
        self.most.saturating_sub(self.len())
    }
}

/// Of the same calls, and the same bound.
impl PartialEq for Crowd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.count, &other.count) && self.most == other.most
    }
}

impl Place {
    /// The place stays taken: the call will leave by itself.
    pub(crate) fn keep(mut self) {
        self.taken.clear();
    }

    /// That place as well.
    pub(crate) fn and(&mut self, mut other: Self) {
        self.taken.append(&mut other.taken);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (count, cost) in self.taken.drain(..) {
            leave(&count, cost);
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        leave(&self.crowd, 1);
    }
}

/// Never below zero: whoever leaves twice takes nobody along.
fn leave(count: &AtomicU64, cost: u64) {
    let less = |count: u64| Some(count.saturating_sub(cost));
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}
