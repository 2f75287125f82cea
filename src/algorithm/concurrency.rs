//! The limit of calls in progress, and the share of one call in its totals.

use smallvec::SmallVec;

use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::semaphore::{Semaphore, Share};
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A limit on the number of calls that are in progress at a time.
///
/// In a layer, a request holds its permit until the body of its response has ended or was dropped. With an
/// [`ErrorResponder`](crate::ErrorResponder), a request holds its permit until the response is ready, and with a
/// responder of your own as long as it [holds the permit](crate::middleware::Responder::hold_permit). In code,
/// [`try_acquire_permit`](crate::limiter::RateLimiter::try_acquire_permit) returns a permit that is held until it is
/// dropped. [`check`](crate::limiter::RateLimiter::check) and [`acquire`](crate::limiter::RateLimiter::acquire) return
/// nothing that ends a call, so they [do not compile](crate::limiter::RateLimiter#calls-in-progress).
///
/// Calls of [`acquire_permit`](crate::limiter::RateLimiter::acquire_permit) wait in the order of arrival. In a layer,
/// requests wait only if [`queue`](Concurrency::queue), `max_wait` or `overflow` was called. By default, a call that
/// finds the queue full is denied at once. The wait is not known in advance, so a call is queued first, and denied once
/// it has waited for [`max_wait`](Concurrency::max_wait). A free permit goes to the first waiter. If the future of the
/// first waiter is neither polled nor dropped, the waiter blocks its key, as in any fair semaphore. To combine this
/// limit with a rate, join layers with [`and`](crate::middleware::RateLimitLayer::and), or make this limit part of a
/// tuple.
///
/// In Redis, with the crate `tower-throttle-redis`, [several processes share permits].
///
/// [several processes share permits]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisPermits.html
///
/// In a layer, an upgraded connection, such as a [WebSocket](crate::guide::concurrency#websockets), holds no permit:
/// the body of its response ended with the upgrade.
///
/// Neither a [`reset`](crate::limiter::RateLimiter::reset) nor a [`refund`](crate::limiter::RateLimiter::refund)
/// affects calls in progress. When a permit is dropped, its units are subtracted from the total that counted them, even
/// if the algorithm was [replaced](crate::limiter::RateLimiter::replace) while the permit was held.
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
/// This picture shows the [same calls as every picture](crate::algorithm#pictures). Each call takes 0.6 s:
///
#[cfg_attr(doc, doc = include_str!("pictures/concurrency.svg"))]
///
/// # How it works
///
/// **Problem.** Limit how many calls are in progress at a time, not how many arrive per second. A server may be able to
/// compute ten slow reports at a time, whether each of them takes a second or an hour.
///
/// **Naive answer.** Count up when a call arrives, and down when the handler returns.
///
/// **Where it breaks.** The handler returns when the head of the response is ready, but a download continues for
/// minutes after that. And a call can end without a count down: the handler panics, the client disconnects, or the
/// stream is reset. After enough such calls, the count is at the limit and stays there.
///
/// **The idea.** A call holds a [`Permit`](crate::limiter::Permit), which releases the units of the call when the
/// permit is dropped: after the last byte of the response's body, or earlier if the call ends in another way. The state
/// is the number of units that permits hold.
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
/// **Invariant.** The calls in progress of a key hold no more units than the limit. With a
/// [`total`](Concurrency::total), the calls in progress of all keys together hold no more units than the total. In both
/// cases, the calls may hold more units if a higher limit has admitted or queued some of these calls: before the limit
/// was lowered, or in another [tier](crate::algorithm::Tiered).
///
/// **Cost.** A call takes constant time, and a key with a call in progress takes 16 bytes. With a total, the calls of
/// all keys change one shared counter.
///
/// It is unknown when a call will end. So a denial has no `retry_after`, responses report no window, and the
/// `Retry-After` of a rejection is only a [hint](crate::middleware::HttpResponder::retry_after_unknown).
///
/// The type implements [`Algorithm`], whose methods only limiters call.
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
    /// The number of units that calls in progress hold.
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

    /// Returns the maximum number of calls in progress for one key.
    #[must_use]
    pub const fn limit_per_key(&self) -> u64 {
        self.limit
    }

    /// Returns the maximum number of calls in progress for all keys together, if a total was set.
    #[must_use]
    pub fn limit_in_total(&self) -> Option<u64> {
        self.total.as_ref().map(Semaphore::limit)
    }

    /// Sets another limit per key. The result and `self` count calls in the same [total](Concurrency::total), if there
    /// is one. So the result can [replace](crate::limiter::RateLimiter::replace) `self` while calls are in progress.
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

    /// Sets the maximum number of calls at a time for all keys of a limiter and its clones together.
    ///
    /// **In a [`RateLimiter`](crate::RateLimiter), calls that wait for a permit count in the total.** So calls of one
    /// key that wait can use up the whole total, and calls of all other keys are denied although permits are free: with
    /// `per_key(1).total(2).queue(5)`, one call in progress and one that waits are enough. If calls may wait, use a
    /// [`FairLimiter`](crate::limiter::FairLimiter), in which waiting calls hold nothing, and free permits are shared
    /// [fairly](crate::guide::concurrency#fair-capacity) between the callers. A `RateLimiter` with a total and a queue
    /// logs a warning when it is built (feature `tracing`).
    ///
    /// A total below the limit per key limits each key as well. If the algorithm is
    /// [replaced](crate::limiter::RateLimiter::replace) by a `Concurrency` that was made from the old one, the new
    /// total continues the count of the old total. Calls that are in progress when a total is first set are not counted
    /// in that total.
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
    /// let permits: Vec<_> =
    ///     ["a", "a", "b"].map(|key| limiter.try_acquire_permit(key)).into_iter().collect();
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

    /// Returns whether a queued call of `cost` can be admitted. The total already counts the call. If `cost` exceeds
    /// the limit because the limit was lowered, the call is admitted once no other call of the key is in progress.
    fn is_due(&self, state: &ConcurrencyState, cost: u64) -> bool {
        state.held == 0 || self.limit().checked_sub(state.held).is_some_and(|left| cost <= left)
    }

    fn deny(&self, state: &ConcurrencyState, cost: u64) -> Decision {
        Decision::deny(self.limit(), self.left(state), None, 0).with_unknown_wait(cost <= self.limit())
    }
}

