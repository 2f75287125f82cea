//! Guava's rate limiters.

#[cfg(test)]
mod tests;
mod wide_math;

use std::time::Duration;

use self::wide_math::{mul_div_ceil, scale_ceil};
use crate::algorithm::clock_step::{earliest_slot, step};
use crate::algorithm::rate::{Rate, div_rem};
use crate::algorithm::stored::numbers_of;
use crate::algorithm::{
    Algorithm, QueueConfig, QueueOverflow, QuotaPolicy, StateReader, StateWriter, StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

/// The number of bits of a fraction: a nanosecond has 2^48 fine units.
const FRACTION_BITS: u32 = 48;
/// The number of bits of a cold factor's fraction: cold factors are multiples of 1/1024.
const COLD_FACTOR_BITS: u32 = 10;
const SECOND: u128 = 1_000_000_000 << FRACTION_BITS;
const MAX_COLD_FACTOR: f64 = 1_000.0;
/// The latest scheduled time, in fine units: nine million years after the clock's zero.
const MAX_FIXED: u128 = 1 << 126;
/// The margin added to a scheduled time that is not exact: 2^-8 of a nanosecond.
const MARGIN: u128 = 1 << (FRACTION_BITS - 8);

/// Guava's rate limiters: paced calls and stored permits, where each call waits for the cost of the call before it.
///
/// Calls of [`acquire`](crate::limiter::RateLimiter::acquire) wait in order, at most [`queue`](Smooth::queue) calls per
/// key and each at most [`max_wait`](Smooth::max_wait). [`check`](crate::limiter::RateLimiter::check) admits a call
/// that would not have to wait, and denies other calls. The cost of a call delays the next call, never the call itself.
/// So no cost is too large.
///
/// A timer that is late by up to 5 ms does not lower the rate. After a longer stall of the runtime the schedule moves:
/// the time of the stall is neither made up for nor stored as permits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_throttle::algorithm::Smooth;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(Smooth::bursty(Quota::per_second(5)));
/// for (cost, wait) in [(1, 0), (10, 200), (1, 2_000)] {
///     let decision = limiter.acquire_n("upstream", cost).await;
///     assert!(decision.is_allowed());
///     assert_eq!(decision.delay(), Duration::from_millis(wait));
/// }
/// # }
/// ```
///
/// Each unit that is charged after the fact takes a stored permit, or delays the next call by one interval. The bound
/// of the [debt](crate::limiter::Builder::max_debt) is the number of calls of cost 1 that can pass at once when all
/// permits are stored, plus `max_debt`: a charge takes at most that many units, and moves the next scheduled time to at
/// most that many intervals from now. Only the units that a cold limiter charges at once when its next call is due
/// delay that call by longer intervals, as the units of any call do.
///
/// A settlement below the estimate moves the next scheduled time back. Stored permits that the call has used are not
/// given back.
///
/// These pictures show [`bursty`](Smooth::bursty) and [`warming_up`](Smooth::warming_up) with the [same calls as every
/// picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("../pictures/smooth_bursty.svg"))]
///
#[cfg_attr(doc, doc = include_str!("../pictures/smooth_warming_up.svg"))]
///
/// # How it works
///
/// **Problem.** Let a caller pace *itself*, such as a client of another service, without bursts, or with a warm-up
/// after a pause.
///
/// **Naive answer.** Remember when the last call was made. The next call may pass one interval later.
///
/// **Where it breaks.** The naive answer ignores idle time. After a quiet minute, the called service may be rested, so
/// that a few calls at once do no harm. Or the service may be cold, so that the full rate overloads it. The naive
/// answer handles neither case. And a call of cost 100 would have to wait for its own 100 intervals, although no other
/// call is waiting.
///
/// **The idea** (from Guava's `SmoothRateLimiter`). Remember when the *next* call may pass, and admit a call of cost
/// `n` at that time: the call after it waits for the `n` permits. Unused time is stored as permits, up to a maximum.
/// The two kinds, bursty and warming up, differ in the time that a stored permit costs:
///
/// ```text
///  time per permit
///      bursty: nothing                warming up: rises with the stored permits
///
///   T ┤------ new permits              cf·T ┤                 ╱
///     │                                     │               ╱
///   0 ┼━━━━━━━━━┥                         T ┼─────────────╱
///     0   stored   1 s                      0    threshold          max
///
///                                           right of the threshold, the area is warm_up;
///                                           left of it, warm_up / 2
/// ```
///
/// Stored permits are taken from the right end of the line, and each permit costs the area under its part of the line.
/// The time per permit of a limiter that warms up thus starts at `cf * T` if the maximum is stored, and falls to `T`
/// after `warm_up`. Here `cf` is the cold factor, and `T` is the interval. Since the cost is an area, it does not
/// matter how permits are split into calls.
///
/// **Numbers.** Stored permits are counted as *time*: each permit is one interval `T`. With a warm-up, the threshold is
/// then at `warm_up / 2`, the maximum is at `warm_up / 2 + 2 warm_up / (1 + cf)`, and each second of idle time adds
/// `1/2 + 2 / (1 + cf)` seconds to the stored time. None of these formulas contains the rate. With some rates,
/// scheduled times are not whole nanoseconds. So scheduled times are kept in *fine units* of 2^-48 of a nanosecond, and
/// rounded so that no call is admitted early. The cold factor is rounded up to a multiple of 1/1024.
///
/// Up to a cold factor of 3, rounding errors stay tiny: no call is admitted early, and no call is late by more than a
/// nanosecond. With a cold factor above 3, the algorithm itself is unstable. If a scheduled time is a little late, less
/// idle time is left after it, and fewer permits are stored. The limiter is then less cold after the pause, and the
/// next calls are admitted sooner. Each pause after which the limiter is not completely cold multiplies the error by
/// about `(cf + 5) (cf - 1) / (2 cf + 2) - 1`. With a factor of 10, calls are exact to a nanosecond over about fifteen
/// such pauses in a row. With a factor of 1,000, they are exact over about four such pauses.
///
/// **Invariant.** No call is admitted before `next`, the scheduled time of the next call. Each admission advances
/// `next` by the time that the permits of the admitted call cost.
///
/// **Cost.** A call takes constant time, and a key takes 48 bytes.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct Smooth {
    quota: Quota,
    rate: Rate,
    stored_permits: StoredPermits,
    queue_config: QueueConfig,
    /// The maximum time that is stored, in fine units.
    max_stored: u128,
    /// The maximum number of calls of cost 1 that can pass at one instant.
    at_once: u64,
}

