//! The default clock, which is tokio's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::Nanos;

/// The monotonic clock of tokio. Its zero is the Unix epoch, according to the wall clock at the time when this clock
/// was created. A later step of the wall clock does not change that zero.
#[derive(Clone, Debug)]
pub(super) struct Monotonic {
    started: Instant,
    unix: u64,
    /// The time of this clock minus the reading of the system's clock. The difference may be negative, so it wraps
    /// around.
    offset: u64,
}

impl Monotonic {
    pub(super) fn new() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = Nanos::from(unix).0;
        Self { started: Instant::now(), unix, offset: unix.wrapping_sub(system().unwrap_or_default()) }
    }

    #[inline]
    pub(super) fn now(&self) -> Nanos {
        if let Some(reading) = system() {
            return Nanos(reading.wrapping_add(self.offset));
        }
        let elapsed = Instant::now().saturating_duration_since(self.started);
        // `as_nanos` is not used, because it computes in 128 bits. 64 bits suffice for 584 years.
        let nanos = elapsed.as_secs().saturating_mul(SECOND) + u64::from(elapsed.subsec_nanos());
        Nanos(self.unix.saturating_add(nanos))
    }

    pub(super) fn instant(&self, deadline: Nanos) -> Instant {
        // This is the time that tokio takes for deadlines that are too late for an `Instant`.
        const FAR_FUTURE: Duration = Duration::from_secs(86_400 * 365 * 30);
        let from_start = Duration::from_nanos(deadline.0.saturating_sub(self.unix));
        self.started.checked_add(from_start).unwrap_or_else(|| Instant::now() + FAR_FUTURE)
    }
}

const SECOND: u64 = 1_000_000_000;

/// Returns the reading of the system clock that tokio's clock uses, if it can be read directly: on Linux, in a build in
/// which tokio's time cannot be paused. A direct reading takes less time than a reading through tokio.
#[cfg(target_os = "linux")]
#[inline]
fn system() -> Option<u64> {
    use rustix::time::{ClockId, clock_gettime};

    if PAUSABLE {
        return None;
    }
    let reading = clock_gettime(ClockId::Monotonic);
    // The system's clock counts from the start of the machine, so both parts are at least 0. The sum fits for 584
    // years.
    Some((reading.tv_sec as u64).wrapping_mul(SECOND).wrapping_add(reading.tv_nsec as u64))
}

#[cfg(not(target_os = "linux"))]
fn system() -> Option<u64> {
    None
}

/// `true` if tokio's time can be paused in this build, that is, if any crate in the build enables tokio's feature
/// `test-util`.
///
/// That feature adds `tokio::time::pause`. In a block, a name from a glob import takes precedence over the same name
/// outside of the block. So `pause` is tokio's function if the feature is enabled, and the function below otherwise.
/// Only tokio's function returns nothing.
#[cfg(target_os = "linux")]
const PAUSABLE: bool = {
    #[allow(unused_imports, reason = "empty-handed without the feature")]
    use tokio::time::*;

    const fn returns_nothing<T>(_: fn() -> T) -> bool {
        size_of::<T>() == 0
    }
    returns_nothing(pause)
};

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "hidden by tokio's with the feature")]
fn pause() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::AnyClock;

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
        assert!(Nanos::from(wall).0.abs_diff(clock.now().0) < 60 * SECOND);
    }

    /// Checks `PAUSABLE` with tokio's feature `test-util`, with which these tests are built. The benches are built
    /// without that feature.
    #[cfg(target_os = "linux")]
    #[test]
    fn it_sees_that_time_can_be_paused() {
        const { assert!(PAUSABLE) }
    }
}
