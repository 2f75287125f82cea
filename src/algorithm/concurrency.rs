//! The limit of calls in progress.

use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::semaphore::{Semaphore, SharedPermit};
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A limit on the number of calls at a time.
///
/// In a layer, a request holds its permit until the body of its response has ended or was dropped. For services other
/// than HTTP, it holds it until there is a response, unless the responder
/// [holds](crate::middleware::Responder::hold_permit) it longer. In code,
/// [`try_acquire_permit`](crate::limiter::RateLimiter::try_acquire_permit) returns a permit that is held until it is
/// dropped. Calls admitted by [`check`](crate::limiter::RateLimiter::check) and
/// [`acquire`](crate::limiter::RateLimiter::acquire) are held until they are
/// [released](crate::limiter::RateLimiter::release) by hand.
///
/// With a [`queue`](Concurrency::queue), calls wait for a permit, first come, first served, at most
/// [`max_wait`](Concurrency::max_wait): as the wait is unknown in advance, a wait that becomes too long ends with a
/// denial. A free permit goes to the first waiter. If that waiter is never polled again, and not dropped either, it
/// blocks its key, as in any fair semaphore. To combine this limit with a rate, join layers with
/// [`and`](crate::middleware::RateLimitLayer::and), or make it part of a tuple.
///
/// An upgraded connection (a WebSocket) holds nothing: its response ended when it was upgraded. When the table of keys
/// is full, keys share buckets, and stay there for as long as any permit of their bucket is held. In code, prefer
/// permits: only they know from which bucket they were taken.
///
/// Calls in progress cannot be forgotten: neither a [`reset`](crate::limiter::RateLimiter::reset) nor a
/// [`refund`](crate::limiter::RateLimiter::refund) affects them. When a call ends, its permit returns to the
/// total that counted it, even if the algorithm was [replaced](crate::limiter::RateLimiter::replace) since.
///
/// ```
/// use tower_throttle::RateLimiter;
/// use tower_throttle::algorithm::Concurrency;
///
/// let limiter = RateLimiter::new(Concurrency::per_key(2).total(100));
/// let first = limiter.try_acquire_permit("user:42").unwrap();
/// let second = limiter.try_acquire_permit("user:42").unwrap();
/// assert!(limiter.try_acquire_permit("user:42").is_err());
/// drop(first);
/// assert!(limiter.try_acquire_permit("user:42").is_ok());
/// ```
///
/// With the same calls as in [every picture](crate::algorithm#pictures), each of which takes 0.6 s:
///
#[cfg_attr(doc, doc = include_str!("pictures/concurrency.svg"))]
///
/// # How it works
///
/// **Problem.** Not how many calls a second, but how many at a time: ten slow reports of one user are all that a
/// server can take, whether they take a second each or an hour.
///
/// **Naive answer.** Count up when a call arrives, and down when the handler returns.
///
/// **Where it breaks.** The handler returns when the head of the response is there; a download goes on for minutes
/// after that. And a handler that panics, a client that hangs up, a stream that is reset: each ends on a path that
/// does not count down, until the count is full and stays so.
///
/// **The idea.** A call holds a [`Permit`](crate::store::Permit), which gives back what the call took when it is
/// dropped: at the end of the response's body, its last byte included, or at whatever ends it before. The state is the
/// number of permits that are held.
///
/// ```text
///   2 per key
///
///   in progress   1   2       2       1   2
///                 ①───┼───────╯ body ends
///                     ②───────┼───────────╮
///                         ③ ✗             │
///                                 ④ ──────┴──
///                                 passes: ① is over
/// ```
///
/// **Invariant.** No more than the limit are in progress for a key; with [`total`](Concurrency::total), no more than
/// that for all keys together.
///
/// **Cost.** Constant time, 16 bytes a key, none for a key without a call in progress. With a total, one number that
/// all keys change.
///
/// It is unknown when a call will end: so a denial has no `retry_after`, and clients are sent neither a window nor a
/// time to come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    limit: u64,
    total: Option<Semaphore>,
    queue_config: QueueConfig,
}

/// The state of a key for [`Concurrency`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ConcurrencyState {
    last: Nanos,
    /// The number of calls in progress.
    held: u64,
}

impl Concurrency {
    /// Creates a limit of `limit` calls at a time, for each key.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    #[must_use]
    #[track_caller]
    pub const fn per_key(limit: u64) -> Self {
        assert!(limit > 0, "a limit of 0 calls at a time admits none: give at least 1");
        Self { limit, total: None, queue_config: QueueConfig::acquire_only(limit) }
    }

    /// Returns the number of calls that may be in progress for one key.
    #[must_use]
    pub const fn limit_per_key(&self) -> u64 {
        self.limit
    }

    /// Returns the number of calls that may be in progress for all keys together, if that is limited.
    #[must_use]
    pub fn limit_in_total(&self) -> Option<u64> {
        self.total.as_ref().map(Semaphore::limit)
    }

    /// Sets another limit per key. A [replacement](crate::limiter::RateLimiter::replace) that is made from the old
    /// `Concurrency` in this way continues to count in the same [total](Concurrency::total).
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    #[must_use]
    #[track_caller]
    pub fn with_per_key(self, limit: u64) -> Self {
        assert!(limit > 0, "a limit of 0 calls at a time admits none: give at least 1");
        Self { limit, ..self }
    }

