//! The limiter and its builder: they are one file, because each of them creates the other.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::future::{Acquire, AcquirePermit};
use crate::algorithm::Algorithm;
use crate::clock::AnyClock;
use crate::decision::Decision;
use crate::observe;
use crate::stats::LimiterStats;
use crate::store::{
    Attempt, CheckStore, CloseStore, Denied, KeyedStore, MakeStore, MemoryOptions, MemoryStore, OnClose,
    OnFull, Permit, ReleaseStore, ReplaceAlgorithm, Store, StoreSettings,
};

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
    store: S,
    said: Arc<Said>,
    algorithm: PhantomData<fn() -> A>,
}

/// The log events that a limiter and its clones have made.
#[derive(Debug)]
struct Said {
    /// The name of the limiter, if one was set.
    name: Option<String>,
    ignored_priority: AtomicBool,
}

/// A builder of a [`RateLimiter`].
///
/// By default, state is kept in memory, and `max_keys`, `max_queued`, `on_full` and `on_close` configure the store in
/// memory. After a call of [`store`](Builder::store), calls of these methods do not compile, because they would have no
/// effect.
///
/// ```
/// use tower_throttle::algorithm::LeakyBucket;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::limiter::OnClose;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::builder(LeakyBucket::new(Quota::per_second(10)))
///     .clock(ManualClock::new())
///     .max_keys(1_000_000)
///     .max_queued(500)
///     .on_close(OnClose::Allow)
///     .build();
/// assert!(limiter.is_empty());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<A, M = MemoryOptions> {
    algorithm: A,
    clock: AnyClock,
    name: Option<String>,
    store: M,
}

/// A store that [`Builder::store`] has set.
#[derive(Clone, Debug)]
pub struct CustomStore<M>(M);

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

/// Calls that wait in the queue of their key.
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
    /// A window with [priority](crate::algorithm#priority) queues only calls with priority. A tuple with a lockout,
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
    /// - otherwise only by the [total of the limiter](Builder::max_queued), and there is no maximum wait. **One
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
        Acquire::new(self.store.clone(), self.store.key(key), cost)
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
    /// This method is for windows with [priority](crate::algorithm#priority), and for [`Tiered`](crate::algorithm::Tiered)
    /// or [lockouts](crate::algorithm::Lockout) of such windows. With any other algorithm, the call is the same as a call
    /// of `acquire_n`, and the first such call of a limiter is logged as a warning (feature `tracing`).
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(FixedWindow::new(Quota::per_second(10)).priority(20));
    /// let payment = limiter.acquire_with_priority("upstream", 1);
    /// # drop(payment);
    /// ```
    pub fn acquire_with_priority<K: ?Sized>(&self, key: &K, cost: u64) -> Acquire<A, S>
    where
        S: KeyedStore<A, K>,
    {
        self.acquire_n(key, cost).with_priority(self.knows_priority(None))
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
}

/// The counters of a limiter.
impl<A: Algorithm> RateLimiter<A> {
    /// Returns what the limiter has counted since it was created: its calls, by outcome, and the events of its key
    /// table, such as evictions.
    ///
    /// While no call uses the limiter, the counters are exact, however many threads have used it. Reading the counters
    /// blocks no call.
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_day(1_000))).max_keys(100).build();
    /// for key in 0..150 {
    ///     assert!(limiter.check(&key).is_allowed());
    /// }
    /// assert_eq!(limiter.stats().calls.admitted, 150);
    /// assert_eq!(limiter.stats().store.evicted, 50);
    /// ```
    #[must_use]
    pub fn stats(&self) -> LimiterStats {
        self.store.limiter_stats()
    }

    /// Returns the number of calls that are queued now, for all keys together. This is at most
    /// [`max_queued`](Builder::max_queued).
    #[must_use]
    pub fn queued(&self) -> usize {
        usize::try_from(self.store.stats().waiting).unwrap_or(usize::MAX)
    }

    /// Returns the number of keys that are kept. Some of these keys may be fresh, with their whole quota available
    /// again, and not yet removed. The number is at most `max_keys`.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.store.stats().keys).unwrap_or(usize::MAX)
    }

    /// Returns whether no key is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Algorithm, S: ReleaseStore<A>> RateLimiter<A, S> {
    /// Releases `cost` units of one or more calls that [`check`](RateLimiter::check) or
    /// [`acquire`](RateLimiter::acquire) admitted.
    ///
    /// This method is for algorithms that [need a release](Algorithm::NEEDS_RELEASE), and has no effect with others. At
    /// most the units that calls in progress hold for the key are released. The units are released by the current
    /// algorithm of the limiter. Do not release calls that have a [permit](RateLimiter::try_acquire_permit): dropping
    /// the permit releases the units, by the algorithm that admitted the call. So use permits if an algorithm with a
    /// total may be [replaced](RateLimiter::replace).
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
    pub fn release<K: ?Sized>(&self, key: &K, cost: u64) -> S::Reply<()>
    where
        S: KeyedStore<A, K>,
    {
        self.store.release(self.store.key(key), Attempt::new(cost))
    }
}

