//! The one thing every other room talks about: may this call pass, and what is left.

use std::fmt;
use std::time::Duration;

/// The answer to one call.
///
/// A denial is a decision, not an error. All spans are exact to the nanosecond, rounded up; spans
/// beyond 584 years are told as 584 years.
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
#[must_use = "a decision that nobody reads limits nothing"]
#[derive(Clone, Copy)]
pub struct Decision {
    allowed: bool,
    /// Whether the limiter was closed.
    closed: bool,
    /// Whether there was no room for the key.
    table_full: bool,
    /// Whether a wait helps, and its length is not known.
    unknown: bool,
    /// Which of several limits is told of.
    index: u8,
    limit: u64,
    remaining: u64,
    /// Denied: until the same call would be allowed, `NEVER` if it never will. Allowed: until one
    /// more unit is there, if the algorithm tells it; 0 otherwise. In grains.
    wait: u64,
    /// In grains.
    reset: u64,
    /// How many grains are a nanosecond. Most spans are never read: so they are divided when they are.
    grains: u64,
    /// In nanoseconds.
    delay: u64,
}

/// No wait helps.
const NEVER: u64 = u64::MAX;

/// The wait of a denial; 584 years away is still not "never".
#[inline]
const fn encode_wait(retry_after: Option<u64>) -> u64 {
    match retry_after {
        Some(NEVER) => NEVER - 1,
        Some(nanos) => nanos,
        None => NEVER,
    }
}

impl Decision {
    /// A call that may pass. For authors of algorithms and stores.
    ///
    /// `reset_after` in nanoseconds.
    #[inline]
    pub const fn allow(limit: u64, remaining: u64, reset_after: u64) -> Self {
        Self::new(true, limit, remaining, 0, reset_after)
    }

    /// A call that may not pass. For authors of algorithms and stores.
    ///
    /// `retry_after` (`None`: waiting does not help) and `reset_after` in nanoseconds.
    #[inline]
    pub const fn deny(limit: u64, remaining: u64, retry_after: Option<u64>, reset_after: u64) -> Self {
        Self::new(false, limit, remaining, encode_wait(retry_after), reset_after)
    }

    #[inline]
    const fn new(allowed: bool, limit: u64, remaining: u64, wait: u64, reset: u64) -> Self {
        Self {
            allowed,
            closed: false,
            table_full: false,
            unknown: false,
            index: 0,
            limit,
            remaining,
            wait,
            reset,
            grains: 1,
            delay: 0,
        }
    }

    /// The same decision for a call that was held for `delay` nanoseconds.
    pub const fn with_delay(mut self, delay: u64) -> Self {
        self.delay = delay;
        self
    }

    /// A denial since the limiter was closed. For authors of stores.
    pub const fn closed(limit: u64) -> Self {
        let mut decision = Self::deny(limit, 0, None, 0);
        decision.closed = true;
        decision
    }

    /// Returns a denial for a key that has used nothing, but for which the store has no room. For authors of stores.
    pub const fn table_full(limit: u64) -> Self {
        let mut decision = Self::deny(limit, limit, None, 0);
        decision.table_full = true;
        decision
    }

    /// The same denial, where `unknown` says that a wait helps though nothing tells how long it is, so that `retry_after` is
    /// `None`. For authors of algorithms and stores.
    pub const fn with_unknown_wait(mut self, unknown: bool) -> Self {
        self.unknown = unknown;
        self
    }

    /// An admission that also tells when one more unit is there.
    pub(crate) const fn with_next(mut self, next: u64) -> Self {
        if self.allowed {
            self.wait = next;
        }
        self
    }

    /// The same decision, its spans being given in grains, of which a nanosecond has so many.
    #[inline]
    pub(crate) const fn in_grains(mut self, grains: u64) -> Self {
        self.grains = grains;
        self
    }

    /// The same decision, told of the limit at `limit_index` among several.
    pub(crate) const fn with_index(mut self, index: usize) -> Self {
        self.index = if index < u8::MAX as usize { index as u8 } else { u8::MAX };
        self
    }

    /// The same decision, for a key that is as if never seen not before so many nanoseconds.
    pub(crate) const fn with_min_reset(mut self, nanos: u64) -> Self {
        if self.nanos(self.reset) < nanos {
            if self.wait != NEVER {
                self.wait = self.nanos(self.wait);
            }
            (self.reset, self.grains) = (nanos, 1);
        }
        self
    }

    /// The same decision, where nobody else would be let in now.
    pub(crate) const fn with_remaining_zero(mut self) -> Self {
        self.remaining = 0;
        self
    }

    /// The same denial, with another time to come back; nanoseconds, `None`: waiting does not help.
    pub(crate) const fn with_retry_after(mut self, retry: Option<u64>) -> Self {
        if !self.allowed {
            (self.wait, self.reset, self.grains) = (encode_wait(retry), self.nanos(self.reset), 1);
        }
        self
    }

