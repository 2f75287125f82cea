//! Lockouts after too many denials.

mod decide;
mod stored;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::algorithm::clock_step::step;
use crate::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use crate::clock::Nanos;
use crate::decision::Decision;

/// A builder of a [`Lockout`] with a given duration. `after` sets the number of denials, and returns the `Lockout`.
#[derive(Clone, Debug)]
#[must_use = "say after how many refusals: `.after(n)`"]
pub struct LockoutBuilder<A> {
    algorithm: A,
    duration: u64,
}

impl<A: Algorithm> LockoutBuilder<A> {
    pub(in crate::algorithm) fn new(algorithm: A, duration: Duration) -> Self {
        assert!(!duration.is_zero(), "a block of no time blocks nothing: give at least one nanosecond");
        // A lockout lasts at most 292 years, like a period.
        Self { algorithm, duration: Nanos::from(duration).0.min(i64::MAX as u64) }
    }

    /// Returns the algorithm that locks a key out when `refusals` calls of the key were denied within one window.
    ///
    /// # Panics
    ///
    /// Panics if `refusals` is 0.
    #[must_use]
    pub fn after(self, refusals: u64) -> Lockout<A> {
        assert!(refusals > 0, "after 0 refusals everybody is blocked: give at least 1");
        let mut window = 0;
        self.algorithm.for_each_policy(&mut |policy| window = Nanos::from(policy.window).0.max(window));
        if window == 0 {
            // A limit of calls in progress has no window.
            window = self.duration;
        }
        let window = window.clamp(1, i64::MAX as u64);
        Lockout { algorithm: self.algorithm, duration: self.duration, window, refusals, extends: false }
    }
}

/// An algorithm that locks a key out for a time after too many denials.
///
/// `block_for(duration).after(n)`, which every [`Algorithm`] has, creates a lockout. Denials are counted in a window
/// that begins with the first denial. This window is as long as the longest
/// [window](crate::algorithm::QuotaPolicy::window) of the inner algorithm. For
/// [`Concurrency`](crate::algorithm::Concurrency), it is as long as the lockout. The `n`-th denial in a window begins
/// the lockout, and already has the `retry_after` of the lockout. During a lockout every call that arrives is denied,
/// unless its cost is 0. Such a denial, and the denial that begins the lockout, are [marked](Decision::is_locked_out).
/// The `retry_after` of the denial is the rest of the lockout, or the wait of the inner algorithm if that wait is
/// longer. If the inner algorithm denies the call without a `retry_after`, the denial has no `retry_after` either.
/// Calls that arrive during a lockout do not change its end, unless [`extend_on_retry`](Lockout::extend_on_retry) is
/// set. Calls that are queued when a lockout begins stay queued, and are admitted even during the lockout. Keys that
/// [share a bucket](crate::store::OnFull::ShareBuckets) are not locked out. A
/// [`reset`](crate::limiter::RateLimiter::reset) ends the lockout. A refund does not.
///
/// Unlike with other algorithms, a denial changes the state: the denial is counted. Do not nest lockouts: the
/// `retry_after` of the inner lockout can be too long.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::FixedWindow;
/// use tower_throttle::{Quota, RateLimiter};
///
/// // five logins a minute; ten denials within a minute lock the user out for an hour
/// let algorithm = FixedWindow::new(Quota::per_minute(5)).block_for(Duration::from_secs(3_600)).after(10);
/// let logins = RateLimiter::new(algorithm);
/// # for _ in 0..14 {
/// #     let _ = logins.check("user:42");
/// # }
/// # let denied = logins.check("user:42");
/// # assert!(!denied.is_allowed() && denied.retry_after() > Some(Duration::from_secs(3_590)));
/// # logins.reset("user:42");
/// # assert!(logins.check("user:42").is_allowed());
/// ```
///
/// This picture shows a fixed window with a lockout, and the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("../../pictures/lockout.svg"))]
///
/// # How it works
///
/// **Problem.** A caller that is denied again and again is guessing passwords, or is broken. Such a caller should be
/// locked out for a time.
///
/// **Naive answer.** Lock the caller out for an hour at the first denial, or restart the lockout at each denial.
///
/// **Where it breaks.** One call too many locks a customer out for an hour. If each denial restarts the lockout, a
/// client that retries in a loop is locked out for ever.
///
/// **The idea.** Count the denials within a window that begins with the first denial. The `n`-th denial begins the
/// lockout, which lasts for the configured time. Calls that arrive during the lockout are denied and, by default,
/// change nothing. The `retry_after` of these denials is at least the rest of the lockout.
///
/// ```text
///   limit 2, block for 5 s after 3
///
///   calls   ● ● ✗ ✗ ✗ ✗    ✗     ✗ ●
///                   ├── 5 s ──────┤
///             1st ──┘ 3rd: "try again in 5 s"
/// ```
///
/// **Invariant.** A lockout ends exactly `duration` after the denial that began it or, with `extend_on_retry`, exactly
/// `duration` after the last denial. Exceptions are a key that is reset or evicted before that time, and an algorithm
/// that is replaced. While a key is not locked out, the inner algorithm decides whether a call passes.
///
/// **Cost.** A key takes 32 bytes more than without a lockout.
#[derive(Clone, Debug, PartialEq)]
pub struct Lockout<A> {
    algorithm: A,
    duration: u64,
    window: u64,
    refusals: u64,
    extends: bool,
}

