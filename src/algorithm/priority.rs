//! Priority: borrowing from the next window.

use std::fmt::Debug;

use crate::algorithm::{
    Algorithm, FixedWindow, Lockout, QueueConfig, QuotaPolicy, SlidingCounter, SlidingLog, SlidingWindow,
    Tiered, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A window algorithm that lets calls with priority borrow units of the next window. The method `priority(percent)` of
/// [`FixedWindow`], [`SlidingWindow`], [`SlidingCounter`] and [`SlidingLog`] creates it.
///
/// A call without priority is decided by the window itself, except that the call is denied while calls with priority
/// are queued. A call [with priority](crate::limiter::RateLimiter::acquire_with_priority) that cannot pass now is
/// queued until the window has room for the call. If the total cost of the queue would then exceed the given percentage
/// of the limit, the call is denied. The wait is at most one period. With a [`SlidingWindow`], it is at most one period
/// plus one slice. With a [`SlidingCounter`], whose units count in two windows, it is at most two periods. The
/// `retry_after` of a denied call assumes that the queued calls are released on time. A call that is released late is
/// charged late, so the real wait can be longer. The method [`priority`](crate::middleware::RateLimitLayer::priority)
/// of a layer sets which requests have priority.
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
/// **Problem.** The window is already used up, and a call arrives that must not be denied, such as a payment among page
/// views.
///
/// **Naive answer.** Admit the call over the limit.
///
/// **Where it breaks.** Important calls are not limited at all. Many of them together overload the service that the
/// limit protects.
///
/// **The idea** (from Alibaba's Sentinel, where it is called *occupy*). A call with priority takes its units from the
/// next window, and waits until that window begins. Only a given percentage of the next window can be borrowed.
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
/// In this crate, the borrowing calls are queued, and no other call overtakes them. So their units are reserved without
/// a charge, and if a borrowing call is cancelled, other calls can use its units.
///
/// **Invariant.** The limit of the window holds for all calls. The queued calls cost at most the given percentage of
/// the limit.
///
/// **Cost.** A key takes no more memory than without priority, except for the waiters in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Priority<A> {
    algorithm: A,
    /// The maximum number of units that may be borrowed.
    units: u64,
}

/// A window algorithm from which calls with priority may borrow. Only the window algorithms of this crate implement
/// this trait.
pub trait Window: Algorithm + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

/// An algorithm that treats calls with priority differently from other calls.
///
/// [`Priority`] implements this trait, and so does a [`Tiered`] or [`Lockout`] that contains a `Priority`. Tuples do
/// not support priority. Implement this trait for an algorithm of your own if only calls with priority wait in its
/// queue ([`QueueConfig::priority_only`]).
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
        let units = u128::from(algorithm.policy().quota) * u128::from(percent) / 100;
        // The result is at most the limit, so it fits.
        Self { algorithm, units: units as u64 }
    }
}

/// The window makes all decisions. Only the queue differs.
impl<A: Window> Algorithm for Priority<A> {
    type State = A::State;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;

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

    fn undo(&self, state: &mut A::State, now: Nanos, cost: u64, charged_at: Nanos) {
        self.algorithm.undo(state, now, cost, charged_at);
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

    /// Returns the queue configuration of the window, changed so that only calls with priority wait.
    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        self.algorithm.queue_config().map(|queue| queue.priority_only(self.units))
    }

    fn ready_at(&self, state: &mut A::State, now: Nanos, cost: u64) -> Option<Nanos> {
        self.algorithm.ready_at(state, now, cost)
    }

    fn admit_queued(&self, state: &mut A::State, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        self.algorithm.admit_queued(state, now, arrived, cost)
    }
}

macro_rules! priority {
    ($($window:ty)+) => {
        $(
            impl sealed::Sealed for $window {}
            impl Window for $window {}

            impl $window {
                /// Lets calls with priority borrow up to `percent` of the limit from the next window. Each of these
                /// calls waits at most the `max_wait` of this algorithm. The `queue` and `overflow` of this algorithm
                /// have no effect. See [`Priority`].
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
