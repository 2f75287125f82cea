use super::RateLimiter;
use crate::algorithm::Algorithm;
use crate::clock::AnyClock;
use crate::store::{MemoryStore, OnClose, OnFull};

/// A builder of a [`RateLimiter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<A> {
    algorithm: A,
    clock: AnyClock,
    max_keys: usize,
    max_queued: Option<usize>,
    on_close: OnClose,
    on_full: OnFull,
}

impl<A: Algorithm> Builder<A> {
    pub(super) fn new(algorithm: A) -> Self {
        let (clock, max_keys) = (AnyClock::default(), MemoryStore::<A>::DEFAULT_MAX_KEYS);
        Self {
            algorithm,
            clock,
            max_keys,
            max_queued: None,
            on_close: OnClose::default(),
            on_full: OnFull::default(),
        }
    }

    /// Sets the clock: a [`ManualClock`](crate::clock::ManualClock), or any [`Clock`](crate::clock::Clock).
    pub fn clock(mut self, clock: impl Into<AnyClock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Sets the maximum number of keys that are kept, 100,000 by default; 0 counts as 1.
    ///
    /// The docs of [`MemoryStore`] say what that costs, and
    /// [how large it should be](MemoryStore#how-large-max_keys-should-be).
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// Sets what happens to a new key when `max_keys` keys are in use: [`OnFull::EvictLeastUsed`] unless set.
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
    /// assert_eq!(limiter.stats().rejected_when_full, 1);
    /// ```
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets the maximum number of queued calls, for all keys together; with 0, no call is queued.
    ///
    /// A call that would exceed it is denied. Its `retry_after` is when the first queued call of its key is released; if
    /// the key has none, when the call would be admitted without waiting.
    ///
    /// With [`acquire`](RateLimiter::acquire), one key may use up this maximum, unless the algorithm's `queue(n)` bounds
    /// its queue.
    ///
    /// The default is 10,000, or the algorithm's `queue(n)` if that is more. Each queued call costs 104 bytes here (a
    /// queue grows by doubling: count 100 to 200), and its future, its request and its connection.
    pub fn max_queued(mut self, max_queued: usize) -> Self {
        self.max_queued = Some(max_queued);
        self
    }

    /// Sets what happens to new calls once the limiter is [closed](RateLimiter::close): [`OnClose::Reject`] unless set.
    pub fn on_close(mut self, on_close: OnClose) -> Self {
        self.on_close = on_close;
        self
    }

    /// Returns the limiter. A key that has never been used counts as idle since now.
    #[must_use]
    pub fn build(self) -> RateLimiter<A> {
        let Self { max_keys, max_queued, on_close, on_full, .. } = self;
        let store = MemoryStore::with(&self.algorithm, max_keys, max_queued, on_close, on_full);
        RateLimiter::assemble(self.algorithm, self.clock, store)
    }
}
