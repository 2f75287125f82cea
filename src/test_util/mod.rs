//! The promises of a store, as tests that run against any store (feature `test-util`).
//!
//! A store of your own must keep the same promises as the stores of this crate. Otherwise, limits are not enforced
//! exactly. [`Contract`] verifies these promises:
//!
//! - counts are exact, also under concurrency;
//! - denials charge nothing, and report exact waits;
//! - different keys have separate budgets;
//! - refunds, cancelled calls, settled costs and replaced algorithms have the effects that the docs describe;
//! - a layer can use the store.
//!
//! The tests use tokio's clock. With `start_paused`, the tests of a store that uses tokio's clock take no time, and
//! their times are exact. The tests of other stores take about two seconds. A case fails if it takes more than a
//! minute, or if a settlement has no effect within two seconds. There is no other upper bound on the time that a store
//! takes to reply, so a slow machine causes no other failures.
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
//! For a store of your own, implement [`TestedStore`]. Its methods await the replies of the store:
//!
//! ```
//! # use std::future::Future;
//! # use std::pin::Pin;
//! # use tower_throttle::algorithm::Algorithm;
//! # use tower_throttle::key::StoreKey;
//! use tower_throttle::error::BoxError;
//! use tower_throttle::store::{CheckStore, KeyedStore, ReplaceAlgorithm, SettleStore};
//! use tower_throttle::test_util::TestedStore;
//!
//! # fn implement<A, E, S>()
//! # where
//! #     A: Algorithm,
//! #     E: Into<BoxError>,
//! #     S: SettleStore<A> + ReplaceAlgorithm<A> + KeyedStore<A, str> + KeyedStore<A, StoreKey<String>>
//! #         + CheckStore<A>,
//! # {
//! # struct MyStore<S>(S);
//! # }
//! type Reply<T> = Pin<Box<dyn Future<Output = Result<T, std::io::Error>> + Send>>;
//!
//! // as in `impl TestedStore<A> for MyStore<A>`
//! async fn reply<T: Send + 'static>(reply: Reply<T>) -> Result<T, BoxError> {
//!     Ok(reply.await?)
//! }
//! ```

mod cases;
mod contract;

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, Lockout, SlidingCounter, SlidingWindow, Tiered, TokenBucket,
};
use crate::clock::AnyClock;
use crate::decision::Decision;
use crate::key::StoreKey;
use crate::limiter::RateLimiter;
use crate::store::{
    Acquired, Attempt, BoxError, CheckStore, KeyedStore, MakeStore, MemoryOptions, MemoryStore, OnClose,
    OnFull, ReplaceAlgorithm, Reservation, SettleStore, StoreSettings,
};
use crate::sys::random::random_u64;

pub use contract::{Contract, Report};

/// A store whose replies can be awaited, whether the store answers immediately or later.
pub trait TestedStore<A: Algorithm>:
    CheckStore<A> + SettleStore<A> + ReplaceAlgorithm<A> + KeyedStore<A, str> + KeyedStore<A, StoreKey<String>>
{
    /// Awaits a reply.
    fn reply<T: Send + 'static>(reply: Self::Reply<T>) -> impl Future<Output = Result<T, BoxError>> + Send;

    /// Converts the output of a future of the limiter, such as the future of `acquire`.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    fn result<T>(output: Self::Output<T>) -> Result<T, BoxError>;
}

/// A [`MakeStore`] whose stores can be tested. This trait is implemented for all types that meet its bounds.
#[doc(hidden)]
pub trait MakeTested<A: Algorithm>:
    MakeStore<A, Store: TestedStore<A>> + Clone + Send + Sync + 'static
{
}

impl<A: Algorithm, M> MakeTested<A> for M where
    M: MakeStore<A, Store: TestedStore<A>> + Clone + Send + Sync + 'static
{
}