/// The state of a key for [`Smooth`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SmoothState {
    last: Nanos,
    /// The scheduled time of the next call, in fine units.
    next: u128,
    /// The stored permits, counted as time, in fine units.
    stored: u128,
}

impl Smooth {
    /// Creates Guava's `SmoothBursty`, which stores the unused permits of up to one second. Stored permits cost no
    /// time. Permits are stored from the time at which the limiter is built, even for keys that are first used later.
    /// The first call of a key passes at once.
    #[must_use]
    pub fn bursty(quota: Quota) -> Self {
        Self::with(quota, StoredPermits::Bursty)
    }

    /// Creates Guava's `SmoothWarmingUp`: after a long pause, the interval between calls is at first nearly the normal
    /// interval times the cold factor (3 by default), and decreases to the normal interval within `warm_up`. The
    /// limiter is cold when it is built.
    ///
    /// With a `warm_up` of zero, no permits are stored, and calls are one interval apart. A `warm_up` above 292 years
    /// is shortened to 292 years.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::Smooth;
    ///
    /// // after a pause, the rate rises from 60 to 180 calls a minute within half a minute
    /// let upstream = Smooth::warming_up(Quota::per_minute(180), Duration::from_secs(30));
    /// ```
    #[must_use]
    pub fn warming_up(quota: Quota, warm_up: Duration) -> Self {
        let warm_up = Nanos::from(warm_up).0.min(i64::MAX as u64);
        Self::with(quota, StoredPermits::warming_up(warm_up, 3))
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    fn with(quota: Quota, stored_permits: StoredPermits) -> Self {
        let (rate, queue_config) = (Rate::of(quota), QueueConfig::enabled(quota.capacity()));
        Self { quota, rate, stored_permits, queue_config, max_stored: 0, at_once: 0 }.measured()
    }

    fn measured(mut self) -> Self {
        self.max_stored = self.stored_permits.max_stored();
        self.at_once = self.burst_of(self.max_stored);
        self
    }

    /// Sets the cold factor. The first interval of a cold limiter is nearly the normal interval times this factor. The
    /// default is 3. The factor has no effect on [`bursty`](Smooth::bursty).
    ///
    /// The factor is rounded up to a multiple of 1/1024. Above 3, rounding errors grow with each pause after which the
    /// limiter is not completely cold. With a factor of 10, calls are exact to a nanosecond over about fifteen such
    /// pauses in a row. With a factor of 1,000, they are exact over about four such pauses.
    ///
    /// # Panics
    ///
    /// Panics if `factor` is below 1, above 1,000, or not a number.
    #[must_use]
    #[track_caller]
    pub fn cold_factor(mut self, factor: f64) -> Self {
        assert!(
            (1.0..=MAX_COLD_FACTOR).contains(&factor),
            "a cold factor of {factor} does not slow down: give 1 to 1000"
        );
        self.stored_permits = self.stored_permits.with_cold_factor(factor);
        self.measured()
    }

    /// Sets how many calls may wait, per key. The default is the quota's burst. With 0, no call waits.
    #[must_use]
    pub const fn queue(mut self, places: u64) -> Self {
        self.queue_config = self.queue_config.queue(places);
        self
    }

    /// Sets how long a call may wait. A call that would wait longer is denied at once, as in Guava's `tryAcquire`
    /// with a timeout.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.queue_config = self.queue_config.within(max_wait);
        self
    }

