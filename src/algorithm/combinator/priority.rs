//! Priority: borrowing from the next window.

use std::fmt::Debug;

use crate::algorithm::{
    Algorithm, FixedWindow, Lockout, QueueConfig, Queueing, QuotaPolicy, SlidingCounter, SlidingLog,
    SlidingWindow, Tiered, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A window from which calls with priority may borrow before it begins. Made by `priority(percent)`, a method
/// of the four windows.
///
/// An ordinary call is decided as by the window itself, with one exception: while calls with priority wait for
/// the next window, it is denied. A call [with priority](crate::limiter::RateLimiter::acquire_with_priority)
/// that the window has no room for waits until there is, which takes at most about one period (two periods with
/// a [`SlidingCounter`], whose units weigh for two windows), as long as the waiters' total cost is within the
/// share. The reported wait assumes that the waiters are released on time. The method
/// [`priority`](crate::middleware::RateLimitLayer::priority) of a layer sets which requests have priority.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_throttle::algorithm::FixedWindow;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(FixedWindow::new(Quota::per_second(4)).priority(50));
/// assert!(limiter.check_n("upstream", 4).is_allowed());
/// assert!(!limiter.acquire("upstream").await.is_allowed());
/// let payment = limiter.acquire_with_priority("upstream", 1).await;
/// assert!(payment.is_allowed());
/// assert_eq!(payment.delay(), Duration::from_secs(1));
/// # }
/// ```
///
/// # How it works
///
/// **Problem.** The window is used up, and now a call arrives that must not be denied: the payment among the
/// page views.
///
/// **Naive answer.** Admit it over the limit.
///
/// **Where it breaks.** Then there is no limit. If the important calls are many, they break what the limit
/// protects.
///
/// **The idea** (from Sentinel, where it is called *occupy*). Such a call is not admitted now: it takes its
/// units from the next window, and waits until that begins. The part of the next window that can be borrowed is
/// bounded.
///
/// ```text
///   limit 4, priority for 50 %
///
///            window          next window
///   ├───────────────────────┼───────────────────────┤
///   ● ● ● ●  ✗   ①   ②  ③✗  ①② ● ●  ✗
///            │   └ queued ──────────┘   └──── what is left for the others
///            └ denied: it has no priority            ③ is denied: half of the next window is taken
/// ```
///
/// Here the borrowing calls are queued before the window, and no call overtakes them: so the units are theirs,
/// and if one of them is cancelled, they are returned.
///
/// **Invariant.** The inner algorithm's limit holds for all calls. At most the share of the limit is queued.
///
/// **Cost.** No more memory per key; a waiting call takes a place in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Priority<A> {
    algorithm: A,
    /// The maximum number of units that may be borrowed.
    units: u64,
}

/// A window that knows when it has room. Implemented by this crate's windows only.
pub trait Window: Algorithm + sealed::Sealed {
    /// Returns the limit.
    #[doc(hidden)]
    fn limit(&self) -> u64;

    /// Returns the number of units left at the state's own time.
    #[doc(hidden)]
    fn left(&self, state: &Self::State) -> u64;

    /// Returns the time until all units are available, from the state's own time on, in nanoseconds.
    #[doc(hidden)]
    fn reset_in(&self, state: &Self::State) -> u64;

    /// Removes the newest units, which were charged at `taken`.
    #[doc(hidden)]
    fn withdraw(&self, state: &mut Self::State, units: u64, taken: Nanos) {
        let seen = self.last_update(state);
        self.undo(state, seen, units, taken);
    }

    /// Returns the time until `units` fit, from the state's own time on, in nanoseconds; `u64::MAX` if they
    /// never do.
    #[doc(hidden)]
    fn room_in(&self, state: &Self::State, units: u64) -> u64;
}

mod sealed {
    pub trait Sealed {}
}

/// An algorithm that treats calls with priority differently from others.
///
/// Implemented by [`Priority`], and by [`Tiered`] and [`Lockout`] over it. Tuples have no calls with priority.
/// Implement it for an algorithm of your own whose queue [lends](Queueing::lends).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no calls with priority",
    label = "priority has no effect here",
    note = "call `.priority(percent)` on the window that the limiter or the layer is built with"
)]
pub trait HasPriority: Algorithm {}

impl<A: Window> HasPriority for Priority<A> {}
impl<A: HasPriority + PartialEq> HasPriority for Tiered<A> {}
impl<A: HasPriority> HasPriority for Lockout<A> {}

impl<A: Window> Priority<A> {
    /// Returns the window.
    #[must_use]
    pub const fn algorithm(&self) -> &A {
        &self.algorithm
    }

    /// Returns the maximum number of units that calls with priority may borrow from the next window.
    #[must_use]
    pub const fn borrowed_units(&self) -> u64 {
        self.units
    }

