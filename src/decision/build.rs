//! How algorithms, queues and stores create decisions.

use super::{Decision, NEVER};

/// Returns the `wait` of a denial. The longest wait, 584 years, is shortened by a nanosecond, so that it differs from
/// `NEVER`.
#[inline]
const fn encode_wait(retry_after: Option<u64>) -> u64 {
    match retry_after {
        Some(NEVER) => NEVER - 1,
        Some(nanos) => nanos,
        None => NEVER,
    }
}

impl Decision {
    /// Creates the decision on a call that may pass. For authors of algorithms and stores.
    ///
    /// `reset_after` is in nanoseconds.
    #[inline]
    pub const fn allow(limit: u64, remaining: u64, reset_after: u64) -> Self {
        Self::new(true, limit, remaining, 0, reset_after)
    }

    /// Creates the decision on a call that is denied. For authors of algorithms and stores.
    ///
    /// `retry_after` and `reset_after` are in nanoseconds. A `retry_after` of `None` means that waiting does not help.
    #[inline]
    pub const fn deny(limit: u64, remaining: u64, retry_after: Option<u64>, reset_after: u64) -> Self {
        Self::new(false, limit, remaining, encode_wait(retry_after), reset_after)
    }

    #[inline]
    const fn new(allowed: bool, limit: u64, remaining: u64, wait: u64, reset: u64) -> Self {
        Self {
            allowed,
            closed: false,
            table_full: false,
            unknown: false,
            is_window: false,
            barred: false,
            queue_full: false,
            index: 0,
            limit,
            remaining,
            wait,
            reset,
            grains: 1,
            delay: 0,
        }
    }

    /// Returns this decision, for a call that was queued for `delay` nanoseconds.
    pub const fn with_delay(mut self, delay: u64) -> Self {
        self.delay = delay;
        self
    }

    /// Creates the denial of a limiter that is closed. For authors of stores.
    pub const fn closed(limit: u64) -> Self {
        let mut decision = Self::deny(limit, 0, None, 0);
        decision.closed = true;
        decision
    }

    /// Creates a denial for a key that has used nothing, but for which the store has no room. For authors of stores.
    pub const fn table_full(limit: u64) -> Self {
        let mut decision = Self::deny(limit, limit, None, 0);
        decision.table_full = true;
        decision
    }

    /// Returns this denial with the reason for which it has no `retry_after`. `unknown` is `true` if a wait helps but
    /// its length is not known, and `false` if no wait helps. Has no effect on a denial with a `retry_after`. For
    /// authors of algorithms and stores.
    pub const fn with_unknown_wait(mut self, unknown: bool) -> Self {
        self.unknown = unknown;
        self
    }

    /// Marks this denial as made by a lockout. The call must not be queued.
    pub(crate) const fn with_barred(mut self) -> Self {
        self.barred = true;
        self
    }

    /// Marks this denial as made because the queue was full. Has no effect on an admission.
    pub(crate) const fn with_queue_full(mut self) -> Self {
        self.queue_full = !self.allowed;
        self
    }

    /// Returns this admission with the time until one more unit is available. The time is in nanoseconds or, if
    /// [`in_grains`](Decision::in_grains) is called, in grains.
    pub(crate) const fn with_next(mut self, next: u64) -> Self {
        if self.allowed {
            self.wait = next;
        }
        self
    }

    /// Returns this admission with the time over which the remaining units should be spread, in nanoseconds. For a
    /// decision on several limits.
    pub(crate) const fn with_window(mut self, window: u64) -> Self {
        (self.wait, self.is_window) = (window, true);
        self
    }

    /// Declares that the times of this decision are in grains, and that a nanosecond has `grains` grains.
    #[inline]
    pub(crate) const fn in_grains(mut self, grains: u64) -> Self {
        self.grains = grains;
        self
    }

    /// Returns this decision as that of the limit at `index` among several limits.
    pub(crate) const fn with_index(mut self, index: usize) -> Self {
        self.index = if index < u8::MAX as usize { index as u8 } else { u8::MAX };
        self
    }

    /// Returns this decision with a `reset_after` of at least `nanos` nanoseconds.
    pub(crate) const fn with_min_reset(mut self, nanos: u64) -> Self {
        if self.nanos(self.reset) < nanos {
            if self.wait != NEVER {
                self.wait = self.nanos(self.wait);
            }
            (self.reset, self.grains) = (nanos, 1);
        }
        self
    }

    /// Returns this decision with a `remaining` of 0, for a key that admits no other call now.
    pub(crate) const fn with_remaining_zero(mut self) -> Self {
        self.remaining = 0;
        self
    }

    /// Returns this denial with another `retry_after`, in nanoseconds. `None` means that waiting does not help.
    pub(crate) const fn with_retry_after(mut self, retry: Option<u64>) -> Self {
        if !self.allowed {
            (self.wait, self.reset, self.grains) = (encode_wait(retry), self.nanos(self.reset), 1);
        }
        self
    }
}
