//! The engine: an algorithm, a store and a clock. It knows no HTTP.

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

/// Decides whether a call may pass. Clones share their state.
///
/// A key is any `K: Hash + ?Sized`: `"user:42"`, an `IpAddr`, a tuple. Costs are in units of the quota; a cost of 0
/// is always allowed and takes nothing. A denial takes nothing either. Its `Hash` must be prefix-free, as those of the
/// standard library and derived ones are: two keys that feed the same bytes to the hasher are one.
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
/// At most [`max_keys`](Builder::max_keys) keys; see [`MemoryStore`].
///
/// # Panics
///
/// No method panics on any key, cost or clock.
pub struct RateLimiter<A: Algorithm, S = MemoryStore<A>> {
    context: Arc<Context<A, S>>,
}

impl<A: Algorithm> RateLimiter<A> {
    /// A limiter with state in memory, tokio's clock and the default `max_keys`.
    #[must_use]
    pub fn new(algorithm: A) -> Self {
        Self::builder(algorithm).build()
    }

    /// Sets clock and size, too.
    pub fn builder(algorithm: A) -> Builder<A> {
        Builder::new(algorithm)
    }

    /// Takes one unit if it is there. Never waits.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.check_n(key, 1)
    }

    /// Takes `cost` units if all are there, else none. Never waits.
    ///
    /// A cost that can never fit is denied without a `retry_after`.
    #[inline]
    pub fn check_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.context.store().check(&self.context, key, Attempt::new(cost))
    }

    /// What [`check`](RateLimiter::check) would say now, taking nothing.
    ///
    /// `is_allowed` and `retry_after` are those of a `check`; `remaining` and `reset_after` describe the state as it
    /// is.
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.context.store().peek(&self.context, key, Attempt::new(1))
    }

    /// What [`check_n`](RateLimiter::check_n) would say now, taking nothing.
    pub fn peek_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.context.store().peek(&self.context, key, Attempt::new(cost))
    }

    /// Takes one unit, waiting for it in the key's queue.
    ///
    /// Calls for one key are admitted in the order in which they came. Every algorithm of this crate lets calls wait: a
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth) for their turn, a
    /// [`TokenBucket`](crate::algorithm::TokenBucket) for its tokens, a window for room,
    /// [`Concurrency`](crate::algorithm::Concurrency) for a permit, a tuple for all its members. (A window with
    /// [priority](crate::algorithm::Priority) lets only calls with priority wait.) An algorithm of one's own without a
    /// [`queueing`](Algorithm::queueing) answers at once, as [`check`](RateLimiter::check) does.
    ///
    /// How many calls may wait, and how long:
    ///
    /// - Where `queue(n)` or `max_wait(d)` was called on the algorithm, as these say. A call that finds the queue full,
    ///   or would have to wait longer, is denied at once. `queue(0)` never waits.
    /// - [`LeakyBucket`](crate::algorithm::LeakyBucket) and [`Smooth`](crate::algorithm::Smooth): as many as the burst,
    ///   unless `queue(n)` says otherwise.
    /// - Else as long as it takes, while the [total of the limiter](Builder::max_queued) has room. **One key may then
    ///   take every place of that total**, and calls for other keys are denied where they would have to wait. Where
    ///   callers choose the keys, call `queue(n)` or `max_wait(d)`, or use
    ///   [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// In a tokio runtime, each call consumes budget of
    /// [cooperative scheduling](https://docs.rs/tokio/latest/tokio/task/coop/index.html), so a task that loops over
    /// calls that are decided at once lets others run. A call that has no budget left has not joined the queue.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before its first poll, or while it waits, has charged nothing, and those behind it
    /// move up. A waiting call is charged when its turn comes; dropped between that and its next poll, its units go
    /// back unless another call for the key has been admitted meanwhile. Giving up costs work in proportion to the
    /// calls that wait for the key. An alarm is set while it waits, so keep polling it, in a task or a `select!`. A
    /// waiting call that is not polled loses at most its own turn, with one exception: the first one that waits for a
    /// [`Concurrency`](crate::algorithm::Concurrency) is given the next free permit, and if it is kept but never polled
    /// again, it blocks its key, as in any fair semaphore. A call that waits for a window and is
    /// polled late takes its unit from the window in which it leaves, not from the one in which it could have left.
    ///
    /// A runtime that is shut down drops its waiters: they leave as if they had been dropped by hand. A clock that
    /// steps back while calls wait adds at most one period to the wait.
    ///
    /// # Panics
    ///
    /// When it has to wait: with the default clock, outside a tokio runtime that has its timer enabled. When polled
    /// after it was ready.
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K) -> Acquire<A> {
        self.acquire_n(key, 1)
    }

    /// Takes `cost` units, waiting for them in the key's queue. Otherwise as [`acquire`](RateLimiter::acquire), in
    /// cancel safety and panics, too.
    pub fn acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Acquire<A> {
        self.acquiring(key, cost, None, false)
    }

    /// Takes one unit, waiting for it at most `longest`.
    ///
    /// A call that would have to wait longer is denied at once, without having waited: its `retry_after` is when the
    /// same call would be queued. Only for [`Concurrency`](crate::algorithm::Concurrency) is the wait not known
    /// beforehand: there, the call gives up after `longest`. A shorter `max_wait` of the algorithm holds as well.
    /// `remaining` of a call that is decided at once counts calls with the same patience. Otherwise as
    /// [`acquire`](RateLimiter::acquire), in cancel safety and panics, too.
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
    pub fn acquire_within<K: Hash + ?Sized>(&self, key: &K, longest: Duration) -> Acquire<A> {
        self.acquire_n_within(key, 1, longest)
    }

    /// Takes `cost` units, waiting for them at most `longest`. See [`acquire_within`](RateLimiter::acquire_within).
    pub fn acquire_n_within<K: Hash + ?Sized>(&self, key: &K, cost: u64, longest: Duration) -> Acquire<A> {
        self.acquire_n(key, cost).within(longest)
    }

    /// Takes `cost` units with priority: it may wait for the next window instead of being refused. Otherwise as
    /// [`acquire_n`](RateLimiter::acquire_n), in cancel safety and panics, too.
    ///
    /// Only for algorithms that [have calls with priority](HasPriority): a window with
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
        self.acquiring(key, cost, None, true)
    }

    /// A call that is to be decided together with others.
    pub(crate) fn part<K: MemoryKey + ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> JointRequest<'_> {
        MemoryStore::part(&self.context, key, call)
    }

    /// Returns how often the table of keys was full, and what was done about it.
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

    fn acquiring<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        algorithm: Option<A>,
        priority: bool,
    ) -> Acquire<A> {
        Acquire::new(self.asking(key, cost, algorithm, priority))
    }

    fn asking<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        algorithm: Option<A>,
        priority: bool,
    ) -> AcquirePermit<A> {
        let key = self.context.store().key_id(key);
        AcquirePermit::new(Arc::clone(&self.context), key, cost, algorithm, priority)
    }

    /// Takes a permit that is held until it is dropped. Never waits.
    ///
    /// For rules that [hold](Algorithm::needs_release) something, [`Concurrency`](crate::algorithm::Concurrency) and what is
    /// made of it; of others, the permit is empty.
    ///
    /// # Errors
    ///
    /// The denial.
    pub fn try_acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> Result<Permit, Decision> {
        self.permit_of(key, Attempt::new(1))
    }

    fn permit_of<K: Hash + ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> Result<Permit, Decision> {
        let key = self.context.store().key_id(key);
        match MemoryStore::try_acquire(&self.context, key, call) {
            (decision, permit) if decision.is_allowed() => Ok(permit),
            (decision, _) => Err(decision),
        }
    }

    /// Takes a permit that is held until it is dropped, waiting for it in line as [`acquire`](RateLimiter::acquire)
    /// does.
    ///
    /// # Errors
    ///
    /// The denial.
    ///
    /// # Cancel safety
    ///
    /// As of [`acquire`](RateLimiter::acquire). A permit that was free when the future was dropped is free for the
    /// next.
    ///
    /// # Panics
    ///
    /// As [`acquire`](RateLimiter::acquire).
    pub fn acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> AcquirePermit<A> {
        self.asking(key, 1, None, false)
    }

    /// Takes a permit that is held until it is dropped, waiting for it at most `longest`, as
    /// [`acquire_within`](RateLimiter::acquire_within) does: for [`Concurrency`](crate::algorithm::Concurrency), it
    /// gives up after `longest`.
    ///
    /// # Errors
    ///
    /// The denial.
    ///
    /// # Cancel safety
    ///
    /// As of [`acquire_permit`](RateLimiter::acquire_permit).
    ///
    /// # Panics
    ///
    /// As [`acquire`](RateLimiter::acquire).
    pub fn acquire_permit_within<K: Hash + ?Sized>(&self, key: &K, longest: Duration) -> AcquirePermit<A> {
        self.acquire_permit(key).within(longest)
    }

    /// Ends calls that [`check`](RateLimiter::check) or [`acquire`](RateLimiter::acquire) let in, of a rule that
    /// [holds](Algorithm::needs_release) something until they are over: by the limiter's rule as it is now. Of no effect on
    /// other rules, and never more than the key holds. Not for calls with a [permit](RateLimiter::try_acquire_permit), which ends
    /// them when it is dropped, and knows the rule that it was taken by: where totals are replaced by others, take
    /// permits.
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

    /// Closes the limiter, and all its clones, for ever: those who wait are refused at once, and so are all who come;
    /// or, if [so built](Builder::on_close), those who come pass uncounted.
    ///
    /// For a server that shuts down: what it holds in line would keep it from ending. A layer answers 503, gRPC
    /// `UNAVAILABLE`. Calls in progress go on, and what was admitted before stays so. Such a denial is [told as
    /// one](Decision::is_closed), has no `retry_after`, and counts nowhere.
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

    /// How many calls wait in line now, for all keys together. Never above [`max_queued`](Builder::max_queued).
    #[must_use]
    pub fn queued(&self) -> usize {
        self.context.store().queued()
    }

    /// Gives back up to `cost` units that the key has taken and that still count: for calls that turned out to be free.
    ///
    /// Never worth more than what was taken: units that have come back by themselves, or belong to a window that has
    /// ended, are not given back again. Which calls they belonged to is not recorded; give back what you took, and
    /// soon.
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

    /// Forgets what the key has used. Calls that wait for it may leave at once, one by one.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        self.context.store().reset(&self.context, key);
    }

    /// Replaces the rule by another of its kind, for all keys and all clones, while calls go on.
    ///
    /// Each call is decided by the old rule or by the new one, those after the return by the new one. What was used
    /// stays used, but no more of it than the new rule could hold against a key: so nobody waits longer than the new
    /// rule could demand. Those who wait in line keep their places, and leave at the new rate.
    ///
    /// | what changes | what becomes of a key |
    /// |---|---|
    /// | a higher limit | a window: the difference is free at once. A bucket: as many tokens are missing as before, and they come back sooner |
    /// | a lower limit | a window: of what was used, the newest units up to the limit still count. A bucket: the missing tokens come back later |
    /// | another burst | a bucket: as many tokens are missing as before, at most the new burst. Of no effect on windows |
    /// | another period | [`FixedWindow`](crate::algorithm::FixedWindow): the open window began when it began, and ends one new period later. [`SlidingWindow`](crate::algorithm::SlidingWindow), [`SlidingLog`](crate::algorithm::SlidingLog): what is older than the new period is forgotten. [`SlidingCounter`](crate::algorithm::SlidingCounter): the same part of the window is gone |
    /// | a rule made of rules | each member of a tuple, and the rule within [`Lockout`](crate::algorithm::Lockout) and [`Priority`](crate::algorithm::Priority), by this table. A block lasts no longer than a new one would. Of [`Tiered`], the rule for calls that choose none; those that are chosen are the caller's |
    /// | the rate of a queue | [`LeakyBucket`](crate::algorithm::LeakyBucket), [`Smooth`](crate::algorithm::Smooth): the next turn stays as many intervals away |
    ///
    /// Work in proportion to the keys that are kept: a few milliseconds for 100,000, of which each 64th at a time is
    /// held.
    ///
    /// A rule of another kind is another type, and so another limiter:
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

    /// How many keys are kept: those in use, and some not yet cleaned away. Never above `max_keys`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.context.store().len()
    }

    /// Whether no key is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Algorithm + PartialEq> RateLimiter<Tiered<A>> {
    /// Takes `cost` units by a rule of the call's own. Never waits.
    pub fn check_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K, cost: u64) -> Decision {
        let algorithm = Tiered::new(algorithm.clone());
        self.context.store().check(&self.context, key, Attempt::new(cost).with_algorithm(&algorithm))
    }

    /// What [`check_by`](RateLimiter::check_by) of cost 1 would say, taking nothing.
    pub fn peek_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K) -> Decision {
        let algorithm = Tiered::new(algorithm.clone());
        self.context.store().peek(&self.context, key, Attempt::new(1).with_algorithm(&algorithm))
    }

    /// Takes a permit by a rule of the call's own. See [`permit`](RateLimiter::try_acquire_permit).
    ///
    /// # Errors
    ///
    /// The denial.
    pub fn permit_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K) -> Result<Permit, Decision> {
        let algorithm = Tiered::new(algorithm.clone());
        self.permit_of(key, Attempt::new(1).with_algorithm(&algorithm))
    }

    /// Ends calls that [`check_by`](RateLimiter::check_by) or [`acquire_by`](RateLimiter::acquire_by) let in by that
    /// rule. See [`release`](RateLimiter::release).
    pub fn release_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K, cost: u64) {
        let algorithm = Tiered::new(algorithm.clone());
        MemoryStore::release(&self.context, key, Attempt::new(cost).with_algorithm(&algorithm));
    }

    /// Takes `cost` units by a rule of the call's own, waiting for them in line. Cancel safe as, and panics as
    /// [`acquire`](RateLimiter::acquire).
    pub fn acquire_by<K: Hash + ?Sized>(&self, algorithm: &A, key: &K, cost: u64) -> Acquire<Tiered<A>> {
        self.acquiring(key, cost, Some(Tiered::new(algorithm.clone())), false)
    }
}

impl<A: Algorithm, S> RateLimiter<A, S> {
    /// A limiter whose state lives in `store`, with tokio's clock.
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

    /// The rule, as it is now.
    #[must_use]
    pub fn algorithm(&self) -> Cow<'_, A> {
        self.context.algorithm()
    }

    /// Whether the rule is another than that it was built with.
    #[inline]
    pub(crate) fn is_replaced(&self) -> bool {
        self.context.is_replaced()
    }

    /// Takes what the call costs now, or later, as the store can.
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
