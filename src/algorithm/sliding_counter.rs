//! The sliding counter, which adds the weighted counts of two windows.

use crate::algorithm::clock_step::step;
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::rate::div_rem;
use crate::algorithm::stored::{MAX_EXACT, StepKind, numbers_of, scale_of};
use crate::algorithm::{
    Algorithm, MAX_DEBT, QueueConfig, QuotaPolicy, ScriptSteps, StateReader, StateWriter, StoredAlgorithm,
    Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::quota::Quota;

/// Two counts that estimate a sliding window.
///
/// The previous window counts with the weight `1 - elapsed / period`, where `elapsed` is the age of the current window.
/// The arithmetic is exact, but the result only estimates the calls of the last period. If calls are bunched at the
/// ends of windows, just under twice the limit can be admitted within one period. The quota's burst has no effect. A
/// cost above the limit never fits.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::SlidingCounter;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder(SlidingCounter::new(Quota::per_second(10)))
///     .clock(clock.clone())
///     .build();
/// assert!(limiter.check_n("user:42", 10).is_allowed());
/// clock.advance(Duration::from_millis(1_300));
/// // 30 % of the next window has passed: 10 * 0.7 = 7 units still count
/// assert_eq!(limiter.peek("user:42").remaining(), 3);
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("pictures/sliding_counter.svg"))]
///
/// # How it works
///
/// **Problem.** Limit calls by a window that slides, with only two counts per key.
///
/// **Naive answer.** Use a fixed window, whose count falls to zero when the window ends. Around the end of a window,
/// just under twice the limit can be admitted within one period.
///
/// **Where it breaks.** Calls that were made just before the end of a window no longer count just after that end.
///
/// **The idea.** Keep the counts of the current and of the previous window, and assume that the calls of the previous
/// window were spread evenly. When the current window has the age `e`, the sliding window covers a fraction of `1 - e /
/// period` at the end of the previous window. With 80 calls in the previous window, 30 in the current one, and 60 % of
/// it over, the estimate is `80 * 0.4 + 30 = 62`.
///
/// The price is that the assumption may be wrong. Calls bunched at the *end* of the previous window count for less than
/// they should: just under twice the limit can be admitted within one period. Calls bunched at the *beginning* of the
/// previous window count for up to a period longer than they should. For real traffic, Cloudflare reported 0.003 % of
/// calls decided wrongly ("How we built rate limiting capable of scaling to millions of domains", 2017). If the
/// estimate is not strict enough, use a [`SlidingWindow`](crate::algorithm::SlidingWindow).
///
/// The first window of a new or idle key begins with the next admitted call. Each further window begins when the window
/// before it ends.
///
/// **Invariant.** A call of cost `n` is admitted exactly when, at the age `e` of the current window, `previous *
/// (period - e) + (current + n) * period <= limit * period`, in integers. In [debt](crate::limiter::Builder::max_debt),
/// the counts are above the limit.
///
/// **Cost.** A call takes constant time, and a key takes 32 bytes.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingCounter {
    quota: Quota,
    queue_config: QueueConfig,
}

/// The state of a key for a [`SlidingCounter`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SlidingCounterState {
    last: Nanos,
    /// The offset of `last` in the current window, below the period. It has no meaning while both counts are 0.
    into: u64,
    previous: u64,
    current: u64,
}

impl SlidingCounter {
    /// Creates a sliding counter.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { quota, queue_config: QueueConfig::acquire_only(quota.limit()) }
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Advances the state to `now`. Returns how far the clock is behind the key's time, in nanoseconds.
    #[inline]
    fn advance(&self, state: &mut SlidingCounterState, now: Nanos) -> u64 {
        let period = self.quota.period_nanos();
        let step = step(state.last, now, period);
        state.last = step.last_update(now);
        let into = state.into.saturating_add(step.elapsed);
        match into.checked_sub(period) {
            None => state.into = into,
            Some(into) if into < period => {
                state.into = into;
                (state.previous, state.current) = (state.current, 0);
            }
            Some(_) => (state.into, state.previous, state.current) = (0, 0, 0),
        }
        step.behind
    }

