//! The fixed window.

use crate::algorithm::clock_step::{ClockStep, step};
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::stored::{StepKind, numbers_of, scale_of};
use crate::algorithm::{
    Algorithm, QueueConfig, QuotaPolicy, ScriptSteps, StateReader, StateWriter, StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::quota::Quota;

/// A count that starts again at 0 when its window ends.
///
/// A window begins with the first admitted call after the previous window has ended. If windows are
/// [`aligned`](FixedWindow::aligned), a window begins at a multiple of the period instead. A window lasts exactly one
/// period. At the end of a window the whole limit is available again. Around the end of a window, just under twice the
/// limit can pass within one period. If windows are aligned, exactly twice the limit can pass. The quota's burst has no
/// effect. A cost above the limit never fits.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::FixedWindow;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(2)))
///     .clock(clock.clone())
///     .build();
/// assert!(limiter.check("user:42").is_allowed());
/// clock.advance(Duration::from_secs(59));
/// assert!(limiter.check("user:42").is_allowed());
/// let denied = limiter.check("user:42");
/// assert!(!denied.is_allowed());
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("pictures/fixed_window.svg"))]
///
/// # How it works
///
/// **Problem.** Limit calls to 100 per hour, by a rule that is easy to explain, and with little memory.
///
/// **Naive answer.** Count the calls, and set the count to zero every hour, on the hour.
///
/// **Where it breaks.** All callers have their whole limit available again at the same instant, and many call at that
/// instant. A caller whose first call is at ten to the hour may use its limit twice in twenty minutes.
///
/// **The idea.** Each key has its own windows. A window begins with the first admitted call after the previous window
/// ended, and lasts one period. With [`aligned`](FixedWindow::aligned), windows begin at multiples of the period
/// instead.
///
/// The picture shows the price: around the end of a window, more than the limit can pass within one period. If that
/// matters, use a [`SlidingWindow`](crate::algorithm::SlidingWindow).
///
/// **Invariant.** Within a window at most `limit` units pass. A denial changes nothing. In
/// [debt](crate::limiter::Builder::max_debt), the count is above the limit until the window ends.
///
/// **Cost.** A call takes constant time, and a key takes 24 bytes. There is no division unless windows are aligned.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    quota: Quota,
    queue_config: QueueConfig,
    aligned: bool,
}

/// The state of a key for a [`FixedWindow`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct FixedWindowState {
    last: Nanos,
    /// The age of the window at `last`, in nanoseconds. It has no meaning while the count is 0.
    age: u64,
    count: u64,
}

impl FixedWindow {
    /// Creates a fixed window that is not aligned.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { quota, aligned: false, queue_config: QueueConfig::acquire_only(quota.limit()) }
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns whether windows begin at multiples of the period.
    #[must_use]
    pub const fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// Aligns the windows to multiples of the period, counted from the clock's zero. The zero of the default clock is
    /// the Unix epoch.
    ///
    /// The windows of all keys end at the same instant. Around that instant, twice the limit can pass. The default
    /// clock reads the Unix time once, when the limiter is built, and is monotonic from then on. It does not follow
    /// later steps of the wall clock or leap seconds, and on Linux it does not count the time while the machine is
    /// suspended.
    ///
    /// ```
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::FixedWindow;
    ///
    /// // 1,000 a day, from midnight UTC to midnight UTC
    /// let daily = FixedWindow::new(Quota::per_day(1_000)).aligned();
    /// ```
    #[must_use]
    pub const fn aligned(mut self) -> Self {
        self.aligned = true;
        self
    }

    #[inline]
    fn advance(&self, state: &mut FixedWindowState, now: Nanos) -> ClockStep {
        let period = self.quota.period_nanos();
        let step = step(state.last, now, period);
        state.last = step.last_update(now);
        state.age = state.age.saturating_add(step.elapsed);
        if state.age >= period {
            state.count = 0;
        } else if self.aligned && step.set_back > 0 {
            state.age = now.0 % period;
        }
        step
    }

    /// Returns the time until the window ends, in nanoseconds. If nothing is counted, returns the time until the clock
    /// has caught up with the key's time.
    #[inline]
    fn rest(&self, state: &FixedWindowState, step: &ClockStep) -> u64 {
        match state.count {
            0 => step.behind,
            _ => (self.quota.period_nanos() - state.age).saturating_add(step.behind),
        }
    }

    fn deny(&self, state: &FixedWindowState, step: &ClockStep, cost: u64) -> Decision {
        let limit = self.quota.limit();
        let rest = self.rest(state, step);
        Decision::deny(limit, self.available(state), (cost <= limit).then_some(rest), rest)
    }

    #[inline]
    fn available(&self, state: &FixedWindowState) -> u64 {
        self.quota.limit().saturating_sub(state.count)
    }

    /// Counts `cost` units in the current window, or in a new window if nothing is counted.
    #[inline]
    fn count(&self, state: &mut FixedWindowState, cost: u64) {
        if state.count == 0 {
            state.age = if self.aligned { state.last.0 % self.quota.period_nanos() } else { 0 };
        }
        state.count += cost;
    }
}

