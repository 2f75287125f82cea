//! What a denial says about the queue.

use super::Decision;

impl Decision {
    /// Returns the same denial, of a call that found the queue full.
    pub(crate) const fn with_queue_full(mut self) -> Self {
        self.queue_full = !self.allowed;
        self
    }

    /// Returns whether the call was denied because the queue was full.
    pub(crate) const fn is_queue_full(&self) -> bool {
        self.queue_full
    }

    /// Returns the same denial, for a call that may not wait in a queue either.
    pub(crate) const fn with_barred(mut self) -> Self {
        self.barred = true;
        self
    }

    /// Returns whether the call was denied and may not wait in a queue either.
    pub(crate) const fn is_barred(&self) -> bool {
        self.barred
    }
}