    /// Returns the units that still count, rounded up. These are at most the limit, unless the key is in debt.
    #[inline]
    fn estimate(&self, state: &SlidingCounterState) -> u64 {
        if state.previous == 0 {
            return state.current;
        }
        let period = self.quota.period_nanos();
        let weighted = u128::from(state.previous) * u128::from(period - state.into);
        let (whole, rest) = div_rem(weighted, period);
        // The weight of a unit is at most 1, so the quotient fits.
        state.current.saturating_add(whole as u64).saturating_add(u64::from(rest > 0))
    }

    #[inline]
    fn available(&self, state: &SlidingCounterState) -> u64 {
        self.quota.limit().saturating_sub(self.estimate(state))
    }

    /// Returns the time until a call of `cost`, which is at most the limit, would fit.
    fn until(&self, state: &SlidingCounterState, cost: u64) -> u64 {
        let period = self.quota.period_nanos();
        let spare = self.quota.limit() - cost;
        let rest = period - state.into;
        match spare.checked_sub(state.current) {
            Some(spare) => rest - self.time_to_decay(state.previous, spare).min(rest),
            // The cost does not fit in this window. In the next window, the current count is the previous count.
            None => rest + (period - self.time_to_decay(state.current, spare)),
        }
    }

    /// Returns the length of the last part of a window, in which `count` units of the previous window weigh at most
    /// `spare` units. If `count` is at most `spare`, this is the whole period.
    fn time_to_decay(&self, count: u64, spare: u64) -> u64 {
        let period = self.quota.period_nanos();
        if count <= spare {
            return period;
        }
        // The result is below the period, since `spare` is less than `count`.
        div_rem(u128::from(spare) * u128::from(period), count).0 as u64
    }

    #[inline]
    fn reset(&self, state: &SlidingCounterState, behind: u64) -> u64 {
        let rest = self.quota.period_nanos() - state.into;
        match (state.previous, state.current) {
            (0, 0) => behind,
            (_, 0) => rest.saturating_add(behind),
            _ => (rest + self.quota.period_nanos()).saturating_add(behind),
        }
    }

    fn deny(&self, state: &SlidingCounterState, behind: u64, cost: u64) -> Decision {
        let limit = self.quota.limit();
        let retry = (cost <= limit).then(|| self.until(state, cost).saturating_add(behind));
        Decision::deny(limit, self.available(state), retry, self.reset(state, behind))
    }

    /// Returns the number of nanoseconds in one unit of the offset in a stored state. The offset of a state that was
    /// converted is not always a whole number of microseconds.
    fn scale(&self, is_exact: bool) -> u64 {
        if is_exact { 1 } else { scale_of(self.quota.period_nanos()) }
    }
}

#[doc(hidden)]
impl Algorithm for SlidingCounter {
    type State = SlidingCounterState;

    const USAGE_IS_OF_QUOTA: bool = true;

    const DENIALS_STAND: bool = true;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> SlidingCounterState {
        SlidingCounterState { last: now, into: 0, previous: 0, current: 0 }
    }

    #[inline]
    fn last_update(&self, state: &SlidingCounterState) -> Nanos {
        state.last
    }

    #[inline]
    fn check(&self, state: &mut SlidingCounterState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        let (limit, estimate) = (self.quota.limit(), self.estimate(state));
        let Some(remaining) = limit.saturating_sub(estimate).checked_sub(cost) else {
            return self.deny(state, behind, cost);
        };
        if estimate == 0 {
            state.into = 0;
        }
        state.current += cost;
        Decision::allow(limit, remaining, self.reset(state, behind))
    }

    fn peek(&self, state: &mut SlidingCounterState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        match self.available(state) {
            remaining if cost > remaining => self.deny(state, behind, cost),
            remaining => Decision::allow(self.quota.limit(), remaining, self.reset(state, behind)),
        }
    }

    /// Gives back units of the current window first, then of the previous window. A unit of the previous window frees
    /// only its current weight. So if the time of the charge is known, the charge is undone only if it was made in the
    /// current window.
    fn refund(&self, state: &mut SlidingCounterState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.advance(state, now);
        let current = cost.min(state.current);
        match charged_at {
            None => {
                state.current -= current;
                state.previous = state.previous.saturating_sub(cost - current);
            }
            Some(at) if at <= state.last && state.last.saturating_since(at) <= state.into => {
                state.current -= current;
            }
            Some(_) => {}
        }
    }

