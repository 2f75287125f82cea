//! The times at which the queue of a key is polled. The queue must be polled, because the message that a waiter has a
//! permit may be lost.

use tower_throttle::clock::Nanos;

/// The minimum time between two polls, in nanoseconds.
const SHORTEST: u64 = 25_000_000;
/// The maximum number of waiters ahead that counts as few.
const NEAR: u64 = 3;
/// The maximum time between two polls if few waiters are ahead, and the maximum time otherwise, in nanoseconds.
const LONGEST: (u64, u64) = (1_000_000_000, 5_000_000_000);
/// The time between two polls for each waiter ahead, in nanoseconds, while the speed of the queue is not known.
const PER_WAITER: u64 = 5_000_000;

/// The polls of a key's queue. The fewer waiters are ahead of the first waiter of this process, the more often the
/// queue is polled.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    next: Nanos,
    interval: u64,
    /// The number of waiters ahead at the last poll, and the time of that poll.
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

    /// Records that the first waiter of this process is behind `ahead` other waiters, and that no record expires within
    /// `until_expiry` nanoseconds.
    pub(super) fn observe(&mut self, ahead: u64, until_expiry: u64, lease: u64, now: Nanos) {
        let is_near = ahead <= NEAR;
        let longest = if is_near { LONGEST.0 } else { LONGEST.1 }.min(lease / 3);
        let interval = match self.last {
            Some((last, _)) if ahead == last => self.interval.saturating_mul(2),
            _ if is_near => SHORTEST,
            // This is three quarters of the time after which the waiter will be the first in the queue, at the speed
            // since the last poll.
            Some((last, at)) if ahead < last => {
                let each = now.saturating_since(at) / (last - ahead);
                // The queue may move faster from now on.
                (each.saturating_mul(3 * (ahead + 1)) / 4).min(ahead.saturating_mul(4 * PER_WAITER))
            }
            // This is the first poll, or another call has become the first waiter.
            _ => ahead.saturating_mul(PER_WAITER),
        };
        self.interval = interval.clamp(SHORTEST.min(longest), longest);
        self.last = Some((ahead, now));
        // If few waiters are ahead, the queue is also polled when a record may have expired. Timers have a resolution
        // of one millisecond.
        let expiry = if is_near { until_expiry.saturating_add(1_000_000) } else { u64::MAX };
        self.next = now.saturating_add(self.interval.min(expiry));
    }
}
