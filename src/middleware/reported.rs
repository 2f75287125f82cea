//! What the response to a rejected request reports, apart from the policies.

use std::time::Duration;

use http::StatusCode;

/// What the response to a rejected request reports: its status, and its waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported {
    status: StatusCode,
    /// The time until the caller can retry, with the jitter. `None` if this time is unknown, or if waiting does not
    /// help.
    wait: Option<Duration>,
    /// The `Retry-After` if `wait` is `None`, with the jitter. `None` if there is no hint.
    hint: Option<Duration>,
    /// The jitter. It is added to the wait of each policy that denied the request.
    extra: Duration,
    /// The maximum wait that is reported.
    max: Duration,
}

impl Reported {
    /// Creates the report. `wait` is the exact time until the caller can retry, and `hint` is the `Retry-After` without
    /// jitter if `wait` is `None`.
    pub(super) fn new(
        status: StatusCode,
        wait: Option<Duration>,
        hint: Option<Duration>,
        extra: Duration,
        max: Duration,
    ) -> Self {
        let report = Self { status, wait: None, hint: None, extra, max };
        let [wait, hint] = [wait, hint].map(|wait| wait.map(|wait| report.with_jitter(wait)));
        Self { wait, hint, ..report }
    }

    /// Returns the status of an HTTP response.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the time until the caller can retry. `None` if this time is unknown, or if waiting does not help.
    #[inline]
    pub(super) fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// Returns the time that `Retry-After` reports: the time until the caller can retry or, if it is unknown, the hint.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.wait.or(self.hint)
    }

    /// Returns an exact wait as it is reported: with the jitter, and at most the maximum. It is at least a nanosecond,
    /// which each field rounds up to at least 1.
    #[inline]
    pub(super) fn with_jitter(&self, wait: Duration) -> Duration {
        wait.saturating_add(self.extra).min(self.max).max(Duration::from_nanos(1))
    }
}