    /// Sets the maximum number of calls at a time for all keys together, of a limiter and its clones. Calls that wait
    /// for a permit count, too: so without a [`queue`](Concurrency::queue), calls in
    /// [`acquire`](crate::limiter::RateLimiter::acquire) that wait for one key may take the whole total.
    ///
    /// A total below the limit per key is the limit of a key as well. A
    /// [replaced](crate::limiter::RateLimiter::replace) total continues its count, if the new `Concurrency` was made
    /// from the old one. Calls in progress when a total is first set are not counted in it.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let limiter = RateLimiter::new(Concurrency::per_key(2).total(3));
    /// let permits: Vec<_> = ["a", "a", "b"].map(|key| limiter.try_acquire_permit(key)).into_iter().collect();
    /// assert!(permits.iter().all(Result::is_ok));
    /// assert!(limiter.try_acquire_permit("b").is_err());
    /// ```
    #[must_use]
    #[track_caller]
    pub fn total(mut self, limit: u64) -> Self {
        assert!(limit > 0, "a total of 0 calls at a time admits none: give at least 1");
        self.total = Some(match self.total {
            Some(total) => total.with_limit(limit),
            None => Semaphore::new(limit),
        });
        self
    }

    fn limit(&self) -> u64 {
        self.total.as_ref().map_or(self.limit, |total| self.limit.min(total.limit()))
    }

    fn left(&self, state: &ConcurrencyState) -> u64 {
        let left = self.limit().saturating_sub(state.held);
        self.total.as_ref().map_or(left, |total| left.min(total.available()))
    }

    /// Returns whether a queued call can be admitted. It is already counted in the total. A cost above a limit that was
    /// lowered is admitted alone.
    fn is_due(&self, state: &ConcurrencyState, cost: u64) -> bool {
        state.held == 0 || self.limit().checked_sub(state.held).is_some_and(|left| cost <= left)
    }

    fn deny(&self, state: &ConcurrencyState, cost: u64) -> Decision {
        Decision::deny(self.limit(), self.left(state), None, 0).with_unknown_wait(cost <= self.limit())
    }
}

queue_methods!(Concurrency, "as many as the limit");

impl Algorithm for Concurrency {
    type State = ConcurrencyState;

    const UNDO_BY_COPY: bool = false;
    const NEEDS_RELEASE: bool = true;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> ConcurrencyState {
        ConcurrencyState { last: now, held: 0 }
    }

    #[inline]
    fn last_update(&self, state: &ConcurrencyState) -> Nanos {
        state.last
    }

    #[inline]
    fn check(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64) -> Decision {
        state.last = now;
        let fits = self.limit().checked_sub(state.held).is_some_and(|left| cost <= left);
        if cost > 0 && (!fits || self.total.as_ref().is_some_and(|total| !total.try_add(cost))) {
            return self.deny(state, cost);
        }
        state.held += cost;
        Decision::allow(self.limit(), self.left(state), 0)
    }

    fn peek(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64) -> Decision {
        state.last = now;
        match self.left(state) {
            left if cost > left => self.deny(state, cost),
            left => Decision::allow(self.limit(), left, 0),
        }
    }

    /// Gives back nothing: only the end of a call gives back what it holds.
    fn refund(&self, _state: &mut ConcurrencyState, _now: Nanos, _cost: u64) {}

    fn undo(&self, _state: &mut ConcurrencyState, _now: Nanos, _cost: u64, _charged_at: Nanos) {}

    fn charge_saturating(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64) {
        state.last = now;
        state.held = state.held.saturating_add(cost);
    }

    /// Changes nothing: calls in progress go on.
    fn migrate(&self, _state: &mut ConcurrencyState, _old: &Self, _now: Nanos) {}

    fn is_fresh(&self, state: &ConcurrencyState, _now: Nanos) -> bool {
        state.held == 0
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::concurrent(self.limit())
    }

    fn release(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64) {
        state.last = now;
        state.held = state.held.saturating_sub(cost);
    }

    fn release_total(&self, cost: u64) {
        if let Some(total) = &self.total {
            total.sub(cost);
        }
    }

    fn in_flight(&self, state: &ConcurrencyState) -> u64 {
        state.held
    }

    fn reset_state(&self, _state: &mut ConcurrencyState, _fresh: ConcurrencyState) {}

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config.untimed())
    }

    /// Returns now if the call is ready: it is unknown when others will end.
    fn ready_at(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64) -> Option<Nanos> {
        state.last = now;
        self.is_due(state, cost).then_some(now)
    }

    fn admit_queued(&self, state: &mut ConcurrencyState, now: Nanos, _: Nanos, cost: u64) -> Option<Nanos> {
        let ready_at = self.ready_at(state, now, cost)?;
        state.held = state.held.saturating_add(cost);
        Some(ready_at)
    }

    fn reserve(&self, cost: u64) -> Option<SharedPermit> {
        match &self.total {
            Some(total) => total.try_acquire(cost),
            None => Some(SharedPermit::default()),
        }
    }
}
