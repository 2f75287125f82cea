//! # Priority: borrowing from the next window
//!
//! **Problem.** The window is used up, and now comes the call that must not be refused: the payment among the page
//! views.
//!
//! **Naive answer.** Let it pass over the limit.
//!
//! **Where it breaks.** Then the limit is none. If the important calls are many, they break what the limit protects.
//!
//! **The idea** (from Sentinel, where it is called *occupy*). Such a call does not pass now: it takes its units from
//! the next window, and waits until that begins. How much of the next window can be taken like that is bounded.
//!
//! ```text
//!   limit 4, priority for 50 %
//!
//!            window          next window
//!   ├───────────────────────┼───────────────────────┤
//!   ● ● ● ●  ✗   ①   ②  ③✗  ①② ● ●  ✗
//!            │   └ queue_methods ───┘   └──── what is left for the others
//!            └ refused: it has no priority           ③ is refused: half of the next window is taken
//! ```
//!
//! Here those who borrow stand in a line before the window, and nobody overtakes them: so what they took is theirs,
//! and if one of them gives up, it goes back.
//!
//! **Invariant.** The rule inside holds, whoever calls. At most the share of the limit stands in line.
//!
//! **Cost.** No more memory per key; who waits costs a place in the line.

use std::fmt::Debug;
use std::time::Duration;

use crate::algorithm::{
    Algorithm, FixedWindow, Lockout, QueueConfig, Queueing, QuotaPolicy, SlidingCounter, SlidingLog,
    SlidingWindow, Tiered, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A window from which calls with priority may borrow before it begins. Made by `priority(percent)`, a method of the
/// four windows.
///
/// An ordinary call is decided as by the window itself, but for this: while calls with priority wait for the next
/// window, it is refused. A call [with priority](crate::limiter::RateLimiter::acquire_with_priority) that the window
/// has no room for waits until there is, which is at most about one period, if all who wait stand for no more than
/// the share. What is told of the wait counts on those who wait to leave on time. (With a [`SlidingCounter`], whose
/// units weigh for two windows, two periods.) A layer is told by
/// [`priority`](crate::middleware::RateLimitLayer::priority) which requests have it.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Priority<A> {
    algorithm: A,
    /// How many units may be borrowed.
    units: u64,
}

/// A window that can say when it has room. Implemented by this crate's windows only.
pub trait Window: Algorithm + sealed::Sealed {
    /// The limit.
    #[doc(hidden)]
    fn limit(&self) -> u64;

    /// How many units are left, at the state's own time.
    #[doc(hidden)]
    fn left(&self, state: &Self::State) -> u64;

    /// How long until all are, from the state's own time on.
    #[doc(hidden)]
    fn reset_in(&self, state: &Self::State) -> u64;

    /// Takes the newest units out, which were taken at `taken`.
    #[doc(hidden)]
    fn withdraw(&self, state: &mut Self::State, units: u64, taken: Nanos) {
        let seen = self.last_update(state);
        self.undo(state, seen, units, taken);
    }

    /// How long until so many units fit, from the state's own time on; `u64::MAX` if never.
    #[doc(hidden)]
    fn room_in(&self, state: &Self::State, units: u64) -> u64;
}

mod sealed {
    pub trait Sealed {}
}

/// An algorithm that treats calls with priority differently from others.
///
/// [`Priority`], and [`Tiered`] and [`Lockout`] over it. Not tuples: they have no calls with priority. Implement it for
/// an algorithm of your own whose line [lends](Queueing::lends).
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
    fn new(algorithm: A, percent: u8) -> Self {
        assert!(percent <= 100, "over 100 % of the next window cannot be borrowed: give 0 to 100");
        let units = u128::from(algorithm.limit()) * u128::from(percent) / 100;
        // At most the limit.
        Self { algorithm, units: units as u64 }
    }
}

/// All answers are those of the window.
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

    fn header_window(&self, decision: &Decision) -> Option<Duration> {
        self.algorithm.header_window(decision)
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
            Some(line) => line,
            None => unreachable!("a window has a line"),
        }
    }
}

/// A line for calls with priority: the window's, but that the share bounds it.
impl<A: Window> Queueing<A::State> for Priority<A> {
    /// That of the window, but that no place is for a call without priority.
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
                /// Lets calls with priority borrow up to `percent` of the limit from the next window, and wait for it
                /// no longer than its `max_wait`. Its `queue` and `overflow` have no meaning then. See [`Priority`].
                ///
                /// # Panics
                ///
                /// If `percent` is above 100.
                #[must_use]
                pub fn priority(self, percent: u8) -> Priority<Self> {
                    Priority::new(self, percent)
                }
            }
        )+
    };
}

priority!(FixedWindow SlidingWindow SlidingCounter SlidingLog);