impl<A: Algorithm, S: ReplaceAlgorithm<A>> RateLimiter<A, S> {
    /// Replaces the algorithm by another of the same type, for all keys and for all clones of the limiter. Calls may be
    /// made at the same time.
    ///
    /// Calls that are made before this method returns are decided by the old algorithm or by the new algorithm. Later
    /// calls are decided by the new algorithm. Charged units stay charged, up to the most that the new algorithm can
    /// charge to a key. With state in memory, queued calls keep their order, and are admitted at the new rate. Only
    /// queued calls that chose a [tier](crate::algorithm::Tiered) are still admitted at the rate of that tier.
    ///
    /// | what changes | effect on a key |
    /// |---|---|
    /// | a higher limit | a window: the difference is available at once. A bucket: the number of tokens by which it is short of its burst stays the same, and these tokens are refilled sooner |
    /// | a lower limit | a window: the newest charged units still count, up to the new limit. A bucket: the tokens by which it is short of its burst are refilled later |
    /// | another burst | a bucket: the number of tokens by which it is short of its burst stays the same, but is at most the new burst. No effect on windows |
    /// | another period | [`FixedWindow`](crate::algorithm::FixedWindow): the current window keeps its beginning, and ends one new period after its beginning; if windows are aligned, the current window is aligned to the new period. [`SlidingWindow`](crate::algorithm::SlidingWindow), [`SlidingLog`](crate::algorithm::SlidingLog): units that are older than the new period no longer count. [`SlidingCounter`](crate::algorithm::SlidingCounter): the elapsed fraction of the window stays the same |
    /// | a combined algorithm | this table applies to each member of a tuple, and to the algorithm within [`Lockout`](crate::algorithm::Lockout). A lockout that has begun lasts, from the replacement on, at most the duration of the new `Lockout`. In [`Tiered`](crate::algorithm::Tiered), the algorithm for calls without a tier is replaced. Other calls choose their tiers themselves |
    /// | the maximum number of calls in progress | [`Concurrency`](crate::algorithm::Concurrency): calls in progress stay counted, even above a lower maximum |
    /// | the rate of a queue | [`LeakyBucket`](crate::algorithm::LeakyBucket), [`Smooth`](crate::algorithm::Smooth): the number of intervals until the next scheduled time stays the same |
    ///
    /// With state in memory, the work is linear in the number of keys that are kept. A million keys of a
    /// [`TokenBucket`](crate::algorithm::TokenBucket) took 40 milliseconds on a virtual machine. Only one part of the
    /// [key table](crate::store::MemoryStore#memory) is locked at a time: in this case, a part with about 1,500 keys
    /// for 60 microseconds.
    ///
    /// An algorithm of another type needs another limiter:
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
        self.store.replace(algorithm);
    }
}

impl<A: Algorithm, S: CloseStore<A>> RateLimiter<A, S> {
    /// Closes the limiter and all its clones for ever: queued calls are denied at once, and new calls with a cost above
    /// 0 are denied as well. With [`on_close(OnClose::Allow)`](Builder::on_close), new calls are admitted
    /// without a charge instead.
    ///
    /// Close the limiter when a server shuts down, because queued requests would delay the shutdown. A layer whose
    /// limiter is closed rejects HTTP requests with 503, and gRPC calls with `UNAVAILABLE`. Calls in progress continue,
    /// and calls that were admitted before the limiter was closed stay admitted. A denial by a closed limiter is
    /// [marked](crate::Decision::is_closed) as such, and has no `retry_after`. A [`Lockout`](crate::algorithm::Lockout)
    /// does not count such a denial.
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
        self.store.close();
    }
}

impl<A: Algorithm, S: Store<A>> RateLimiter<A, S> {
    /// Creates a limiter that keeps its state in `store`. The store contains the algorithm and the clock.
    #[must_use]
    pub fn with_store(store: S) -> Self {
        Self::named(store, None)
    }

    fn named(store: S, name: Option<String>) -> Self {
        Self {
            store,
            said: Arc::new(Said { name, ignored_priority: AtomicBool::new(false) }),
            algorithm: PhantomData,
        }
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

    /// Returns whether calls with priority differ from other calls, for a call that `algorithm` decides or, if this is
    /// `None`, the limiter's own algorithm. Logs the first call for which this is not so.
    #[cold]
    pub(crate) fn knows_priority(&self, algorithm: Option<&A>) -> bool {
        let queue_config = match algorithm {
            Some(algorithm) => algorithm.queue_config(),
            None => self.algorithm().queue_config(),
        };
        let knows_priority = queue_config.is_some_and(|queue| queue.priority_units().is_some());
        if !knows_priority {
            observe::ignored_priority(&self.said.ignored_priority, self.said.name.as_deref());
        }
        knows_priority
    }
}

impl<A: Algorithm, S: Clone> Clone for RateLimiter<A, S> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), said: Arc::clone(&self.said), algorithm: PhantomData }
    }
}

impl<A: Algorithm, S: Store<A>> fmt::Debug for RateLimiter<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("algorithm", &*self.algorithm()).finish_non_exhaustive()
    }
}

