//! Lockouts after too many denials.

use std::time::Duration;

use crate::algorithm::clock_step::step;
use crate::algorithm::definition::LockoutBuilder;
use crate::algorithm::stored::numbers_of;
use crate::algorithm::{
    Algorithm, QueueConfig, QuotaPolicy, Semaphore, StateReader, StateWriter, StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;

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
/// set. Calls that are queued when a lockout begins stay queued, and are admitted even during the lockout. A
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
/// let algorithm =
///     FixedWindow::new(Quota::per_minute(5)).block_for(Duration::from_secs(3_600)).after(10);
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
#[cfg_attr(doc, doc = include_str!("pictures/lockout.svg"))]
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
/// `duration` after the last denial. Exceptions are a key that is reset or evicted before that time, an algorithm that
/// is replaced, and lockouts that an administrator [begins](crate::limiter::RateLimiter::lock_out) or
/// [lifts](crate::limiter::RateLimiter::lift_lockout). While a key is not locked out, the inner algorithm decides
/// whether a call passes.
///
/// **Cost.** A key takes 32 bytes more than without a lockout.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct Lockout<A> {
    algorithm: A,
    duration: u64,
    window: u64,
    denials: u64,
    extends: bool,
}

/// The state that a [`Lockout`] keeps for a key.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LockoutState<S> {
    state: S,
    count: DenialCount,
}

#[derive(Clone, Copy, Debug)]
struct DenialCount {
    last: Nanos,
    /// The rest of the lockout at `last`, in nanoseconds.
    left: u64,
    /// The number of denials in the current window. The window began `age` nanoseconds before `last`.
    denials: u64,
    age: u64,
}

