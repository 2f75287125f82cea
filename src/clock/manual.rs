//! A clock for tests.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Clock, Nanos};
use crate::sys::lock::{Mutex, MutexGuard, PoisonError};
use crate::sys::wakers::wake_all;

/// A clock that moves only when it is set or advanced. All clones show the same time.
///
/// The clock starts at zero. Moving it in either direction wakes all tasks that sleep on it.
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
    /// The number of times that the clock was moved. By this number, a sleeper notices a move that was made before the
    /// sleeper's first poll.
    moves: u64,
    next: u64,
    sleepers: HashMap<u64, Waker>,
}

impl ManualClock {
    /// Creates a clock at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the clock. The time saturates at [`Nanos::MAX`], 584 years after zero.
    pub fn advance(&self, by: Duration) {
        self.step(|now| now.saturating_add(Nanos::from(by).0));
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
        // The wakers are woken outside the lock, because a waker may run any code.
        wake_all(woken);
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
        // The deadline `Nanos::MAX` is never reached, so a sleep with this deadline ends only when the clock is moved.
        let is_over = manual.now >= self.deadline && self.deadline < Nanos::MAX;
        if is_over || manual.moves != self.moves {
            return Poll::Ready(());
        }
        let spare = manual.sleepers.insert(self.id, cx.waker().clone());
        // The old waker is dropped outside the lock, because dropping a waker may run any code.
        drop(manual);
        drop(spare);
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        // The waker is bound to a name, so that it is dropped after the clock is unlocked.
        let _spare = self.clock.lock().sleepers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
