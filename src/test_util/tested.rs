use std::fmt;
use std::future::Future;
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
    Acquired, Attempt, BoxError, CheckStore, KeyedStore, MakeStore, ReplaceAlgorithm, Reservation,
    SettleStore, StoreSettings,
};
use crate::sys::random::random_u64;

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

/// The argument of a case, which makes the stores and limiters of that case.
#[derive(Clone)]
pub(super) struct Env<M> {
    pub(super) make: M,
}

impl<M> Env<M> {
    /// Makes a limiter with a new store.
    pub(super) fn limiter<A: Algorithm>(&self, algorithm: A) -> Tested<A, <M as MakeStore<A>>::Store>
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
pub(super) struct Tested<A: Algorithm, S> {
    pub(super) limiter: RateLimiter<A, S>,
    pub(super) store: S,
}

impl<A: Algorithm, S: TestedStore<A>> Tested<A, S> {
    pub(super) async fn check(&self, key: &str) -> Decision {
        self.check_n(key, 1).await
    }

    pub(super) async fn check_n(&self, key: &str, cost: u64) -> Decision {
        decided(S::reply(self.limiter.check_n(key, cost)).await)
    }

    pub(super) async fn peek(&self, key: &str) -> Decision {
        self.peek_n(key, 1).await
    }

    pub(super) async fn peek_n(&self, key: &str, cost: u64) -> Decision {
        decided(S::reply(self.limiter.peek_n(key, cost)).await)
    }

    pub(super) async fn remaining(&self, key: &str) -> u64 {
        self.peek(key).await.remaining()
    }

    /// Takes one unit, which must be available. Returns the number of remaining units.
    pub(super) async fn take(&self, key: &str) -> u64 {
        self.take_n(key, 1).await
    }

    /// Takes units, which must be available. Returns the number of remaining units.
    pub(super) async fn take_n(&self, key: &str, cost: u64) -> u64 {
        admitted(&self.check_n(key, cost).await)
    }

    /// Takes one unit of a layer's key, which must be available. Returns the number of remaining units.
    pub(super) async fn take_of(&self, key: &StoreKey<String>) -> u64 {
        admitted(&decided(S::reply(self.limiter.check(key)).await))
    }

    pub(super) async fn refund(&self, key: &str, cost: u64) {
        decided(S::reply(self.limiter.refund(key, cost)).await);
    }

    pub(super) async fn reset(&self, key: &str) {
        decided(S::reply(self.limiter.reset(key)).await);
    }

    pub(super) async fn acquire(&self, key: &str) -> Decision {
        decided(S::result(self.limiter.acquire(key).await))
    }

    pub(super) async fn acquire_n_within(&self, key: &str, cost: u64, max_wait: Duration) -> Decision {
        decided(S::result(self.limiter.acquire_n_within(key, cost, max_wait).await))
    }

    /// Charges a call that will be settled. Returns the decision and the reservation.
    pub(super) async fn charge(&self, key: &str, cost: u64) -> (Decision, Reservation) {
        let key = KeyedStore::<A, str>::key(&self.store, key);
        match self.store.acquire(key, Attempt::new(cost).with_reservation()) {
            Acquired::Ready(decision, reservation) => (decision, reservation),
            Acquired::Pending(wait) => decided(wait.await),
        }
    }

    /// Calls `check` until a call is denied. Returns the number of admitted calls, and the denial with its times.
    pub(super) async fn exhaust(&self, key: &str) -> (u64, Timed) {
        for admitted in 0..100_000 {
            let call = self.timed(key).await;
            if !call.decision.is_allowed() {
                return (admitted, call);
            }
        }
        panic!("no call is ever denied");
    }

    pub(super) async fn timed(&self, key: &str) -> Timed {
        let before = Instant::now();
        let decision = self.check(key).await;
        Timed { before, decision, after: Instant::now() }
    }

    /// Waits for at most two seconds until exactly `remaining` units are available. Panics if another number of units
    /// is then available. Some stores settle a call only after the settling method has returned.
    pub(super) async fn becomes(&self, key: &str, remaining: u64) {
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
pub(super) struct Timed {
    pub(super) before: Instant,
    pub(super) decision: Decision,
    pub(super) after: Instant,
}

impl Timed {
    /// Returns the `retry_after` of the denial.
    #[track_caller]
    pub(super) fn retry_after(&self) -> Duration {
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
pub(super) async fn until(time: Instant) {
    sleep_until(time + Duration::from_millis(1)).await;
}

impl<A: Algorithm, S> fmt::Debug for Tested<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tested").finish_non_exhaustive()
    }
}
