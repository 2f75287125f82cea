//! What the author of a limiter implements, so that the cases can make limiters and call them.

use std::future::{Future, ready};

use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Lockout, SlidingCounter, SlidingWindow, Tiered,
    TokenBucket,
};
use tower_throttle::error::BoxError;
use tower_throttle::key::StoreKey;
use tower_throttle::limiter::{LimiterFor, Settles};
use tower_throttle::{Decision, RateLimiter};

/// A limiter that can be tested: it settles, has the keys of the tests, and supports what a layer does not need.
///
/// The methods return futures, so that limiters can reply later. A limiter that decides immediately returns [`ready`]
/// futures.
pub trait TestedLimiter: Settles + LimiterFor<str> + LimiterFor<StoreKey<String>> {
    /// Charges the call, in full or not at all. Never waits in a queue.
    fn check(&self, key: &str, cost: u64) -> impl Future<Output = Result<Decision, BoxError>> + Send;

    /// Returns a decision that tells whether [`check`](Self::check) would admit the call. Charges nothing.
    fn peek(&self, key: &str, cost: u64) -> impl Future<Output = Result<Decision, BoxError>> + Send;

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

/// A maker of limiters of the calls in progress that can be tested. All that the cases need of such a limiter is what a
/// layer needs.
pub trait MakePermits: Clone + Send + Sync + 'static {
    /// The limiter. Its algorithm [needs a release](Algorithm::NEEDS_RELEASE), so an admitted call comes with a
    /// reservation made by [`Reservation::on_release`](tower_throttle::limiter::Reservation::on_release).
    type Limiter: LimiterFor<str> + LimiterFor<StoreKey<String>>;

    /// Makes a limiter of at most `limit` calls in progress for each key. At least 20 calls of a key may wait. No other
    /// limiter of the tests has this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter cannot be made.
    fn make(&self, name: &str, limit: u64) -> Result<Self::Limiter, BoxError>;
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

impl MakePermits for InMemory {
    type Limiter = RateLimiter<Concurrency>;

    fn make(&self, name: &str, limit: u64) -> Result<RateLimiter<Concurrency>, BoxError> {
        Ok(RateLimiter::builder(Concurrency::per_key(limit)).name(name).build())
    }
}

impl<A: Algorithm> TestedLimiter for RateLimiter<A> {
    fn check(&self, key: &str, cost: u64) -> impl Future<Output = Result<Decision, BoxError>> + Send {
        ready(Ok(self.call(key).cost(cost).check()))
    }

    fn peek(&self, key: &str, cost: u64) -> impl Future<Output = Result<Decision, BoxError>> + Send {
        ready(Ok(self.call(key).cost(cost).peek()))
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
