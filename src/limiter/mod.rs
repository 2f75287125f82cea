//! The engine: an algorithm, a store and a clock, without HTTP.

mod acquire;
mod builder;

use std::borrow::Cow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{Algorithm, HasPriority, Tiered};
use crate::clock::AnyClock;
use crate::decision::Decision;
use crate::store::{Acquired, Attempt, Context, JointRequest, MemoryKey, MemoryStore, Permit, Store};

pub use crate::store::LimiterStats;
pub use acquire::{Acquire, AcquirePermit};
pub use builder::Builder;

/// A rate limiter, which decides whether a call may pass. Clones share their state.
///
/// A key is any `K: Hash + ?Sized`: `"user:42"`, an `IpAddr`, a tuple. Its `Hash` must be prefix-free, as those of the
/// standard library and derived ones are: two keys that feed the same bytes to the hasher are one. Costs are in units of
/// the quota; a cost of 0 is always allowed and takes nothing. A denial takes nothing either.
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
/// At most [`max_keys`](Builder::max_keys) keys are kept; see [`MemoryStore`].
///
/// # Panics
///
/// No method panics on any key, cost or clock.
pub struct RateLimiter<A: Algorithm, S = MemoryStore<A>> {
    context: Arc<Context<A, S>>,
}

impl<A: Algorithm> RateLimiter<A> {
    /// Creates a limiter with state in memory, tokio's clock and the default `max_keys`.
    #[must_use]
    pub fn new(algorithm: A) -> Self {
        Self::builder(algorithm).build()
    }

    /// Returns a builder, which sets the clock and the bounds, too.
    pub fn builder(algorithm: A) -> Builder<A> {
        Builder::new(algorithm)
    }

