//! The result of one call: whether it may pass, and what is left.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The result of one call.
///
/// A denial is a decision, too. All durations are exact to the nanosecond, rounded up. Durations beyond 584 years are
/// reported as 584 years.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(1)));
/// let first = limiter.check("user:42");
/// assert!(first.is_allowed() && first.remaining() == 0 && first.retry_after().is_none());
/// let second = limiter.check("user:42");
/// assert!(!second.is_allowed() && second.retry_after().is_some());
/// ```
#[must_use = "a decision that is not read limits nothing"]
#[derive(Clone, Copy)]
pub struct Decision {
    /// The flags that are set. The flags and the index have 32 bits each, so that a decision consists of whole words,
    /// without padding. Decisions are copied often.
    flags: u32,
    /// The index of the reported limit, if there are several.
    index: u32,
    limit: u64,
    remaining: u64,
    /// A time, in grains. In a denial, this is the time until the same call would be allowed or queued, or `NEVER`. In
    /// an admission by one limit, this is the time until one more unit is available, or 0 if the algorithm does not
    /// report that time. For an admission by several limits, see [`WINDOW`].
    wait: u64,
    /// The time until the key is fresh, in grains.
    reset: u64,
    /// The number of grains per nanosecond. `wait` and `reset` are converted to nanoseconds only when they are read,
    /// because most of them are never read.
    grains: u64,
    /// The time for which the call was queued, in nanoseconds.
    delay: u64,
}

/// The `wait` of a denial that has no `retry_after`.
const NEVER: u64 = u64::MAX;

/// Set if the call may pass.
const ALLOWED: u32 = 1;
/// Set if the call was denied because the limiter was closed.
const CLOSED: u32 = 1 << 1;
/// Set if the call was denied because the key table had no room for the key.
const TABLE_FULL: u32 = 1 << 2;
/// Set if the call was denied and a wait helps, but the length of the wait is not known.
const UNKNOWN: u32 = 1 << 3;
/// Set for an admission by several limits. The `wait` of the decision is then the [effective
/// window](crate::algorithm::QuotaPolicy::effective_window) of the reported limit, and may be 0.
const WINDOW: u32 = 1 << 4;
/// Set if the key is locked out, so that the call must not be queued.
const BARRED: u32 = 1 << 5;
/// Set if the call would have waited, but the queue was full.
const QUEUE_FULL: u32 = 1 << 6;
/// Set if the key is locked out, or if this denial begins a lockout.
const LOCKED_OUT: u32 = 1 << 7;
/// Set if the call was denied while its key was paused. No lockout counts such a denial.
const PAUSED: u32 = 1 << 8;

impl Decision {
    #[inline]
    const fn has(&self, flag: u32) -> bool {
        self.flags & flag > 0
    }

    /// Returns whether the key is locked out, so that the call must not be queued.
    pub(crate) const fn is_barred(&self) -> bool {
        self.has(BARRED)
    }

    /// Returns the index of the limit that this decision reports, if a tuple sets several limits on one key. The first
    /// limit has the index 0.
    ///
    /// For a denied call, this is the limit with the longest wait, where an unknown wait counts as the longest. For an
    /// admitted call, this is the limit with the fewest units left. If several limits have equally few units left, this
    /// is the one with the longest [effective window](crate::algorithm::QuotaPolicy::effective_window). With a single
    /// limit, the index is 0.
    #[must_use]
    pub const fn limit_index(&self) -> usize {
        self.index as usize
    }

