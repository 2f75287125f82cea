use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{Clock, Nanos, since_epoch};

/// A clock that reads the processor's time stamp counter. A reading takes about half the time of a reading of the
/// default clock.
///
/// If the counter does not run at a constant rate, or cannot be read, this clock reads the clock of the system instead.
/// All clones show the same time. The zero of the clock is the Unix epoch, according to the wall clock at the time when
/// this clock was created. Requires the feature `tsc`.
///
/// # Guarantees
///
/// The clock does not step, except by the difference between the counters of two processors. The rate of the counter is
/// measured once in a process, against the clock of the system, when the first `TscClock` is created. The measurement
/// takes up to 200 milliseconds. The clock deviates from the system's clock:
///
/// - The measurement of the rate has an error, usually of less than 0.01 %.
/// - Time synchronization (NTP) corrects the rate of the system's clock, usually by less than 0.01 % and at most by
///   0.05 %, and does not correct the rate of this clock.
/// - The time for which the machine or the virtual machine was suspended may count in one clock, and not in the other.
///
/// So limits are exact by this clock, and a period of one minute usually takes up to 12 milliseconds more or less than
/// a minute of the system's clock. Timers are tokio's: a queued call is woken by tokio's time, and is released when
/// this clock has reached the scheduled time of the call. The clock does not follow tokio's time if a test pauses that
/// time.
///
/// # Panics
///
/// A queued call panics if it is polled outside a tokio runtime whose timer is enabled.
///
/// # Examples
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::clock::TscClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let bucket = TokenBucket::new(Quota::per_second(10));
/// let limiter = RateLimiter::builder(bucket).clock(TscClock::new()).build();
/// assert!(limiter.check("user:42").is_allowed());
/// ```
#[derive(Clone)]
pub struct TscClock {
    counter: quanta::Clock,
    /// The reading of the counter when this clock was created.
    started: u64,
    /// The Unix time at which this clock was created.
    unix: Nanos,
}

impl TscClock {
    /// Creates a clock. The first call in a process blocks the thread for up to 200 milliseconds.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        Self { started: counter.raw(), unix: since_epoch().into(), counter }
    }
}

impl Default for TscClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Nanos {
        self.unix.saturating_add(self.counter.delta_as_nanos(self.started, self.counter.raw()))
    }

    /// Returns `true`, although the counters of two processors may differ by some nanoseconds.
    fn is_monotonic(&self) -> bool {
        true
    }

    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let left = deadline.saturating_since(self.now());
        Box::pin(tokio::time::sleep(Duration::from_nanos(left)))
    }
}

impl fmt::Debug for TscClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TscClock").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn it_starts_at_the_date_and_advances_with_the_clock_of_the_system() {
        let before = Instant::now();
        let clock = TscClock::new();
        let (first, started) = (clock.now(), Instant::now());
        assert!(Nanos::from(since_epoch()).0.abs_diff(first.0) < 60_000_000_000);
        while started.elapsed() < Duration::from_millis(20) {}
        // The thread may be interrupted between any two readings.
        let least = started.elapsed();
        let passed = Duration::from_nanos(clock.now().saturating_since(first));
        let most = before.elapsed();
        assert!(
            passed >= least.mul_f64(0.99) && passed <= most.mul_f64(1.01),
            "{least:?} {passed:?} {most:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn its_timers_are_those_of_tokio() {
        let (clock, before) = (TscClock::new(), tokio::time::Instant::now());
        clock.sleep_until(clock.now().saturating_add(60_000_000_000)).await;
        let slept = before.elapsed();
        assert!(slept > Duration::from_secs(59) && slept <= Duration::from_millis(60_001), "{slept:?}");
        clock.sleep_until(Nanos::ZERO).await;
    }
}
