//! Calls that wait in the queue of their key.

use std::time::Duration;

use super::{Acquire, AcquirePermit, RateLimiter};
use crate::algorithm::{Algorithm, HasPriority};
use crate::store::{CheckStore, KeyedStore};

impl<A: Algorithm, S: CheckStore<A>> RateLimiter<A, S> {
    /// Takes one unit, and waits for it in the key's queue if it is not available now.
    ///
    /// With state in memory, the queued calls of one key are admitted in the order in which they arrived. The algorithm
    /// determines what a queued call waits for:
    ///
    /// - its scheduled time, with a [`LeakyBucket`](crate::algorithm::LeakyBucket) or
    ///   [`Smooth`](crate::algorithm::Smooth),
    /// - tokens, with a [`TokenBucket`](crate::algorithm::TokenBucket),
    /// - room in the window, with a window,
    /// - a permit, with [`Concurrency`](crate::algorithm::Concurrency),
    /// - the admission by all members, with a tuple.
    ///
    /// A window with [priority](crate::algorithm::Priority) queues only calls with priority. A tuple with a lockout,
    /// priority or tiers among its members queues no calls. If an algorithm of your own does not implement
    /// [`queue_config`](Algorithm::queue_config), the call is decided at once, as by [`check`](RateLimiter::check).
    ///
    /// The number of queued calls, and the length of their wait, are bounded:
    ///
    /// - by `queue(n)` and `max_wait(d)`, if they were called on the algorithm. A call is denied at once if the queue
    ///   is full, or if the call would have to wait longer than `d`. With
    ///   [`Concurrency`](crate::algorithm::Concurrency), whose waits are not known, a call is denied after it has
    ///   waited for `d`. With [`DropOldest`](crate::algorithm::QueueOverflow::DropOldest), a call that finds the queue
    ///   full is queued, and the call that has waited longest is denied. The new call is denied instead if it would
    ///   still have to wait longer than its maximum wait. With `queue(0)`, no call waits. If `max_wait(d)` or
    ///   `overflow(..)` was called without `queue(n)`, the number of queued calls is at most the limit or, with a
    ///   bucket or `Smooth`, the burst.
    /// - by the burst, for [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth)
    ///   without `queue(n)`.
    /// - otherwise only by the [total of the limiter](super::Builder::max_queued), and there is no maximum wait. **One
    ///   key may then use up that total**, and calls for other keys are denied if they cannot be admitted at once. If
    ///   callers choose the keys, call `queue(n)` or `max_wait(d)`, or use
    ///   [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// In a tokio runtime, each call that is decided at once consumes budget of [cooperative
    /// scheduling](https://docs.rs/tokio/latest/tokio/task/coop/index.html), so a task that loops over such calls lets
    /// other tasks run. If the task has no budget left at the first poll of the future, the call is made at a later
    /// poll.
    ///
    /// # Cancel safety
    ///
    /// This section describes a limiter with state in memory. For other stores, see
    /// [`Store::Wait`](crate::store::Store::Wait).
    ///
    /// If a future is dropped before its first poll, its call charges nothing. If a future is dropped while its call is
    /// queued, the call charges nothing, and the calls behind it in the queue move up. A queued call is charged when it
    /// is admitted, which can happen before the next poll of its future. If the future is dropped between the admission
    /// and that poll, the charge is undone, unless in the meantime another call for the key was admitted, or the key
    /// was changed in another way, for example by a refund. The units of a
    /// [`Concurrency`](crate::algorithm::Concurrency) are given back in any case. The work of cancelling a queued call
    /// is linear in the number of queued calls of the key.
    ///
    /// A queued call has a timer, so keep polling its future, in a task or a `select!`. If the future of a queued call
    /// is polled late or never, the calls behind that call are admitted nevertheless, and only the units of that call
    /// may stay unused. With [`Concurrency`](crate::algorithm::Concurrency), the first queued call is given the next
    /// free permit. If the future of that call is kept but never polled again, the permit stays taken, as in any fair
    /// semaphore. A call that waits for a window is charged to the window in which the call is admitted. If its future
    /// is polled late, this can be a later window than the first window with room for the call.
    ///
    /// A runtime that is shut down drops its tasks, which has the same effect on the queued calls of these tasks as
    /// dropping each future. A clock that steps back while calls are queued adds at most one period to their wait.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled after it was ready. With the default clock, it also panics if the call has to
    /// wait and there is no tokio runtime with an enabled timer.
    pub fn acquire<K: ?Sized>(&self, key: &K) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, and waits for them in the key's queue if they are not all available now. In all other
    /// respects, this method is the same as [`acquire`](RateLimiter::acquire), also in its cancel safety and panics.
    pub fn acquire_n<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.start_acquire(key, cost)
    }

    /// Takes one unit, waiting for it at most `max_wait`.
    ///
    /// A call that would have to wait longer is denied at once. The `retry_after` of the denial is the time until the
    /// same call would be admitted or queued. With [`Concurrency`](crate::algorithm::Concurrency), the wait is not
    /// known beforehand, so the call is denied after it has waited for `max_wait`. If the algorithm has a shorter
    /// `max_wait`, that time applies. With some algorithms, such as [`LeakyBucket`](crate::algorithm::LeakyBucket),
    /// `remaining` includes the places of the queue. If the call is decided at once, `remaining` then includes only
    /// places with a wait of at most `max_wait`. In all other respects, this method is the same as
    /// [`acquire`](RateLimiter::acquire), also in its cancel safety and panics.
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
    /// assert!(in_time.is_allowed() && in_time.delay() == Duration::from_millis(100));
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

    /// Takes `cost` units with priority: the call may wait for the next window instead of being denied. In all other
    /// respects, this method is the same as [`acquire_n`](RateLimiter::acquire_n), also in its cancel safety and
    /// panics.
    ///
    /// This method is only for algorithms that [have calls with priority](HasPriority): windows with
    /// [`priority(percent)`](crate::algorithm::FixedWindow::priority), and [`Tiered`](crate::algorithm::Tiered) or
    /// [lockouts](crate::algorithm::Lockout) of such windows. With any other algorithm, a call of this method does not
    /// compile:
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

    /// Takes a permit, and waits for it in the key's queue as [`acquire`](RateLimiter::acquire) does. The call is in
    /// progress until the permit is dropped.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Cancel safety
    ///
    /// The cancel safety is the same as that of [`acquire`](RateLimiter::acquire). If a future is dropped after its
    /// call was given a permit, the permit goes to the next queued call.
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

    /// Takes a permit, and waits for it at most `max_wait`. The call is in progress until the permit is dropped.
    ///
    /// With [`Concurrency`](crate::algorithm::Concurrency), the wait is not known beforehand, so the call is denied
    /// after it has waited for `max_wait`, as with [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Cancel safety
    ///
    /// The cancel safety is the same as that of [`acquire_permit`](RateLimiter::acquire_permit).
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
