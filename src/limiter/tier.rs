use crate::algorithm::{Algorithm, Tiered};
use crate::decision::Decision;
use crate::store::{Attempt, CheckStore, Denied, KeyedStore, MemoryKey, MemoryStore, Permit};

use super::{Acquire, AcquirePermit, RateLimiter};

/// A limiter with the algorithm of one tier. Created by [`RateLimiter::tier`].
///
/// What a key uses in one tier counts in all of them. See [`Tiered`].
#[derive(Debug)]
pub struct Tier<'a, A: Algorithm + PartialEq, S = MemoryStore<Tiered<A>>>
where
    S: CheckStore<Tiered<A>>,
{
    limiter: &'a RateLimiter<Tiered<A>, S>,
    algorithm: Tiered<A>,
}

impl<A: Algorithm + PartialEq, S: CheckStore<Tiered<A>>> RateLimiter<Tiered<A>, S> {
    /// Returns the limiter with another algorithm: that of the caller's tier.
    ///
    /// ```
    /// use tower_throttle::algorithm::{FixedWindow, Tiered};
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let (free, paid) = (FixedWindow::new(Quota::per_hour(1)), FixedWindow::new(Quota::per_hour(100)));
    /// let limiter = RateLimiter::new(Tiered::new(free));
    /// assert!(limiter.check("user:42").is_allowed());
    /// assert!(!limiter.check("user:42").is_allowed());
    /// assert_eq!(limiter.tier(&paid).check("user:42").remaining(), 98);
    /// ```
    pub fn tier(&self, algorithm: &A) -> Tier<'_, A, S> {
        Tier { limiter: self, algorithm: Tiered::new(algorithm.clone()) }
    }
}

impl<A: Algorithm + PartialEq, S: CheckStore<Tiered<A>>> Tier<'_, A, S> {
    /// Takes one unit if it is available. See [`RateLimiter::check`].
    pub fn check<K: ?Sized>(&self, key: &K) -> S::Reply<Decision>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.check_n(key, 1)
    }

    /// Takes `cost` units if all are available, else none. See [`RateLimiter::check_n`].
    pub fn check_n<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<Decision>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store.check(self.limiter.store.key(key), self.attempt(cost))
    }

    /// Returns what [`check`](Tier::check) would return now, without taking anything. See [`RateLimiter::peek`].
    pub fn peek<K: ?Sized>(&self, key: &K) -> S::Reply<Decision>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store.peek(self.limiter.store.key(key), self.attempt(1))
    }

    /// Takes one unit, waiting for it in the key's queue. See [`RateLimiter::acquire`], also for cancel safety and panics.
    pub fn acquire<K: ?Sized>(&self, key: &K) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, waiting for them in the key's queue. See [`RateLimiter::acquire`], also for cancel safety and
    /// panics.
    pub fn acquire_n<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.start_acquire(key, cost).with_algorithm(self.algorithm.clone())
    }

    /// Takes a permit. See [`RateLimiter::try_acquire_permit`].
    ///
    /// # Errors
    ///
    /// Returns the denial.
    pub fn try_acquire_permit<K: ?Sized>(&self, key: &K) -> S::Reply<Result<Permit, Denied>>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store.try_acquire_permit(self.limiter.store.key(key), self.attempt(1))
    }

    /// Takes a permit, waiting for it in the key's queue. See [`RateLimiter::acquire_permit`], also for cancel safety and
    /// panics.
    ///
    /// # Errors
    ///
    /// Returns the denial.
    pub fn acquire_permit<K: ?Sized>(&self, key: &K) -> AcquirePermit<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        AcquirePermit::new(self.acquire(key))
    }

    fn attempt(&self, cost: u64) -> Attempt<'_, Tiered<A>> {
        Attempt::new(cost).with_algorithm(&self.algorithm)
    }
}

impl<A: Algorithm + PartialEq> Tier<'_, A> {
    /// Ends calls that [`check`](Tier::check) or [`acquire`](Tier::acquire) admitted in this tier. See
    /// [`RateLimiter::release`].
    pub fn release<K: MemoryKey + ?Sized>(&self, key: &K, cost: u64) {
        self.limiter.store.release(key, self.attempt(cost));
    }
}
