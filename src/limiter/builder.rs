use super::RateLimiter;
use crate::algorithm::Algorithm;
use crate::clock::AnyClock;
use crate::observe;
use crate::store::{MakeStore, MemoryOptions, MemoryStore, OnClose, OnFull, StoreSettings};

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
    pub(super) fn new(algorithm: A) -> Self {
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
        RateLimiter::with_store(MemoryStore::with(self.algorithm, self.clock, self.store))
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
        let settings = StoreSettings { algorithm: self.algorithm, clock: self.clock, name: self.name };
        self.store.0.make_store(settings).map(RateLimiter::with_store)
    }
}

fn warn_of_bursts(algorithm: &impl Algorithm, name: Option<&str>) {
    algorithm.for_each_policy(&mut |policy| {
        if policy.ignores_burst() {
            observe::ignored_burst(name, &policy);
        }
    });
}
