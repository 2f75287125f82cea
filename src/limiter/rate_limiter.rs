//! The limiter in memory and its builder: they are one file, because each of them creates the other.

use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::attempt::Attempt;
use super::contract::{Acquired, Limiter, LimiterFor, Settles};
use super::fingerprint::{Fingerprint, MemoryKey};
use super::joint::{InMemory, JointLimiter, JointRequest};
use super::observed::Observed;
use super::options::{OnClose, OnFull};
use super::reservation::{Permit, Reservation};
use super::room::Room;
use super::table::Table;
use super::wait::QueuedAcquire;
use crate::algorithm::info::longest_queueing;
use crate::algorithm::{Algorithm, AlgorithmInfo, Lockout, MAX_DEBT, Semaphore};
use crate::clock::{AnyClock, Nanos};
use crate::decision::{Decision, Denied};
use crate::observe::{burst_ignored, total_with_queue};
use crate::stats::{LimiterStats, UnitCounts};
use crate::sys::lock::atomic::AtomicU64;

/// The default of [`Builder::max_keys`].
const DEFAULT_MAX_KEYS: usize = 100_000;

/// The default of [`Builder::max_queued`], unless a larger capacity was set for the queue of each key.
const DEFAULT_MAX_QUEUED: usize = 10_000;

/// The maximum number of paused keys.
const MAX_PAUSED: u64 = 10_000;

/// A rate limiter, which decides whether a call may pass. It keeps the state of its keys in this process. Clones share
/// their state.
///
/// A key is any `K: Hash + ?Sized`, such as `"user:42"`, an `IpAddr` or a tuple. The `Hash` of the key must be
/// [prefix-free](crate::key::KeyExtractor::Key), as it is for derived and standard types. Otherwise two different keys
/// might share one budget. Costs are in units of the quota. A denied call takes no units. A call with a cost of 0 is
/// always allowed.
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
/// # Guarantees
///
/// One call at a time changes the state of a key. At most `max_keys` keys are kept. A fresh key may be removed at any
/// time. Its removal changes no decision while the table has room for new keys.
///
/// [`OnFull`] defines what happens to new keys when the table is full of keys that are not fresh. By default, one of
/// eight sampled keys is evicted, so that new keys need not be denied: the least used of those that were not called
/// recently. A key with calls in progress or queued calls is never evicted. [`stats`](RateLimiter::stats) counts
/// evictions and other effects of a full table.
///
/// # How large `max_keys` should be
///
/// `max_keys` should be well above the number of distinct keys in the longest window of the algorithm, or in the
/// duration of a lockout if that duration is longer. The window of a bucket is the time in which the bucket fills. For
/// a [`SlidingCounter`](crate::algorithm::SlidingCounter), count the keys of two windows. Then no key is evicted.
/// [Floods of keys](crate::guide::floods) explains how to keep invented keys out.
///
/// # Memory
///
/// A key is kept as a 64-bit keyed fingerprint. So the length of the key does not matter, and the key cannot be read
/// back. With a million keys, the probability that two of them share a state is 5 in 100 million. A slot of the table
/// takes 8 bytes more than the algorithm's state, which takes 24 bytes for a
/// [`TokenBucket`](crate::algorithm::TokenBucket). When a table with the default `max_keys` is full, 73 % of its slots
/// are occupied. So with a `TokenBucket`, count 44 bytes per key: 4.4 MB for the default of 100,000 keys.
///
/// The memory of removed keys is reused, but not freed while the limiter exists. [Design](crate::guide::design) says
/// how the table is built.
///
/// State is lost when the process ends, or when the last clone of the limiter is dropped.
///
/// # Panics
///
/// No method panics because of a key, a cost or a clock reading. [`acquire`](RateLimiter::acquire) describes when its
/// future panics.
pub struct RateLimiter<A: Algorithm> {
    pub(super) table: Arc<Table<A>>,
}

/// A builder of a [`RateLimiter`].
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
pub struct Builder<A> {
    algorithm: A,
    clock: AnyClock,
    name: Option<String>,
    max_keys: usize,
    max_queued: Option<usize>,
    max_debt: u64,
    on_close: OnClose,
    on_full: OnFull,
}