    /// Returns whether the call may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.has(ALLOWED)
    }

    /// Returns the denial as an error, so that `?` ends a function whose call was denied. Returns `Ok(())` if the call
    /// may pass.
    ///
    /// # Errors
    ///
    /// Returns the denial, if the call is denied.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::limiter::Denied;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// fn greet(limiter: &RateLimiter<TokenBucket>, user: &str) -> Result<String, Denied> {
    ///     let decision = limiter.check(user);
    ///     decision.into_result()?;
    ///     Ok(format!("welcome, {} calls left", decision.remaining()))
    /// }
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(1)));
    /// assert_eq!(greet(&limiter, "user:42").unwrap(), "welcome, 0 calls left");
    /// let denied = greet(&limiter, "user:42").unwrap_err();
    /// assert!(denied.to_string().starts_with("rate limit exceeded: retry after "));
    /// ```
    pub const fn into_result(self) -> Result<(), Denied> {
        if self.is_allowed() { Ok(()) } else { Err(Denied(self)) }
    }

    /// Returns whether the call was denied because the limiter was [closed](crate::limiter::RateLimiter::close).
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.has(CLOSED)
    }

    /// Returns whether the call was denied because the key table is full: the key has used nothing, but the table has
    /// no room for the key. It is not known when there will be room, so there is no `retry_after`.
    ///
    /// A layer rejects such HTTP requests with 503, and such gRPC calls with `UNAVAILABLE`. See
    /// [`OnFull`](crate::limiter::OnFull).
    #[must_use]
    pub const fn is_table_full(&self) -> bool {
        self.has(TABLE_FULL)
    }

    /// Returns whether the call was denied because its key is [locked out](crate::algorithm::Lockout), or because the
    /// denial itself begins a lockout.
    ///
    /// With several limits on one key, this is `true` if any of them locks the key out. A layer rejects such HTTP
    /// requests with the status of any denial or, by choice, with [another one](crate::HttpResponder::lockout_status).
    #[must_use]
    pub const fn is_locked_out(&self) -> bool {
        self.has(LOCKED_OUT)
    }

    /// Returns whether the call was denied because the queue was full: the call would have waited, but its key had no
    /// free place in the queue, or [`max_queued`](crate::limiter::Builder::max_queued) calls were queued already. Also
    /// returns `true` for a queued call that a newer call has displaced.
    #[must_use]
    pub const fn is_queue_full(&self) -> bool {
        self.has(QUEUE_FULL)
    }

    /// Returns whether the call was denied because the limiter was closed or had no room for the key.
    pub(crate) const fn is_unavailable(&self) -> bool {
        self.has(CLOSED) || self.has(TABLE_FULL)
    }

    /// Returns whether the call was denied because it costs more than the limit can ever admit, so that no wait helps.
    ///
    /// A denial may also lack a [wait](Decision::retry_after) for other reasons: it is not known when calls in progress
    /// end, the limiter is closed, or the key table is full.
    #[must_use]
    pub const fn never_fits(&self) -> bool {
        !self.has(ALLOWED) && self.wait == NEVER && !self.has(UNKNOWN) && !self.is_unavailable()
    }

    /// Returns the maximum number of calls of cost 1 that an unused key can admit at one instant: the burst of a token
    /// bucket, the limit of a window, or the maximum number of calls in progress.
    ///
    /// With several limits on one key, this is that number for the [reported limit](Decision::limit_index). Calls that
    /// can be queued do not count. So for a [`LeakyBucket`](crate::algorithm::LeakyBucket), this is 1.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many calls of cost 1 would pass now at once, one after another. Calls that would be queued do not
    /// count, and while calls of the key are queued, this is 0. If the call was denied because the key table is full,
    /// this is the limit, since the key has used nothing.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the time until the same call would be allowed or, if it may wait, queued. Returns `None` if the call was
    /// allowed, if waiting does not help, or if the length of the wait is not known. So `None` does not mean that the
    /// call may pass. Only [`is_allowed`](Decision::is_allowed) says that:
    ///
    /// ```
    /// use tower_throttle::RateLimiter;
    /// use tower_throttle::algorithm::Concurrency;
    ///
    /// let exports = RateLimiter::new(Concurrency::per_key(1));
    /// let _permit = exports.try_acquire_permit("user:42")?;
    /// // It is not known when the first export ends.
    /// let second = exports.peek("user:42");
    /// assert!(!second.is_allowed() && second.retry_after().is_none());
    /// # Ok::<(), tower_throttle::limiter::Denied>(())
    /// ```
    ///
    /// The time is exact, not rounded to seconds. The same call is denied at every instant before this time has passed,
    /// and allowed or queued as soon as it has passed, if until then no other call for the key is made. With
    /// [`DropOldest`](crate::algorithm::QueueOverflow::DropOldest), the time may be longer than necessary. So may it be
    /// if queued calls leave before their turns: because they are cancelled, or because a
    /// [pause](crate::RateLimiter::pause) or a charge after the fact has delayed them beyond their maximum wait.
    ///
    /// The time is zero for a call that has left the queue, because it has waited too long or was displaced, if the
    /// call could be queued again at once.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.retry_nanos() {
            Some(nanos) => Some(Duration::from_nanos(nanos)),
            None => None,
        }
    }

    /// Returns the [`retry_after`](Decision::retry_after) in nanoseconds.
    #[inline]
    pub(crate) const fn retry_nanos(&self) -> Option<u64> {
        if self.has(ALLOWED) || self.wait == NEVER { None } else { Some(self.nanos(self.wait)) }
    }

    /// Returns the time until the key is fresh, if no other call for the key is made until then. The calls of a fresh
    /// key are decided as if the key had never been used. For [`Concurrency`](crate::algorithm::Concurrency), the time
    /// is zero, because it is unknown when calls in progress end.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_nanos())
    }

    /// Returns the [`reset_after`](Decision::reset_after) in nanoseconds.
    #[inline]
    pub(crate) const fn reset_nanos(&self) -> u64 {
        self.nanos(self.reset)
    }

    /// Returns the time for which the call was queued. Returns zero if the call was not queued, whether it was admitted
    /// or denied.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// Returns whether the call was queued for at least one nanosecond.
    #[inline]
    pub(crate) const fn is_delayed(&self) -> bool {
        self.delay > 0
    }

    /// Returns the time in nanoseconds until one more unit is available, for an admission whose algorithm reports that
    /// time. For an admission by several limits, returns instead the [effective
    /// window](crate::algorithm::QuotaPolicy::effective_window) of the reported limit. Returns `None` in all other
    /// cases.
    pub(crate) const fn next(&self) -> Option<u64> {
        if self.has(ALLOWED) && (self.wait > 0 || self.has(WINDOW)) {
            Some(self.nanos(self.wait))
        } else {
            None
        }
    }

    #[inline]
    const fn nanos(&self, grains: u64) -> u64 {
        grains.div_ceil(self.grains)
    }

    /// Creates the decision on a call that is admitted. This function is for authors of algorithms and limiters.
    ///
    /// `reset_after` is in nanoseconds.
    #[inline]
    pub const fn allow(limit: u64, remaining: u64, reset_after: u64) -> Self {
        Self::new(ALLOWED, limit, remaining, 0, reset_after)
    }

    /// Creates the decision on a call that is denied. This function is for authors of algorithms and limiters.
    ///
    /// Nothing is left, waiting does not help, and the key is fresh: [`with_remaining`](Decision::with_remaining),
    /// [`with_retry_after`](Decision::with_retry_after), [`with_unknown_wait`](Decision::with_unknown_wait) and
    /// [`with_reset_after`](Decision::with_reset_after) change that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::Decision;
    ///
    /// let second = 1_000_000_000;
    /// let denial =
    ///     Decision::denied(100).with_retry_after(Some(second)).with_reset_after(60 * second);
    /// assert_eq!((denial.limit(), denial.remaining()), (100, 0));
    /// assert_eq!(denial.retry_after(), Some(Duration::from_secs(1)));
    /// assert_eq!(denial.reset_after(), Duration::from_secs(60));
    /// ```
    #[inline]
    pub const fn denied(limit: u64) -> Self {
        Self::new(0, limit, 0, NEVER, 0)
    }

    /// Creates a denial with all its numbers. Authors of algorithms and limiters name them: see
    /// [`denied`](Self::denied).
    #[doc(hidden)]
    #[inline]
    pub const fn deny(limit: u64, remaining: u64, retry_after: Option<u64>, reset_after: u64) -> Self {
        Self::new(0, limit, remaining, encode_wait(retry_after), reset_after)
    }

    #[inline]
    const fn new(flags: u32, limit: u64, remaining: u64, wait: u64, reset: u64) -> Self {
        Self { flags, index: 0, limit, remaining, wait, reset, grains: 1, delay: 0 }
    }

    const fn with(mut self, flag: u32, is_set: bool) -> Self {
        self.flags = if is_set { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// Returns this decision for a call that was queued for `delay` nanoseconds.
    pub const fn with_delay(mut self, delay: u64) -> Self {
        self.delay = delay;
        self
    }

    /// Creates the denial by a limiter that is closed. This function is for authors of limiters.
    pub const fn closed(limit: u64) -> Self {
        Self::denied(limit).with(CLOSED, true)
    }

    /// Creates a denial for a key that has used nothing, but for which the limiter has no room. This function is for
    /// authors of limiters.
    pub const fn table_full(limit: u64) -> Self {
        Self::denied(limit).with_remaining(limit).with(TABLE_FULL, true)
    }

    /// Returns this denial with the reason for which it has no `retry_after`. `unknown` is `true` if a wait helps but
    /// its length is not known, and `false` if no wait helps. Has no effect on a denial with a `retry_after`. This
    /// method is for authors of algorithms and limiters.
    pub const fn with_unknown_wait(self, unknown: bool) -> Self {
        self.with(UNKNOWN, unknown)
    }

    /// Marks this denial as made while the key is locked out. The call must not be queued.
    pub(crate) const fn with_barred(self) -> Self {
        self.with(BARRED, true).with_locked_out(true)
    }

    /// Returns this denial with the fact whether the key is locked out or this denial begins a lockout.
    pub(crate) const fn with_locked_out(self, is_locked_out: bool) -> Self {
        self.with(LOCKED_OUT, is_locked_out)
    }

    /// Returns whether the call was denied while its key was paused, so that no lockout counts the denial.
    pub(crate) const fn is_paused(&self) -> bool {
        self.has(PAUSED)
    }

    /// Returns this denial with the fact whether the key is paused.
    pub(crate) const fn with_paused(self, is_paused: bool) -> Self {
        self.with(PAUSED, is_paused)
    }

    /// Marks this denial as made because the queue was full. Has no effect on an admission.
    pub(crate) const fn with_queue_full(self) -> Self {
        let is_denied = !self.has(ALLOWED);
        self.with(QUEUE_FULL, is_denied)
    }

    /// Returns this admission with the time until one more unit is available. The time is in nanoseconds or, if
    /// [`in_grains`](Decision::in_grains) is called, in grains.
    pub(crate) const fn with_next(mut self, next: u64) -> Self {
        if self.has(ALLOWED) {
            self.wait = next;
        }
        self
    }

    /// Returns this admission by several limits with `window`, the [effective
    /// window](crate::algorithm::QuotaPolicy::effective_window) of the reported limit in nanoseconds.
    pub(crate) const fn with_window(mut self, window: u64) -> Self {
        self.wait = window;
        self.with(WINDOW, true)
    }

    /// Declares that the times of this decision are in grains, and that a nanosecond has `grains` grains.
    #[inline]
    pub(crate) const fn in_grains(mut self, grains: u64) -> Self {
        self.grains = grains;
        self
    }

    /// Returns this decision as that of the limit at `index` among several limits.
    pub(crate) const fn with_index(mut self, index: usize) -> Self {
        self.index = if index < u32::MAX as usize { index as u32 } else { u32::MAX };
        self
    }

    /// Returns this decision with a `reset_after` of at least `nanos` nanoseconds.
    pub(crate) const fn with_min_reset(self, nanos: u64) -> Self {
        if self.nanos(self.reset) < nanos { self.with_reset_after(nanos) } else { self }
    }

    /// Returns this decision with another [`reset_after`](Decision::reset_after), in nanoseconds. This method is for
    /// authors of algorithms and limiters.
    pub const fn with_reset_after(mut self, nanos: u64) -> Self {
        if self.wait != NEVER {
            self.wait = self.nanos(self.wait);
        }
        (self.reset, self.grains) = (nanos, 1);
        self
    }

    /// Returns this decision with another number of [remaining](Decision::remaining) calls. This method is for authors
    /// of algorithms and limiters.
    pub const fn with_remaining(mut self, remaining: u64) -> Self {
        self.remaining = remaining;
        self
    }

    /// Returns this denial with another [`retry_after`](Decision::retry_after), in nanoseconds. `None` means that
    /// waiting does not help or, if the denial is marked with [`with_unknown_wait`](Decision::with_unknown_wait), that
    /// the wait is unknown. An admission is returned unchanged. This method is for authors of algorithms and limiters.
    pub const fn with_retry_after(mut self, retry: Option<u64>) -> Self {
        if !self.has(ALLOWED) {
            (self.wait, self.reset, self.grains) = (encode_wait(retry), self.nanos(self.reset), 1);
        }
        self
    }

    /// Returns the words of this denial. Returns `None` for an admission, and for a denial that the words cannot
    /// describe exactly, such as one by several limits or without a known wait.
    #[inline]
    pub(crate) fn standing(&self) -> Option<StandingDenial> {
        let Self { flags, index, limit, remaining, wait, reset, grains, delay } = *self;
        // The times near the end of the range may have been shortened.
        let is_exact = wait < NEVER - 1 && reset < u64::MAX;
        let is_plain = flags == 0 && index == 0 && remaining == 0 && delay == 0;
        (is_plain && is_exact).then_some(StandingDenial([limit, wait, reset, grains]))
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let reported = |decision: &Self| {
            let spans = (decision.retry_after(), decision.next(), decision.reset_after(), decision.delay);
            let kind = (
                decision.is_allowed(),
                decision.is_closed(),
                decision.is_table_full(),
                decision.is_queue_full(),
                decision.is_locked_out(),
                decision.never_fits(),
            );
            (kind, decision.index, decision.limit, decision.remaining, spans)
        };
        reported(self) == reported(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("is_allowed", &self.is_allowed())
            .field("is_closed", &self.is_closed())
            .field("is_table_full", &self.is_table_full())
            .field("is_queue_full", &self.is_queue_full())
            .field("is_locked_out", &self.is_locked_out())
            .field("index", &self.index)
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("delay", &self.delay())
            .finish()
    }
}

/// Writes one line for a log, without the key.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_closed() {
            return f.write_str("denied, the limiter is closed");
        }
        if self.is_table_full() {
            return f.write_str("denied, there is no room for the key");
        }
        let verdict = if self.is_allowed() { "allowed" } else { "denied" };
        write!(f, "{verdict}, {} of {} left", self.remaining, self.limit)?;
        if self.is_locked_out() {
            f.write_str(", the key is locked out")?;
        }
        if self.is_queue_full() {
            f.write_str(", the queue is full")?;
        }
        match self.retry_after() {
            Some(wait) => write!(f, ", retry after {wait:?}"),
            None if !self.is_allowed() => f.write_str(", no wait is known to help"),
            None if self.delay > 0 => write!(f, ", queued for {:?}", self.delay()),
            None => Ok(()),
        }
    }
}

