//! The promises of a limiter, as tests that run against any limiter (feature `test-util`).
//!
//! A limiter of your own must keep the same promises as the limiters of this crate. Otherwise, limits are not enforced
//! exactly. [`Contract`] verifies these promises:
//!
//! - counts are exact, also under concurrency;
//! - denials charge nothing, and report exact waits;
//! - different keys have separate budgets;
//! - refunds, cancelled calls, settled costs and replaced algorithms have the effects that the docs describe;
//! - a layer can use the limiter.
//!
//! The tests use tokio's clock. With `start_paused`, the tests of a limiter that uses tokio's clock take no time, and
//! their times are exact. The tests of other limiters take about two seconds. A case fails if it takes more than a
//! minute, or if a settlement has no effect within two seconds. There is no other upper bound on the time that a
//! limiter takes to reply, so a slow machine causes no other failures.
//!
//! ```
//! use tower_throttle::test_util::{Contract, InMemory};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let report = Contract::new(InMemory).run().await;
//! report.assert_passed();
//! assert!(report.passed().len() >= 40);
//! # }
//! ```
//!
//! For a limiter of your own, implement [`TestedLimiter`] and [`MakeLimiter`]:
//!
//! ```
//! use tower_throttle::RateLimiter;
//! use tower_throttle::algorithm::Algorithm;
//! use tower_throttle::error::BoxError;
//! use tower_throttle::test_util::{Contract, MakeLimiter};
//!
//! #[derive(Clone)]
//! struct SmallTables;
//!
//! impl<A: Algorithm> MakeLimiter<A> for SmallTables {
//!     type Limiter = RateLimiter<A>;
//!
//!     fn make(&self, name: &str, algorithm: A) -> Result<RateLimiter<A>, BoxError> {
//!         Ok(RateLimiter::builder(algorithm).name(name).max_keys(1_000).build())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! Contract::new(SmallTables).run().await.assert_passed();
//! # }
//! ```

mod cases;
mod contract;

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, Lockout, SlidingCounter, SlidingWindow, Tiered, TokenBucket,
};
use crate::decision::Decision;
use crate::error::BoxError;
use crate::key::StoreKey;
use crate::limiter::{Acquired, Attempt, Decided, LimiterFor, RateLimiter, Reservation, Settles};
use crate::sys::random::random_u64;

pub use contract::{Contract, Report};

/// A limiter that can be tested: it settles, has the keys of the tests, and supports what a layer does not need.
///
/// The methods return futures, so that limiters can reply later. A limiter that decides immediately returns [`ready`]
/// futures.
pub trait TestedLimiter: Settles + LimiterFor<str> + LimiterFor<StoreKey<String>> {
    /// Charges the call, in full or not at all. Never waits in a queue. The attempt has the cost of the call and, if
    /// the call has a tier, its [algorithm](Attempt::algorithm).
    fn check(
        &self,
        key: &str,
        attempt: Attempt<'_, Self::Algorithm>,
    ) -> impl Future<Output = Result<Decision, BoxError>> + Send;

    /// Returns a decision that tells whether [`check`](Self::check) would admit the call. Charges nothing.
    fn peek(
        &self,
        key: &str,
        attempt: Attempt<'_, Self::Algorithm>,
    ) -> impl Future<Output = Result<Decision, BoxError>> + Send;

    /// Refunds up to `cost` units that were charged to the key and still count.
    fn refund(&self, key: &str, cost: u64) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Resets the key to the state of a new key.
    fn reset(&self, key: &str) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Replaces the algorithm for all keys.
    fn replace(&self, algorithm: Self::Algorithm);
}

/// A maker of limiters that can be tested.
pub trait MakeLimiter<A: Algorithm>: Clone + Send + Sync + 'static {
    /// The limiter.
    type Limiter: TestedLimiter<Algorithm = A>;

    /// Makes a limiter. No other limiter of the tests has this name, so that limiters share no keys, even if the
    /// limiters of different runs use one server.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter cannot be made.
    fn make(&self, name: &str, algorithm: A) -> Result<Self::Limiter, BoxError>;
}