impl<A: Algorithm> RateLimiter<A> {
    /// Creates a limiter with tokio's clock and the default [`max_keys`](Builder::max_keys).
    #[must_use]
    pub fn new(algorithm: A) -> Self {
        Self::builder(algorithm).build()
    }

    /// Returns a builder, which can set the clock and the bounds.
    pub fn builder(algorithm: A) -> Builder<A> {
        Builder::new(algorithm)
    }
}

impl<A: Algorithm> RateLimiter<A> {
    /// Does not compile if admitted calls hold units until they end. A method that uses this constant returns nothing
    /// that ends its call.
    pub(super) const NO_RELEASE: () = assert!(
        !A::NEEDS_RELEASE,
        "nothing would end this call in progress: take a permit, by `try_acquire_permit` or `acquire_permit`"
    );

    /// Takes one unit if it is available. Never waits in a queue.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(100)));
    /// let decision = limiter.check("user:42");
    /// match decision.into_result() {
    ///     Ok(()) => println!("welcome, {} calls left", decision.remaining()),
    ///     Err(denied) => println!("{denied}"),
    /// }
    /// ```
    ///
    /// A denial may have no [`retry_after`](Decision::retry_after), so only [`is_allowed`](Decision::is_allowed) and
    /// [`into_result`](Decision::into_result) say whether the call may pass.
    ///
    /// # Calls in progress
    ///
    /// With a [`Concurrency`](crate::algorithm::Concurrency), and with algorithms that contain one, `check` and
    /// [`acquire`](RateLimiter::acquire) do not compile: nothing would end the call. Take a
    /// [permit](RateLimiter::try_acquire_permit) instead. `cargo check` does not show this error, and `cargo build`
    /// does.
    ///
    /// ```compile_fail,E0080
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let exports = RateLimiter::new(Concurrency::per_key(1));
    /// let _ = exports.check("user:42");
    /// ```
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        const { Self::NO_RELEASE }
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
    pub fn check_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        const { Self::NO_RELEASE }
        let decision = self.table.check(self.table.fingerprint(key), Attempt::new(cost));
        self.table.shared.observed.checked(&decision);
        decision
    }

    /// Returns a decision that tells whether [`check`](RateLimiter::check) would admit a call now. Takes no units.
    ///
    /// In the result, `is_allowed` and `retry_after` are those that `check` would return, except for a new key when the
    /// key table is full: a peek does not examine whether the table has room for the key. `remaining` and `reset_after`
    /// describe the key as it is, without the call. A peek is a clock reading that the key observes, as any call is: if
    /// the clock is set back later, the key's [time](crate::algorithm#time) does not go back with it.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(10)));
    /// assert_eq!(limiter.peek("user:42").remaining(), 10);
    /// assert_eq!(limiter.peek("user:42").remaining(), 10);
    /// ```
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.peek_n(key, 1)
    }

    /// Returns a decision that tells whether [`check_n`](RateLimiter::check_n) would admit a call now. Takes no units.
    /// See [`peek`](RateLimiter::peek).
    pub fn peek_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.table.peek(self.table.fingerprint(key), Attempt::new(cost))
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
    /// # Ok::<(), tower_throttle::limiter::Denied>(())
    /// ```
    pub fn try_acquire_permit<K: Hash + ?Sized>(&self, key: &K) -> Result<Permit, Denied> {
        self.table.permit(self.table.fingerprint(key), Attempt::new(1))
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
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        self.table.refund(self.table.fingerprint(key), cost);
    }

    /// Charges `units` to the key after the fact, even if they are not available. Use this for jobs, messages of queues
    /// and WebSockets, whose costs are known only when they were caused.
    ///
    /// What is not available becomes debt: later calls of the key are denied, or wait, until enough units are available
    /// again. [`max_debt`](Builder::max_debt) bounds the debt, and [`stats`](RateLimiter::stats) counts the units that
    /// were charged, and those that were not. Queued calls keep their order, and are admitted later. A queued call that
    /// has then waited for its maximum wait is denied.
    ///
    /// A limiter in memory forgets all keys when the process ends. So another use of this method is to charge what an
    /// app has written down before a restart: a [recipe](crate::guide::recipes#without-redis) does this for a quota per
    /// day.
    ///
    /// With an algorithm that [needs a release](Algorithm::NEEDS_RELEASE), such as
    /// [`Concurrency`](crate::algorithm::Concurrency), this method has no effect.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(100)));
    /// limiter.charge("user:42", 250);
    /// // The bucket is short of 250 tokens, and a call needs one of 100.
    /// let denied = limiter.check("user:42");
    /// assert_eq!(denied.remaining(), 0);
    /// assert!(denied.retry_after().unwrap().as_secs_f64() > 90.0);
    /// assert_eq!(limiter.stats().units.charged, 250);
    /// ```
    pub fn charge<K: Hash + ?Sized>(&self, key: &K, units: u64) {
        self.table.charge(self.table.fingerprint(key), None, units);
    }

    /// Lets no call of the key pass for `duration` from now. Use this if a server that you call has answered with a
    /// `Retry-After`, or for maintenance.
    ///
    /// A call that may not wait is denied. Its `retry_after` is the rest of the pause, or longer if the limit or the
    /// queue admits the call later. Whether the [total](crate::algorithm::Concurrency::total) of a limit of calls in
    /// progress has room for the call after the pause is not known, and makes no difference to `retry_after`. Queued
    /// calls wait, calls that may wait join them, and after the pause all of them pass in their order, and at the rate
    /// of the limit. A queued call is denied once it has waited for its maximum wait, even during the pause. Joined
    /// calls and permits are denied as well. Calls in progress go on, a cost of 0 is allowed, and time goes on for the
    /// limit: a bucket fills. A [`Lockout`] does not count the denials of a pause.
    ///
    /// A later pause replaces an earlier one, even if it is shorter. A `duration` of zero and a
    /// [`reset`](Self::reset) end the pause. [`replace`](Self::replace) keeps it.
    ///
    /// Returns whether the key is paused. It is not if `duration` is zero, if 10,000 other keys are paused, if the
    /// table has no room for the key, or if the limiter is closed. A paused key is not evicted, and counts in
    /// `max_keys`. The work is linear in the number of queued calls of the key and, once 10,000 keys are paused, in the
    /// number of all keys that are paused or have a queue. Limiters in Redis cannot pause a key, because calls that
    /// wait there sleep until times that they were given.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::LeakyBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let outbound = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)));
    /// assert!(outbound.pause("api.example.com", Duration::from_secs(30)));
    /// let denied = outbound.check("api.example.com");
    /// assert!(denied.retry_after() > Some(Duration::from_secs(29)));
    /// outbound.pause("api.example.com", Duration::ZERO);
    /// assert!(outbound.check("api.example.com").is_allowed());
    /// ```
    pub fn pause<K: Hash + ?Sized>(&self, key: &K, duration: Duration) -> bool {
        self.table.pause(self.table.fingerprint(key), Nanos::from(duration).0)
    }

    /// Resets the key to the state of a new key, except that calls in progress stay counted. Returns whether the key
    /// had used anything: `false` if it was as a new key is.
    ///
    /// The type of the key counts, as in all methods: the `String` `"192.0.2.1"` is another key than the `IpAddr`, and
    /// its reset returns `false`.
    ///
    /// The first queued call of the key may be admitted as soon as the key is reset, and the calls behind it later.
    /// Calls that were made before the reset, and are [settled](super::Reservation::settle) later, give nothing back.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)));
    /// assert!(limiter.check("user:42").is_allowed());
    /// assert!(limiter.reset("user:42"));
    /// assert!(limiter.check("user:42").is_allowed());
    /// assert!(!limiter.reset("user:43"));
    /// ```
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) -> bool {
        self.table.reset(self.table.fingerprint(key))
    }

    /// Resets all keys, as [`reset`](Self::reset) does for one key.
    ///
    /// The keys are reset one shard after another, so a call that is made meanwhile may find its key before or after
    /// the reset. A shard of a large table has about a thousand keys, and calls for its keys wait for it.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)));
    /// assert!(limiter.check("user:42").is_allowed() && limiter.check("user:43").is_allowed());
    /// limiter.reset_all();
    /// assert!(limiter.check("user:42").is_allowed() && limiter.check("user:43").is_allowed());
    /// ```
    pub fn reset_all(&self) {
        self.table.reset_all();
    }
}

