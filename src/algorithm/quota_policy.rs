//! The quotas that are reported to clients.

use std::fmt;
use std::time::Duration;

use super::rate::Rate;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

/// A quota as it is reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    /// The maximum number of units that an idle key can admit at one instant. For a
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket) or [`Smooth`](crate::algorithm::Smooth), which exist to delay
    /// calls, this is the limit of the quota.
    pub quota: u64,
    /// The time in which `quota` units become available again. It has no meaning if the quota
    /// [is concurrent](Self::is_concurrent).
    pub window: Duration,
    /// The unit that is counted.
    unit: QuotaUnit,
    /// The rate at which units become available one by one. `None` if units become available in another way.
    rate: Option<Rate>,
    /// `true` if the quota has a burst that the algorithm does not use.
    ignores_burst: bool,
}

/// The unit that a quota counts, which the `qu` parameter of the `RateLimit-Policy` field reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaUnit {
    /// Requests, or the units that they cost.
    Requests,
    /// Requests in progress.
    ConcurrentRequests,
}

impl QuotaPolicy {
    /// Creates a policy of `quota` requests per `window`, for an algorithm whose units all become available again at
    /// the same time, as with a fixed window.
    #[must_use]
    pub const fn new(quota: u64, window: Duration) -> Self {
        Self { quota, window, unit: QuotaUnit::Requests, rate: None, ignores_burst: false }
    }

    /// Creates a policy of `quota` requests at a time.
    #[must_use]
    pub const fn concurrent(quota: u64) -> Self {
        Self { unit: QuotaUnit::ConcurrentRequests, ..Self::new(quota, Duration::ZERO) }
    }

    /// Returns whether the quota counts requests in progress, and not requests in a window.
    #[must_use]
    pub const fn is_concurrent(&self) -> bool {
        matches!(self.unit, QuotaUnit::ConcurrentRequests)
    }

    /// Creates the policy of a window, which does not use the quota's burst.
    #[inline]
    pub(super) fn of_window(quota: Quota) -> Self {
        Self { ignores_burst: quota.has_burst(), ..Self::new(quota.limit(), quota.period()) }
    }

    /// Returns whether the quota has a burst that the algorithm does not use.
    pub(crate) fn ignores_burst(&self) -> bool {
        self.ignores_burst
    }

    /// Creates a policy of `quota` requests for an algorithm whose units become available one by one, as with a bucket.
    #[inline]
    pub(super) fn refilled(quota: u64, rate: Rate) -> Self {
        Self { rate: Some(rate), ..Self::new(quota, Duration::from_nanos(rate.time(quota))) }
    }

    /// Returns this policy for an algorithm whose units become available one by one at the rate of `quota`, as with a
    /// bucket. The fields `quota` and `window` of the policy stay the same.
    #[must_use]
    pub const fn with_rate(mut self, quota: Quota) -> Self {
        self.rate = Some(Rate::of(quota));
        self
    }

    /// Returns the effective window of the `RateLimit` field: the time over which a client that received `decision`
    /// should spread its remaining requests. `decision` must report the limit that this policy describes.
    ///
    /// For a denial, this is the `retry_after`. For an admission after which no unit remains, this is the time until
    /// the next unit is available, if the algorithm reports that time. For any other admission by a bucket, this is the
    /// time in which the bucket refills as many units as remain. For any other admission by a window, this is the
    /// `reset_after`, at most the [window](Self::window), and the whole window if all units are available. `None` means
    /// that waiting does not help, or that the time is unknown.
    #[must_use]
    pub fn effective_window(&self, decision: &Decision) -> Option<Duration> {
        self.effective_nanos(decision).map(Duration::from_nanos)
    }

    /// Returns the [effective window](QuotaPolicy::effective_window) in nanoseconds.
    // Inlined, so that tuples do not compute the window of a bucket's policy, which takes a division and is not used
    // here.
    #[inline(always)]
    pub(crate) fn effective_nanos(&self, decision: &Decision) -> Option<u64> {
        if !decision.is_allowed() {
            return decision.retry_nanos();
        }
        match (decision.next(), self.unit, self.rate) {
            // The time until the end of a lockout, the time until the next unit, or the window of one of several
            // limits.
            (Some(next), _, _) => Some(next),
            (None, QuotaUnit::ConcurrentRequests, _) => None,
            (None, _, Some(rate)) => Some(rate.time(decision.remaining())),
            // Otherwise, the rest of a window of which nothing was used would read as a rate of the whole quota.
            (None, _, None) if decision.remaining() >= decision.limit() => Some(Nanos::from(self.window).0),
            (None, _, None) => Some(decision.reset_nanos().min(Nanos::from(self.window).0)),
        }
    }