queue_methods!(Concurrency, "as many calls as the limit");

#[doc(hidden)]
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

    /// Does nothing: the units of a call are released only when the call ends.
    fn refund(&self, _: &mut ConcurrencyState, _: Nanos, _: u64, _: Option<Nanos>) {}

    /// Charges all units, whatever the maximum debt is.
    fn charge(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64, _: u64) -> u64 {
        state.last = now;
        state.held = state.held.saturating_add(cost);
        cost
    }

    /// Does nothing: calls in progress stay counted.
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

    fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
        if let Some(total) = &self.total {
            f(total);
        }
    }

    fn in_flight(&self, state: &ConcurrencyState) -> u64 {
        state.held
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config.untimed())
    }

    /// Returns `now` if the call can be admitted. Otherwise returns `None`, because it is unknown when other calls will
    /// end.
    fn ready_at(&self, state: &mut ConcurrencyState, now: Nanos, cost: u64) -> Option<Nanos> {
        state.last = now;
        self.is_due(state, cost).then_some(now)
    }

    fn admit_queued(&self, state: &mut ConcurrencyState, now: Nanos, _: Nanos, cost: u64) -> Option<Nanos> {
        let ready_at = self.ready_at(state, now, cost)?;
        state.held = state.held.saturating_add(cost);
        Some(ready_at)
    }

    /// Does nothing: the units of a call are released only when the call ends.
    fn restore(&self, _state: &mut ConcurrencyState, _before: ConcurrencyState) {}
}

/// The units of a call in the [totals](Concurrency::total) of its algorithm. They are subtracted from the totals
/// when the permit is dropped.
#[derive(Debug, Default)]
pub struct SharedPermit {
    shares: SmallVec<[Share; 1]>,
}

impl SharedPermit {
    /// Returns the permit of a call of `cost` that `algorithm` has admitted. The totals must count the units of the
    /// call already, as they do after a check.
    pub fn of_admitted<A: Algorithm>(algorithm: &A, cost: u64) -> Self {
        let mut shares = SmallVec::new();
        algorithm.for_each_total(&mut |total| shares.push(total.share(cost)));
        Self { shares }
    }

    /// Adds `cost` to each total of `algorithm`, for a call that will be queued. If a total has fewer units available,
    /// adds nothing and returns `None`.
    pub(crate) fn try_acquire<A: Algorithm>(algorithm: &A, cost: u64) -> Option<Self> {
        let mut permit = Some(Self::default());
        algorithm.for_each_total(&mut |total| {
            let Some(Self { shares }) = &mut permit else { return };
            match total.try_acquire(cost) {
                Some(share) => shares.push(share),
                None => permit = None,
            }
        });
        permit
    }

    /// Returns the units of the call in `total`.
    pub(crate) fn units_in(&self, total: &Semaphore) -> u64 {
        self.shares.iter().fold(0, |units, share| units.saturating_add(share.units_in(total)))
    }

    /// Drops the permit without subtracting its units from the totals. The caller must subtract them later.
    pub(crate) fn forget(self) {
        self.shares.into_iter().for_each(Share::forget);
    }
}