    /// Sets which call is denied when the queue is full, by default the call that arrives.
    #[must_use]
    pub const fn overflow(mut self, overflow: QueueOverflow) -> Self {
        self.queue_config = self.queue_config.with_overflow(overflow);
        self
    }

    /// Returns the time of `units` intervals in fine units, rounded up, but at most [`MAX_FIXED`].
    fn nanos_of(&self, units: u128) -> u128 {
        let grains = units.saturating_mul(u128::from(self.rate.grains_per_unit()));
        let per_nano = self.rate.grains_per_nano();
        let (nanos, rest) = div_rem(grains, per_nano);
        if nanos >= MAX_FIXED >> FRACTION_BITS {
            return MAX_FIXED;
        }
        (nanos << FRACTION_BITS) + (u128::from(rest) << FRACTION_BITS).div_ceil(u128::from(per_nano))
    }

    /// If `now` is after `next`, stores the permits of the idle time from `next` to `now`, and sets `next` to `now`.
    fn catch_up(&self, state: &mut SmoothState, now: Nanos) {
        let now = fine(now);
        if now > state.next {
            state.stored =
                self.max_stored.min(state.stored + self.stored_permits.accrued_in(now - state.next));
            state.next = now;
        }
    }

    /// Moves the next scheduled time earlier by one interval per unit, but not before the key's time. If the time of
    /// the charge is known, leaves out the time that has passed since. Unless `is_exact`, a tiny part remains, because
    /// the times of two parts of a charge may be rounded up by less than the time of the whole.
    fn give_back(
        &self,
        state: &mut SmoothState,
        now: Nanos,
        cost: u64,
        charged_at: Option<Nanos>,
        is_exact: bool,
    ) {
        let observed = fine(self.observe(state, now));
        // The exact value of a saturated scheduled time is not known, so nothing is subtracted from it.
        if state.next <= observed || state.next >= MAX_FIXED {
            return;
        }
        let charged = self.nanos_of(u128::from(cost)).saturating_sub(u128::from(!is_exact));
        let given = match charged_at {
            None => charged,
            Some(at) if at <= state.last => {
                charged.saturating_sub(fine(Nanos(state.last.saturating_since(at))))
            }
            Some(_) => 0,
        };
        state.next = state.next.saturating_sub(given).max(observed);
    }

    /// Returns whether the interval is a whole number of nanoseconds.
    fn is_whole(&self) -> bool {
        self.rate.grains_per_nano() == 1
    }

    /// Returns the scheduled time of the next call, rounded up to the nanosecond.
    fn turn(&self, state: &SmoothState) -> Nanos {
        ceil(self.exact(state.next))
    }