impl<A: Algorithm, M> Builder<A, M> {
    /// Sets the clock: a [`ManualClock`](crate::clock::ManualClock), or any other [`Clock`](crate::clock::Clock). The
    /// default is tokio's clock.
    pub fn clock(mut self, clock: impl Into<AnyClock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Sets the name of the limiter, such as `login`. A store on another machine keeps the keys of the limiter under
    /// this name. A store in memory does not use the name.
    ///
    /// The name of the policy in header fields is set by
    /// [`RateLimitLayer::name`](crate::middleware::RateLimitLayer::name).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl<A: Algorithm> Builder<A> {
    fn new(algorithm: A) -> Self {
        let store = MemoryOptions {
            max_keys: MemoryStore::<A>::DEFAULT_MAX_KEYS,
            max_queued: None,
            on_close: OnClose::default(),
            on_full: OnFull::default(),
        };
        Self { algorithm, clock: AnyClock::default(), name: None, store }
    }

    /// Sets the store that keeps the state of the keys: any type that [makes a store](MakeStore). Options of the store
    /// in memory that were set on this builder have no effect.
    ///
    /// After this method, calls that set options of the store in memory do not compile:
    ///
    /// ```compile_fail,E0599
    /// # use tower_throttle::RateLimiter;
    /// # use tower_throttle::algorithm::TokenBucket;
    /// # use tower_throttle::store::MakeStore;
    /// fn build(algorithm: TokenBucket, store: impl MakeStore<TokenBucket>) {
    ///     RateLimiter::builder(algorithm).store(store).max_keys(10);
    /// }
    /// ```
    pub fn store<M: MakeStore<A>>(self, store: M) -> Builder<A, CustomStore<M>> {
        let Self { algorithm, clock, name, .. } = self;
        Builder { algorithm, clock, name, store: CustomStore(store) }
    }

    /// Sets the maximum number of keys that are kept. The default is 100,000. A maximum of 0 is raised to 1.
    ///
    /// The docs of [`MemoryStore`] describe the memory that the keys take, and [how large `max_keys` should
    /// be](MemoryStore#how-large-max_keys-should-be).
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.store.max_keys = max_keys;
        self
    }

    /// Sets what happens to a new key when `max_keys` keys are in use. The default is [`OnFull::EvictLeastUsed`].
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::store::OnFull;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_day(1_000)))
    ///     .max_keys(1)
    ///     .on_full(OnFull::Reject)
    ///     .build();
    /// assert!(limiter.check("user:42").is_allowed());
    /// assert!(limiter.check("user:43").is_table_full());
    /// assert_eq!(limiter.stats().calls.table_full, 1);
    /// ```
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.store.on_full = on_full;
        self
    }

    /// Sets the maximum number of queued calls, for all keys together. With 0, no call is queued.
    ///
    /// A call that would exceed this maximum is denied. The `retry_after` of the denial is at least the time until the
    /// first queued call of the same key is admitted. If the key has no queued call, `retry_after` is the time until
    /// the denied call would be admitted without waiting. With [`Concurrency`](crate::algorithm::Concurrency), these
    /// times are not known, and there is no `retry_after`.
    ///
    /// One key may use up this maximum, unless the algorithm bounds the number of queued calls per key. See
    /// [`acquire`](RateLimiter::acquire).
    ///
    /// The default is 10,000, or the algorithm's `queue(n)` if that is more. Each queued call takes 104 bytes in its
    /// queue. A queue grows by doubling, so count 100 to 200 bytes per call. The future, the request and the connection
    /// of the call take memory as well.
    pub fn max_queued(mut self, max_queued: usize) -> Self {
        self.store.max_queued = Some(max_queued);
        self
    }

    /// Sets what happens to new calls once the limiter is [closed](RateLimiter::close). The default is
    /// [`OnClose::Reject`].
    pub fn on_close(mut self, on_close: OnClose) -> Self {
        self.store.on_close = on_close;
        self
    }

    /// Returns the limiter. A new key is treated as if it had been idle since the limiter was built.
    #[must_use]
    pub fn build(self) -> RateLimiter<A> {
        warn_of_bursts(&self.algorithm, self.name.as_deref());
        RateLimiter::named(MemoryStore::with(self.algorithm, self.clock, self.store), self.name)
    }
}

impl<A: Algorithm, M: MakeStore<A>> Builder<A, CustomStore<M>> {
    /// Returns the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot work with these settings.
    pub fn build(self) -> Result<RateLimiter<A, M::Store>, M::Error> {
        warn_of_bursts(&self.algorithm, self.name.as_deref());
        let Self { algorithm, clock, name, store } = self;
        let settings = StoreSettings { algorithm, clock, name: name.clone() };
        store.0.make_store(settings).map(|store| RateLimiter::named(store, name))
    }
}

fn warn_of_bursts(algorithm: &impl Algorithm, name: Option<&str>) {
    algorithm.for_each_policy(&mut |policy| {
        if policy.ignores_burst() {
            observe::ignored_burst(name, &policy);
        }
    });
}
