//! Time, read in one place.
//!
//! Every rule of this crate takes `now` as an argument. Only a [`Clock`] reads the time, and only
//! the limiter asks it, once per decision.
//!
//! The default is tokio's monotonic clock, so tests that pause tokio's time just work. A
//! [`ManualClock`] moves when it is told to:
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

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pin_project_lite::pin_project;
use tokio::time::Instant;

/// A reading of a [`Clock`]: nanoseconds since that clock's own zero.
///
/// Holds 584 years. Arithmetic on it saturates; it never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero of the clock.
    pub const ZERO: Self = Self(0);
    /// The last instant a clock can tell.
    pub const MAX: Self = Self(u64::MAX);

    /// Nanoseconds from `earlier` to here; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The instant `nanos` later.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// What tells the time, and wakes those who wait for it.
///
/// Readings need not be monotonic: a limiter treats the largest reading a key has seen as its time
/// (see the crate's promises). [`sleep_until`](Clock::sleep_until) is asked only by calls that queue.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Nanos;

    /// A future that ends when [`now`](Clock::now) has reached `deadline`.
    ///
    /// It may end early or late; whoever waits on it reads the clock again. For a clock that can be
    /// set back, it should also end when the clock was set.
    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clock of one limiter: tokio's, or any [`Clock`].
///
/// Made from a [`Clock`] by `From`, so `builder.clock(ManualClock::new())` just works.
#[derive(Clone, Debug)]
pub struct AnyClock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Tokio(Monotonic),
    Other(Arc<dyn Clock>),
}

impl AnyClock {
    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            Kind::Tokio(clock) => clock.now(),
            Kind::Other(clock) => clock.now(),
        }
    }

    /// A future that ends when the clock has reached `deadline`.
    ///
    /// # Panics
    ///
    /// With the default clock, outside a tokio runtime that has its timer enabled.
    pub fn sleep_until(&self, deadline: Nanos) -> Sleep {
        match &self.0 {
            Kind::Tokio(clock) => Sleep::Tokio { sleep: tokio::time::sleep_until(clock.instant(deadline)) },
            Kind::Other(clock) => Sleep::Other { sleep: clock.sleep_until(deadline) },
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
    /// A pending [`AnyClock::sleep_until`].
    #[project = SleepProj]
    #[must_use = "futures do nothing unless polled"]
    pub enum Sleep {
        #[doc(hidden)]
        Tokio { #[pin] sleep: tokio::time::Sleep },
        #[doc(hidden)]
        Other { sleep: Pin<Box<dyn Future<Output = ()> + Send>> },
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project() {
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

/// tokio's monotonic clock, whose zero is the Unix epoch as the wall clock told it when this clock
/// was made. A later step of the wall clock does not move it.
#[derive(Clone, Debug)]
struct Monotonic {
    started: Instant,
    unix: u64,
}

impl Monotonic {
    fn new() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), unix: Nanos::from(unix).0 }
    }

    #[inline]
    fn now(&self) -> Nanos {
        let elapsed = Instant::now().saturating_duration_since(self.started);
        // Whole u64 arithmetic: as_nanos is u128, and 584 years fit.
        let nanos = elapsed.as_secs().saturating_mul(1_000_000_000) + u64::from(elapsed.subsec_nanos());
        Nanos(self.unix.saturating_add(nanos))
    }

    fn instant(&self, deadline: Nanos) -> Instant {
        // tokio's own "far future", for deadlines an Instant may not hold.
        const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
        let from_start = Duration::from_nanos(deadline.0.saturating_sub(self.unix));
        self.started.checked_add(from_start).unwrap_or_else(|| Instant::now() + FAR)
    }
}

/// A clock that moves only when told to. Clones share the time.
///
/// Starts at zero. Moving it, either way, wakes everyone who waits on it.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::clock::{Clock, ManualClock, Nanos};
///
/// let clock = ManualClock::new();
/// clock.set(Duration::from_secs(3));
/// clock.advance(Duration::from_millis(200));
/// assert_eq!(clock.now(), Nanos(3_200_000_000));
/// clock.set(Duration::ZERO); // may step back
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    shared: Arc<Mutex<Manual>>,
}

#[derive(Default)]
struct Manual {
    now: Nanos,
    /// Counts the moves, so that a sleeper knows of one it slept through.
    moves: u64,
    next: u64,
    sleepers: HashMap<u64, Waker>,
}

impl ManualClock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock on. Saturates at 584 years.
    pub fn advance(&self, by: Duration) {
        self.step(|now| now.after(Nanos::from(by).0));
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, to: Duration) {
        self.step(|_| Nanos::from(to));
    }

    fn step(&self, to: impl FnOnce(Nanos) -> Nanos) {
        let woken: Vec<Waker> = {
            let mut manual = self.lock();
            manual.now = to(manual.now);
            manual.moves += 1;
            manual.sleepers.drain().map(|(_, waker)| waker).collect()
        };
        // Outside the lock: a waker may run anything.
        woken.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Manual> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        self.lock().now
    }

    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (id, moves) = {
            let mut manual = self.lock();
            manual.next += 1;
            (manual.next, manual.moves)
        };
        Box::pin(ManualSleep { clock: self.clone(), deadline, id, moves })
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.lock().now).finish_non_exhaustive()
    }
}

struct ManualSleep {
    clock: ManualClock,
    deadline: Nanos,
    id: u64,
    moves: u64,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut manual = self.clock.lock();
        if manual.now >= self.deadline || manual.moves != self.moves {
            return Poll::Ready(());
        }
        let spare = manual.sleepers.insert(self.id, cx.waker().clone());
        // Outside the lock: dropping a waker may run anything.
        drop(manual);
        drop(spare);
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        // Bound, so that it is dropped after the lock.
        let _spare = self.clock.lock().sleepers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_default_clock_follows_tokios_paused_time() {
        let clock = AnyClock::default();
        let before = clock.now();
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now().since(before), 1_500_000_000);
        clock.sleep_until(before.after(4_000_000_000)).await;
        assert_eq!(clock.now().since(before), 4_000_000_000);
    }

    #[tokio::test]
    async fn moving_a_manual_clock_wakes_its_sleepers() {
        let clock = ManualClock::new();
        let sleeping = tokio::spawn(clock.sleep_until(Nanos(5)));
        tokio::task::yield_now().await;
        assert_eq!(clock.lock().sleepers.len(), 1);
        clock.advance(Duration::from_nanos(5));
        sleeping.await.unwrap();
        assert!(clock.lock().sleepers.is_empty());
    }

    #[test]
    fn a_dropped_sleeper_leaves_nothing_behind() {
        let clock = ManualClock::new();
        let mut sleep = clock.sleep_until(Nanos(5));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(sleep);
        assert!(clock.lock().sleepers.is_empty());
    }

    #[test]
    fn the_end_of_time_saturates() {
        let clock = ManualClock::new();
        clock.set(Duration::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Nanos::MAX);
        assert!(AnyClock::default().now() > Nanos::ZERO);
    }
}