    /// Returns whether the next call can be admitted at `state.last`, the latest clock reading of the key.
    fn is_due(&self, state: &SmoothState) -> bool {
        self.exact(state.next) <= fine(state.last)
    }

    /// Charges a call at its scheduled time. `arrived` is when the call arrived.
    fn take(&self, state: &mut SmoothState, arrived: Nanos, cost: u64) {
        self.catch_up(state, arrived);
        let time = self.withdraw(&mut state.stored, u128::from(cost));
        state.next = state.next.saturating_add(time).min(MAX_FIXED);
    }

    /// Advances the state to `now`, and returns the key's time after this.
    fn observe(&self, state: &mut SmoothState, now: Nanos) -> Nanos {
        let step = step(state.last, now, self.quota.period_nanos());
        if step.set_back > 0 {
            // The schedule moves back with the clock. The idle time until the old reading is stored first.
            let last = state.last;
            self.catch_up(state, last);
            state.next = state.next.saturating_sub(u128::from(step.set_back) << FRACTION_BITS);
        }
        state.last = step.last_update(now);
        state.last
    }

    /// Returns how many calls of cost 1 can pass now, one after another.
    fn passing(&self, state: &SmoothState, observed: Nanos) -> u64 {
        if !self.is_due(state) {
            return 0;
        }
        let mut state = state.clone();
        self.catch_up(&mut state, observed);
        self.burst_of(state.stored)
    }

    /// Returns an admission. `observed` is the key's time.
    fn allow(&self, state: &SmoothState, now: Nanos, observed: Nanos) -> Decision {
        let remaining = self.passing(state, observed);
        let decision = Decision::allow(self.at_once, remaining, self.reset(state, now));
        if remaining == 0 { decision.with_next(self.until(state, now)) } else { decision }
    }

    fn deny(&self, state: &SmoothState, now: Nanos) -> Decision {
        Decision::deny(self.at_once, 0, Some(self.until(state, now)), self.reset(state, now))
    }

    fn until(&self, state: &SmoothState, now: Nanos) -> u64 {
        self.turn(state).saturating_since(now)
    }

    /// Returns the time until the key is fresh.
    fn reset(&self, state: &SmoothState, now: Nanos) -> u64 {
        let mut state = state.clone();
        let last = state.last;
        self.catch_up(&mut state, last);
        ceil(state.next.saturating_add(self.stored_permits.until(self.max_stored - state.stored)))
            .saturating_since(now)
    }

    /// Returns the time at which a call may be admitted if its scheduled time was computed as `next`.
    ///
    /// If a scheduled time was rounded up, less idle time is left after it, and fewer permits are stored. A limiter
    /// that warms up is then less cold, and the following scheduled times are too early. So with a warm-up, a margin is
    /// added to each time that is not a whole number of nanoseconds.
    fn exact(&self, next: u128) -> u128 {
        let is_exact =
            next.is_multiple_of(1 << FRACTION_BITS) || matches!(self.stored_permits, StoredPermits::Bursty);
        if is_exact { next } else { next.saturating_add(MARGIN) }
    }

    /// Returns how many calls of cost 1 can pass at one instant: those that cost no time, and one more, whose cost
    /// delays the next call.
    fn burst_of(&self, stored: u128) -> u64 {
        self.stored_permits.free(stored, self.nanos_of(1)).saturating_add(1)
    }

    /// Takes `units` permits: stored permits first, and new permits once `stored` is used up. Returns the time by which
    /// these permits delay the next call, in fine units.
    fn withdraw(&self, stored: &mut u128, units: u128) -> u128 {
        self.stored_permits.withdraw(stored, self.nanos_of(units))
    }
}

#[doc(hidden)]
impl Algorithm for Smooth {
    type State = SmoothState;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> SmoothState {
        let stored = self.stored_permits.initial();
        SmoothState { last: now, next: fine(created_at.min(now)), stored }
    }

    #[inline]
    fn last_update(&self, state: &SmoothState) -> Nanos {
        state.last
    }

    fn check(&self, state: &mut SmoothState, now: Nanos, cost: u64) -> Decision {
        let observed = self.observe(state, now);
        let passes = self.is_due(state);
        if cost > 0 && !passes {
            return self.deny(state, now);
        }
        if cost > 0 {
            self.take(state, observed, cost);
        }
        self.allow(state, now, observed)
    }