/// Lockouts that an administrator begins and ends.
impl<A: Algorithm> RateLimiter<Lockout<A>> {
    /// Locks the key out for `duration` from now, as if it had been denied too often. A lockout that the key is in
    /// ends, even if it would have lasted longer.
    ///
    /// Returns whether the key is locked out. It is not if the table is full and has no room for the key. As with any
    /// lockout, calls that are queued stay queued, and are admitted in their turn, even during the lockout;
    /// [`pause`](Self::pause) holds them as well.
    /// [`replace`](Self::replace) shortens the lockout to the duration of the new algorithm's lockouts. With
    /// [`extend_on_retry`](Lockout::extend_on_retry), a call that is denied extends the lockout only if less than that
    /// duration is left.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let hour = Duration::from_secs(3_600);
    /// let logins =
    ///     RateLimiter::new(FixedWindow::new(Quota::per_minute(5)).block_for(hour).after(10));
    /// assert!(logins.lock_out("user:42", 24 * hour));
    /// assert!(logins.check("user:42").is_locked_out());
    /// assert!(logins.lift_lockout("user:42"));
    /// assert!(logins.check("user:42").is_allowed());
    /// ```
    pub fn lock_out<K: Hash + ?Sized>(&self, key: &K, duration: Duration) -> bool {
        self.table.set_lockout(self.table.fingerprint(key), Nanos::from(duration).0)
    }

