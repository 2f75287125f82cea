use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use super::Builder;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::store::{Attempt, CheckStore, Denied, KeyedStore, MemoryStore, Permit, Store};

/// A rate limiter, which decides whether a call may pass. Clones share their state.
///
/// With state in memory, a key is any `K: Hash + ?Sized`, such as `"user:42"`, an `IpAddr` or a tuple. The `Hash` of
/// the key must be [prefix-free](crate::key::KeyExtractor::Key), as it is for derived and standard types. Otherwise two
/// different keys might share one budget. Costs are in units of the quota. A denied call takes no units. With state in
/// memory, a call with a cost of 0 is always allowed.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10)));
/// if limiter.check("user:42").is_allowed() {
///     // serve
/// }
/// ```
///
/// # Memory
///
/// At most [`max_keys`](Builder::max_keys) keys are kept in memory. See [`MemoryStore`].
///
/// # Other stores
///
/// `S` stores the state. With the store in memory, [`check`](RateLimiter::check) returns a [`Decision`]. With a
/// [store](crate::store) that replies later, `check` returns a future of a `Result` of a `Decision`, so write
/// `limiter.check("user:42").await?`. The methods `peek`, `refund`, `reset`, `release` and `try_acquire_permit` return
/// futures as well, and the futures of `acquire` and `acquire_permit` yield a `Result`. Code without the `.await` does
/// not compile:
///
/// ```compile_fail,E0599
/// # use std::{future::Future, pin::Pin};
/// # use tower_throttle::algorithm::TokenBucket;
/// # use tower_throttle::store::{CheckStore, KeyedStore};
/// # use tower_throttle::{Decision, RateLimiter};
/// # type Reply = Pin<Box<dyn Future<Output = Result<Decision, std::io::Error>> + Send>>;
/// # type Limiter<S> = RateLimiter<TokenBucket, S>;
/// async fn serve<S>(limiter: Limiter<S>)
/// # where S: KeyedStore<TokenBucket, str> + CheckStore<TokenBucket, Reply<Decision> = Reply>
/// {
///     if limiter.check("user:42").is_allowed() {
///         // serve
///     }
/// }
/// ```
///
/// # Panics
///
/// No method panics because of a key, a cost or a clock reading. [`acquire`](RateLimiter::acquire) describes when its
/// future panics.
pub struct RateLimiter<A: Algorithm, S = MemoryStore<A>> {
    pub(super) store: S,
    algorithm: PhantomData<fn() -> A>,
}

impl<A: Algorithm> RateLimiter<A> {
    /// Creates a limiter with state in memory, tokio's clock and the default [`max_keys`](Builder::max_keys).
    #[must_use]
    pub fn new(algorithm: A) -> Self {
        Self::builder(algorithm).build()
    }

    /// Returns a builder, which can set the clock, the bounds and the store.
    pub fn builder(algorithm: A) -> Builder<A> {
        Builder::new(algorithm)
    }
}

impl<A: Algorithm, S: CheckStore<A>> RateLimiter<A, S> {
    /// Takes one unit if it is available. Never waits in a queue.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(100)));
    /// let decision = limiter.check("user:42");
    /// match decision.retry_after() {
    ///     _ if decision.is_allowed() => println!("welcome"),
    ///     Some(wait) => println!("try again in {wait:?}"),
    ///     None => println!("denied"),
    /// }
    /// ```
    ///
    /// A denial may have no [`retry_after`](Decision::retry_after), so only [`is_allowed`](Decision::is_allowed) says
    /// whether the call may pass.
    #[inline]
    pub fn check<K: ?Sized>(&self, key: &K) -> S::Reply<Decision>
    where
        S: KeyedStore<A, K>,
    {
        self.check_n(key, 1)
    }

    /// Takes `cost` units if all of them are available, and otherwise none. Never waits in a queue.
    ///
    /// A call can never pass if its cost is above the burst of a token bucket, or above the limit of any other
    /// algorithm. Such a call is denied without a `retry_after`. [`LeakyBucket`](crate::algorithm::LeakyBucket) and
    /// [`Smooth`](crate::algorithm::Smooth) are exceptions: with them, no cost is too large.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(10)));
    /// assert_eq!(limiter.check_n("user:42", 8).remaining(), 2);
    /// assert!(!limiter.check_n("user:42", 3).is_allowed());
    /// assert!(limiter.check_n("user:42", 11).never_fits());
    /// ```
    #[inline]
    pub fn check_n<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<Decision>
    where
        S: KeyedStore<A, K>,
    {
        self.store.check(self.store.key(key), Attempt::new(cost))
    }