    fn peek(&self, state: &mut SmoothState, now: Nanos, cost: u64) -> Decision {
        let observed = self.observe(state, now);
        if cost > 0 && !self.is_due(state) { self.deny(state, now) } else { self.allow(state, now, observed) }
    }

    /// Moves the next scheduled time earlier by one interval per unit, but not before the key's time. Stored permits
    /// that were used are not given back.
    ///
    /// If the time of the charge is known, undoes the part of the charge whose time cannot have passed since then.
    ///
    /// A charge is rounded up and a refund is rounded down. So if the interval is not a whole number of nanoseconds, a
    /// tiny part of the charge remains, unless all of a call's charge is given back when the call is settled or undone.
    /// If the configuration was replaced between the charge and its undoing, the next call may be early by one fine
    /// unit.
    fn refund(&self, state: &mut SmoothState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        // A charge whose time is known is undone as a whole.
        let is_exact = charged_at.is_some() || self.is_whole();
        self.give_back(state, now, cost, charged_at, is_exact);
    }

    fn refund_settled(
        &self,
        state: &mut SmoothState,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        let is_exact = actual == 0 || self.is_whole();
        self.give_back(state, now, charged.saturating_sub(actual), Some(charged_at), is_exact);
    }

    /// Charges a call of `cost`, but of at most the calls that can pass at once and `max_debt` more. If the next
    /// scheduled time has not come yet, moves it to at most as many intervals after the key's time. With a `max_debt`
    /// of 0, both bounds are `cost`. Does not move the time back. A `cost` of 0 changes nothing. A part of an interval
    /// that is charged counts as one.
    fn charge(&self, state: &mut SmoothState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        let observed = self.observe(state, now);
        if cost == 0 {
            return 0;
        }
        let most = if max_debt == 0 { cost } else { self.at_once.saturating_add(max_debt) };
        let cost = cost.min(most);
        let away = if max_debt == u64::MAX { MAX_FIXED } else { self.nanos_of(most.into()) };
        let latest = fine(observed).saturating_add(away).min(MAX_FIXED).max(state.next);
        let mut charged = state.clone();
        self.take(&mut charged, observed, cost);
        if charged.next <= latest || self.is_due(state) {
            *state = charged;
            return cost;
        }
        let moved = (latest - state.next).div_ceil(self.nanos_of(1));
        state.next = latest;
        u64::try_from(moved).unwrap_or(u64::MAX).min(cost)
    }

    /// Keeps the number of intervals until the next scheduled time. If both configurations are bursty, keeps the stored
    /// time. If both warm up, and the old configuration can store permits, keeps the stored time as a fraction of the
    /// maximum. Otherwise starts with the initial stored time.
    fn migrate(&self, state: &mut SmoothState, from: &Self, now: Nanos) {
        let observed = from.observe(state, now);
        from.catch_up(state, observed);
        let observed = fine(observed);
        let (new, old) = (self.rate, from.rate);
        let times = u128::from(new.grains_per_unit()) * u128::from(old.grains_per_nano());
        let divisors = [new.grains_per_nano(), old.grains_per_unit()];
        let away = mul_div_ceil(state.next - observed, times, 1, &divisors, 0);
        state.next = observed.saturating_add(away).min(MAX_FIXED);
        state.stored = self.stored_permits.refill(state.stored, from.stored_permits);
    }

    fn is_fresh(&self, state: &SmoothState, now: Nanos) -> bool {
        let mut state = state.clone();
        let observed = self.observe(&mut state, now);
        self.catch_up(&mut state, observed);
        observed == now && self.is_due(&state) && state.stored == self.max_stored
    }

    /// Returns how many of the calls that can pass at once cannot pass now. If the next scheduled time is further away
    /// than one call can move it, each further interval of a cold limiter counts as one more call.
    fn usage(&self, state: &SmoothState, now: Nanos) -> Usage {
        let mut state = state.clone();
        let observed = self.observe(&mut state, now);
        let used = match self.passing(&state, observed) {
            0 => {
                let longest = self.withdraw(&mut self.max_stored.clone(), 1).max(self.nanos_of(1));
                let until = state.next.saturating_sub(fine(observed)).saturating_sub(1);
                self.at_once.saturating_add(u64::try_from(until / longest).unwrap_or(u64::MAX))
            }
            passing => self.at_once.saturating_sub(passing),
        };
        Usage::of(used, self.at_once)
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::refilled(self.quota.limit(), self.rate)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut SmoothState, now: Nanos, _cost: u64) -> Option<Nanos> {
        self.observe(state, now);
        // The call is ready even while the clock is behind the key's time.
        Some(if self.is_due(state) { self.turn(state).min(now) } else { self.turn(state) })
    }