    /// Ends the lockout of the key, if it is in one, and forgets the denials that were counted towards the next one.
    /// Units that were charged stay charged, so the key is still limited. [`reset`](Self::reset) forgets these, too.
    ///
    /// Returns whether the key was locked out, or had such denials. The type of the key counts: a `String` is another
    /// key than the `IpAddr` with the same text, and the result is then `false`.
    pub fn lift_lockout<K: Hash + ?Sized>(&self, key: &K) -> bool {
        self.table.lift_lockout(self.table.fingerprint(key))
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
    /// let limiter =
    ///     RateLimiter::builder(FixedWindow::new(Quota::per_day(1_000))).max_keys(100).build();
    /// for key in 0..150 {
    ///     assert!(limiter.check(&key).is_allowed());
    /// }
    /// assert_eq!(limiter.stats().calls.admitted, 150);
    /// assert_eq!(limiter.stats().store.evicted, 50);
    /// ```
    #[must_use]
    pub fn stats(&self) -> LimiterStats {
        self.table.shared.stats()
    }

    /// Passes the counts of the limiter to the recorder of the [`metrics`](https://docs.rs/metrics) facade, under names
    /// that begin with `tower_throttle_limiter_` and with the limiter's name as label. They count all its calls,
    /// whoever made them: layers, handlers, tasks.
    ///
    /// Call this before each scrape, or every few seconds, on any clone. A layer with this limiter counts its requests
    /// as well, in `tower_throttle_calls_total`: do not add the two. Of a limiter without a [name](Builder::name),
    /// nothing is passed, and that is logged once. The guide has the [names](crate::guide::production#metrics).
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let mails =
    ///     RateLimiter::builder(TokenBucket::new(Quota::per_hour(5))).name("mails").build();
    /// assert!(mails.check("user:42").is_allowed());
    /// // `tower_throttle_limiter_calls_total{limiter="mails",outcome="admitted"}` is 1
    /// mails.record_metrics();
    /// ```
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.table.shared.observed.record_metrics(&self.stats(), false);
    }

    /// Returns the number of calls that are queued now, for all keys together. This is at most
    /// [`max_queued`](Builder::max_queued).
    #[must_use]
    pub fn queued(&self) -> usize {
        usize::try_from(self.table.shared.store_stats().waiting).unwrap_or(usize::MAX)
    }