macro_rules! subject {
    ($($algorithm:ty),+ $(,)?) => {
        /// A [`MakeStore`] for all algorithms of the tests. This trait is implemented for all types that meet its
        /// bounds.
        #[doc(hidden)]
        pub trait Subject: $(MakeTested<$algorithm> +)+ {}

        impl<M> Subject for M where M: $(MakeTested<$algorithm> +)+ {}
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

/// Makes a [`MemoryStore`] with default options.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl<A: Algorithm> MakeStore<A> for InMemory {
    type Store = MemoryStore<A>;
    type Error = Infallible;

    fn make_store(self, settings: StoreSettings<A>) -> Result<MemoryStore<A>, Infallible> {
        let options = MemoryOptions {
            max_keys: MemoryStore::<A>::DEFAULT_MAX_KEYS,
            max_queued: None,
            on_close: OnClose::default(),
            on_full: OnFull::default(),
        };
        Ok(MemoryStore::with(settings.algorithm, settings.clock, options))
    }
}

impl<A: Algorithm> TestedStore<A> for MemoryStore<A> {
    fn reply<T: Send + 'static>(reply: T) -> impl Future<Output = Result<T, BoxError>> + Send {
        ready(Ok(reply))
    }

    fn result<T>(output: T) -> Result<T, BoxError> {
        Ok(output)
    }
}

/// The future of a case. The future panics if the store breaks the promise.
type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One promise, and the function that tests the promise.
struct Case<M> {
    name: &'static str,
    run: fn(Env<M>) -> CaseFuture,
}

/// The argument of a case, which makes the stores and limiters of that case.
#[derive(Clone)]
struct Env<M> {
    make: M,
}

impl<M> Env<M> {
    /// Makes a limiter with a new store.
    fn limiter<A: Algorithm>(&self, algorithm: A) -> Tested<A, <M as MakeStore<A>>::Store>
    where
        M: MakeTested<A>,
    {
        // Each name is used only once, so that limiters share no keys, even if the limiters of different runs use one
        // server.
        let name = format!("contract-{:016x}", random_u64());
        let settings = StoreSettings { algorithm, clock: AnyClock::default(), name: Some(name) };
        let made = <M as MakeStore<A>>::make_store(self.make.clone(), settings);
        let store = made.unwrap_or_else(|error| panic!("the store cannot be made: {error}"));
        Tested { limiter: RateLimiter::with_store(store.clone()), store }
    }
}

/// A limiter that panics on an error of the store. The panic ends the test case.
struct Tested<A: Algorithm, S> {
    limiter: RateLimiter<A, S>,
    store: S,
}

impl<A: Algorithm, S: TestedStore<A>> Tested<A, S> {
    async fn check(&self, key: &str) -> Decision {
        self.check_n(key, 1).await
    }

    async fn check_n(&self, key: &str, cost: u64) -> Decision {
        decided(S::reply(self.limiter.check_n(key, cost)).await)
    }

    async fn peek(&self, key: &str) -> Decision {
        self.peek_n(key, 1).await
    }

    async fn peek_n(&self, key: &str, cost: u64) -> Decision {
        decided(S::reply(self.limiter.peek_n(key, cost)).await)
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
        admitted(&decided(S::reply(self.limiter.check(key)).await))
    }

    async fn refund(&self, key: &str, cost: u64) {
        decided(S::reply(self.limiter.refund(key, cost)).await);
    }

    async fn reset(&self, key: &str) {
        decided(S::reply(self.limiter.reset(key)).await);
    }

    async fn acquire(&self, key: &str) -> Decision {
        decided(S::result(self.limiter.acquire(key).await))
    }

    async fn acquire_n_within(&self, key: &str, cost: u64, max_wait: Duration) -> Decision {
        decided(S::result(self.limiter.acquire_n_within(key, cost, max_wait).await))
    }

    /// Charges a call that will be settled. Returns the decision and the reservation.
    async fn charge(&self, key: &str, cost: u64) -> (Decision, Reservation) {
        let key = KeyedStore::<A, str>::key(&self.store, key);
        match self.store.acquire(key, Attempt::new(cost).with_reservation()) {
            Acquired::Ready(decision, reservation) => (decision, reservation),
            Acquired::Pending(wait) => decided(wait.await),
        }
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
    /// is then available. Some stores settle a call only after the settling method has returned.
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

impl<A: Algorithm, S: Clone> Clone for Tested<A, S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), store: self.store.clone() }
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
    result.unwrap_or_else(|error| panic!("the store failed: {}", error.into()))
}

/// Sleeps until 1 ms after `time`, because a server's clock may count in microseconds.
async fn until(time: Instant) {
    sleep_until(time + Duration::from_millis(1)).await;
}

impl<A: Algorithm, S> fmt::Debug for Tested<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tested").finish_non_exhaustive()
    }
}