impl<A: Algorithm> LockoutBuilder<A> {
    /// Returns the algorithm that locks a key out when `denials` calls of the key were denied within one window.
    ///
    /// # Panics
    ///
    /// Panics if `denials` is 0.
    #[must_use]
    #[track_caller]
    pub fn after(self, denials: u64) -> Lockout<A> {
        assert!(denials > 0, "after 0 denials every key is locked out: give at least 1");
        let (algorithm, duration) = self.into_parts();
        let mut window = 0;
        algorithm.for_each_policy(&mut |policy| window = Nanos::from(policy.window).0.max(window));
        if window == 0 {
            // A limit of calls in progress has no window.
            window = duration;
        }
        let window = window.clamp(1, i64::MAX as u64);
        Lockout { algorithm, duration, window, denials, extends: false }
    }
}

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
    pub const fn denials(&self) -> u64 {
        self.denials
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
    /// let logins =
    ///     FixedWindow::new(Quota::per_minute(5)).block_for(hour).after(10).extend_on_retry();
    /// assert_eq!((logins.duration(), logins.denials()), (hour, 10));
    /// ```
    #[must_use]
    pub fn extend_on_retry(self) -> Self {
        Self { extends: true, ..self }
    }

    /// Sets the rest of the lockout of a key to `left` nanoseconds from `now`, and forgets the counted denials. Returns
    /// whether the key was locked out or had such denials, and whether it is locked out now.
    pub(crate) fn set_lockout(
        &self,
        state: &mut LockoutState<A::State>,
        now: Nanos,
        left: u64,
    ) -> (bool, bool) {
        let count = &mut state.count;
        self.advance(count, now);
        let had_any = count.left > 0 || count.denials > 0;
        // The count goes on from `now`, even if the clock was set back. Otherwise its time would stand still at first,
        // and a short lockout could not be counted from `now`.
        *count = DenialCount { last: now, left, denials: 0, age: 0 };
        (had_any, left > 0)
    }

    /// Advances the count to `now`. Returns how far the clock is behind the count's time, in nanoseconds.
    #[inline]
    fn advance(&self, count: &mut DenialCount, now: Nanos) -> u64 {
        let step = step(count.last, now, self.window);
        count.last = step.last_update(now);
        count.left = count.left.saturating_sub(step.elapsed);
        count.age = count.age.saturating_add(step.elapsed);
        if count.age >= self.window {
            count.denials = 0;
        }
        step.behind
    }

    /// Counts a denial. During a lockout, counts nothing, but restarts the lockout if
    /// [`extend_on_retry`](Lockout::extend_on_retry) is set.
    fn count_denial(&self, count: &mut DenialCount) {
        if count.left > 0 {
            if self.extends {
                // An administrator may have locked the key out for longer.
                count.left = count.left.max(self.duration);
            }
            return;
        }
        if count.denials == 0 {
            count.age = 0;
        }
        count.denials += 1;
        if count.denials >= self.denials {
            (count.left, count.denials) = (self.duration, 0);
        }
    }

    /// Applies the lockout to the inner algorithm's `decision`. During a lockout, the `reset_after` of the result is at
    /// least the rest of the lockout. Otherwise it is at least the time until the counted denials expire.
    fn reported(&self, count: &DenialCount, behind: u64, decision: Decision) -> Decision {
        let rest = match (count.left, count.denials) {
            (0, 0) => return decision,
            (0, _) => return decision.with_min_reset(self.window - count.age + behind),
            (left, _) => left.saturating_add(behind),
        };
        let denied = if decision.is_allowed() {
            Decision::deny(decision.limit(), 0, Some(rest), nanos(decision.reset_after()))
        } else {
            let retry = decision.retry_after().map(|wait| nanos(wait).max(rest));
            Decision::deny(decision.limit(), 0, retry, nanos(decision.reset_after()))
                .with_unknown_wait(!decision.never_fits())
        };
        denied.with_index(decision.limit_index()).with_min_reset(rest).with_barred()
    }

    /// Returns the decision for a cost of 0, which is allowed even during a lockout.
    fn zero_cost(&self, count: &DenialCount, behind: u64, decision: Decision) -> Decision {
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

#[doc(hidden)]
impl<A: Algorithm> Algorithm for Lockout<A> {
    type State = LockoutState<A::State>;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;
    const ADDS_UP: bool = A::ADDS_UP;
    const NEEDS_RELEASE: bool = A::NEEDS_RELEASE;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
        let count = DenialCount { last: now, left: 0, denials: 0, age: 0 };
        LockoutState { state: self.algorithm.new_state(created_at, now), count }
    }

    #[inline]
    fn last_update(&self, state: &Self::State) -> Nanos {
        self.algorithm.last_update(&state.state)
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(&mut state.count, now);
        if cost == 0 {
            return self.zero_cost(&state.count, behind, self.algorithm.check(&mut state.state, now, 0));
        }
        let blocked = state.count.left > 0;
        let decision = if blocked {
            self.algorithm.peek(&mut state.state, now, cost)
        } else {
            self.algorithm.check(&mut state.state, now, cost)
        };
        if blocked || !decision.is_allowed() {
            self.count_denial(&mut state.count);
        }
        self.reported(&state.count, behind, decision)
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(&mut state.count, now);
        let decision = self.algorithm.peek(&mut state.state, now, cost);
        if cost == 0 {
            return self.zero_cost(&state.count, behind, decision);
        }
        let mut after_check = state.count;
        if after_check.left > 0 || !decision.is_allowed() {
            self.count_denial(&mut after_check);
        }
        // `retry_after` and whether the key is locked out are what a check would report. The other fields describe the
        // state before the check.
        let checked = self.reported(&after_check, behind, decision);
        self.reported(&state.count, behind, decision)
            .with_retry_after(checked.retry_after().map(nanos))
            .with_locked_out(checked.is_locked_out())
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.algorithm.refund(&mut state.state, now, cost, charged_at);
    }

    fn refund_settled(
        &self,
        state: &mut Self::State,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        self.algorithm.refund_settled(&mut state.state, now, charged, actual, charged_at);
    }

    /// Keeps the rest of a lockout, at most the new duration. Keeps the counted denials if the new window has not
    /// ended, but always fewer than the number that begins a lockout.
    fn migrate(&self, state: &mut Self::State, from: &Self, now: Nanos) {
        from.advance(&mut state.count, now);
        self.algorithm.migrate(&mut state.state, &from.algorithm, now);
        let count = &mut state.count;
        count.left = count.left.min(self.duration);
        count.denials = if count.age < self.window { count.denials.min(self.denials - 1) } else { 0 };
    }

    /// Charges even during a lockout, because the call was admitted already.
    fn charge(&self, state: &mut Self::State, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.algorithm.charge(&mut state.state, now, cost, max_debt)
    }

    /// Charges even during a lockout, as [`charge`](Algorithm::charge) does.
    fn charge_available(&self, state: &mut Self::State, now: Nanos, cost: u64) -> u64 {
        self.algorithm.charge_available(&mut state.state, now, cost)
    }

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        let mut count = state.count;
        self.advance(&mut count, now);
        matches!((count.left, count.denials), (0, 0)) && self.algorithm.is_fresh(&state.state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.algorithm.policy()
    }

    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        self.algorithm.for_each_policy(f);
    }

    fn release(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.algorithm.release(&mut state.state, now, cost);
    }

    fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
        self.algorithm.for_each_total(f);
    }

    fn in_flight(&self, state: &Self::State) -> u64 {
        self.algorithm.in_flight(&state.state)
    }

    /// Returns [`Usage::LOCKED_OUT`] during a lockout. Otherwise returns the higher of two usages: that of the inner
    /// algorithm, and the counted denials as a fraction of the denials that begin a lockout.
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        let mut count = state.count;
        self.advance(&mut count, now);
        let denied = match (count.left, count.denials) {
            (0, 0) => Usage::NONE,
            (0, denials) => Usage::of(denials, self.denials),
            _ => return Usage::LOCKED_OUT,
        };
        self.algorithm.usage(&state.state, now).max(denied)
    }

    /// Returns the queue configuration of the inner algorithm, made exclusive. Calls that arrive during a lockout are
    /// not queued.
    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        self.algorithm.queue_config().map(QueueConfig::exclusive)
    }

    fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
        self.algorithm.ready_at(&mut state.state, now, cost)
    }

    /// Admits a queued call even during a lockout, because the call was queued before the lockout began.
    fn admit_queued(&self, state: &mut Self::State, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        self.algorithm.admit_queued(&mut state.state, now, arrived, cost)
    }

    fn project(&self, state: &mut Self::State, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.algorithm.project(&mut state.state, now, arrived, cost)
    }

    fn report(
        &self,
        state: &mut Self::State,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        let mut count = state.count;
        let behind = self.advance(&mut count, now);
        if cost == 0 {
            return self.zero_cost(&count, behind, decision);
        }
        if !decision.is_paused() && (count.left > 0 || !decision.is_allowed()) {
            self.count_denial(&mut count);
        }
        let reported = self.reported(&count, behind, decision);
        if counts {
            state.count = count;
        }
        reported
    }

    /// Restores only the state of the inner algorithm. Denials that were counted after the copy was made stay counted.
    fn restore(&self, state: &mut Self::State, before: Self::State) {
        self.algorithm.restore(&mut state.state, before.state);
    }
}