    /// Returns the number of keys that are kept. Some of these keys may be fresh, with their whole quota available
    /// again, and not yet removed. The number is at most `max_keys`.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.table.shared.store_stats().keys).unwrap_or(usize::MAX)
    }

    /// Returns whether no key is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Algorithm> RateLimiter<A> {
    /// Replaces the algorithm by another of the same type, for all keys and for all clones of the limiter. Calls may be
    /// made at the same time.
    ///
    /// Calls that are made before this method returns are decided by the old algorithm or by the new algorithm. Later
    /// calls are decided by the new algorithm. Layers report its quotas in the responses to requests that begin after
    /// this method has returned. While it runs, and for requests that began before, such as queued ones, a header field
    /// may show the other quota.
    ///
    /// Charged units stay charged, up to the most that calls can take by the new algorithm. The
    /// [debt](Builder::max_debt) of a key, which is what was charged above the old limit or burst, is added to them. So
    /// a key that has used 1,000 units of 1,000 has used ten units of ten after a replacement, and a key that has used
    /// 1,005 units has used 15.
    ///
    /// With state in memory, queued calls keep their order, and each is admitted as soon as the new algorithm admits
    /// it, even if the new algorithm queues fewer calls or none. Only queued calls that chose a
    /// [tier](crate::algorithm::Tiered) are still admitted at the rate of that tier. A queued call that costs more than
    /// a lowered limit is charged the new limit. The `max_wait` of a queued call was compared with its wait when it
    /// arrived, so with a lower rate the call may wait longer. There are two exceptions. A call whose wait is not
    /// known, as with [`Concurrency`](crate::algorithm::Concurrency), is denied once it has waited for its `max_wait`.
    /// And so is any queued call once a settlement or a [`charge`](RateLimiter::charge) has charged units, or a
    /// [`pause`](RateLimiter::pause) has begun, while the call waited.
    ///
    /// Calls in progress that are [settled](super::Reservation::settle) later give nothing back, because it is not
    /// known which of the converted units are theirs. Their estimates stay charged until they expire, or are refilled.
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
    /// [key table](crate::RateLimiter#memory) is locked at a time: in this case, a part with about 1,500 keys for 60
    /// microseconds.
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
        self.table.replace(algorithm);
    }
}

impl<A: Algorithm> RateLimiter<A> {
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
        self.table.close();
    }
}

impl<A: Algorithm> RateLimiter<A> {
    /// Returns a copy of the current algorithm.
    #[must_use]
    pub fn algorithm(&self) -> A {
        self.table.algorithm()
    }
}

/// Functions that `tower-throttle-redis` needs for its fallbacks, and tests for their twins.
impl<A: Algorithm> RateLimiter<A> {
    /// Peeks, as [`Call::peek`](super::Call::peek) does.
    #[doc(hidden)]
    pub fn peek_attempt<K: MemoryKey + ?Sized>(&self, key: &K, call: Attempt<'_, A>) -> Decision {
        self.table.peek(self.table.fingerprint(key), call)
    }

    /// Makes a call, as [`Call::reserve`](super::Call::reserve) does.
    #[doc(hidden)]
    pub fn reserve_attempt<K: MemoryKey + ?Sized>(
        &self,
        key: &K,
        call: Attempt<'_, A>,
    ) -> (Decision, Reservation) {
        self.table.reserve(self.table.fingerprint(key), call)
    }

    /// Charges the key, as [`Call::charge`](super::Call::charge) does.
    #[doc(hidden)]
    pub fn charge_attempt<K: MemoryKey + ?Sized>(&self, key: &K, call: Attempt<'_, A>) {
        self.table.charge(self.table.fingerprint(key), call.algorithm(), call.cost());
    }
}

impl<A: Algorithm> Limiter for RateLimiter<A> {
    type Algorithm = A;
    type Error = Infallible;
    type Wait = QueuedAcquire<A>;

    const IS_LOCAL: bool = true;

    #[inline(always)]
    fn hash_of<K: MemoryKey + ?Sized>(&self, key: &K) -> u64 {
        self.table.fingerprint(key).word()
    }

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.table.info()
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.table.generation()
    }

    fn stats(&self) -> LimiterStats {
        self.table.shared.stats()
    }

    fn close(&self) {
        RateLimiter::close(self);
    }

    fn name(&self) -> Option<&str> {
        self.table.shared.observed.name()
    }
}