    fn charge(&self, state: &mut SlidingCounterState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.advance(state, now);
        let estimate = self.estimate(state);
        let charged = cost.min(self.quota.limit().saturating_add(max_debt).saturating_sub(estimate));
        if estimate == 0 && charged > 0 {
            state.into = 0;
        }
        state.current += charged;
        charged
    }

    /// Keeps the elapsed fraction of the window, and lowers the counts until the estimate is at most the new limit and
    /// the debt.
    fn migrate(&self, state: &mut SlidingCounterState, from: &Self, now: Nanos) {
        from.advance(state, now);
        let debt = from.estimate(state).saturating_sub(from.quota.limit());
        let (period, limit) =
            (u128::from(self.quota.period_nanos()), self.quota.limit().saturating_add(debt));
        // The offset is below the new period, since it was below the old period.
        state.into = (u128::from(state.into) * period / u128::from(from.quota.period_nanos())) as u64;
        state.current = state.current.min(limit);
        let spare = u128::from(limit - state.current) * period;
        let (max, _) = div_rem(spare, self.quota.period_nanos() - state.into);
        state.previous = state.previous.min(u64::try_from(max).unwrap_or(u64::MAX));
    }

    fn is_fresh(&self, state: &SlidingCounterState, now: Nanos) -> bool {
        let step = step(state.last, now, self.quota.period_nanos());
        step.behind == 0 && self.reset(state, 0) <= step.elapsed
    }

    fn usage(&self, state: &SlidingCounterState, now: Nanos) -> Usage {
        let mut state = state.clone();
        self.advance(&mut state, now);
        Usage::of(self.estimate(&state), self.quota.limit())
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::of_window(self.quota)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut SlidingCounterState, now: Nanos, cost: u64) -> Option<Nanos> {
        let (behind, cost) = (self.advance(state, now), cost.min(self.quota.limit()));
        let fits = cost <= self.available(state);
        Some(if fits { now } else { now.saturating_add(self.until(state, cost).saturating_add(behind)) })
    }
}

// The state as it is stored: the key's time, its offset in the current window, and the units counted in the previous
// and in the current window.
#[doc(hidden)]
impl StoredAlgorithm for SlidingCounter {
    fn kind() -> String {
        "c".to_owned()
    }

    fn unit(&self) -> String {
        format!("c:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "c:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, ..Self::new(quota) })
    }

    fn write_state(&self, state: &SlidingCounterState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        // The offset is rounded down, so that the previous window weighs more rather than less.
        let into = if state.previous == 0 && state.current == 0 { 0 } else { state.into };
        numbers.number(into / self.scale(numbers.is_exact()));
        numbers.number(state.previous);
        numbers.number(state.current);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SlidingCounterState> {
        let (last, limit, period) = (numbers.instant()?, self.quota.limit(), self.quota.period_nanos());
        let scale = self.scale(numbers.is_exact());
        let into = numbers.number()?.checked_mul(scale).filter(|into| *into < period)?;
        // The previous window may have had another quota, with a higher limit.
        let (previous, current) = (numbers.number()?, numbers.in_debt(limit)?);
        // The estimate of a state is at most the limit and the debt, except for what rounding the offset down adds.
        let spare = u128::from(limit.saturating_add(MAX_DEBT) - current) * u128::from(period);
        let (max, _) = div_rem(spare, period - into);
        let previous = previous.min(u64::try_from(max).unwrap_or(u64::MAX));
        Some(SlidingCounterState { last, into, previous, current })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.check_no_priority()
    }

    fn script(&self) -> Option<ScriptSteps> {
        let (limit, period) = (u128::from(self.quota.limit()), self.quota.period_nanos());
        let micros = period.is_multiple_of(1_000).then_some(u128::from(period / 1_000))?;
        // The script multiplies a count by a time, and the product must be exact.
        if limit * micros >= MAX_EXACT {
            return None;
        }
        ScriptSteps::one(StepKind::SlidingCounter, [limit, micros])
    }
}

queue_methods!(SlidingCounter);
