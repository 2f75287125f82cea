use std::fmt;
use std::time::Duration;

use super::future::{Acquire, AcquirePermit};
use super::rate_limiter::RateLimiter;
use crate::algorithm::{Algorithm, Tiered};
use crate::decision::Decision;
use crate::store::{Attempt, CheckStore, Denied, KeyedStore, MemoryStore, Permit, ReleaseStore, Store};

/// A limiter with the algorithm of one tier. [`RateLimiter::tier`] creates it.
///
/// Units that a key uses in one tier count in all tiers of the key. See [`Tiered`].
pub struct Tier<'a, A: Algorithm + PartialEq, S = MemoryStore<Tiered<A>>> {
    limiter: &'a RateLimiter<Tiered<A>, S>,
    algorithm: Tiered<A>,
}

impl<A: Algorithm + PartialEq, S: CheckStore<Tiered<A>>> RateLimiter<Tiered<A>, S> {
    /// Returns a view of this limiter. Calls that are made through the view have the tier `algorithm`.
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
    #[must_use]
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

    /// Takes `cost` units if all of them are available, and otherwise none. See [`RateLimiter::check_n`].
    pub fn check_n<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<Decision>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store().check(self.limiter.store().key(key), self.attempt(cost))
    }

    /// Returns a decision that tells whether [`check`](Tier::check) would admit a call now. Takes no units. See
    /// [`RateLimiter::peek`].
    pub fn peek<K: ?Sized>(&self, key: &K) -> S::Reply<Decision>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.peek_n(key, 1)
    }

    /// Returns a decision that tells whether [`check_n`](Tier::check_n) would admit a call now. Takes no units. See
    /// [`RateLimiter::peek`].
    pub fn peek_n<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<Decision>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store().peek(self.limiter.store().key(key), self.attempt(cost))
    }

    /// Takes one unit, and waits for it in the key's queue if it is not available now. See [`RateLimiter::acquire`],
    /// also for cancel safety and panics.
    pub fn acquire<K: ?Sized>(&self, key: &K) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, and waits for them in the key's queue if they are not all available now. See
    /// [`RateLimiter::acquire`], also for cancel safety and panics.
    pub fn acquire_n<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.acquire_n(key, cost).with_algorithm(self.algorithm.clone())
    }

    /// Takes one unit, waiting for it at most `max_wait`. See [`RateLimiter::acquire_within`].
    pub fn acquire_within<K: ?Sized>(&self, key: &K, max_wait: Duration) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.acquire_n_within(key, 1, max_wait)
    }

    /// Takes `cost` units, waiting for them at most `max_wait`. See [`RateLimiter::acquire_within`].
    pub fn acquire_n_within<K: ?Sized>(&self, key: &K, cost: u64, max_wait: Duration) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.acquire_n(key, cost).with_max_wait(max_wait)
    }

    /// Takes `cost` units with priority. See [`RateLimiter::acquire_with_priority`].
    pub fn acquire_with_priority<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.acquire_n(key, cost).with_priority(self.limiter.knows_priority(Some(&self.algorithm)))
    }

    /// Takes a permit. See [`RateLimiter::try_acquire_permit`].
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    pub fn try_acquire_permit<K: ?Sized>(&self, key: &K) -> S::Reply<Result<Permit, Denied>>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store().try_acquire_permit(self.limiter.store().key(key), self.attempt(1))
    }

    /// Takes a permit, and waits for it in the key's queue if necessary. See [`RateLimiter::acquire_permit`], also for
    /// cancel safety and panics.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    pub fn acquire_permit<K: ?Sized>(&self, key: &K) -> AcquirePermit<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        AcquirePermit::new(self.acquire(key))
    }

    /// Takes a permit, waiting for it at most `max_wait`. See [`RateLimiter::acquire_permit_within`].
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    pub fn acquire_permit_within<K: ?Sized>(&self, key: &K, max_wait: Duration) -> AcquirePermit<Tiered<A>, S>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        AcquirePermit::new(self.acquire_within(key, max_wait))
    }

    fn attempt(&self, cost: u64) -> Attempt<'_, Tiered<A>> {
        Attempt::new(cost).with_algorithm(&self.algorithm)
    }
}

impl<A: Algorithm + PartialEq, S: ReleaseStore<Tiered<A>>> Tier<'_, A, S> {
    /// Releases `cost` units of calls that [`check`](Tier::check) or [`acquire`](Tier::acquire) admitted in this tier.
    /// See [`RateLimiter::release`].
    pub fn release<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<()>
    where
        S: KeyedStore<Tiered<A>, K>,
    {
        self.limiter.store().release(self.limiter.store().key(key), self.attempt(cost))
    }
}

impl<A: Algorithm + PartialEq, S: Store<Tiered<A>>> Clone for Tier<'_, A, S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter, algorithm: self.algorithm.clone() }
    }
}

impl<A: Algorithm + PartialEq, S: Store<Tiered<A>>> fmt::Debug for Tier<'_, A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}