impl<A: Algorithm, K: MemoryKey + ?Sized> LimiterFor<K> for RateLimiter<A> {
    #[inline]
    fn acquire(&self, key: &K, attempt: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        self.table.acquire(self.table.fingerprint(key), attempt)
    }

    #[inline(always)]
    fn acquire_hashed(&self, key: &K, hash: u64, attempt: Attempt<'_, A>) -> Acquired<QueuedAcquire<A>> {
        debug_assert_eq!(hash, self.table.fingerprint(key).word(), "the hash is that of the key");
        self.table.acquire(Fingerprint::of_word(hash), attempt)
    }
}

impl<A: Algorithm> Settles for RateLimiter<A> {}

impl<A: Algorithm, K: MemoryKey + ?Sized> JointLimiter<K> for RateLimiter<A> {
    type Kind = InMemory;

    #[inline]
    fn joint_part<'a>(&'a self, key: &K, attempt: Attempt<'_, A>) -> JointRequest<'a> {
        JointRequest::new(&self.table, self.table.fingerprint(key), attempt)
    }
}

impl<A: Algorithm> Clone for RateLimiter<A> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table) }
    }
}

impl<A: Algorithm> fmt::Debug for RateLimiter<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

impl<A: Algorithm> Builder<A> {
    /// Sets the clock: a [`ManualClock`](crate::clock::ManualClock), or any other [`Clock`](crate::clock::Clock). The
    /// default is tokio's clock.
    pub fn clock(mut self, clock: impl Into<AnyClock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Sets the name of the limiter, such as `login`. With a name, each call that no layer makes and that is denied, or
    /// was queued, is a log event of level `debug` (feature `tracing`), and `record_metrics` passes the counts of all
    /// calls to a recorder (feature `metrics`).
    ///
    /// A layer with this limiter has the same name in header fields, unless another one is set by
    /// [`RateLimitLayer::name`](crate::middleware::RateLimitLayer::name).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl<A: Algorithm> Builder<A> {
    fn new(algorithm: A) -> Self {
        Self {
            algorithm,
            clock: AnyClock::default(),
            name: None,
            max_keys: DEFAULT_MAX_KEYS,
            max_queued: None,
            max_debt: MAX_DEBT,
            on_close: OnClose::default(),
            on_full: OnFull::default(),
        }
    }

    /// Sets the maximum number of keys that are kept. The default is 100,000. A maximum of 0 is raised to 1.
    ///
    /// The docs of [`RateLimiter`] describe the [memory](RateLimiter#memory) that the keys take, and [how large
    /// `max_keys` should be](RateLimiter#how-large-max_keys-should-be).
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// Sets what happens to a new key when `max_keys` keys are in use. The default is [`OnFull::EvictLeastUsed`].
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::limiter::OnFull;
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
        self.on_full = on_full;
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
    /// The default is 10,000, or the algorithm's `queue(n)` if that is more. Each queued call takes 112 bytes in its
    /// queue. A queue grows by doubling, so count 110 to 230 bytes per call. The future, the request and the connection
    /// of the call take memory as well.
    pub fn max_queued(mut self, max_queued: usize) -> Self {
        self.max_queued = Some(max_queued);
        self
    }

    /// Sets by how many units a key may be in debt. With 0, a settlement charges only the units that are available: of
    /// a tuple, to each member what is available there, and nothing while calls of the key are queued.
    ///
    /// A key is in debt if more units were charged to it than calls can take: by a
    /// [settlement](super::Reservation::settle) above the cost with which a call was admitted, or by
    /// [`charge`](RateLimiter::charge). A bucket in debt is full later. A window counts above its limit until the units
    /// expire, and so forgets the debt with them. While a key is in debt, its
    /// [`remaining`](crate::Decision::remaining) is 0, and `retry_after` is the time at which the call would be
    /// admitted if no other call is made or settled until then.
    ///
    /// So the cost of a call need not be known when the call is admitted. With a token bucket, the units that a key
    /// uses in any span `t` that ends with an admission are at most `burst + t * limit / period`, and the amount by
    /// which the calls that are then in progress will cost more than their estimates. A span that ends between two
    /// admissions may have more: what is paid back after it. This requires that the debt stays below the bound, that
    /// the key stays in the table, and that estimates are above 0, since a call of cost 0 is admitted even in debt.
    ///
    /// Not every algorithm counts units:
    ///
    /// | algorithm | what is debt | the bound |
    /// |---|---|---|
    /// | `TokenBucket`, windows | units above what calls can take | `max_debt` |
    /// | [`LeakyBucket`](crate::algorithm::LeakyBucket), [`Smooth`](crate::algorithm::Smooth) | the time until the next call can pass, which each charged unit moves by one interval | `max_debt` intervals, and one for each call of cost 1 that can pass at once: in a leaky bucket one, so a `max_debt` of 5 means six intervals |
    ///
    /// The bound is for charges after the fact, and not for the cost with which a call is admitted. In a tuple, each
    /// member has the bound, and is charged as far as it may.
    ///
    /// The default, and the highest bound, is [`MAX_DEBT`], which is 2^53. Units above the bound are not charged, and
    /// are counted in [`UnitStats::uncharged`](crate::stats::UnitStats::uncharged).
    ///
    /// ```
    /// use tower_throttle::algorithm::FixedWindow;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter =
    ///     RateLimiter::builder(FixedWindow::new(Quota::per_hour(100))).max_debt(50).build();
    /// let reservation = limiter.call("user:42").cost(80).reserve()?;
    /// // 100 units fit into the window, and 50 are debt.
    /// reservation.settle(1_000);
    /// let units = limiter.stats().units;
    /// assert_eq!((units.charged, units.uncharged), (70, 850));
    /// # Ok::<(), tower_throttle::limiter::Denied>(())
    /// ```
    pub fn max_debt(mut self, units: u64) -> Self {
        self.max_debt = units.min(MAX_DEBT);
        self
    }

    /// Sets what happens to new calls once the limiter is [closed](RateLimiter::close). The default is
    /// [`OnClose::Reject`].
    pub fn on_close(mut self, on_close: OnClose) -> Self {
        self.on_close = on_close;
        self
    }

    /// Returns the limiter. A new key is treated as if it had been idle since the limiter was built.
    #[must_use]
    pub fn build(self) -> RateLimiter<A> {
        warn_of_bursts(&self.algorithm, self.name.as_deref());
        warn_of_total(&self.algorithm, self.name.as_deref());
        let Self { algorithm, clock, name, max_keys, max_queued, max_debt, on_close, on_full } = self;
        let max_queued = max_queued.map_or_else(|| default_max_queued(&algorithm), |max| max as u64);
        let shared = Shared {
            observed: Observed::new(name),
            room: Room::new(max_keys, on_full, &algorithm, clock.now()),
            clock,
            waiting: Semaphore::new(max_queued),
            paused: Semaphore::new(MAX_PAUSED),
            max_debt,
            on_close,
            resets: AtomicU64::new(0),
            calls: Arc::default(),
            units: UnitCounts::default(),
        };
        RateLimiter { table: Arc::new(Table::new(algorithm, max_keys, shared)) }
    }
}

/// Logs each window of the algorithm whose quota has a burst, which a window ignores. `limiter` is the limiter's name.
pub fn warn_of_bursts(algorithm: &impl Algorithm, limiter: Option<&str>) {
    algorithm.for_each_policy(&mut |window| {
        if window.ignores_burst() {
            burst_ignored(limiter, &window);
        }
    });
}

/// Logs a [total](crate::algorithm::Concurrency::total) whose limit also queues requests.
fn warn_of_total(algorithm: &impl Algorithm, limiter: Option<&str>) {
    let mut has_total = false;
    algorithm.for_each_total(&mut |_| has_total = true);
    if has_total && longest_queueing(algorithm) > 0 {
        total_with_queue(limiter);
    }
}

/// Returns the configured places of a queue, but at least `DEFAULT_MAX_QUEUED`.
pub fn default_max_queued(algorithm: &impl Algorithm) -> u64 {
    let min = DEFAULT_MAX_QUEUED as u64;
    let chosen = algorithm.queue_config().and_then(|queue| queue.explicit_places());
    chosen.map_or(min, |places| places.max(min))
}
