//! The queues of this process, for calls that wait for a window or for units of a bucket with leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::Mutex;

use crate::clock::Nanos;
use crate::decision::Decision;

/// The queues of the keys for which calls of this process wait.
#[derive(Debug, Default)]
pub(super) struct WaitQueues(DashMap<Arc<str>, Arc<WaitQueue>>);

/// The queue of a key. The first call of the queue holds the lock `first`. The other calls get the lock in the order in
/// which they requested it.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    pub(super) first: Mutex<()>,
    len: AtomicU64,
}

/// A place in a queue. When the last place of a queue is dropped, the queue is removed.
pub(super) struct Place<'a> {
    queues: &'a WaitQueues,
    key: &'a Arc<str>,
    pub(super) queue: Arc<WaitQueue>,
    pub(super) ahead: u64,
}

impl WaitQueues {
    pub(super) fn join<'a>(&'a self, key: &'a Arc<str>) -> Place<'a> {
        let entry = self.0.entry(Arc::clone(key)).or_default();
        let ahead = entry.len.fetch_add(1, Ordering::AcqRel);
        let queue = Arc::clone(&entry);
        drop(entry);
        Place { queues: self, key, queue, ahead }
    }
}

/// Returns the denial of a call that must not overtake the calls that are queued before it. The call is denied even if
/// units are available. `peeked` is the decision without regard to the queued calls.
pub(super) fn denied_behind(peeked: Decision) -> Decision {
    if !peeked.is_allowed() {
        return peeked;
    }
    let reset = Nanos::from(peeked.reset_after()).0;
    Decision::deny(peeked.limit(), 0, None, reset).with_unknown_wait(true)
}

/// Returns the denial of a call that finds no free place in the queue. `peeked` is the decision without regard to the
/// queued calls. A call that would not wait in any case is not denied because of the queue.
pub(super) fn denied_by_full_queue(peeked: Decision) -> Decision {
    let would_wait = !peeked.is_barred() && !peeked.never_fits();
    let denial = denied_behind(peeked);
    if would_wait { denial.with_queue_full() } else { denial }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Places are added only while the entry is locked, as it is here.
        let dashmap::Entry::Occupied(entry) = self.queues.0.entry(Arc::clone(self.key)) else { return };
        if entry.get().len.fetch_sub(1, Ordering::AcqRel) == 1 {
            entry.remove();
        }
    }
}