#[doc(hidden)]
impl Algorithm for FixedWindow {
    type State = FixedWindowState;

    const USAGE_IS_OF_QUOTA: bool = true;

    const DENIALS_STAND: bool = true;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> FixedWindowState {
        FixedWindowState { last: now, age: 0, count: 0 }
    }

    #[inline]
    fn last_update(&self, state: &FixedWindowState) -> Nanos {
        state.last
    }

    #[inline]
    fn check(&self, state: &mut FixedWindowState, now: Nanos, cost: u64) -> Decision {
        let step = self.advance(state, now);
        match self.available(state).checked_sub(cost) {
            Some(remaining) => {
                self.count(state, cost);
                Decision::allow(self.quota.limit(), remaining, self.rest(state, &step))
            }
            None => self.deny(state, &step, cost),
        }
    }

    fn peek(&self, state: &mut FixedWindowState, now: Nanos, cost: u64) -> Decision {
        let step = self.advance(state, now);
        match self.available(state) {
            remaining if cost > remaining => self.deny(state, &step, cost),
            remaining => Decision::allow(self.quota.limit(), remaining, self.rest(state, &step)),
        }
    }

    /// Gives back units of the current window. Units of earlier windows no longer count, nor does a charge that was
    /// made in an earlier window.
    fn refund(&self, state: &mut FixedWindowState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.advance(state, now);
        let (last, age) = (state.last, state.age);
        if charged_at.is_none_or(|at| at <= last && last.saturating_since(at) <= age) {
            state.count = state.count.saturating_sub(cost);
        }
    }

    fn charge(&self, state: &mut FixedWindowState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.advance(state, now);
        let charged = cost.min(self.quota.limit().saturating_add(max_debt).saturating_sub(state.count));
        if charged > 0 {
            self.count(state, charged);
        }
        charged
    }

    /// Keeps the count of the current window, up to the new limit, and adds the debt. The window keeps its beginning
    /// or, if `self` is aligned, begins at a multiple of the new period. If one period of the new quota has passed
    /// since the beginning of the window, the count is set to 0.
    fn migrate(&self, state: &mut FixedWindowState, from: &Self, now: Nanos) {
        from.advance(state, now);
        let debt = state.count.saturating_sub(from.quota.limit());
        let period = self.quota.period_nanos();
        if self.aligned {
            state.age = state.last.0 % period;
        }
        let most = self.quota.limit().saturating_add(debt);
        state.count = if state.age < period { state.count.min(most) } else { 0 };
    }

    fn is_fresh(&self, state: &FixedWindowState, now: Nanos) -> bool {
        let period = self.quota.period_nanos();
        let step = step(state.last, now, period);
        step.behind == 0 && (state.count == 0 || state.age.saturating_add(step.elapsed) >= period)
    }

    fn usage(&self, state: &FixedWindowState, now: Nanos) -> Usage {
        let mut state = state.clone();
        self.advance(&mut state, now);
        Usage::of(state.count, self.quota.limit())
    }

    #[inline]
    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::of_window(self.quota)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut FixedWindowState, now: Nanos, cost: u64) -> Option<Nanos> {
        let step = self.advance(state, now);
        let fits = cost.min(self.quota.limit()) <= self.available(state);
        Some(if fits { now } else { now.saturating_add(self.rest(state, &step)) })
    }
}

// The state as it is stored: the key's time, the age of the window, and the units counted in the window.
#[doc(hidden)]
impl StoredAlgorithm for FixedWindow {
    fn kind() -> String {
        "f".to_owned()
    }

    fn unit(&self) -> String {
        let tag = if self.aligned { "fa" } else { "f" };
        format!("{tag}:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let (tag, aligned) = if unit.starts_with("fa:") { ("fa:", true) } else { ("f:", false) };
        let [limit, period] = numbers_of(unit, tag)?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, aligned, ..Self::new(quota) })
    }

    fn write_state(&self, state: &FixedWindowState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        // The age is rounded down, so that the window ends a little later rather than earlier.
        let age = if state.count == 0 { 0 } else { state.age };
        numbers.number(age / scale_of(self.quota.period_nanos()));
        numbers.number(state.count);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<FixedWindowState> {
        let (last, period) = (numbers.instant()?, self.quota.period_nanos());
        let age = numbers.number()?.checked_mul(scale_of(period)).filter(|age| *age < period)?;
        Some(FixedWindowState { last, age, count: numbers.in_debt(self.quota.limit())? })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.check_no_priority()
    }

    fn script(&self) -> Option<ScriptSteps> {
        let period = self.quota.period_nanos();
        let micros = period.is_multiple_of(1_000).then_some(u128::from(period / 1_000))?;
        let limit = self.quota.limit().into();
        ScriptSteps::one(StepKind::FixedWindow, [limit, micros, self.aligned.into()])
    }
}

queue_methods!(FixedWindow);
