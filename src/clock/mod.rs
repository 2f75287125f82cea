//! Clocks, which tell limiters the time.
//!
//! Algorithms do not read the time: each method that needs the time takes `now` as an argument. Only a limiter reads
//! its clock.
//!
//! The default is tokio's monotonic clock, so a limiter follows tokio's time in tests that pause it. A [`ManualClock`]
//! moves only when it is set or advanced:
//!
//! ```
//! use std::time::Duration;
//! use tower_throttle::algorithm::TokenBucket;
//! use tower_throttle::clock::ManualClock;
//! use tower_throttle::{Quota, RateLimiter};
//!
//! let clock = ManualClock::new();
//! let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_second(5).burst(1)))
//!     .clock(clock.clone())
//!     .build();
//!
//! assert!(limiter.check("user:42").is_allowed());
//! assert!(!limiter.check("user:42").is_allowed());
//! clock.advance(Duration::from_millis(200));
//! assert!(limiter.check("user:42").is_allowed());
//! ```
//!
//! # What a reading costs
//!
//! A check reads the clock once. The reading takes up to half of the time of the check. These are the times of a
//! reading on one virtual machine:
//!
//! | clock | time | deviation |
//! |---|---|---|
//! | tokio's clock (the default) | 18 ns | none |
//! | the time stamp counter ([a recipe](crate::guide::recipes#a-clock-that-reads-the-time-stamp-counter)) | 9 ns | up to 0.1 % |
//! | the coarse clock of Linux, which this crate does not offer | 3 ns | up to 4 ms late |
//!
//! The default clock is exact, and needs no calibration, which would block a thread for milliseconds. It shows the same
//! time as tokio's timers, so a queued call is admitted when its timer ends. It runs as fast as the clocks of callers,
//! so a caller that waits for the [`retry_after`](crate::Decision::retry_after) is neither early nor late. A coarse
//! clock moves only at its ticks. So it would report each wait up to one tick too long, and would admit a call that
//! fits between two ticks only at the second tick.

mod manual;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pin_project_lite::pin_project;
use tokio::time::Instant;

pub use manual::ManualClock;

/// A reading of a [`Clock`]: the nanoseconds since that clock's own zero.
///
/// The range is 584 years. The methods saturate and never wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The zero of the clock.
    pub const ZERO: Self = Self(0);
    /// The last instant that a clock can return.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the nanoseconds from `earlier` to this instant, or 0 if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the instant that is `nanos` later, or [`Nanos::MAX`] if that is out of range.
    #[must_use]
    pub const fn saturating_add(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A clock, which tells the time, and lets queued calls sleep until a time.
///
/// Readings need not be monotonic: [Time](crate::algorithm#time) describes how a limiter uses a clock that steps back.
/// A limiter in memory calls [`sleep_until`](Clock::sleep_until) only for queued calls. A limiter in Redis also calls
/// it for other waits, such as for the replies of the server.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time now.
    ///
    /// It must not panic, and must not call the limiter, whose lock may be held. If it panics when a call ends or is
    /// cancelled, what the call holds may stay taken.
    fn now(&self) -> Nanos;

    /// Returns whether each reading is at least as large as all earlier readings. If `true`, a limiter in memory may
    /// deny a call without recording the reading. If the clock then steps back behind that reading, the limiter does
    /// not notice the step. The default implementation returns `false`.
    fn is_monotonic(&self) -> bool {
        false
    }

    /// Returns a future that completes when [`now`](Clock::now) has reached `deadline`.
    ///
    /// With state in memory, the future may complete early or late, because the limiter reads the clock again when the
    /// future has completed. If the clock can be set back, the future should also complete when the clock is set.
    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clock of one limiter: tokio's, or any [`Clock`].
///
/// Every [`Clock`] converts to this type with `From`, so a builder accepts `clock(ManualClock::new())`.
#[derive(Clone, Debug)]
pub struct AnyClock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Tokio(Monotonic),
    Other(Arc<dyn Clock>),
}

