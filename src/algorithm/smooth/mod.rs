//! Guava's rate limiters.

mod decide;
mod schedule;
mod stored;
mod stored_permits;
#[cfg(test)]
mod tests;
mod wide_math;

use std::time::Duration;

use self::stored_permits::{FRACTION_BITS, StoredPermits};
use crate::algorithm::rate::Rate;
use crate::algorithm::{Algorithm, QueueConfig, QueueOverflow};
use crate::clock::Nanos;
use crate::quota::Quota;

const MAX_COLD_FACTOR: f64 = 1_000.0;
/// The latest scheduled time, in fine units: nine million years after the clock's zero.
const MAX_FIXED: u128 = 1 << 126;
/// The margin added to a scheduled time that is not exact: 2^-8 of a nanosecond.
const MARGIN: u128 = 1 << (FRACTION_BITS - 8);

/// Guava's rate limiters: paced calls and stored permits, where each call waits for the cost of the call before it.
///
/// Calls of [`acquire`](crate::limiter::RateLimiter::acquire) wait in order, at most [`queue`](Smooth::queue) calls per
/// key and each at most [`max_wait`](Smooth::max_wait). [`check`](crate::limiter::RateLimiter::check) admits a call
/// that would not have to wait, and denies other calls. The cost of a call delays the next call, never the call itself.
/// So no cost is too large.
///
/// A timer that is late by up to 5 ms does not lower the rate. After a longer stall of the runtime the schedule moves:
/// the time of the stall is neither made up for nor stored as permits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_throttle::algorithm::Smooth;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(Smooth::bursty(Quota::per_second(5)));
/// for (cost, wait) in [(1, 0), (10, 200), (1, 2_000)] {
///     let decision = limiter.acquire_n("upstream", cost).await;
///     assert!(decision.is_allowed());
///     assert_eq!(decision.delay(), Duration::from_millis(wait));
/// }
/// # }
/// ```
///
/// These pictures show [`bursty`](Smooth::bursty) and [`warming_up`](Smooth::warming_up) with the [same calls as every
/// picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("../pictures/smooth_bursty.svg"))]
///
#[cfg_attr(doc, doc = include_str!("../pictures/smooth_warming_up.svg"))]
///
/// # How it works
///
/// **Problem.** Let a caller pace *itself*, such as a client of another service, without bursts, or with a warm-up
/// after a pause.
///
/// **Naive answer.** Remember when the last call was made. The next call may pass one interval later.
///
/// **Where it breaks.** The naive answer ignores idle time. After a quiet minute, the called service may be rested, so
/// that a few calls at once do no harm. Or the service may be cold, so that the full rate overloads it. The naive
/// answer handles neither case. And a call of cost 100 would have to wait for its own 100 intervals, although no other
/// call is waiting.
///
/// **The idea** (from Guava's `SmoothRateLimiter`). Remember when the *next* call may pass, and admit a call of cost
/// `n` at that time: the call after it waits for the `n` permits. Unused time is stored as permits, up to a maximum.
/// The two kinds, bursty and warming up, differ in the time that a stored permit costs:
///
/// ```text
///  time per permit
///      bursty: nothing                warming up: rises with the stored permits
///
///   T ┤------ new permits              cf·T ┤                 ╱
///     │                                     │               ╱
///   0 ┼━━━━━━━━━┥                         T ┼─────────────╱      area right of the threshold: warm_up
///     0   stored   1 s                      0    threshold          max      area left of it: warm_up / 2
/// ```
///
/// Stored permits are taken from the right end of the line, and each permit costs the area under its part of the line.
/// The time per permit of a limiter that warms up thus starts at `cf * T` if the maximum is stored, and falls to `T`
/// after `warm_up`. Here `cf` is the cold factor, and `T` is the interval. Since the cost is an area, it does not
/// matter how permits are split into calls.
///
/// **Numbers.** Stored permits are counted as *time*: each permit is one interval `T`. With a warm-up, the threshold is
/// then at `warm_up / 2`, the maximum is at `warm_up / 2 + 2 warm_up / (1 + cf)`, and each second of idle time adds
/// `1/2 + 2 / (1 + cf)` seconds to the stored time. None of these formulas contains the rate. With some rates,
/// scheduled times are not whole nanoseconds. So scheduled times are kept in *fine units* of 2^-48 of a nanosecond, and
/// rounded so that no call is admitted early. The cold factor is rounded up to a multiple of 1/1024.
///
/// Up to a cold factor of 3, rounding errors stay tiny: no call is admitted early, and no call is late by more than a
/// nanosecond. With a cold factor above 3, the algorithm itself is unstable. If a scheduled time is a little late, less
/// idle time is left after it, and fewer permits are stored. The limiter is then less cold after the pause, and the
/// next calls are admitted sooner. Each pause after which the limiter is not completely cold multiplies the error by
/// about `(cf + 5) (cf - 1) / (2 cf + 2) - 1`. With a factor of 10, calls are exact to a nanosecond over about fifteen
/// such pauses in a row. With a factor of 1,000, they are exact over about four such pauses.
///
/// **Invariant.** No call is admitted before `next`, the scheduled time of the next call. Each admission advances
/// `next` by the time that the permits of the admitted call cost.
///
/// **Cost.** A call takes constant time, and a key takes 48 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Smooth {
    quota: Quota,
    rate: Rate,
    stored_permits: StoredPermits,
    queue_config: QueueConfig,
    /// The maximum time that is stored, in fine units.
    max_stored: u128,
    /// The maximum number of calls of cost 1 that `check` admits at one instant.
    at_once: u64,
    /// The maximum number of calls of cost 1 that `acquire` admits or queues at one instant.
    capacity: u64,
}