    /// Returns a decision that tells whether [`check`](RateLimiter::check) would admit a call now. Takes no units.
    ///
    /// In the result, `is_allowed` and `retry_after` are those that `check` would return, except for a new key when the
    /// key table is full: a peek does not examine whether the table has room for the key. `remaining` and `reset_after`
    /// describe the key as it is, without the call.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(10)));
    /// assert_eq!(limiter.peek("user:42").remaining(), 10);
    /// assert_eq!(limiter.peek("user:42").remaining(), 10);
    /// ```
    pub fn peek<K: ?Sized>(&self, key: &K) -> S::Reply<Decision>
    where
        S: KeyedStore<A, K>,
    {
        self.peek_n(key, 1)
    }

    /// Returns a decision that tells whether [`check_n`](RateLimiter::check_n) would admit a call now. Takes no units.
    /// See [`peek`](RateLimiter::peek).
    pub fn peek_n<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<Decision>
    where
        S: KeyedStore<A, K>,
    {
        self.store.peek(self.store.key(key), Attempt::new(cost))
    }

    /// Takes a permit. The call is in progress until the permit is dropped. Never waits in a queue.
    ///
    /// This method is for algorithms that [need a release](Algorithm::NEEDS_RELEASE):
    /// [`Concurrency`](crate::algorithm::Concurrency), and algorithms that contain it. With other algorithms, dropping
    /// the permit has no effect.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let exports = RateLimiter::new(Concurrency::per_key(1));
    /// let permit = exports.try_acquire_permit("user:42")?;
    /// assert!(exports.try_acquire_permit("user:42").is_err());
    /// drop(permit);
    /// assert!(exports.try_acquire_permit("user:42").is_ok());
    /// # Ok::<(), tower_throttle::store::Denied>(())
    /// ```
    pub fn try_acquire_permit<K: ?Sized>(&self, key: &K) -> S::Reply<Result<Permit, Denied>>
    where
        S: KeyedStore<A, K>,
    {
        self.store.try_acquire_permit(self.store.key(key), Attempt::new(1))
    }

    /// Refunds up to `cost` units that were charged to the key and still count. Use this for calls that turned out to
    /// be free.
    ///
    /// Units that are available again because time has passed, or because their window has ended, are not refunded. So
    /// a refund never exceeds the charges, except with [`start_empty`](crate::algorithm::TokenBucket::start_empty). The
    /// limiter does not record which call took which units. So refund only units that your own calls took, and refund
    /// them soon. Units of calls in progress, as with [`Concurrency`](crate::algorithm::Concurrency), are not refunded.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let logins = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)));
    /// if logins.check("user:42").is_allowed() {
    ///     // The password was right: only wrong ones count.
    ///     logins.refund("user:42", 1);
    /// }
    /// assert_eq!(logins.peek("user:42").remaining(), 5);
    /// ```
    pub fn refund<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<()>
    where
        S: KeyedStore<A, K>,
    {
        self.store.refund(self.store.key(key), cost)
    }

    /// Resets the key to the state of a new key, except that calls in progress stay counted.
    ///
    /// With state in memory, a reset has no effect on a key that [shares a bucket](crate::store::OnFull::ShareBuckets).
    /// The first queued call of the key may be admitted as soon as the key is reset, and the calls behind it later.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)));
    /// assert!(limiter.check("user:42").is_allowed());
    /// limiter.reset("user:42");
    /// assert!(limiter.check("user:42").is_allowed());
    /// ```
    pub fn reset<K: ?Sized>(&self, key: &K) -> S::Reply<()>
    where
        S: KeyedStore<A, K>,
    {
        self.store.reset(self.store.key(key))
    }
}

impl<A: Algorithm, S: Store<A>> RateLimiter<A, S> {
    /// Creates a limiter that keeps its state in `store`. The store contains the algorithm and the clock.
    #[must_use]
    pub fn with_store(store: S) -> Self {
        Self { store, algorithm: PhantomData }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the current algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Cow<'_, A> {
        self.store.algorithm()
    }
}

impl<A: Algorithm, S: Clone> Clone for RateLimiter<A, S> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), algorithm: PhantomData }
    }
}

impl<A: Algorithm, S: Store<A>> fmt::Debug for RateLimiter<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("algorithm", &*self.algorithm()).finish_non_exhaustive()
    }
}
