//! The functions by which algorithms, queues and stores create decisions.

use super::{ALLOWED, BARRED, CLOSED, Decision, LOCKED_OUT, NEVER, QUEUE_FULL, TABLE_FULL, UNKNOWN, WINDOW};

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
    /// Creates the decision on a call that is admitted. This function is for authors of algorithms and stores.
    ///
    /// `reset_after` is in nanoseconds.
    #[inline]
    pub const fn allow(limit: u64, remaining: u64, reset_after: u64) -> Self {
        Self::new(ALLOWED, limit, remaining, 0, reset_after)
    }

    /// Creates the decision on a call that is denied. This function is for authors of algorithms and stores.
    ///
    /// `retry_after` and `reset_after` are in nanoseconds. A `retry_after` of `None` means that waiting does not help
    /// or, if the denial is marked with [`with_unknown_wait`](Decision::with_unknown_wait), that the wait is unknown.
    #[inline]
    pub const fn deny(limit: u64, remaining: u64, retry_after: Option<u64>, reset_after: u64) -> Self {
        Self::new(0, limit, remaining, encode_wait(retry_after), reset_after)
    }

    #[inline]
    const fn new(flags: u32, limit: u64, remaining: u64, wait: u64, reset: u64) -> Self {
        Self { flags, index: 0, limit, remaining, wait, reset, grains: 1, delay: 0 }
    }

    const fn with(mut self, flag: u32, is_set: bool) -> Self {
        self.flags = if is_set { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// Returns this decision for a call that was queued for `delay` nanoseconds.
    pub const fn with_delay(mut self, delay: u64) -> Self {
        self.delay = delay;
        self
    }

    /// Creates the denial by a limiter that is closed. This function is for authors of stores.
    pub const fn closed(limit: u64) -> Self {
        Self::deny(limit, 0, None, 0).with(CLOSED, true)
    }

    /// Creates a denial for a key that has used nothing, but for which the store has no room. This function is for
    /// authors of stores.
    pub const fn table_full(limit: u64) -> Self {
        Self::deny(limit, limit, None, 0).with(TABLE_FULL, true)
    }

    /// Returns this denial with the reason for which it has no `retry_after`. `unknown` is `true` if a wait helps but
    /// its length is not known, and `false` if no wait helps. Has no effect on a denial with a `retry_after`. This
    /// method is for authors of algorithms and stores.
    pub const fn with_unknown_wait(self, unknown: bool) -> Self {
        self.with(UNKNOWN, unknown)
    }

    /// Marks this denial as made while the key is locked out. The call must not be queued.
    pub(crate) const fn with_barred(self) -> Self {
        self.with(BARRED, true).with_locked_out(true)
    }

    /// Returns this denial with the fact whether the key is locked out or this denial begins a lockout.
    pub(crate) const fn with_locked_out(self, is_locked_out: bool) -> Self {
        self.with(LOCKED_OUT, is_locked_out)
    }

    /// Marks this denial as made because the queue was full. Has no effect on an admission.
    pub(crate) const fn with_queue_full(self) -> Self {
        let is_denied = !self.has(ALLOWED);
        self.with(QUEUE_FULL, is_denied)
    }

    /// Returns this admission with the time until one more unit is available. The time is in nanoseconds or, if
    /// [`in_grains`](Decision::in_grains) is called, in grains.
    pub(crate) const fn with_next(mut self, next: u64) -> Self {
        if self.has(ALLOWED) {
            self.wait = next;
        }
        self
    }

    /// Returns this admission by several limits with `window`, the [effective
    /// window](crate::algorithm::QuotaPolicy::effective_window) of the reported limit in nanoseconds.
    pub(crate) const fn with_window(mut self, window: u64) -> Self {
        self.wait = window;
        self.with(WINDOW, true)
    }

    /// Declares that the times of this decision are in grains, and that a nanosecond has `grains` grains.
    #[inline]
    pub(crate) const fn in_grains(mut self, grains: u64) -> Self {
        self.grains = grains;
        self
    }

    /// Returns this decision as that of the limit at `index` among several limits.
    pub(crate) const fn with_index(mut self, index: usize) -> Self {
        self.index = if index < u32::MAX as usize { index as u32 } else { u32::MAX };
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

    /// Returns this denial with another `retry_after`, in nanoseconds. `None` means that waiting does not help or, if
    /// the denial is marked with `with_unknown_wait`, that the wait is unknown. An admission is returned unchanged.
    pub(crate) const fn with_retry_after(mut self, retry: Option<u64>) -> Self {
        if !self.has(ALLOWED) {
            (self.wait, self.reset, self.grains) = (encode_wait(retry), self.nanos(self.reset), 1);
        }
        self
    }
}