    fn new(algorithm: A, percent: u8) -> Self {
        assert!(percent <= 100, "over 100 % of the next window cannot be borrowed: give 0 to 100");
        let units = u128::from(algorithm.limit()) * u128::from(percent) / 100;
        // At most the limit.
        Self { algorithm, units: units as u64 }
    }
}

/// Decides as the window does.
impl<A: Window> Algorithm for Priority<A> {
    type State = A::State;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> A::State {
        self.algorithm.new_state(created_at, now)
    }

    #[inline]
    fn last_update(&self, state: &A::State) -> Nanos {
        self.algorithm.last_update(state)
    }

    #[inline]
    fn check(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.algorithm.check(state, now, cost)
    }

    fn peek(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.algorithm.peek(state, now, cost)
    }

    fn refund(&self, state: &mut A::State, now: Nanos, cost: u64) {
        self.algorithm.refund(state, now, cost);
    }

    fn charge_saturating(&self, state: &mut A::State, now: Nanos, cost: u64) {
        self.algorithm.charge_saturating(state, now, cost);
    }

    fn undo(&self, state: &mut A::State, now: Nanos, cost: u64, taken: Nanos) {
        self.algorithm.undo(state, now, cost, taken);
    }

    fn migrate(&self, state: &mut A::State, from: &Self, now: Nanos) {
        self.algorithm.migrate(state, &from.algorithm, now);
    }

    fn is_fresh(&self, state: &A::State, now: Nanos) -> bool {
        self.algorithm.is_fresh(state, now)
    }

    fn usage(&self, state: &A::State, now: Nanos) -> Usage {
        self.algorithm.usage(state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.algorithm.policy()
    }

    fn ignores_burst(&self) -> bool {
        self.algorithm.ignores_burst()
    }

    fn queueing(&self) -> Option<&dyn Queueing<A::State>> {
        Some(self)
    }
}

impl<A: Window> Priority<A> {
    fn inner(&self) -> &dyn Queueing<A::State> {
        match self.algorithm.queueing() {
            Some(queueing) => queueing,
            None => unreachable!("a window has a queue"),
        }
    }
}

/// A queue for calls with priority: the window's, bounded by the share.
impl<A: Window> Queueing<A::State> for Priority<A> {
    /// Returns that of the window, without any place for a call that has no priority.
    fn queue_config(&self, state: &A::State) -> QueueConfig {
        self.inner().queue_config(state).queue(0)
    }

    fn capacity(&self, state: &A::State) -> u64 {
        self.inner().capacity(state)
    }

    fn at_once(&self, state: &A::State) -> u64 {
        self.inner().at_once(state)
    }

    fn fits(&self, state: &A::State, cost: u64) -> bool {
        self.inner().fits(state, cost)
    }

    fn lends(&self, _state: &A::State) -> Option<u64> {
        Some(self.units)
    }

    fn is_plain(&self) -> bool {
        false
    }

    fn turn(&self, state: &A::State, cost: u64) -> Nanos {
        self.inner().turn(state, cost)
    }

    fn is_due(&self, state: &A::State, cost: u64) -> bool {
        self.inner().is_due(state, cost)
    }

    fn leave(&self, state: &mut A::State, arrived: Nanos, cost: u64) {
        self.inner().leave(state, arrived, cost);
    }

    fn passing(&self, state: &A::State, seen: Nanos) -> u64 {
        self.inner().passing(state, seen)
    }

    fn reset(&self, state: &A::State, now: Nanos) -> u64 {
        self.inner().reset(state, now)
    }

    fn keep(&self, state: &A::State) -> Option<A::State> {
        self.inner().keep(state)
    }

    fn take_back(&self, state: &mut A::State, cost: u64, released: Nanos) {
        self.inner().take_back(state, cost, released);
    }

    fn time(&self, state: &A::State) -> Nanos {
        self.inner().time(state)
    }

    fn observe(&self, state: &mut A::State, now: Nanos) -> Nanos {
        self.inner().observe(state, now)
    }
}

macro_rules! priority {
    ($($window:ty)+) => {
        $(
            impl sealed::Sealed for $window {}

            impl $window {
                /// Lets calls with priority borrow up to `percent` of the limit from the next window, and wait
                /// for it no longer than its `max_wait`. Its `queue` and `overflow` have no meaning then. See
                /// [`Priority`].
                ///
                /// # Panics
                ///
                /// Panics if `percent` is above 100.
                #[must_use]
                pub fn priority(self, percent: u8) -> Priority<Self> {
                    Priority::new(self, percent)
                }
            }
        )+
    };
}

priority!(FixedWindow SlidingWindow SlidingCounter SlidingLog);