    /// Takes one unit if it is available. Never waits.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.check_n(key, 1)
    }

    /// Takes `cost` units if all are available, else none. Never waits.
    ///
    /// A cost that exceeds the limit is denied without a `retry_after`.
    #[inline]
    pub fn check_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.context.store().check(&self.context, key, Attempt::new(cost))
    }

    /// Returns what [`check`](RateLimiter::check) would return now, without taking anything.
    ///
    /// `is_allowed` and `retry_after` are those of a `check`; `remaining` and `reset_after` describe the state as it
    /// is.
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.context.store().peek(&self.context, key, Attempt::new(1))
    }

    /// Returns what [`check_n`](RateLimiter::check_n) would return now, without taking anything.
    pub fn peek_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.context.store().peek(&self.context, key, Attempt::new(cost))
    }

    /// Takes one unit, waiting for it in the key's queue.
    ///
    /// Calls for one key are admitted in the order in which they arrive. Every algorithm of this crate can queue calls: in
    /// a [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth) they wait for their
    /// scheduled time, in a [`TokenBucket`](crate::algorithm::TokenBucket) for tokens, in a window until it has units
    /// available, in [`Concurrency`](crate::algorithm::Concurrency) for a permit, in a tuple for all its members. (A
    /// window with [priority](crate::algorithm::Priority) queues only calls with priority.) With an algorithm of your own
    /// that has no [`queueing`](Algorithm::queueing), the call is decided at once, as by [`check`](RateLimiter::check).
    ///
    /// The number of queued calls, and the length of their wait, is bounded:
    ///
    /// - by `queue(n)` and `max_wait(d)`, if they were called on the algorithm. A call that finds the queue full, or
    ///   would have to wait longer, is denied at once. With `queue(0)`, no call waits.
    /// - by the burst, for [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth)
    ///   without `queue(n)`.
    /// - else only by the [total of the limiter](Builder::max_queued), and there is no maximum wait. **One key may then
    ///   use up that total**, and calls for other keys are denied if they would have to wait. If callers choose the
    ///   keys, call `queue(n)` or `max_wait(d)`, or use [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// In a tokio runtime, each call consumes budget of
    /// [cooperative scheduling](https://docs.rs/tokio/latest/tokio/task/coop/index.html), so a task that loops over
    /// calls that are decided at once lets others run. A call that has no budget left has not joined the queue.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before its first poll, or while it is queued, has charged nothing, and the calls behind it
    /// move up. A queued call is charged when it is released. If it is dropped between that and its next poll, its units
    /// are returned, unless another call for the key has been admitted meanwhile. The work of cancelling a queued call is
    /// linear in the number of queued calls of the key.
    ///
    /// A queued call has a timer, so keep polling it, in a task or a `select!`. A queued call that is not polled loses at
    /// most its own slot, with one exception: the first waiter of a [`Concurrency`](crate::algorithm::Concurrency) is
    /// given the next free permit, and if it is kept but never polled again, it blocks its key, as in any fair semaphore.
    /// A call that waits for a window and is polled late takes its unit from the window in which it is released, not
    /// from the one in which it could have been.
    ///
    /// A runtime that is shut down drops its waiters, with the same effect as dropping each future. A clock that steps
    /// back while calls are queued adds at most one period to their wait.
    ///
    /// # Panics
    ///
    /// Panics if the call has to wait with the default clock, outside a tokio runtime that has its timer enabled, and if
    /// the future is polled after it was ready.
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K) -> Acquire<A> {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, waiting for them in the key's queue. Otherwise the same as
    /// [`acquire`](RateLimiter::acquire), with the same cancel safety and panics.
    pub fn acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Acquire<A> {
        self.start_acquire(key, cost, None, false)
    }

    /// Takes one unit, waiting for it at most `max_wait`.
    ///
    /// A call that would have to wait longer is denied at once, without having waited: its `retry_after` is when the
    /// same call would be queued. Only for [`Concurrency`](crate::algorithm::Concurrency) is the wait not known
    /// beforehand: there, the call is denied after it has waited for `max_wait`. A shorter `max_wait` of the algorithm
    /// applies as well. `remaining` of a call that is decided at once counts calls with the same `max_wait`. Otherwise
    /// the same as [`acquire`](RateLimiter::acquire), with the same cancel safety and panics.
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
    pub fn acquire_within<K: Hash + ?Sized>(&self, key: &K, max_wait: Duration) -> Acquire<A> {
        self.acquire_n_within(key, 1, max_wait)
    }

    /// Takes `cost` units, waiting for them at most `max_wait`. See [`acquire_within`](RateLimiter::acquire_within).
    pub fn acquire_n_within<K: Hash + ?Sized>(&self, key: &K, cost: u64, max_wait: Duration) -> Acquire<A> {
        self.acquire_n(key, cost).with_max_wait(max_wait)
    }

    /// Takes `cost` units with priority: the call may wait for the next window instead of being denied. Otherwise the same
    /// as [`acquire_n`](RateLimiter::acquire_n), with the same cancel safety and panics.
    ///
    /// This is only for algorithms that [have calls with priority](HasPriority): a window with
    /// [`priority(percent)`](crate::algorithm::FixedWindow::priority), also in [`Tiered`] and with a
    /// [lockout](crate::algorithm::Lockout). For others it does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use tower_throttle::algorithm::FixedWindow;
    /// # use tower_throttle::{Quota, RateLimiter};
    /// let limiter = RateLimiter::new(FixedWindow::new(Quota::per_second(10)));
    /// let _ = limiter.acquire_with_priority("upstream", 1);
    /// ```
    pub fn acquire_with_priority<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Acquire<A>
    where
        A: HasPriority,
    {
        self.start_acquire(key, cost, None, true)
    }

    /// Returns a request for `call` that is decided together with others.
    pub(crate) fn part<K: MemoryKey + ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> JointRequest<'_> {
        MemoryStore::part(&self.context, key, call)
    }

    /// Returns how many keys were evicted, and how many calls shared a bucket or were denied, because the table of keys was
    /// full.
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_day(1_000))).max_keys(100).build();
    /// for key in 0..150 {
    ///     assert!(limiter.check(&key).is_allowed());
    /// }
    /// assert_eq!(limiter.stats().evicted, 50);
    /// ```
    #[must_use]
    pub fn stats(&self) -> LimiterStats {
        self.context.store().stats()
    }

    fn start_acquire<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        algorithm: Option<A>,
        priority: bool,
    ) -> Acquire<A> {
        Acquire::new(self.start_acquire_permit(key, cost, algorithm, priority))
    }

    fn start_acquire_permit<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        algorithm: Option<A>,
        priority: bool,
    ) -> AcquirePermit<A> {
        let key = self.context.store().key_id(key);
        AcquirePermit::new(Arc::clone(&self.context), key, cost, algorithm, priority)
    }

    /// Takes a permit, which ends the call when it is dropped. Never waits.
    ///
    /// This is for algorithms that [need a release](Algorithm::needs_release):
    /// [`Concurrency`](crate::algorithm::Concurrency), and those that contain it. For others, the permit is empty.
    ///
    /// # Errors
    ///
    /// Returns the denial.
    pub fn try_acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> Result<Permit, Decision> {
        self.try_permit(key, Attempt::new(1))
    }

    fn try_permit<K: Hash + ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> Result<Permit, Decision> {
        let key = self.context.store().key_id(key);
        match MemoryStore::try_acquire(&self.context, key, call) {
            (decision, permit) if decision.is_allowed() => Ok(permit),
            (decision, _) => Err(decision),
        }
    }

    /// Takes a permit, which ends the call when it is dropped, waiting for it in the key's queue as
    /// [`acquire`](RateLimiter::acquire) does.
    ///
    /// # Errors
    ///
    /// Returns the denial.
    ///
    /// # Cancel safety
    ///
    /// The same as that of [`acquire`](RateLimiter::acquire). A permit that was given to a future that is dropped goes to
    /// the next waiter.
    ///
    /// # Panics
    ///
    /// Panics as [`acquire`](RateLimiter::acquire) does.
    pub fn acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> AcquirePermit<A> {
        self.start_acquire_permit(key, 1, None, false)
    }

    /// Takes a permit, which ends the call when it is dropped, waiting for it at most `max_wait`, as
    /// [`acquire_within`](RateLimiter::acquire_within) does: with [`Concurrency`](crate::algorithm::Concurrency), the call
    /// is denied after it has waited for `max_wait`.
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
    pub fn acquire_permit_within<K: Hash + ?Sized>(&self, key: &K, max_wait: Duration) -> AcquirePermit<A> {
        self.acquire_permit(key).with_max_wait(max_wait)
    }

    /// Ends calls of cost `cost` that [`check`](RateLimiter::check) or [`acquire`](RateLimiter::acquire) admitted.
    ///
    /// This is for algorithms that [need a release](Algorithm::needs_release), and has no effect on others. It never
    /// releases more than the key has in progress. The limiter's present algorithm is used. Do not
    /// release calls with a [permit](RateLimiter::try_acquire_permit): the permit ends them when it is dropped, and uses
    /// the algorithm with which it was taken. So take permits if an algorithm with a total may be
    /// [replaced](RateLimiter::replace).
    ///
    /// ```
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let limiter = RateLimiter::new(Concurrency::per_key(1));
    /// assert!(limiter.check("user:42").is_allowed());
    /// assert!(!limiter.check("user:42").is_allowed());
    /// limiter.release("user:42", 1);
    /// assert!(limiter.check("user:42").is_allowed());
    /// ```
    pub fn release<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        MemoryStore::release(&self.context, key, Attempt::new(cost));
    }

    /// Closes the limiter, and all its clones, for ever: queued calls are denied at once, and so are all new calls. With
    /// [`on_close(OnClose::Allow)`](Builder::on_close), new calls are admitted uncounted instead.
    ///
    /// This is for a server that shuts down, which queued requests would keep from ending. A layer answers 503, gRPC
    /// `UNAVAILABLE`. Calls in progress go on, and a call that was admitted before stays admitted. Such a denial
    /// [is marked](Decision::is_closed), has no `retry_after`, and is not counted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// use tower_throttle::algorithm::LeakyBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_hour(1)));
    /// let _ = limiter.acquire("user:42").await;
    /// let waiting = tokio::spawn(limiter.acquire("user:42"));
    /// tokio::task::yield_now().await;
    /// limiter.close();
    /// assert!(waiting.await.unwrap().is_closed());
    /// assert!(limiter.check("user:7").is_closed());
    /// # }
    /// ```
    pub fn close(&self) {
        MemoryStore::close(&self.context);
    }

    /// Returns the number of calls that are queued now, for all keys together. Never above
    /// [`max_queued`](Builder::max_queued).
    #[must_use]
    pub fn queued(&self) -> usize {
        self.context.store().queued()
    }

    /// Refunds up to `cost` units that the key has taken and that still count, for calls that turned out to be free.
    ///
    /// It never refunds more than was taken: units that have been restored by the passing of time, or belong to a window
    /// that has ended, are not refunded again. The calls to which units belong are not recorded, so refund only what you
    /// took, and soon.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let logins = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)));
    /// let decision = logins.check("user:42");
    /// // The password was right: only wrong ones count.
    /// logins.refund("user:42", 1);
    /// assert_eq!(logins.peek("user:42").remaining(), 5);
    /// # assert!(decision.is_allowed());
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        self.context.store().refund(&self.context, key, cost);
    }

    /// Resets the key, which is fresh afterwards. Its queued calls may be released at once, one by one.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        self.context.store().reset(&self.context, key);
    }

    /// Replaces the algorithm by another of the same type, for all keys and all clones, while calls go on.
    ///
    /// Each call is decided by the old algorithm or by the new one; calls after the return are decided by the new one.
    /// Used units stay used, but no more of them than the new algorithm could count against a key, so no call waits
    /// longer than the new algorithm could demand. Queued calls keep their order, and are released at the new rate.
    ///
    /// | what changes | effect on a key |
    /// |---|---|
    /// | a higher limit | a window: the difference is free at once. A bucket: as many tokens are missing as before, and they are restored sooner |
    /// | a lower limit | a window: of what was used, the newest units up to the limit still count. A bucket: the missing tokens are restored later |
    /// | another burst | a bucket: as many tokens are missing as before, at most the new burst. No effect on windows |
    /// | another period | [`FixedWindow`](crate::algorithm::FixedWindow): the open window began when it began, and ends one new period later. [`SlidingWindow`](crate::algorithm::SlidingWindow), [`SlidingLog`](crate::algorithm::SlidingLog): units that are older than the new period no longer count. [`SlidingCounter`](crate::algorithm::SlidingCounter): the same part of the window has passed |
    /// | a combined algorithm | this table applies to each member of a tuple, and to the algorithm within [`Lockout`](crate::algorithm::Lockout) and [`Priority`](crate::algorithm::Priority). A lockout lasts no longer than a new one would. In [`Tiered`], the algorithm for calls without a tier is replaced; the tiers of other calls are up to the caller |
    /// | the rate of a queue | [`LeakyBucket`](crate::algorithm::LeakyBucket), [`Smooth`](crate::algorithm::Smooth): the next scheduled time stays as many intervals away |
    ///
    /// The work is linear in the number of keys that are kept: a few milliseconds for 100,000, of which one 64th at a
    /// time is locked.
    ///
    /// Another kind of algorithm is another type, and so needs another limiter:
    ///
    /// ```compile_fail
    /// # use tower_throttle::algorithm::{FixedWindow, TokenBucket};
    /// # use tower_throttle::{Quota, RateLimiter};
    /// # let quota = Quota::per_hour(10);
    /// RateLimiter::new(TokenBucket::new(quota)).replace(FixedWindow::new(quota));
    /// ```
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(10)));
    /// assert_eq!(limiter.check_n("user:42", 8).remaining(), 2);
    /// limiter.replace(TokenBucket::new(Quota::per_hour(100)));
    /// assert_eq!(limiter.peek("user:42").remaining(), 92);
    /// limiter.replace(TokenBucket::new(Quota::per_hour(5)));
    /// assert_eq!(limiter.peek("user:42").remaining(), 0);
    /// ```
    pub fn replace(&self, algorithm: A) {
        MemoryStore::replace(&self.context, algorithm);
    }

    /// Returns the number of keys that are kept: those in use, and fresh ones that are not yet removed. Never above
    /// `max_keys`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.context.store().len()
    }

    /// Returns whether no key is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Algorithm + PartialEq> RateLimiter<Tiered<A>> {
    /// Takes `cost` units with an algorithm for this call, its tier. Never waits.
    pub fn check_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K, cost: u64) -> Decision {
        let algorithm = Tiered::new(algorithm.clone());
        self.context.store().check(&self.context, key, Attempt::new(cost).with_algorithm(&algorithm))
    }

    /// Returns what [`check_by`](RateLimiter::check_by) with cost 1 would return, without taking anything.
    pub fn peek_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K) -> Decision {
        let algorithm = Tiered::new(algorithm.clone());
        self.context.store().peek(&self.context, key, Attempt::new(1).with_algorithm(&algorithm))
    }

    /// Takes a permit with an algorithm for this call, its tier. See
    /// [`try_acquire_permit`](RateLimiter::try_acquire_permit).
    ///
    /// # Errors
    ///
    /// Returns the denial.
    pub fn permit_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K) -> Result<Permit, Decision> {
        let algorithm = Tiered::new(algorithm.clone());
        self.try_permit(key, Attempt::new(1).with_algorithm(&algorithm))
    }

    /// Ends calls that [`check_by`](RateLimiter::check_by) or [`acquire_by`](RateLimiter::acquire_by) admitted with that
    /// algorithm. See [`release`](RateLimiter::release).
    pub fn release_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K, cost: u64) {
        let algorithm = Tiered::new(algorithm.clone());
        MemoryStore::release(&self.context, key, Attempt::new(cost).with_algorithm(&algorithm));
    }

    /// Takes `cost` units with an algorithm for this call, its tier, waiting for them in the key's queue. Cancel safety
    /// and panics are those of [`acquire`](RateLimiter::acquire).
    pub fn acquire_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K, cost: u64) -> Acquire<Tiered<A>> {
        self.start_acquire(key, cost, Some(Tiered::new(algorithm.clone())), false)
    }
}

