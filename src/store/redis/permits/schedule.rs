//! When the queue of a key is polled, in case the message that a waiter has been given a permit was lost.

use crate::clock::Nanos;

/// The shortest and the longest time between two polls, in nanoseconds.
const INTERVAL: (u64, u64) = (25_000_000, 1_000_000_000);
/// The first time between two polls for each waiter ahead, in nanoseconds.
const PER_WAITER: u64 = 5_000_000;
/// With fewer waiters ahead, the queue is also polled when a record may expire.
const NEAR: u64 = 4;

/// The polls of a key's queue. The first waiter of this process is polled more often, the sooner it will be the first
/// of all.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    next: Nanos,
    interval: u64,
    last: Option<(u64, Nanos)>,
}

impl PollSchedule {
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.next
    }

    /// Returns the time of the next poll.
    pub(super) fn next(&self) -> Nanos {
        self.next
    }

    /// Records that the first waiter of this process is behind `ahead` others, and that no record expires within
    /// `until_expiry` nanoseconds.
    pub(super) fn observe(&mut self, ahead: u64, until_expiry: u64, lease: u64, now: Nanos) {
        let interval = match self.last {
            // Three quarters of the time after which this waiter will be the first, at the speed since the last poll.
            Some((last, at)) if ahead < last => {
                let each = now.saturating_since(at) / (last - ahead);
                each.saturating_mul(3 * (ahead + 1)) / 4
            }
            Some((last, _)) if ahead == last => self.interval.saturating_mul(2),
            // The first waiter is another one than before.
            _ => ahead.saturating_mul(PER_WAITER),
        };
        self.interval = interval.min(INTERVAL.1).min(lease / 3).max(INTERVAL.0.min(lease / 3));
        self.last = Some((ahead, now));
        // One millisecond more, because timers have that resolution.
        let expiry = until_expiry.saturating_add(1_000_000);
        self.next = now.saturating_add(if ahead < NEAR { self.interval.min(expiry) } else { self.interval });
    }
}
