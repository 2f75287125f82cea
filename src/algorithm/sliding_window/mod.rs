//! The sliding window, in slices.

mod decide;
mod ring;
mod stored;
mod units;

use crate::algorithm::QueueConfig;
use crate::algorithm::queue_config::queue_methods;
use crate::quota::Quota;

pub use units::SlidingWindowState;

/// The maximum number of slices of a window.
const MAX_SLICES: u64 = 1_000;

/// A window that never admits more than the limit in any period, wherever that period begins.
///
/// A unit is available again between one period and one period plus one slice after it was charged. The quota's burst
/// has no effect. A cost above the limit never fits.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::SlidingWindow;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder(SlidingWindow::new(Quota::per_second(2))).clock(clock.clone()).build();
/// assert!(limiter.check("user:42").is_allowed());
/// clock.advance(Duration::from_millis(999));
/// assert!(limiter.check("user:42").is_allowed());
/// let denied = limiter.check("user:42");
/// assert!(!denied.is_allowed());
/// assert_eq!(denied.retry_after(), Some(Duration::from_millis(1)));
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("../pictures/sliding_window.svg"))]
///
/// # How it works
///
/// **Problem.** Never admit more than `limit` in *any* period, wherever the period begins, without a record of every
/// call.
///
/// **Naive answer.** Cut the period into `n` slices, count the calls in each, and drop a slice when it is `n` slices
/// old. The sum of the slices stands for the last period.
///
/// **Where it breaks.** The sum covers a whole period only when a slice ends. Within a slice, the sum covers less: with
/// two slices, a limit of 100 per second admits 200 calls within little more than half a second. The window of
/// Alibaba's library Sentinel works like that.
///
/// **The idea.** Keep `n + 1` slices, and drop a slice when its *last* instant is a whole period ago. The sum then
/// always covers a period, and up to one slice more. So the limit holds in every period. The price is that a unit is
/// available again up to one slice late.
///
/// ```text
///   period = 4 slices            now
///   ├────┬────┬────┬────┬────┬───┤
///   │ 2  │ 0  │ 3  │ 1  │ 0  │ 2 │  open slice
///   └────┴────┴────┴────┴────┴───┘
///     ↑    └─── closed, counted ─┘   all are counted until their last instant is one period old
///     forgotten
/// ```
///
/// The first admitted call after a key was idle sets when the key's slices end: this call is at the last instant of a
/// slice. So the units of this call, and of other calls at the same instant, are available again after exactly one
/// period.
///
/// **Invariant.** `total` is the sum of all slices, `total <= limit`, and every unit that was admitted within the last
/// period and not given back is in `total`.
///
/// **Cost.** A call within the open slice touches four words. If slices have ended since the last call, the call closes
/// them one by one, at most `n` of them. A denial examines up to `n` slices. A key takes 72 bytes. With more than ten
/// slices, or once a count of the key has needed more than 32 bits, the key takes 88 bytes plus 8 bytes per slice, and
/// at least 168 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    quota: Quota,
    queue_config: QueueConfig,
    slices: u32,
    /// The length of a slice, in nanoseconds.
    width: u64,
    /// The offset in the open slice at which the oldest slice expires, in nanoseconds.
    expiry_offset: u64,
}

impl SlidingWindow {
    /// Creates a window of ten slices.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self::sliced(quota, QueueConfig::acquire_only(quota.limit()), 10)
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the number of slices of a period.
    #[must_use]
    pub const fn slice_count(&self) -> u32 {
        self.slices
    }

    /// Sets the number of slices. With more slices, a unit is available again sooner. With more than ten slices, each
    /// key has an allocation of 16 bytes plus 8 bytes per slice.
    ///
    /// The length of a slice is `period / n`, rounded up to a nanosecond, so `n` need not divide the period. Slices
    /// that are not needed to cover the period are left out, so [`slice_count`](SlidingWindow::slice_count) may be less
    /// than `n`.
    ///
    /// # Panics
    ///
    /// Panics if `n` is 0 or above 1,000.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::SlidingWindow;
    ///
    /// // a unit is available again at most 1 s after its minute, instead of 6 s
    /// let window = SlidingWindow::new(Quota::per_minute(100)).slices(60);
    /// assert_eq!(window.slice_count(), 60);
    /// ```
    #[must_use]
    pub const fn slices(self, n: usize) -> Self {
        assert!(n > 0, "a window of 0 slices counts nothing: give 1 to 1,000 slices");
        assert!(
            n as u64 <= MAX_SLICES,
            "a window of over 1,000 slices costs over 8 kB per key: give 1 to 1,000 slices"
        );
        Self::sliced(self.quota, self.queue_config, n as u64)
    }

    const fn sliced(quota: Quota, queue_config: QueueConfig, n: u64) -> Self {
        let period = quota.period_nanos();
        let width = period.div_ceil(n);
        // There are no more slices than needed to cover the period, so that the oldest slice expires before the open
        // slice ends.
        let slices = period.div_ceil(width);
        Self {
            quota,
            queue_config,
            slices: slices as u32,
            width,
            expiry_offset: period - 1 - (slices - 1) * width,
        }
    }
}

queue_methods!(SlidingWindow, "as many calls as the limit");