/// A call that was denied, as an error: the decision on the call. See [`Decision::into_result`].
///
/// ```
/// use tower_throttle::RateLimiter;
/// use tower_throttle::algorithm::Concurrency;
/// use tower_throttle::limiter::Denied;
///
/// let limiter = RateLimiter::new(Concurrency::per_key(1));
/// let _permit = limiter.try_acquire_permit("user:42")?;
/// let denied: Denied = limiter.try_acquire_permit("user:42").unwrap_err();
/// // the same from a decision
/// let denied: Denied = limiter.peek("user:42").into_result().unwrap_err();
/// assert_eq!(denied.decision().remaining(), 0);
/// # Ok::<(), Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied(Decision);

impl Denied {
    /// Returns the decision.
    pub const fn decision(&self) -> &Decision {
        &self.0
    }
}

impl From<Denied> for Decision {
    fn from(denied: Denied) -> Self {
        denied.0
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_closed() {
            return f.write_str("the rate limiter is closed");
        }
        if self.0.is_table_full() {
            return f.write_str("the rate limiter has no room for the key");
        }
        match (self.0.is_queue_full(), self.0.retry_after()) {
            (true, Some(wait)) => write!(f, "rate limit exceeded: the queue is full, retry after {wait:?}"),
            (true, None) => f.write_str("rate limit exceeded: the queue is full"),
            (false, Some(wait)) => write!(f, "rate limit exceeded: retry after {wait:?}"),
            (false, None) => f.write_str("rate limit exceeded"),
        }
    }
}

