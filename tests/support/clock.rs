//! Clocks, one of which advances at each reading, as a real clock does, and limiters with a manual clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::{Clock, ManualClock, Nanos};

pub(crate) fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

/// A manual clock that advances at each reading, so that all readings differ. Clones share the time.
#[derive(Clone, Debug)]
pub(crate) struct TickingClock {
    manual: ManualClock,
    ticked: Arc<AtomicU64>,
    /// The time by which each reading advances the clock, in nanoseconds.
    step: u64,
}

impl TickingClock {
    /// Creates a clock that advances by a nanosecond at each reading.
    pub(crate) fn new() -> Self {
        Self { step: 1, ..Self::still() }
    }

    /// Creates a clock that stands still unless it is moved.
    pub(crate) fn still() -> Self {
        Self { manual: ManualClock::new(), ticked: Arc::default(), step: 0 }
    }

    /// Returns a clock that stands still, and one that advances at each reading.
    pub(crate) fn both() -> [Self; 2] {
        [Self::still(), Self::new()]
    }

    pub(crate) fn ticks(&self) -> bool {
        self.step > 0
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.manual.advance(by);
    }

    /// Sets the clock. The nanoseconds by which readings have advanced the clock are added to this time.
    pub(crate) fn set(&self, to: Duration) {
        self.manual.set(to);
    }
}

impl Clock for TickingClock {
    fn now(&self) -> Nanos {
        let ticked = self.ticked.fetch_add(self.step, Ordering::SeqCst);
        self.manual.now().saturating_add(ticked + self.step)
    }

    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.manual.sleep_until(deadline)
    }
}
