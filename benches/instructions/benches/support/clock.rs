//! A clock that advances by the same time at each reading.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_throttle_instructions::clock::{Clock, Nanos};

/// A clock that starts at one hour, and advances by one microsecond at each reading.
#[derive(Debug)]
pub struct Steps(AtomicU64);

impl Steps {
    pub fn new() -> Self {
        Self(AtomicU64::new(3_600_000_000_000))
    }
}

impl Clock for Steps {
    #[inline]
    fn now(&self) -> Nanos {
        // Only one thread reads the clock. So no locked instruction is needed, which would be counted.
        let now = self.0.load(Ordering::Relaxed) + 1_000;
        self.0.store(now, Ordering::Relaxed);
        Nanos(now)
    }

    fn is_monotonic(&self) -> bool {
        true
    }

    fn sleep_until(&self, _: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(pending())
    }
}