// The state as it is stored: the latest clock reading of the denial count, the rest of the lockout, the number of
// denials, the age of the window in which they are counted, and the state of the inner algorithm.
#[doc(hidden)]
impl<A: StoredAlgorithm> StoredAlgorithm for Lockout<A> {
    fn kind() -> String {
        format!("b({})", A::kind())
    }

    fn unit(&self) -> String {
        let Self { duration, window, denials, .. } = self;
        format!("b:{duration}/{window}/{denials}({})", self.algorithm.unit())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let (own, inner) = unit.strip_suffix(')')?.split_once('(')?;
        let [duration, window, denials] = numbers_of(own, "b:")?;
        let is_valid = (1..=i64::MAX as u64).contains(&window) && duration > 0 && denials > 0;
        let algorithm = is_valid.then(|| self.algorithm.with_unit(inner))??;
        Some(Self { algorithm, duration, window, denials, extends: self.extends })
    }

    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter) {
        let DenialCount { last, left, denials, age } = state.count;
        numbers.instant(last);
        numbers.number(left);
        numbers.number(denials);
        numbers.number(if denials == 0 { 0 } else { age });
        self.algorithm.write_state(&state.state, numbers);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State> {
        let count = DenialCount {
            last: numbers.instant()?,
            // An administrator may have locked the key out for longer than `duration`.
            left: numbers.number()?,
            denials: numbers.at_most(self.denials - 1)?,
            age: numbers.at_most(self.window - 1)?,
        };
        Some(LockoutState { state: self.algorithm.read_state(numbers)?, count })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.algorithm.check_storable()
    }

    fn counts_denials(&self) -> bool {
        true
    }

    fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
        after.count.last < before.count.last || self.algorithm.must_keep(&before.state, &after.state)
    }

    fn adopt(&self, state: &mut Self::State) {
        self.algorithm.adopt(&mut state.state);
    }

    fn lock_out(&self, state: &mut Self::State, now: Nanos, left: u64) -> bool {
        self.set_lockout(state, now, left).0
    }
}

fn nanos(span: Duration) -> u64 {
    Nanos::from(span).0
}

macro_rules! block_for {
    ($($algorithm:ident $step:tt;)+) => {
        $(
            impl super::$algorithm {
                /// Locks a key out for `duration` when a number of its calls were denied within one window. The method
                /// `after(n)` of the result sets the number, and returns the [`Lockout`], whose docs have an example.
                /// The window is as long as the longest window of the algorithm's policies. If the policies have no
                /// window, it is as long as the lockout.
                ///
                /// # Panics
                ///
                /// Panics if `duration` is zero. `after` panics if `n` is 0.
                #[track_caller]
                pub fn block_for(self, duration: Duration) -> LockoutBuilder<Self> {
                    LockoutBuilder::new(self, duration)
                }
            }
        )+
    };
}

