//! The counts of one slice of time.

use std::time::Duration;

/// An event that is counted. Response times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Admitted,
    /// The request was admitted after a wait in a queue. The value is the number of units that the request has borrowed
    /// from the next window.
    Released(u64),
    Denied,
    Succeeded(u64),
    Failed(u64),
}

/// The counts of a policy in one slice of time, or the sum of the counts in several slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slice {
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that this policy denied, except in shadow mode.
    pub denied: u64,
    /// Admitted requests that had waited in a queue.
    pub queued: u64,
    /// Responses of the inner service, whatever their status.
    pub successes: u64,
    /// Errors of the inner service.
    pub errors: u64,
    /// Units that requests with priority have borrowed from the next window.
    pub borrowed: u64,
    pub(super) response_nanos: u64,
    pub(super) min_nanos: u64,
}

impl Slice {
    /// Returns the sum of the times that the inner service took, for the responses and errors of this slice.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        Duration::from_nanos(self.response_nanos)
    }

    /// Returns the shortest time that the inner service took for a response or an error of this slice. Returns `None`
    /// if there was neither.
    #[must_use]
    pub fn min_response_time(&self) -> Option<Duration> {
        (self.min_nanos < u64::MAX).then(|| Duration::from_nanos(self.min_nanos))
    }

    /// Returns the mean time that the inner service took for the responses and errors of this slice. Returns `None` if
    /// there was neither.
    #[must_use]
    pub fn mean_response_time(&self) -> Option<Duration> {
        self.response_nanos.checked_div(self.successes + self.errors).map(Duration::from_nanos)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.queued += other.queued;
        self.successes += other.successes;
        self.errors += other.errors;
        self.borrowed += other.borrowed;
        self.response_nanos = self.response_nanos.saturating_add(other.response_nanos);
        self.min_nanos = self.min_nanos.min(other.min_nanos);
    }
}

impl Default for Slice {
    fn default() -> Self {
        EMPTY
    }
}

/// The counts of a slice without any event.
pub(super) const EMPTY: Slice = Slice {
    admitted: 0,
    denied: 0,
    queued: 0,
    successes: 0,
    errors: 0,
    borrowed: 0,
    response_nanos: 0,
    min_nanos: u64::MAX,
};