/// The state that a [`Lockout`] keeps for a key.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LockoutState<S> {
    state: S,
    count: RejectionCount,
}

#[derive(Clone, Copy, Debug)]
struct RejectionCount {
    last: Nanos,
    /// The rest of the lockout at `last`, in nanoseconds.
    left: u64,
    /// The number of denials in the current window, or [`SHARED`]. The window began `age` nanoseconds before `last`.
    refusals: u64,
    age: u64,
}

/// The value of `refusals` that marks a state which several keys share. Denials of calls for the keys that share such a
/// state are not counted.
const SHARED: u64 = u64::MAX;

impl<A: Algorithm> Lockout<A> {
    /// Returns the algorithm whose denials are counted.
    #[must_use]
    pub const fn algorithm(&self) -> &A {
        &self.algorithm
    }

    /// Returns how long a key is locked out.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        Duration::from_nanos(self.duration)
    }

    /// Returns the number of denials within one window after which a key is locked out.
    #[must_use]
    pub const fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Makes each call that is denied during a lockout restart the lockout. So a client that retries in a loop stays
    /// locked out.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::FixedWindow;
    ///
    /// let hour = Duration::from_secs(3_600);
    /// let logins = FixedWindow::new(Quota::per_minute(5)).block_for(hour).after(10).extend_on_retry();
    /// assert_eq!((logins.duration(), logins.refusals()), (hour, 10));
    /// ```
    #[must_use]
    pub fn extend_on_retry(self) -> Self {
        Self { extends: true, ..self }
    }

    /// Advances the count to `now`. Returns how far the clock is behind the count's time, in nanoseconds.
    #[inline]
    fn advance(&self, count: &mut RejectionCount, now: Nanos) -> u64 {
        let step = step(count.last, now, self.window);
        count.last = step.last_update(now);
        count.left = count.left.saturating_sub(step.elapsed);
        count.age = count.age.saturating_add(step.elapsed);
        if count.age >= self.window && count.refusals != SHARED {
            count.refusals = 0;
        }
        step.behind
    }

    /// Counts a denial, unless several keys share the state. During a lockout, counts nothing, but restarts the lockout
    /// if [`extend_on_retry`](Lockout::extend_on_retry) is set.
    fn refuse(&self, count: &mut RejectionCount) {
        if count.refusals == SHARED {
            return;
        }
        if count.left > 0 {
            if self.extends {
                count.left = self.duration;
            }
            return;
        }
        if count.refusals == 0 {
            count.age = 0;
        }
        count.refusals += 1;
        if count.refusals >= self.refusals {
            (count.left, count.refusals) = (self.duration, 0);
        }
    }

    /// Applies the lockout to the inner algorithm's `decision`. During a lockout, the `reset_after` of the result is at
    /// least the rest of the lockout. Otherwise it is at least the time until the counted denials expire.
    fn reported(&self, count: &RejectionCount, behind: u64, decision: Decision) -> Decision {
        let rest = match (count.left, count.refusals) {
            (0, 0 | SHARED) => return decision,
            (0, _) => return decision.with_min_reset(self.window - count.age + behind),
            (left, _) => left.saturating_add(behind),
        };
        let denied = match decision.is_allowed() {
            true => Decision::deny(decision.limit(), 0, Some(rest), nanos(decision.reset_after())),
            false => {
                let retry = decision.retry_after().map(|wait| nanos(wait).max(rest));
                Decision::deny(decision.limit(), 0, retry, nanos(decision.reset_after()))
                    .with_unknown_wait(!decision.never_fits())
            }
        };
        denied.with_index(decision.limit_index()).with_min_reset(rest).with_barred()
    }

    /// Returns the decision for a cost of 0, which is allowed even during a lockout.
    fn zero_cost(&self, count: &RejectionCount, behind: u64, decision: Decision) -> Decision {
        let reset = nanos(decision.reset_after());
        match count.left {
            0 => self.reported(count, behind, decision),
            left => {
                let rest = left.saturating_add(behind);
                // No units remain, and the next change is the end of the lockout.
                let allowed = Decision::allow(decision.limit(), 0, reset).with_next(rest);
                allowed.with_index(decision.limit_index()).with_min_reset(rest)
            }
        }
    }
}

fn nanos(span: Duration) -> u64 {
    Nanos::from(span).0
}

macro_rules! block_for {
    ($($algorithm:ty)+) => {
        $(
            impl $algorithm {
                /// Locks a key out for `duration` when a number of its calls were denied within one window. The method
                /// `after(n)` of the result sets the number, and returns the [`Lockout`], whose docs have an example. The
                /// window is as long as the longest window of the algorithm's policies. If the policies have no window,
                /// it is as long as the lockout.
                ///
                /// # Panics
                ///
                /// Panics if `duration` is zero. `after` panics if `n` is 0.
                pub fn block_for(self, duration: Duration) -> LockoutBuilder<Self> {
                    LockoutBuilder::new(self, duration)
                }
            }
        )+
    };
}

block_for!(Concurrency FixedWindow SlidingWindow SlidingCounter SlidingLog TokenBucket LeakyBucket Smooth);
