//! The clocks of the models.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::sync::Mutex;
use tower_throttle::clock::{Clock, ManualClock, Nanos};

/// The operations that the models need of a clock.
pub(crate) trait Time: Clock + Clone + Unpin {
    fn new() -> Self;
    fn tick(&self, by: Duration);
    /// `true` if waiters are woken when their scheduled time has come. Otherwise, the test must touch the keys, so that
    /// waiters are admitted.
    const RINGS: bool;
}

/// Wakes all sleepers at each tick.
impl Time for ManualClock {
    const RINGS: bool = true;

    fn new() -> Self {
        Self::new()
    }

    fn tick(&self, by: Duration) {
        self.advance(by);
    }
}

/// A clock whose timers fire exactly at their times, so that it hides no lost wakeup. If the clock is silent, its
/// timers never fire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timer<const RINGS: bool>(Arc<Mutex<Alarms>>);

pub(crate) type Strict = Timer<true>;
pub(crate) type Mute = Timer<false>;

#[derive(Debug, Default)]
pub(crate) struct Alarms {
    now: Nanos,
    next: u64,
    set: BTreeMap<(Nanos, u64), Waker>,
}

impl<const RINGS: bool> Time for Timer<RINGS> {
    const RINGS: bool = RINGS;

    fn new() -> Self {
        Self::default()
    }

    fn tick(&self, by: Duration) {
        let due = {
            let mut alarms = self.0.lock().unwrap();
            alarms.now = alarms.now.saturating_add(Nanos::from(by).0);
            let later = (Nanos(alarms.now.0 + 1), 0);
            let later = alarms.set.split_off(&later);
            std::mem::replace(&mut alarms.set, later)
        };
        due.into_values().filter(|_| RINGS).for_each(Waker::wake);
    }
}

impl<const RINGS: bool> Clock for Timer<RINGS> {
    fn now(&self) -> Nanos {
        self.0.lock().unwrap().now
    }

    fn is_monotonic(&self) -> bool {
        true
    }

    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let id = {
            let mut alarms = self.0.lock().unwrap();
            alarms.next += 1;
            alarms.next
        };
        let alarm = Alarm::<RINGS> { alarms: self.0.clone(), at: (deadline, id) };
        Box::pin(poll_fn(move |cx| alarm.poll(cx)))
    }
}

pub(crate) struct Alarm<const RINGS: bool> {
    alarms: Arc<Mutex<Alarms>>,
    at: (Nanos, u64),
}

impl<const RINGS: bool> Alarm<RINGS> {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut alarms = self.alarms.lock().unwrap();
        if RINGS && alarms.now >= self.at.0 {
            return Poll::Ready(());
        }
        alarms.set.insert(self.at, cx.waker().clone());
        Poll::Pending
    }
}

impl<const RINGS: bool> Drop for Alarm<RINGS> {
    fn drop(&mut self) {
        let _spare = self.alarms.lock().unwrap().set.remove(&self.at);
    }
}
