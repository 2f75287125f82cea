use super::RateLimiter;
use crate::algorithm::Algorithm;
use crate::clock::AnyClock;
use crate::store::{MemoryStore, OnClose, OnFull};

/// Builds a [`RateLimiter`].
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

    /// What tells the time: a [`ManualClock`](crate::clock::ManualClock), or any [`Clock`](crate::clock::Clock).
    pub fn clock(mut self, clock: impl Into<AnyClock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// How many keys are kept at most, 100,000 by default; 0 counts as 1. [`MemoryStore`] tells what that costs, and
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

    /// How many calls may wait in line at most, for all keys together; 0: none. A call that finds no place is
    /// refused. Its `retry_after` is when the first call that waits for its key leaves; if none waits, when it would be
    /// admitted without waiting.
    ///
    /// One key may take all these places in [`acquire`](RateLimiter::acquire), unless the algorithm's `queue(n)` bounds
    /// them.
    ///
    /// 10,000 unless set, or as many as the algorithm was told to let wait for one key, if that is more. Each costs
    /// 96 bytes here (a line grows by doubling: count 100 to 200), and its future, its request, its connection.
    pub fn max_queued(mut self, max_queued: usize) -> Self {
        self.max_queued = Some(max_queued);
        self
    }

    /// What becomes of new calls once the limiter is [closed](RateLimiter::close): they are refused, unless set.
    pub fn on_close(mut self, on_close: OnClose) -> Self {
        self.on_close = on_close;
        self
    }

    /// The limiter. A key never seen counts as idle since now.
    #[must_use]
    pub fn build(self) -> RateLimiter<A> {
        let Self { max_keys, max_queued, on_close, on_full, .. } = self;
        let store = MemoryStore::with(&self.algorithm, max_keys, max_queued, on_close, on_full);
        RateLimiter::assemble(self.algorithm, self.clock, store)
    }
}