/// The state of a key for [`Smooth`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SmoothState {
    last: Nanos,
    /// The scheduled time of the next call, in fine units.
    next: u128,
    /// The stored permits, counted as time, in fine units.
    stored: u128,
}

impl Smooth {
    /// Creates Guava's `SmoothBursty`, which stores the unused permits of up to one second. Stored permits cost no
    /// time. Permits are stored from the time at which the limiter is built, also for keys that are first used later.
    /// The first call of a key passes at once.
    #[must_use]
    pub fn bursty(quota: Quota) -> Self {
        Self::with(quota, StoredPermits::Bursty)
    }

    /// Creates Guava's `SmoothWarmingUp`: after a long pause, the interval between calls is at first nearly the normal
    /// interval times the cold factor (3 by default), and decreases to the normal interval within `warm_up`. The
    /// limiter is cold when it is built.
    ///
    /// With a `warm_up` of zero, no permits are stored, and calls are one interval apart. A `warm_up` above 292 years
    /// is shortened to 292 years.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::Smooth;
    ///
    /// // after a pause, the rate rises from 60 to 180 calls a minute within half a minute
    /// let upstream = Smooth::warming_up(Quota::per_minute(180), Duration::from_secs(30));
    /// ```
    #[must_use]
    pub fn warming_up(quota: Quota, warm_up: Duration) -> Self {
        let warm_up = Nanos::from(warm_up).0.min(i64::MAX as u64);
        Self::with(quota, StoredPermits::warming_up(warm_up, 3))
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    fn with(quota: Quota, stored_permits: StoredPermits) -> Self {
        let (rate, queue_config) = (Rate::of(quota), QueueConfig::enabled(quota.capacity()));
        Self { quota, rate, stored_permits, queue_config, max_stored: 0, at_once: 0, capacity: 0 }.measured()
    }

    fn measured(mut self) -> Self {
        self.max_stored = self.stored_permits.max_stored();
        self.at_once = self.burst_of(self.max_stored);
        let mut full = SmoothState { last: Nanos::ZERO, next: 0, stored: self.max_stored };
        let in_time = self.queue_capacity(&mut full, Nanos::ZERO, self.queue_config.max_wait());
        self.capacity = self.at_once.saturating_add(self.queue_config.places()).min(in_time);
        self
    }

    /// Sets the cold factor. The first interval of a cold limiter is nearly the normal interval times this factor. The
    /// default is 3. The factor has no effect on [`bursty`](Smooth::bursty).
    ///
    /// The factor is rounded up to a multiple of 1/1024. Above 3, rounding errors grow with each pause after which the
    /// limiter is not completely cold. With a factor of 10, calls are exact to a nanosecond over about fifteen such
    /// pauses in a row. With a factor of 1,000, they are exact over about four such pauses.
    ///
    /// # Panics
    ///
    /// Panics if `factor` is below 1, above 1,000, or not a number.
    #[must_use]
    pub fn cold_factor(mut self, factor: f64) -> Self {
        assert!(
            (1.0..=MAX_COLD_FACTOR).contains(&factor),
            "a cold factor of {factor} does not slow down: give 1 to 1000"
        );
        self.stored_permits = self.stored_permits.with_cold_factor(factor);
        self.measured()
    }

    /// Sets how many calls may wait, per key. The default is the quota's burst. With 0, no call waits.
    #[must_use]
    pub fn queue(mut self, places: u64) -> Self {
        self.queue_config = self.queue_config.queue(places);
        self.measured()
    }

    /// Sets how long a call may wait. A call that would wait longer is denied at once, as in Guava's `tryAcquire`
    /// with a timeout.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.queue_config = self.queue_config.within(max_wait);
        self.measured()
    }

    /// Sets which call is denied when the queue is full, by default the call that arrives.
    #[must_use]
    pub const fn overflow(mut self, overflow: QueueOverflow) -> Self {
        self.queue_config = self.queue_config.with_overflow(overflow);
        self
    }
}