    /// Of a tuple of limits on one key: which one this tells of, the first being 0. The one with the longest wait if
    /// the call was denied, else the one nearest to exhaustion. 0 where there is one limit.
    #[must_use]
    pub const fn limit_index(&self) -> usize {
        self.index as usize
    }

    /// Whether the call may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether the call was denied since the limiter was [closed](crate::limiter::RateLimiter::close).
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether the call was denied because the table of keys is full: the key has used nothing, but there is no
    /// room for it. When there will be is not known, so there is no `retry_after`.
    ///
    /// HTTP callers get a 503, gRPC callers `UNAVAILABLE`. See [`OnFull`](crate::store::OnFull).
    #[must_use]
    pub const fn is_table_full(&self) -> bool {
        self.table_full
    }

    /// Returns whether the limiter is closed or has no room: the caller is not to blame.
    pub(crate) const fn is_unavailable(&self) -> bool {
        self.closed || self.table_full
    }

    /// Whether the call was denied since it costs more than the limit can ever admit, so that no wait helps.
    ///
    /// A call that is denied without a [wait](Decision::retry_after), and not for that, comes back when it likes: calls in
    /// progress end when they end, and a closed limiter is a matter of the server.
    #[must_use]
    pub const fn never_fits(&self) -> bool {
        !self.allowed && self.wait == NEVER && !self.unknown && !self.is_unavailable()
    }

    /// The most that can be admitted at one instant: a bucket's burst, a window's limit.
    ///
    /// Of several limits on one key, that of the one it [tells of](Decision::limit_index). For a
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket) that is one by `check`, and one more than may wait by
    /// `acquire`.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How many calls of cost 1 would now be admitted one after another, by the method that was asked.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// How long until this very call would be allowed. `Some` when it was denied, waiting helps, and it is known how
    /// long.
    ///
    /// Exact, not rounded to seconds: the call is denied at every instant before and allowed at that
    /// one, if no one else calls in between.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.allowed || self.wait == NEVER {
            true => None,
            false => Some(self.span(self.wait)),
        }
    }

    /// How long until the key is as if it had never been seen.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.span(self.reset)
    }

    /// How long the call had to be held. Zero unless it queued.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// On an admission: how long until one more unit is there, where the algorithm tells it.
    pub(crate) const fn next(&self) -> Option<u64> {
        match self.allowed && self.wait > 0 {
            true => Some(self.nanos(self.wait)),
            false => None,
        }
    }

    const fn span(&self, grains: u64) -> Duration {
        Duration::from_nanos(self.nanos(grains))
    }

    const fn nanos(&self, grains: u64) -> u64 {
        grains.div_ceil(self.grains)
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let reported = |decision: &Self| {
            let spans = (decision.retry_after(), decision.next(), decision.reset_after(), decision.delay);
            let kind = (decision.allowed, decision.closed, decision.table_full, decision.never_fits());
            (kind, decision.index, decision.limit, decision.remaining, spans)
        };
        reported(self) == reported(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("is_allowed", &self.allowed)
            .field("is_closed", &self.closed)
            .field("is_table_full", &self.table_full)
            .field("index", &self.index)
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("delay", &self.delay())
            .finish()
    }
}

/// One line for a log; names no key.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.closed {
            return f.write_str("denied, the limiter is closed");
        }
        if self.table_full {
            return f.write_str("denied, there is no room for the key");
        }
        let verdict = if self.allowed { "allowed" } else { "denied" };
        write!(f, "{verdict}, {} of {} left", self.remaining, self.limit)?;
        match self.retry_after() {
            Some(wait) => write!(f, ", retry after {wait:?}"),
            None if !self.allowed => f.write_str(", no wait is known to help"),
            None if self.delay > 0 => write!(f, ", held for {:?}", self.delay()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_denial_that_time_heals_has_a_retry_after() {
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
    fn displays_one_line() {
        assert_eq!(Decision::allow(3, 2, 9).to_string(), "allowed, 2 of 3 left");
        assert_eq!(Decision::deny(3, 0, Some(4), 9).to_string(), "denied, 0 of 3 left, retry after 4ns");
        assert_eq!(
            Decision::deny(3, 3, None, 9).to_string(),
            "denied, 3 of 3 left, no wait is known to help"
        );
        assert_eq!(Decision::table_full(3).to_string(), "denied, there is no room for the key");
    }

    #[test]
    fn a_full_table_is_no_denial_by_the_limit() {
        let decision = Decision::table_full(3);
        assert!(!decision.is_allowed() && decision.is_table_full() && !decision.is_closed());
        assert_eq!((decision.limit(), decision.remaining(), decision.retry_after()), (3, 3, None));
        assert_ne!(decision, Decision::deny(3, 3, None, 0));
    }
}