    /// Charges the call at its scheduled time. If this time is more than 5 ms before the key's time, charges the call
    /// at 5 ms before the key's time instead, and the schedule continues from there. The time of the stall is not
    /// stored as permits.
    fn admit_queued(&self, state: &mut SmoothState, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        let observed = self.observe(state, now);
        if !self.is_due(state) {
            return None;
        }
        self.catch_up(state, arrived.min(observed));
        state.next = state.next.max(fine(earliest_slot(observed)));
        let ready_at = self.turn(state);
        self.take(state, Nanos::ZERO, cost);
        Some(ready_at)
    }

    fn project(&self, state: &mut SmoothState, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.take(state, arrived, cost);
        now
    }
}

// The state as it is stored: the key's time, the next scheduled time, and the stored permits, counted as time.
#[doc(hidden)]
impl StoredAlgorithm for Smooth {
    fn kind() -> String {
        "s".to_owned()
    }

    fn unit(&self) -> String {
        let (limit, period) = (self.quota.limit(), self.quota.period_nanos());
        match self.stored_permits {
            StoredPermits::Bursty => format!("s:{limit}/{period}"),
            StoredPermits::WarmingUp { warm_up, cold_factor } => {
                format!("sw:{limit}/{period}/{warm_up}/{cold_factor}")
            }
        }
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let (limit, period, stored_permits) = match numbers_of(unit, "s:") {
            Some([limit, period]) => (limit, period, StoredPermits::Bursty),
            None => {
                let [limit, period, warm_up, cold_factor] = numbers_of(unit, "sw:")?;
                // The cold factor is from 1 to 1,000. It is written as a multiple of 1/1024.
                let is_valid = warm_up <= i64::MAX as u64 && (1_024..=1_024_000).contains(&cold_factor);
                (limit, period, is_valid.then_some(StoredPermits::WarmingUp { warm_up, cold_factor })?)
            }
        };
        let quota = Quota::per(limit, Duration::from_nanos(period)).ok()?;
        let smooth = Self::with(quota, stored_permits);
        Some(Self { queue_config: self.queue_config, ..smooth })
    }

    fn write_state(&self, state: &SmoothState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        numbers.wide(state.next);
        numbers.wide(state.stored);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SmoothState> {
        let last = numbers.instant()?;
        let next = numbers.wide().filter(|next| *next <= MAX_FIXED)?;
        let stored = numbers.wide().filter(|stored| *stored <= self.max_stored)?;
        Some(SmoothState { last, next, stored })
    }
}

/// How idle time adds to the stored permits, and how much time they cost when they are taken. Times are in fine units,
/// except where nanoseconds are named.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StoredPermits {
    /// Unused time is stored, up to one second. Stored permits cost no time.
    Bursty,
    WarmingUp {
        /// The time of a warm-up, in nanoseconds.
        warm_up: u64,
        /// The cold factor, as a multiple of 1/1024.
        cold_factor: u64,
    },
}

impl StoredPermits {
    const fn warming_up(warm_up: u64, cold_factor: u64) -> Self {
        Self::WarmingUp { warm_up, cold_factor: cold_factor << COLD_FACTOR_BITS }
    }

    /// Returns the same configuration with another cold factor, which is at least 1.
    fn with_cold_factor(self, factor: f64) -> Self {
        match self {
            Self::Bursty => self,
            Self::WarmingUp { warm_up, .. } => {
                let cold_factor = (factor * f64::from(1 << COLD_FACTOR_BITS)).ceil() as u64;
                Self::WarmingUp { warm_up, cold_factor }
            }
        }
    }