impl<A: Algorithm, S> RateLimiter<A, S> {
    /// Creates a limiter whose state lives in `store`, with tokio's clock.
    #[must_use]
    pub fn with_store(algorithm: A, store: S) -> Self {
        Self::assemble(algorithm, AnyClock::default(), store)
    }

    fn assemble(algorithm: A, clock: AnyClock, store: S) -> Self {
        if algorithm.ignores_burst() {
            warn_of_burst(&algorithm);
        }
        Self { context: Arc::new(Context::new(algorithm, clock, store)) }
    }

    /// Returns the present algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Cow<'_, A> {
        self.context.algorithm()
    }

    /// Returns whether the algorithm has been replaced since the limiter was built.
    #[inline]
    pub(crate) fn is_replaced(&self) -> bool {
        self.context.is_replaced()
    }

    /// Takes the cost of `call` now, or returns a future that does, as the store decides.
    #[inline]
    pub(crate) fn decide<K: ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> Acquired<S::Wait>
    where
        S: Store<A, K>,
    {
        S::acquire(&self.context, key, call)
    }
}

impl<A: Algorithm, S> Clone for RateLimiter<A, S> {
    fn clone(&self) -> Self {
        Self { context: Arc::clone(&self.context) }
    }
}

impl<A: Algorithm, S> fmt::Debug for RateLimiter<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("algorithm", &*self.algorithm()).finish_non_exhaustive()
    }
}

#[cfg(feature = "tracing")]
fn warn_of_burst(algorithm: &impl fmt::Debug) {
    tracing::warn!(
        ?algorithm,
        "tower-throttle: a window makes no use of a burst: leave it out, or take a TokenBucket"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn_of_burst(_: &impl fmt::Debug) {}