impl Error for Denied {}

/// A denial with a known wait, made by one limit for a call of cost 1. The words are the limit, the wait and the reset
/// in grains, and the number of grains per nanosecond. Words of different denials, read together by mistake, cause no
/// panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StandingDenial(pub(crate) [u64; Self::WORDS]);

impl StandingDenial {
    pub(crate) const WORDS: usize = 4;

    /// Returns the denial as it would be made `elapsed` nanoseconds later. Returns `None` if the wait has passed by
    /// then.
    #[inline]
    pub(crate) fn after(self, elapsed: u64) -> Option<Decision> {
        let Self([limit, wait, reset, grains]) = self;
        let passed = elapsed.checked_mul(grains)?;
        let wait = wait.checked_sub(passed).filter(|wait| *wait > 0)?;
        Some(Decision::deny(limit, 0, Some(wait), reset.saturating_sub(passed)).in_grains(grains))
    }
}

/// Returns the `wait` of a denial. The longest wait, 584 years, is shortened by a nanosecond, so that it differs from
/// `NEVER`.
#[inline]
const fn encode_wait(retry_after: Option<u64>) -> u64 {
    match retry_after {
        Some(NEVER) => NEVER - 1,
        Some(nanos) => nanos,
        None => NEVER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_denial_with_a_known_wait_has_a_retry_after() {
        assert_eq!(Decision::allow(3, 2, 9).retry_after(), None);
        assert_eq!(Decision::allow(3, 0, 9).with_next(4).retry_after(), None);
        assert_eq!(Decision::deny(3, 0, None, 9).retry_after(), None);
        assert_eq!(Decision::deny(3, 0, Some(4), 9).retry_after(), Some(Duration::from_nanos(4)));
        assert!(Decision::deny(3, 0, Some(u64::MAX), 9).retry_after().is_some());
    }

    #[test]
    fn spans_in_grains_are_rounded_up_when_they_are_read() {
        let decision = Decision::deny(3, 0, Some(7), 12).in_grains(3);
        assert_eq!(decision.retry_after(), Some(Duration::from_nanos(3)));
        assert_eq!(decision.reset_after(), Duration::from_nanos(4));
        assert_eq!(decision, Decision::deny(3, 0, Some(3), 4));
        assert_ne!(decision, Decision::deny(3, 0, Some(2), 4));
    }

    #[test]
    fn a_full_table_is_no_denial_by_the_limit() {
        let decision = Decision::table_full(3);
        assert!(!decision.is_allowed() && decision.is_table_full() && !decision.is_closed());
        assert_eq!((decision.limit(), decision.remaining(), decision.retry_after()), (3, 3, None));
        assert_ne!(decision, Decision::deny(3, 3, None, 0));
    }

    #[test]
    fn displays_one_line() {
        assert_eq!(Decision::allow(3, 2, 9).to_string(), "allowed, 2 of 3 left");
        assert_eq!(Decision::deny(3, 0, Some(4), 9).to_string(), "denied, 0 of 3 left, retry after 4ns");
        assert_eq!(
            Decision::deny(3, 3, None, 9).to_string(),
            "denied, 3 of 3 left, no wait is known to help"
        );
        let locked_out = Decision::deny(3, 0, Some(4), 9).with_barred();
        assert_eq!(locked_out.to_string(), "denied, 0 of 3 left, the key is locked out, retry after 4ns");
        let displaced = locked_out.with_queue_full();
        assert_eq!(
            displaced.to_string(),
            "denied, 0 of 3 left, the key is locked out, the queue is full, retry after 4ns"
        );
        assert_eq!(Decision::table_full(3).to_string(), "denied, there is no room for the key");
    }

    #[test]
    fn words_that_do_not_belong_together_cause_no_panic() {
        for words in [[0; 4], [u64::MAX; 4], [7, 0, u64::MAX, 1], [7, u64::MAX, 0, 0]] {
            let _ = [0, 1, u64::MAX].map(|elapsed| StandingDenial(words).after(elapsed));
        }
    }
}
