//! Calls that wait in the queue of their key.

use std::time::Duration;

use super::{Acquire, AcquirePermit, RateLimiter};
use crate::algorithm::{Algorithm, HasPriority};
use crate::store::{CheckStore, KeyedStore};

impl<A: Algorithm, S: CheckStore<A>> RateLimiter<A, S> {
    /// Takes one unit, waiting for it in the key's queue.
    ///
    /// Calls for one key are admitted in the order in which they arrive. With a
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket) or [`Smooth`](crate::algorithm::Smooth), calls wait for their
    /// scheduled time, with a [`TokenBucket`](crate::algorithm::TokenBucket) for tokens, with a window until the window
    /// has room, with [`Concurrency`](crate::algorithm::Concurrency) for a permit, and with a tuple until all its
    /// members admit them. A window with [priority](crate::algorithm::Priority) queues only calls with priority. A
    /// tuple with a lockout, priority or tiers among its members queues no calls. With an algorithm of your own that
    /// has no [`queue_config`](Algorithm::queue_config), the call is decided at once, as by
    /// [`check`](RateLimiter::check).
    ///
    /// The number of queued calls, and the length of their wait, are bounded:
    ///
    /// - by `queue(n)` and `max_wait(d)`, if they were called on the algorithm. A call that finds the queue full, or
    ///   would have to wait longer than `d`, is denied at once. With [`Concurrency`](crate::algorithm::Concurrency),
    ///   whose waits are not known, a call is denied after it has waited for `d`. With
    ///   [`DropOldest`](crate::algorithm::QueueOverflow::DropOldest), a call that finds the queue full is queued, and
    ///   the oldest waiter is denied. With `queue(0)`, no call waits. If `max_wait(d)` or `overflow(..)` was called
    ///   without `queue(n)`, at most as many calls wait as the limit, for buckets and `Smooth` the burst.
    /// - by the burst, for [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth)
    ///   without `queue(n)`.
    /// - otherwise only by the [total of the limiter](super::Builder::max_queued), and there is no maximum wait. **One
    ///   key may then use up that total**, and calls for other keys are denied if they would have to wait. If callers
    ///   choose the keys, call `queue(n)` or `max_wait(d)`, or use [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// In a tokio runtime, each call consumes budget of [cooperative
    /// scheduling](https://docs.rs/tokio/latest/tokio/task/coop/index.html), so a task that loops over calls that are
    /// decided at once lets other tasks run. If the task has no budget left at a poll, the call is not yet made at that
    /// poll.
    ///
    /// # Cancel safety
    ///
    /// A call whose future is dropped before its first poll, or while the call is queued, has charged nothing, and the
    /// calls behind it move up. A queued call is charged when it is released. If the future is dropped after the
    /// release but before its next poll, the units are given back, unless another call for the key has been admitted
    /// meanwhile. Units that a call in progress holds are released in any case. The work of cancelling a queued call is
    /// linear in the number of queued calls of the key.
    ///
    /// A queued call has a timer, so keep polling its future, in a task or a `select!`. A call whose future is not
    /// polled loses at most its own slot, with one exception: the first waiter of a
    /// [`Concurrency`](crate::algorithm::Concurrency) is given the next free permit. If the future of this waiter is
    /// kept but never polled again, the waiter blocks its key, as in any fair semaphore. A call that waits for a window
    /// and is polled late is charged to the window in which it is released, not to the earlier window in which it could
    /// have been released.
    ///
    /// A runtime that is shut down drops its waiters, with the same effect as dropping each future. A clock that steps
    /// back while calls are queued adds at most one period to their wait.
    ///
    /// # Panics
    ///
    /// Panics if the call has to wait with the default clock, outside a tokio runtime that has its timer enabled, and if
    /// the future is polled after it was ready.
    pub fn acquire<K: ?Sized>(&self, key: &K) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, waiting for them in the key's queue. Otherwise the same as
    /// [`acquire`](RateLimiter::acquire), with the same cancel safety and panics.
    pub fn acquire_n<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.start_acquire(key, cost)
    }

    /// Takes one unit, waiting for it at most `max_wait`.
    ///
    /// A call that would have to wait longer is denied at once, without having waited. The `retry_after` of the denial
    /// is the time until the same call would be admitted or queued. With
    /// [`Concurrency`](crate::algorithm::Concurrency), the wait is not known beforehand, so the call is denied after it
    /// has waited for `max_wait`. If the `max_wait` of the algorithm is shorter, the shorter time applies. If the call
    /// is decided at once, `remaining` counts calls with the same `max_wait`. Otherwise the same as
    /// [`acquire`](RateLimiter::acquire), with the same cancel safety and panics.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(1)));
    /// assert!(limiter.check("upstream").is_allowed());
    /// let late = limiter.acquire_within("upstream", Duration::from_millis(50)).await;
    /// assert!(!late.is_allowed() && late.delay().is_zero());
    /// let in_time = limiter.acquire_within("upstream", Duration::from_millis(100)).await;
    /// assert_eq!(in_time.delay(), Duration::from_millis(100));
    /// # }
    /// ```
    pub fn acquire_within<K: ?Sized>(&self, key: &K, max_wait: Duration) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.acquire_n_within(key, 1, max_wait)
    }

    /// Takes `cost` units, waiting for them at most `max_wait`. See [`acquire_within`](RateLimiter::acquire_within).
    pub fn acquire_n_within<K: ?Sized>(&self, key: &K, cost: u64, max_wait: Duration) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.acquire_n(key, cost).with_max_wait(max_wait)
    }

    /// Takes `cost` units with priority: the call may wait for the next window instead of being denied. Otherwise the same
    /// as [`acquire_n`](RateLimiter::acquire_n), with the same cancel safety and panics.
    ///
    /// This method is only for algorithms that [have calls with priority](HasPriority): a window with
    /// [`priority(percent)`](crate::algorithm::FixedWindow::priority), also in [`Tiered`](crate::algorithm::Tiered) and
    /// with a [lockout](crate::algorithm::Lockout). With other algorithms, a call of this method does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use tower_throttle::algorithm::FixedWindow;
    /// # use tower_throttle::{Quota, RateLimiter};
    /// let limiter = RateLimiter::new(FixedWindow::new(Quota::per_second(10)));
    /// let _ = limiter.acquire_with_priority("upstream", 1);
    /// ```
    pub fn acquire_with_priority<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<A, S>
    where
        A: HasPriority,
        S: KeyedStore<A, K>,
    {
        self.start_acquire(key, cost).with_priority()
    }

    /// Takes a permit, and waits for it in the key's queue as [`acquire`](RateLimiter::acquire) does. The call ends
    /// when the permit is dropped.
    ///
    /// # Errors
    ///
    /// Returns the denial.
    ///
    /// # Cancel safety
    ///
    /// The same as that of [`acquire`](RateLimiter::acquire). If a future is dropped after its call was given a permit,
    /// the permit goes to the next waiter.
    ///
    /// # Panics
    ///
    /// Panics as [`acquire`](RateLimiter::acquire) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_throttle::store::Denied> {
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let exports = RateLimiter::new(Concurrency::per_key(1));
    /// let permit = exports.acquire_permit("user:42").await?;
    /// // the next export of this user begins when this one ends
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_permit<K: ?Sized>(&self, key: &K) -> AcquirePermit<A, S>
    where
        S: KeyedStore<A, K>,
    {
        AcquirePermit::new(self.acquire(key))
    }

    /// Takes a permit, and waits for it at most `max_wait`. The call ends when the permit is dropped.
    ///
    /// With [`Concurrency`](crate::algorithm::Concurrency), the wait is not known beforehand, so the call is denied
    /// after it has waited for `max_wait`, as with [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// # Errors
    ///
    /// Returns the denial.
    ///
    /// # Cancel safety
    ///
    /// The same as that of [`acquire_permit`](RateLimiter::acquire_permit).
    ///
    /// # Panics
    ///
    /// Panics as [`acquire`](RateLimiter::acquire) does.
    pub fn acquire_permit_within<K: ?Sized>(&self, key: &K, max_wait: Duration) -> AcquirePermit<A, S>
    where
        S: KeyedStore<A, K>,
    {
        AcquirePermit::new(self.acquire_within(key, max_wait))
    }

    pub(super) fn start_acquire<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        Acquire::new(self.store.clone(), self.store.key(key), cost)
    }
}