    /// Returns the maximum of the stored time.
    fn max_stored(self) -> u128 {
        match self {
            Self::Bursty => SECOND,
            Self::WarmingUp { warm_up, cold_factor } => {
                let above = (2 * u128::from(warm_up)) << (FRACTION_BITS + COLD_FACTOR_BITS);
                threshold(warm_up) + above.div_ceil(u128::from(cold_factor) + (1 << COLD_FACTOR_BITS))
            }
        }
    }

    /// Converts `stored`, a stored time of the configuration `old`, to this configuration. If both are bursty, the time
    /// stays the same. If both warm up, and `old` can store permits, the time stays the same fraction of the maximum,
    /// rounded up so that no call is admitted early. Otherwise returns the [initial](Self::initial) time.
    fn refill(self, stored: u128, old: Self) -> u128 {
        match (self, old) {
            (Self::Bursty, Self::Bursty) => stored,
            (Self::WarmingUp { .. }, Self::WarmingUp { .. }) if old.max_stored() > 0 => {
                scale_ceil(self.max_stored(), stored, old.max_stored())
            }
            _ => self.initial(),
        }
    }

    /// Returns the stored time with which a limiter begins: zero if bursty, the maximum if warming up.
    fn initial(self) -> u128 {
        match self {
            Self::Bursty => 0,
            Self::WarmingUp { .. } => self.max_stored(),
        }
    }

    /// Returns the stored time that the idle time `idle` adds.
    fn accrued_in(self, idle: u128) -> u128 {
        match self {
            Self::Bursty => idle,
            Self::WarmingUp { cold_factor, .. } => {
                let (fills, over) = fill_rate(cold_factor);
                mul_div_ceil(idle, fills, 1, &[over], 0)
            }
        }
    }

    /// Returns the idle time that adds `missing` to the stored time.
    fn until(self, missing: u128) -> u128 {
        match self {
            Self::Bursty => missing,
            Self::WarmingUp { cold_factor, .. } => {
                let (fills, over) = fill_rate(cold_factor);
                mul_div_ceil(missing, over.into(), 1, &[fills as u64], 0)
            }
        }
    }

    /// Takes an amount of permits, given as `time`: one interval for each permit. Takes stored permits first, and new
    /// permits once `stored` is used up. Returns the time by which these permits delay the next call.
    fn withdraw(self, stored: &mut u128, time: u128) -> u128 {
        let before = *stored;
        *stored = before.saturating_sub(time);
        match self {
            Self::Bursty => time - (before - *stored),
            Self::WarmingUp { warm_up, cold_factor } => {
                let threshold = threshold(warm_up);
                let (from, to) = (before.saturating_sub(threshold), stored.saturating_sub(threshold));
                if from == to {
                    return time;
                }
                // The slope adds (cf^2 - 1) (from^2 - to^2) / (4 warm_up).
                let slope = cold_factor * cold_factor - (1 << (2 * COLD_FACTOR_BITS));
                time + mul_div_ceil(
                    from - to,
                    from + to,
                    slope,
                    &[warm_up],
                    2 + 2 * COLD_FACTOR_BITS + FRACTION_BITS,
                )
            }
        }
    }

    /// Returns how many stored permits can be taken without delaying the next call. `time` is the length of one
    /// interval. In `stored`, one permit is counted as this time.
    fn free(self, stored: u128, time: u128) -> u64 {
        match self {
            Self::Bursty => u64::try_from(stored / time).unwrap_or(u64::MAX),
            Self::WarmingUp { .. } => 0,
        }
    }
}

fn fine(now: Nanos) -> u128 {
    u128::from(now.0) << FRACTION_BITS
}

fn ceil(fine: u128) -> Nanos {
    Nanos(u64::try_from(fine.div_ceil(1 << FRACTION_BITS)).unwrap_or(u64::MAX))
}

fn threshold(warm_up: u64) -> u128 {
    u128::from(warm_up) << (FRACTION_BITS - 1)
}

/// Returns the numerator and the denominator of `1/2 + 2 / (1 + cf)`: the number of seconds by which the stored time
/// grows per second of idle time.
fn fill_rate(cold_factor: u64) -> (u128, u64) {
    const ONE: u64 = 1 << COLD_FACTOR_BITS;
    (u128::from(cold_factor + 5 * ONE), 2 * (cold_factor + ONE))
}