macro_rules! subject {
    ($($algorithm:ty),+ $(,)?) => {
        /// A [`MakeLimiter`] for all algorithms of the tests. This trait is implemented for all types that meet its
        /// bounds.
        #[doc(hidden)]
        pub trait Subject: $(MakeLimiter<$algorithm> +)+ {}

        impl<M> Subject for M where M: $(MakeLimiter<$algorithm> +)+ {}
    };
}

subject![
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
    LeakyBucket,
    (TokenBucket, FixedWindow),
    Tiered<FixedWindow>,
    Lockout<FixedWindow>,
];

/// Makes [`RateLimiter`]s with default options.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl<A: Algorithm> MakeLimiter<A> for InMemory {
    type Limiter = RateLimiter<A>;

    fn make(&self, name: &str, algorithm: A) -> Result<RateLimiter<A>, BoxError> {
        Ok(RateLimiter::builder(algorithm).name(name).build())
    }
}

impl<A: Algorithm> TestedLimiter for RateLimiter<A> {
    fn check(
        &self,
        key: &str,
        attempt: Attempt<'_, A>,
    ) -> impl Future<Output = Result<Decision, BoxError>> + Send {
        ready(Ok(self.check_attempt(key, attempt)))
    }

    fn peek(
        &self,
        key: &str,
        attempt: Attempt<'_, A>,
    ) -> impl Future<Output = Result<Decision, BoxError>> + Send {
        ready(Ok(self.peek_attempt(key, attempt)))
    }

    fn refund(&self, key: &str, cost: u64) -> impl Future<Output = Result<(), BoxError>> + Send {
        RateLimiter::refund(self, key, cost);
        ready(Ok(()))
    }

    fn reset(&self, key: &str) -> impl Future<Output = Result<(), BoxError>> + Send {
        RateLimiter::reset(self, key);
        ready(Ok(()))
    }

    fn replace(&self, algorithm: A) {
        RateLimiter::replace(self, algorithm);
    }
}

/// The future of a case. The future panics if the limiter breaks the promise.
type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One promise, and the function that tests the promise.
struct Case<M> {
    name: &'static str,
    run: fn(Env<M>) -> CaseFuture,
}

/// The argument of a case, which makes the limiters of that case.
#[derive(Clone)]
struct Env<M> {
    make: M,
}

impl<M> Env<M> {
    /// Makes a new limiter.
    fn limiter<A: Algorithm>(&self, algorithm: A) -> Tested<M::Limiter>
    where
        M: MakeLimiter<A>,
    {
        let made = self.make.make(&format!("contract-{:016x}", random_u64()), algorithm);
        Tested { limiter: made.unwrap_or_else(|error| panic!("the limiter cannot be made: {error}")) }
    }
}

/// A limiter that panics on an error of the limiter. The panic ends the test case.
#[derive(Clone)]
struct Tested<L> {
    limiter: L,
}

impl<L: TestedLimiter> Tested<L> {
    async fn check(&self, key: &str) -> Decision {
        self.check_n(key, 1).await
    }

    async fn check_n(&self, key: &str, cost: u64) -> Decision {
        decided(self.limiter.check(key, Attempt::new(cost)).await)
    }

    async fn check_tier(&self, key: &str, tier: &L::Algorithm) -> Decision {
        decided(self.limiter.check(key, Attempt::new(1).with_algorithm(tier)).await)
    }

    async fn peek(&self, key: &str) -> Decision {
        self.peek_n(key, 1).await
    }

    async fn peek_n(&self, key: &str, cost: u64) -> Decision {
        decided(self.limiter.peek(key, Attempt::new(cost)).await)
    }

    async fn remaining(&self, key: &str) -> u64 {
        self.peek(key).await.remaining()
    }

    /// Takes one unit, which must be available. Returns the number of remaining units.
    async fn take(&self, key: &str) -> u64 {
        self.take_n(key, 1).await
    }