// An algorithm has this method without an import of the trait, which has the method for all other types.
for_each_algorithm!(block_for);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::quota::Quota;

    const SECOND: u64 = 1_000_000_000;

    fn algorithm() -> Lockout<FixedWindow> {
        FixedWindow::new(Quota::per_second(2)).block_for(Duration::from_secs(5)).after(3)
    }

    #[test]
    fn the_last_denial_begins_the_lockout_and_hammering_changes_nothing() {
        let algorithm = algorithm();
        let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        let mut check = |at: u64| algorithm.check(&mut state, Nanos(at), 1);
        assert!(check(0).is_allowed() && check(0).is_allowed());
        assert_eq!(check(0).retry_after(), Some(Duration::from_secs(1)));
        assert_eq!(check(SECOND / 2).retry_after(), Some(Duration::from_millis(500)));
        assert_eq!(check(SECOND / 2).retry_after(), Some(Duration::from_secs(5)));
        for at in (SECOND / 2..5 * SECOND + SECOND / 2).step_by(SECOND as usize / 7) {
            let rest = 5 * SECOND + SECOND / 2 - at;
            assert_eq!(check(at).retry_after(), Some(Duration::from_nanos(rest)), "{at}");
        }
        assert!(check(5 * SECOND + SECOND / 2).is_allowed());
    }

    #[test]
    fn denials_that_are_spread_over_windows_do_not_add_up() {
        let algorithm = algorithm();
        let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        for at in (0..100).map(|n| n * SECOND) {
            let allowed = (0..4).filter(|_| algorithm.check(&mut state, Nanos(at), 1).is_allowed()).count();
            assert_eq!(allowed, 2, "two pass and two are denied, each second");
        }
    }

    #[test]
    fn a_denied_call_prolongs_the_lockout_if_asked_to() {
        let algorithm = algorithm().extend_on_retry();
        let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        for at in [0, 0, 0, 0, 0, 4 * SECOND] {
            let _ = algorithm.check(&mut state, Nanos(at), 1);
        }
        let peek = algorithm.peek(&mut state, Nanos(5 * SECOND), 1);
        assert_eq!(peek.retry_after(), Some(Duration::from_secs(5)), "as a check would say");
        assert!(!algorithm.check(&mut state, Nanos(8 * SECOND), 1).is_allowed());
        assert!(algorithm.check(&mut state, Nanos(13 * SECOND), 1).is_allowed());
    }

    #[test]
    fn a_peek_is_not_counted_and_reports_what_a_check_would() {
        let algorithm = algorithm();
        let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        for _ in 0..4 {
            let _ = algorithm.check(&mut state, Nanos::ZERO, 1);
        }
        for _ in 0..9 {
            assert_eq!(
                algorithm.peek(&mut state, Nanos::ZERO, 1).retry_after(),
                Some(Duration::from_secs(5))
            );
        }
        assert!(algorithm.check(&mut state, Nanos(SECOND), 2).is_allowed(), "it is not blocked yet");
    }

    #[test]
    fn a_cost_that_never_fits_has_no_retry_in_a_lockout_either_and_nothing_passes_for_nothing() {
        let algorithm = algorithm();
        let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        for _ in 0..3 {
            assert_eq!(algorithm.check(&mut state, Nanos::ZERO, 3).retry_after(), None);
        }
        assert_eq!(algorithm.check(&mut state, Nanos::ZERO, 3).retry_after(), None);
        let zero_cost = algorithm.check(&mut state, Nanos::ZERO, 0);
        assert!(zero_cost.is_allowed() && zero_cost.remaining() == 0);
        assert_eq!(zero_cost.reset_after(), Duration::from_secs(5));
        assert_eq!(algorithm.check(&mut state, Nanos::ZERO, 1).retry_after(), Some(Duration::from_secs(5)));
        assert!(!algorithm.is_fresh(&state, Nanos(5 * SECOND - 1)));
        assert!(algorithm.is_fresh(&state, Nanos(5 * SECOND)));
    }

    #[test]
    #[should_panic(expected = "after 0 denials")]
    fn after_none_is_a_mistake() {
        let _ = FixedWindow::new(Quota::per_second(1)).block_for(Duration::from_secs(1)).after(0);
    }

    #[test]
    #[should_panic(expected = "a block of no time")]
    fn a_lockout_of_no_time_is_a_mistake() {
        let _ = FixedWindow::new(Quota::per_second(1)).block_for(Duration::ZERO);
    }
}
