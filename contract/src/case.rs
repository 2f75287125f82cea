//! What a case is, what it makes its limiters with, and what it asks of them.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::error::BoxError;
use tower_throttle::key::StoreKey;
use tower_throttle::limiter::{Acquired, Attempt, Decided, LimiterFor, Reservation};

use crate::tested::{MakeLimiter, MakePermits, TestedLimiter};

/// The future of a case. The future panics if the limiter breaks the promise.
pub(crate) type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One promise, and the function that tests the promise.
pub(crate) struct Case<M> {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Env<M>) -> CaseFuture,
}

/// The argument of a case, which makes the limiters of that case.
#[derive(Clone)]
pub(crate) struct Env<M> {
    pub(crate) make: M,
}

impl<M> Env<M> {
    /// Makes a new limiter.
    pub(crate) fn limiter<A: Algorithm>(&self, algorithm: A) -> Tested<M::Limiter>
    where
        M: MakeLimiter<A>,
    {
        Tested { limiter: made(self.make.make(&new_name(), algorithm)) }
    }

    /// Makes a new limiter of the calls in progress.
    pub(crate) fn permits(&self, limit: u64) -> M::Limiter
    where
        M: MakePermits,
    {
        made(self.make.make(&new_name(), limit))
    }
}

/// Returns a name that no other limiter has.
fn new_name() -> String {
    format!("contract-{:016x}", RandomState::new().hash_one(0_u64))
}

#[track_caller]
fn made<L>(made: Result<L, BoxError>) -> L {
    made.unwrap_or_else(|error| panic!("the limiter cannot be made: {error}"))
}

/// A limiter that panics on an error of the limiter. The panic ends the test case.
#[derive(Clone)]
pub(crate) struct Tested<L> {
    pub(crate) limiter: L,
}

impl<L: TestedLimiter> Tested<L> {
    pub(crate) async fn check(&self, key: &str) -> Decision {
        self.check_n(key, 1).await
    }

    pub(crate) async fn check_n(&self, key: &str, cost: u64) -> Decision {
        decided(self.limiter.check(key, cost).await)
    }

    pub(crate) async fn check_tier(&self, key: &str, tier: &L::Algorithm) -> Decision {
        *decide(&self.limiter, key, Attempt::new(1).with_algorithm(tier)).await.decision()
    }

    pub(crate) async fn peek(&self, key: &str) -> Decision {
        self.peek_n(key, 1).await
    }

    pub(crate) async fn peek_n(&self, key: &str, cost: u64) -> Decision {
        decided(self.limiter.peek(key, cost).await)
    }

    pub(crate) async fn remaining(&self, key: &str) -> u64 {
        self.peek(key).await.remaining()
    }

    /// Takes one unit, which must be available. Returns the number of remaining units.
    pub(crate) async fn take(&self, key: &str) -> u64 {
        self.take_n(key, 1).await
    }

    /// Takes units, which must be available. Returns the number of remaining units.
    pub(crate) async fn take_n(&self, key: &str, cost: u64) -> u64 {
        admitted(&self.check_n(key, cost).await)
    }

    /// Takes one unit of a layer's key, which must be available. Returns the number of remaining units.
    pub(crate) async fn take_of(&self, key: &StoreKey<String>) -> u64 {
        admitted(decide(&self.limiter, key, Attempt::new(1)).await.decision())
    }

    pub(crate) async fn refund(&self, key: &str, cost: u64) {
        decided(self.limiter.refund(key, cost).await);
    }

    pub(crate) async fn reset(&self, key: &str) {
        decided(self.limiter.reset(key).await);
    }

    pub(crate) async fn acquire(&self, key: &str) -> Decision {
        *decide(&self.limiter, key, Attempt::new(1).wait()).await.decision()
    }

    pub(crate) async fn acquire_n_within(&self, key: &str, cost: u64, max_wait: Duration) -> Decision {
        *decide(&self.limiter, key, Attempt::new(cost).wait().with_max_wait(max_wait)).await.decision()
    }

    /// Charges a call that will be settled. Returns the decision and the reservation.
    pub(crate) async fn charge(&self, key: &str, cost: u64) -> (Decision, Reservation) {
        let attempt = Attempt::new(cost).with_reservation();
        decide(&self.limiter, key, attempt).await.into_parts()
    }

    /// Calls `check` until a call is denied. Returns the number of admitted calls, and the denial with its times.
    pub(crate) async fn exhaust(&self, key: &str) -> (u64, Timed) {
        for admitted in 0..100_000 {
            let call = self.timed(key).await;
            if !call.decision.is_allowed() {
                return (admitted, call);
            }
        }
        panic!("no call is ever denied");
    }

    pub(crate) async fn timed(&self, key: &str) -> Timed {
        let before = Instant::now();
        let decision = self.check(key).await;
        Timed { before, decision, after: Instant::now() }
    }

    /// Waits for at most two seconds until exactly `remaining` units are available. Panics if another number of units
    /// is then available. Some limiters settle a call only after the settling method has returned.
    pub(crate) async fn becomes(&self, key: &str, remaining: u64) {
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
pub(crate) struct Timed {
    pub(crate) before: Instant,
    pub(crate) decision: Decision,
    pub(crate) after: Instant,
}

impl Timed {
    /// Returns the `retry_after` of the denial.
    #[track_caller]
    pub(crate) fn retry_after(&self) -> Duration {
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
pub(crate) async fn until(time: Instant) {
    sleep_until(time + Duration::from_millis(1)).await;
}

impl<L> fmt::Debug for Tested<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tested").finish_non_exhaustive()
    }
}

/// Returns the decision on a call, which may wait if the attempt says so.
pub(crate) async fn decide<L: LimiterFor<K>, K: ?Sized>(
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