    /// Takes units, which must be available. Returns the number of remaining units.
    async fn take_n(&self, key: &str, cost: u64) -> u64 {
        admitted(&self.check_n(key, cost).await)
    }

    /// Takes one unit of a layer's key, which must be available. Returns the number of remaining units.
    async fn take_of(&self, key: &StoreKey<String>) -> u64 {
        admitted(decide(&self.limiter, key, Attempt::new(1)).await.decision())
    }

    async fn refund(&self, key: &str, cost: u64) {
        decided(self.limiter.refund(key, cost).await);
    }

    async fn reset(&self, key: &str) {
        decided(self.limiter.reset(key).await);
    }

    async fn acquire(&self, key: &str) -> Decision {
        *decide(&self.limiter, key, Attempt::new(1).wait()).await.decision()
    }

    async fn acquire_n_within(&self, key: &str, cost: u64, max_wait: Duration) -> Decision {
        *decide(&self.limiter, key, Attempt::new(cost).wait().with_max_wait(max_wait)).await.decision()
    }

    /// Charges a call that will be settled. Returns the decision and the reservation.
    async fn charge(&self, key: &str, cost: u64) -> (Decision, Reservation) {
        let attempt = Attempt::new(cost).with_reservation();
        decide(&self.limiter, key, attempt).await.into_parts()
    }

    /// Calls `check` until a call is denied. Returns the number of admitted calls, and the denial with its times.
    async fn exhaust(&self, key: &str) -> (u64, Timed) {
        for admitted in 0..100_000 {
            let call = self.timed(key).await;
            if !call.decision.is_allowed() {
                return (admitted, call);
            }
        }
        panic!("no call is ever denied");
    }

    async fn timed(&self, key: &str) -> Timed {
        let before = Instant::now();
        let decision = self.check(key).await;
        Timed { before, decision, after: Instant::now() }
    }

    /// Waits for at most two seconds until exactly `remaining` units are available. Panics if another number of units
    /// is then available. Some limiters settle a call only after the settling method has returned.
    async fn becomes(&self, key: &str, remaining: u64) {
        let start = Instant::now();
        let mut actual = self.remaining(key).await;
        while actual != remaining && start.elapsed() < Duration::from_secs(2) {
            sleep_until(Instant::now() + Duration::from_millis(2)).await;
            actual = self.remaining(key).await;
        }
        assert_eq!(actual, remaining, "units that are available");
    }
}

/// A decision that was made between two readings of the clock.
struct Timed {
    before: Instant,
    decision: Decision,
    after: Instant,
}

impl Timed {
    /// Returns the `retry_after` of the denial.
    #[track_caller]
    fn retry_after(&self) -> Duration {
        assert!(!self.decision.is_allowed());
        self.decision.retry_after().expect("this denial reports a wait")
    }
}

#[track_caller]
fn admitted(decision: &Decision) -> u64 {
    assert!(decision.is_allowed(), "a call is denied that should be admitted: {decision:?}");
    decision.remaining()
}

#[track_caller]
fn decided<T, E: Into<BoxError>>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("the limiter failed: {}", error.into()))
}

/// Sleeps until 1 ms after `time`, because a server's clock may count in microseconds.
async fn until(time: Instant) {
    sleep_until(time + Duration::from_millis(1)).await;
}

impl<L> fmt::Debug for Tested<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tested").finish_non_exhaustive()
    }
}

/// Returns the decision on a call, which may wait if the attempt says so.
async fn decide<L: LimiterFor<K>, K: ?Sized>(
    limiter: &L,
    key: &K,
    attempt: Attempt<'_, L::Algorithm>,
) -> Decided {
    // The attempt ends before the wait, because it cannot be sent to another thread.
    let acquired = limiter.acquire(key, attempt);
    match acquired {
        Acquired::Ready(decision, reservation) => Decided::new(decision, reservation),
        Acquired::Pending(wait) => decided(wait.await),
    }
}
