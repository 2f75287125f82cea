//! The sliding window, in slices.

mod decide;
mod ring;
#[cfg(feature = "redis")]
mod stored;

use crate::algorithm::QueueConfig;
use crate::algorithm::queue_config::queue_methods;
use crate::clock::Nanos;
use crate::quota::Quota;

/// The maximum number of slices of a window.
const MAX_SLICES: u64 = 1_000;

/// A window that never admits more than the limit in any period, wherever it is placed.
///
/// It is strict: no span of one `period` ever holds more than `limit` admitted units. A unit is free again at most one
/// slice after its period. The quota's burst has no effect. A cost above the limit never fits.
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
/// assert_eq!(limiter.check("user:42").retry_after(), Some(Duration::from_millis(1)));
/// ```
///
/// With the same calls as in [every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("../pictures/sliding_window.svg"))]
///
/// # How it works
///
/// **Problem.** Never more than `limit` in *any* period, wherever it begins; but without a record of every call.
///
/// **Naive answer.** Cut the period into `n` slices, count in each, forget a slice when it is `n` slices old. The sum
/// is "the last period".
///
/// **Where it breaks.** It is the last period only at the edge of a slice. In between it covers less: with two
/// slices, a limit of 100 per second admits 200 within little over half a second. Sentinel's window works like
/// that.
///
/// **The idea.** Keep `n + 1` slices: a slice is forgotten when its *last* instant is a whole period ago. The sum then
/// always covers a period, and up to one slice more. The limit is strict, and the price is that a unit comes
/// back up to one slice late.
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
/// A key's slices begin with the first call after it was idle, and that call is the last instant of its slice: so a
/// lone burst is free again after exactly one period.
///
/// **Invariant.** `total` is the sum of all slices, `total <= limit`, and every unit admitted within the last period
/// is in it.
///
/// **Cost.** A call within the open slice touches four words. When slices have closed since the last call, each is
/// moved on: at most `n` of them. 56 bytes a key, and 8 for each slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    quota: Quota,
    queue_config: QueueConfig,
    slices: u32,
    /// The length of a slice.
    width: u64,
    /// The offset in the open slice at which the period of the oldest one ends.
    expiry_offset: u64,
}

/// The state of a key for a [`SlidingWindow`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SlidingWindowState {
    last: Nanos,
    /// The offset of `last` in the open slice, below the width.
    into: u64,
    /// The units in all slices.
    total: u64,
    /// The units in the open slice.
    open: u64,
    /// The index of the newest of the closed slices, which are a ring.
    newest_index: u32,
    /// An age above which no slice holds anything.
    oldest_age: u32,
    closed: Box<[u64]>,
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

    /// Sets the number of slices: more slices give a unit back sooner, for 8 bytes each per key.
    ///
    /// A slice is `period / n`, rounded up to a nanosecond, and no more slices are kept than cover the period: `n`
    /// need not divide it.
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
    /// // a unit is free again at most 1 s, not 6 s, after its minute
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
        // No more slices than cover the period, so that the oldest ends its period within the open one.
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