impl AnyClock {
    /// Returns the time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            Kind::Tokio(clock) => clock.now(),
            Kind::Other(clock) => clock.now(),
        }
    }

    /// Returns whether each reading is at least as large as all earlier readings. See [`Clock::is_monotonic`].
    #[inline]
    pub(crate) fn is_monotonic(&self) -> bool {
        match &self.0 {
            Kind::Tokio(_) => true,
            Kind::Other(clock) => clock.is_monotonic(),
        }
    }

    /// Returns a future that completes when the clock has reached `deadline`.
    ///
    /// # Panics
    ///
    /// Panics if the clock is the default clock, and the method is called outside a tokio runtime whose timer is
    /// enabled.
    pub fn sleep_until(&self, deadline: Nanos) -> Sleep {
        match &self.0 {
            Kind::Tokio(clock) => {
                SleepKind::Tokio { sleep: tokio::time::sleep_until(clock.instant(deadline)) }.into()
            }
            Kind::Other(clock) => SleepKind::Other { sleep: clock.sleep_until(deadline) }.into(),
        }
    }
}

impl Default for AnyClock {
    fn default() -> Self {
        Self(Kind::Tokio(Monotonic::new()))
    }
}

impl<C: Clock> From<C> for AnyClock {
    fn from(clock: C) -> Self {
        Self(Kind::Other(Arc::new(clock)))
    }
}

pin_project! {
    /// The future that [`AnyClock::sleep_until`] returns.
    #[doc(hidden)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Sleep {
        #[pin]
        kind: SleepKind,
    }
}

pin_project! {
    #[project = SleepProj]
    enum SleepKind {
        Tokio { #[pin] sleep: tokio::time::Sleep },
        Other { sleep: Pin<Box<dyn Future<Output = ()> + Send>> },
    }
}

impl From<SleepKind> for Sleep {
    fn from(kind: SleepKind) -> Self {
        Self { kind }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project().kind.project() {
            SleepProj::Tokio { sleep } => sleep.poll(cx),
            SleepProj::Other { sleep } => sleep.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").finish_non_exhaustive()
    }
}

/// The monotonic clock of tokio. Its zero is the Unix epoch, according to the wall clock at the time when this clock
/// was created. A later step of the wall clock does not change that zero.
#[derive(Clone, Debug)]
struct Monotonic {
    started: Instant,
    unix: u64,
}

impl Monotonic {
    fn new() -> Self {
        Self { started: Instant::now(), unix: Nanos::from(since_epoch()).0 }
    }

    #[inline]
    fn now(&self) -> Nanos {
        let elapsed = Instant::now().saturating_duration_since(self.started);
        // 64 bits suffice for 584 years. Saturating arithmetic would take longer.
        Nanos(self.unix.wrapping_add(elapsed.as_nanos() as u64))
    }

    fn instant(&self, deadline: Nanos) -> Instant {
        // This is the time that tokio takes for deadlines that are too late for an `Instant`.
        const FAR_FUTURE: Duration = Duration::from_secs(86_400 * 365 * 30);
        let from_start = Duration::from_nanos(deadline.0.saturating_sub(self.unix));
        self.started.checked_add(from_start).unwrap_or_else(|| Instant::now() + FAR_FUTURE)
    }
}

/// Returns the time of tokio's clock since a certain time of this process, for what has no clock of its own.
pub(crate) fn of_process() -> Nanos {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let (now, first) = (Instant::now(), *FIRST.get_or_init(Instant::now));
    // Time that a test has paused may be before the first reading.
    let (after, before) = (now.saturating_duration_since(first), first.saturating_duration_since(now));
    Nanos((1 << 63) + Nanos::from(after).0 - Nanos::from(before).0)
}

/// Returns the Unix time of this machine. This time is used in values that are reported to callers, and for the zero of
/// the default clock.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_default_clock_follows_tokios_paused_time() {
        let clock = AnyClock::default();
        let before = clock.now();
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now().saturating_since(before), 1_500_000_000);
        clock.sleep_until(before.saturating_add(4_000_000_000)).await;
        assert_eq!(clock.now().saturating_since(before), 4_000_000_000);
    }

    #[test]
    fn it_advances_and_starts_at_the_date() {
        let clock = Monotonic::new();
        let first = clock.now();
        while clock.now() == first {}
        assert!(clock.now() > first);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(Nanos::from(wall).0.abs_diff(clock.now().0) < 60_000_000_000);
    }
}