    /// Returns the time in which `units` become available if none is available now, in nanoseconds. `None` if the time
    /// is unknown.
    pub(super) fn time(&self, units: u64) -> Option<u64> {
        let windows = units.div_ceil(self.quota.max(1));
        match self.rate {
            Some(rate) => Some(rate.time(units)),
            None if self.is_concurrent() => None,
            None => Some(windows.saturating_mul(Nanos::from(self.window).0)),
        }
    }
}

/// Writes the quota in words, such as `100/min`, `100/min burst 20` or `5 at a time`.
impl fmt::Display for QuotaPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_concurrent() {
            return write!(f, "{} at a time", self.quota);
        }
        match (self.rate, Quota::per(self.quota, self.window)) {
            (Some(rate), _) => rate.quota().burst(self.quota.max(1)).fmt(f),
            (None, Ok(window)) => window.fmt(f),
            (None, Err(_)) => write!(f, "{} per {:?}", self.quota, self.window),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_quota_in_words_is_that_of_the_algorithm() {
        use crate::algorithm::{Algorithm, Concurrency, FixedWindow, LeakyBucket, TokenBucket};
        let of = |algorithm: &dyn Fn() -> QuotaPolicy| algorithm().to_string();
        for (text, rate) in [
            ("100/min", "100/min"),
            ("100/min burst 20", "100/min burst 20"),
            ("7/s", "7/s"),
            ("1000/d burst 5", "1000/d burst 5"),
            ("3 per 7ns", "3 per 7ns"),
            // The same rate in another unit.
            ("600/min burst 600", "10/s burst 600"),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(of(&|| TokenBucket::new(quota).policy()), rate);
        }
        let quota = Quota::per_minute(600).burst(20);
        assert_eq!(of(&|| FixedWindow::new(quota).policy()), "600/min");
        assert_eq!(of(&|| LeakyBucket::new(Quota::per_second(9)).queue(4).policy()), "9/s");
        assert_eq!(of(&|| Concurrency::per_key(5).policy()), "5 at a time");
        assert_eq!(QuotaPolicy::new(0, Duration::ZERO).to_string(), "0 per 0ns");
    }

    #[test]
    fn a_window_spreads_what_remains_until_its_reset() {
        let policy = QuotaPolicy::new(10, Duration::from_secs(60));
        for (reset, window) in [(0, 0), (1, 1), (36, 36), (60, 60), (61, 60)] {
            let decision = Decision::allow(10, 4, reset * SECOND);
            assert_eq!(policy.effective_window(&decision), Some(Duration::from_secs(window)));
        }
    }

    #[test]
    fn a_window_of_which_nothing_is_used_has_its_whole_length() {
        let policy = QuotaPolicy::new(10, Duration::from_secs(60));
        for reset in [0, 1, 60] {
            let unused = Decision::allow(10, 10, reset * SECOND);
            assert_eq!(policy.effective_window(&unused), Some(policy.window));
        }
        // An algorithm that reports no time.
        assert_eq!(policy.effective_window(&Decision::allow(10, 0, 0)), Some(Duration::ZERO));
    }

    #[test]
    fn a_rate_spreads_what_remains_exactly() {
        // A burst of 5 at 3 per second takes 1.67 s. The 3 units that remain take exactly one second.
        let policy = QuotaPolicy::new(5, Duration::from_nanos(1_666_666_667)).with_rate(Quota::per_second(3));
        let window = |remaining| policy.effective_window(&Decision::allow(5, remaining, 9 * SECOND));
        assert_eq!(window(3), Some(Duration::from_secs(1)));
        assert_eq!(window(5), Some(policy.window));
        assert_eq!(window(0), Some(Duration::ZERO));
        let empty = Decision::allow(5, 0, 9 * SECOND).with_next(7);
        assert_eq!(policy.effective_window(&empty), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn a_denial_reports_its_wait_and_requests_in_progress_have_no_window() {
        let policy = QuotaPolicy::new(10, Duration::from_secs(60));
        let wait = Some(Duration::from_nanos(9));
        assert_eq!(policy.effective_window(&Decision::deny(10, 0, Some(9), 60 * SECOND)), wait);
        assert_eq!(policy.effective_window(&Decision::deny(10, 0, None, 60 * SECOND)), None);
        let concurrent = QuotaPolicy::concurrent(10);
        assert_eq!(concurrent.effective_window(&Decision::allow(10, 4, 0)), None);
        let of_several = Decision::allow(10, 4, 0).with_window(0);
        assert_eq!(policy.effective_window(&of_several), Some(Duration::ZERO));
    }
}
