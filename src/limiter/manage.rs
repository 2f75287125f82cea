//! Changes to a limiter as a whole, and its counters.

use super::RateLimiter;
use crate::algorithm::Algorithm;
use crate::stats::LimiterStats;
use crate::store::{Attempt, CloseStore, KeyedStore, ReleaseStore, ReplaceAlgorithm};

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
    /// [`max_queued`](super::Builder::max_queued).
    #[must_use]
    pub fn queued(&self) -> usize {
        self.store.queued()
    }

    /// Returns the number of keys that are kept. Some of these keys may be fresh, with their whole quota available
    /// again, and not yet removed. The number is at most `max_keys`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
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
    /// | a combined algorithm | this table applies to each member of a tuple, and to the algorithm within [`Lockout`](crate::algorithm::Lockout) and [`Priority`](crate::algorithm::Priority). A lockout that has begun lasts, from the replacement on, at most the duration of the new `Lockout`. In [`Tiered`](crate::algorithm::Tiered), the algorithm for calls without a tier is replaced. Other calls choose their tiers themselves |
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
    /// 0 are denied as well. With [`on_close(OnClose::Allow)`](super::Builder::on_close), new calls are admitted
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
