//! # Smooth: Guava's rate limiters
//!
//! **Problem.** A caller that paces *itself*, such as a client of another service: no bursts, or a warm-up after a
//! pause.
//!
//! **Naive answer.** Remember when the last call was; the next may go one interval later.
//!
//! **Where it breaks.** It knows nothing of the past. After a quiet minute a service is either rested (then a few
//! calls at once are fine) or cold (then full speed at once overloads it): the naive answer does neither. And a
//! call of cost 100 would wait for all of it, though no other call is waiting.
//!
//! **The idea** (from Guava's `SmoothRateLimiter`). Remember when the *next* call may go, and let a call of cost
//! `n` go at once: the call after it waits for what it took. Unused time is stored as permits, up to a limit, and the
//! question is only what a stored permit costs:
//!
//! ```text
//!  time per permit
//!      bursty: nothing                warming up: more, the more are stored
//!
//!   T ┤------ fresh permits            cf·T ┤                 ╱
//!     │                                     │               ╱
//!   0 ┼━━━━━━━━━┥                         T ┼─────────────╱      area right of the threshold: warm_up
//!     0   stored   1 s                      0    threshold          max      area left of it: warm_up / 2
//! ```
//!
//! A permit taken from the store costs the area under the line, from the right. So a limiter that was idle starts at
//! `cf` times the interval and has come down to the interval after `warm_up`. Since the cost is an area, it does not
//! matter how permits are split into calls.
//!
//! **Numbers.** The store is counted in *time*, not in permits: a permit is `T` of it. Then the bend is at `warm_up /
//! 2`, the end at `warm_up / 2 + 2 warm_up / (1 + cf)`, and it fills by `1/2 + 2 / (1 + cf)` for each unit of time:
//! no rate appears in any of it. These numbers have no finite form for every rate, so they are kept in 2^-48 of a
//! nanosecond, and each is rounded so that no call goes early. The cold factor is rounded up to a multiple of 1/1024.
//!
//! Up to a cold factor of 3, tiny errors stay tiny: no call goes early, and none late by more than a nanosecond.
//! Above that the algorithm itself is unstable: the later a cold start begins, the warmer and so the faster it is, and
//! an error grows by a factor of about `(cf + 5) (cf - 1) / (2 cf + 2) - 1` with each cold start that is not quite cold.
//! With a factor of 10 some fifteen of them in a row are exact, with 1,000 some four.
//!
//! **Invariant.** A call is admitted no sooner than `next`; `next` moves on by the area of what it took.
//!
//! **Cost.** Constant time, 48 bytes a key.

#[cfg(feature = "redis")]
mod stored;
mod stored_permits;
#[cfg(test)]
mod tests;
mod wide_math;

use std::time::Duration;

use self::stored_permits::{FRACTION_BITS, StoredPermits};
use self::wide_math::mul_div_ceil;
use crate::algorithm::clock_step::{earliest_slot, step};
use crate::algorithm::rate::{Rate, div_rem};
use crate::algorithm::{Admission, Algorithm, QueueConfig, QueueOverflow, Queueing, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

const MAX_COLD_FACTOR: f64 = 1_000.0;
/// The latest scheduled time: centuries of centuries away, in fine units.
const MAX_FIXED: u128 = 1 << 126;
/// The margin added to a scheduled time that is not exact: 2^-8 of a nanosecond.
const MARGIN: u128 = 1 << (FRACTION_BITS - 8);

/// Guava's rate limiters: paced calls and stored permits, where each call waits for the cost of the one before.
///
/// Calls of [`acquire`](crate::limiter::RateLimiter::acquire) wait in order, at most [`queue`](Smooth::queue) calls per
/// key and each at most [`max_wait`](Smooth::max_wait); [`check`](crate::limiter::RateLimiter::check) passes if the call
/// would not have to wait. A cost never changes its own wait: the next call waits for it. No cost is too large.
///
/// A timer that is late by up to 5 ms costs no rate. After a longer stall of the runtime the schedule moves: the time
/// that was missed while calls waited is neither made up for nor stored.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_throttle::algorithm::Smooth;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(Smooth::bursty(Quota::per_second(5)));
/// let mut waits = Vec::new();
/// for cost in [1, 10, 1] {
///     waits.push(limiter.acquire_n("upstream", cost).await.delay());
/// }
/// assert_eq!(waits, [0, 200, 2_000].map(Duration::from_millis));
/// # }
/// ```
///
/// First bursty, then warming up, with the same calls as in [every picture](crate::algorithm#which-one-do-i-want):
///
#[cfg_attr(doc, doc = include_str!("../pictures/smooth_bursty.svg"))]
///
#[cfg_attr(doc, doc = include_str!("../pictures/smooth_warming_up.svg"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Smooth {
    quota: Quota,
    rate: Rate,
    stored_permits: StoredPermits,
    queue_config: QueueConfig,
    /// The maximum time that is stored, in fine units.
    max_stored: u128,
    /// The maximum number of calls that `check` admits at one instant.
    at_once: u64,
    /// The maximum number of calls that `acquire` accepts at one instant.
    capacity: u64,
}

/// The state of a key for [`Smooth`].
#[derive(Clone, Debug)]
pub struct SmoothState {
    last: Nanos,
    /// The scheduled time of the next call, in fine units.
    next: u128,
    /// The time stored, in fine units.
    stored: u128,
}

impl Smooth {
    /// Creates Guava's `SmoothBursty`, which stores up to one second of unused permits that then cost nothing. The store
    /// is empty when the limiter is built, and the first call is free.
    #[must_use]
    pub fn bursty(quota: Quota) -> Self {
        Self::with(quota, StoredPermits::Bursty)
    }

    /// Creates Guava's `SmoothWarmingUp`: after a pause calls start at the cold factor (3) times the interval, and come
    /// down to the interval within `warm_up`. It is cold when the limiter is built.
    ///
    /// With a `warm_up` of zero there is no store: calls are one interval apart. A `warm_up` above 292 years counts as
    /// 292 years.
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
        Self { quota, rate, stored_permits, queue_config, max_stored: 0, at_once: 0, capacity: 0 }.measured()
    }

    fn measured(mut self) -> Self {
        self.max_stored = self.stored_permits.max_stored();
        self.at_once = self.burst_of(self.max_stored);
        let full = SmoothState { last: Nanos::ZERO, next: 0, stored: self.max_stored };
        let in_time = self.room(&full, Nanos::ZERO, self.queue_config.max_wait());
        self.capacity = self.at_once.saturating_add(self.queue_config.places()).min(in_time);
        self
    }

    /// Sets the factor by which the first interval of a cold limiter is longer than the normal one. It has no effect on
    /// [`bursty`](Smooth::bursty).
    ///
    /// It is rounded up to a multiple of 1/1024. Above 3, rounding errors add up over many cold starts in a row, none of
    /// them quite cold: at a factor of 10 some fifteen of them are exact to a nanosecond, at 1,000 some four.
    ///
    /// # Panics
    ///
    /// Panics if `factor` is below 1, above 1,000, or not a number.
    #[must_use]
    pub fn cold_factor(mut self, factor: f64) -> Self {
        assert!(
            (1.0..=MAX_COLD_FACTOR).contains(&factor),
            "a cold factor of {factor} does not slow down: give 1 to 1000"
        );
        self.stored_permits = self.stored_permits.with_cold_factor(factor);
        self.measured()
    }

    /// Sets how many calls may wait, per key: by default the quota's burst. With 0, none waits.
    #[must_use]
    pub fn queue(mut self, places: u64) -> Self {
        self.queue_config = self.queue_config.queue(places);
        self.measured()
    }

    /// Sets how long a call may wait. A call that would wait longer is refused at once, as in Guava's `tryAcquire` with
    /// a timeout.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.queue_config = self.queue_config.within(max_wait);
        self.measured()
    }

    /// Sets which call is refused when the queue is full: by default the one that arrives.
    #[must_use]
    pub const fn overflow(mut self, overflow: QueueOverflow) -> Self {
        self.queue_config = self.queue_config.with_overflow(overflow);
        self
    }

    /// Returns the time of `units` at the interval, rounded up, in fine units.
    fn nanos_of(&self, units: u128) -> u128 {
        let grains = units.saturating_mul(u128::from(self.rate.period));
        let (nanos, rest) = div_rem(grains, self.rate.limit);
        if nanos >= MAX_FIXED >> FRACTION_BITS {
            return MAX_FIXED;
        }
        (nanos << FRACTION_BITS) + (u128::from(rest) << FRACTION_BITS).div_ceil(u128::from(self.rate.limit))
    }

    /// Stores the time from `next` to `now`, if there is any.
    fn catch_up(&self, state: &mut SmoothState, now: Nanos) {
        let now = fine(now);
        if now > state.next {
            state.stored =
                self.max_stored.min(state.stored + self.stored_permits.accrued_in(now - state.next));
            state.next = now;
        }
    }

    /// Returns whether the interval is a whole number of nanoseconds.
    fn is_whole(&self) -> bool {
        self.rate.limit == 1
    }

    fn until(&self, state: &SmoothState, now: Nanos) -> u64 {
        self.turn(state, 1).saturating_since(now)
    }

    /// Returns the scheduled time of a call with `units` ahead of it.
    fn ready_after(&self, state: &SmoothState, units: u64) -> Nanos {
        if units == 0 {
            return self.turn(state, 1);
        }
        let (mut state, last) = (state.clone(), state.last);
        self.catch_up(&mut state, last);
        let next = state.next.saturating_add(self.withdraw(&mut state.stored, u128::from(units)));
        ceil(self.exact(next))
    }

    /// Returns the time until the key is fresh.
    fn full(&self, state: &SmoothState, now: Nanos) -> u64 {
        ceil(state.next.saturating_add(self.stored_permits.until(self.max_stored - state.stored)))
            .saturating_since(now)
    }

    /// Returns the time at which a call may be admitted whose scheduled time was computed as `next`. Time that was
    /// rounded up fills the store a little later, and a store that is less full is less cold: so a margin is added to a
    /// time that is not exact.
    fn exact(&self, next: u128) -> u128 {
        let is_exact =
            next.is_multiple_of(1 << FRACTION_BITS) || matches!(self.stored_permits, StoredPermits::Bursty);
        if is_exact { next } else { next.saturating_add(MARGIN) }
    }

    /// Returns how many calls of cost 1 pass at once: those that cost nothing, and one for which the next call waits.
    fn burst_of(&self, stored: u128) -> u64 {
        self.stored_permits.free(stored, self.nanos_of(1)).saturating_add(1)
    }

    /// Takes `units` from `stored`. Returns the time until the next call may be admitted.
    fn withdraw(&self, stored: &mut u128, units: u128) -> u128 {
        self.stored_permits.withdraw(stored, self.nanos_of(units))
    }
}

fn fine(now: Nanos) -> u128 {
    u128::from(now.0) << FRACTION_BITS
}

fn ceil(fine: u128) -> Nanos {
    Nanos(u64::try_from(fine.div_ceil(1 << FRACTION_BITS)).unwrap_or(u64::MAX))
}

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
        let passes = self.is_due(state, 1);
        if cost > 0 && !passes {
            return Decision::deny(self.at_once, 0, Some(self.until(state, now)), self.reset(state, now));
        }
        if cost > 0 {
            self.leave(state, observed, cost);
        }
        let remaining = self.passing(state, observed);
        let decision = Decision::allow(self.at_once, remaining, self.reset(state, now));
        if remaining == 0 { decision.with_next(self.until(state, now)) } else { decision }
    }

    fn peek(&self, state: &mut SmoothState, now: Nanos, cost: u64) -> Decision {
        let observed = self.observe(state, now);
        match self.passing(state, observed) {
            0 if cost > 0 => {
                Decision::deny(self.at_once, 0, Some(self.until(state, now)), self.reset(state, now))
            }
            passing => Decision::allow(self.at_once, passing, self.reset(state, now)),
        }
    }

    /// Moves the next scheduled time forward by the interval for each unit, but not to before `now`. Permits that were
    /// taken from the store do not come back.
    ///
    /// It is rounded down where a charge is rounded up: if the interval is no whole number of nanoseconds, up to one
    /// nanosecond is kept.
    fn refund(&self, state: &mut SmoothState, now: Nanos, cost: u64) {
        let observed = fine(self.observe(state, now));
        // From a scheduled time that is saturated, no known amount can be subtracted.
        if state.next > observed && state.next < MAX_FIXED {
            let charged = self.nanos_of(u128::from(cost));
            let given = if self.is_whole() { charged } else { charged.saturating_sub(1) };
            state.next = state.next.saturating_sub(given).max(observed);
        }
    }

    /// Undoes the part of the charge that cannot have elapsed since.
    fn undo(&self, state: &mut SmoothState, now: Nanos, cost: u64, charged_at: Nanos) {
        let observed = fine(self.observe(state, now));
        if charged_at <= state.last && state.next > observed && state.next < MAX_FIXED {
            let charged = self.nanos_of(u128::from(cost)).saturating_sub(1);
            let given = charged.saturating_sub(fine(Nanos(state.last.saturating_since(charged_at))));
            state.next = state.next.saturating_sub(given).max(observed);
        }
    }

    /// Moves the next scheduled time at least to where it would be if the call was admitted now.
    fn charge_saturating(&self, state: &mut SmoothState, now: Nanos, cost: u64) {
        let observed = self.observe(state, now);
        match self.is_due(state, 1) {
            true if cost > 0 => self.leave(state, observed, cost),
            _ => {
                state.next =
                    state.next.max(fine(observed).saturating_add(self.nanos_of(cost.into())).min(MAX_FIXED));
            }
        }
    }

    /// Keeps the number of intervals until the next scheduled time, and the filled part of the store.
    fn migrate(&self, state: &mut SmoothState, from: &Self, now: Nanos) {
        let observed = from.observe(state, now);
        from.catch_up(state, observed);
        let observed = fine(observed);
        let (new, old) = (self.rate, from.rate);
        let times = u128::from(new.period) * u128::from(old.limit);
        let away = mul_div_ceil(state.next - observed, times, 1, &[new.limit, old.period], 0);
        state.next = observed.saturating_add(away).min(MAX_FIXED);
        state.stored = self.stored_permits.refill(state.stored, from.stored_permits);
    }

    fn is_fresh(&self, state: &SmoothState, now: Nanos) -> bool {
        let mut state = state.clone();
        let observed = self.observe(&mut state, now);
        self.catch_up(&mut state, observed);
        observed == now && self.is_due(&state, 1) && state.stored == self.max_stored
    }

    fn policy(&self) -> QuotaPolicy {
        let quota = self.capacity;
        QuotaPolicy::new(quota, Duration::from_nanos(self.rate.time(quota)))
    }

    fn header_window(&self, decision: &Decision) -> Option<Duration> {
        self.rate.window(decision)
    }

    fn queueing(&self) -> Option<&dyn Queueing<SmoothState>> {
        Some(self)
    }
}

impl Queueing<SmoothState> for Smooth {
    fn queue_config(&self, _state: &SmoothState) -> QueueConfig {
        self.queue_config
    }

    fn capacity(&self, _state: &SmoothState) -> u64 {
        self.capacity
    }

    fn at_once(&self, _state: &SmoothState) -> u64 {
        self.at_once
    }

    fn keeps_schedule(&self) -> bool {
        true
    }

    fn turn(&self, state: &SmoothState, _cost: u64) -> Nanos {
        ceil(self.exact(state.next))
    }

    fn is_due(&self, state: &SmoothState, _cost: u64) -> bool {
        self.exact(state.next) <= fine(state.last)
    }

    /// Admits the call at its scheduled time, unless that is overdue by more than a few ticks: then the schedule moves.
    /// A stall stores nothing.
    fn depart(&self, state: &mut SmoothState, now: Nanos, arrived: Nanos, cost: u64) -> Admission {
        let observed = self.observe(state, now);
        if !self.is_due(state, cost) {
            return Admission::NotReady;
        }
        self.catch_up(state, arrived.min(observed));
        let (ready_at, earliest) = (state.next, fine(earliest_slot(observed)));
        state.next = ready_at.max(earliest);
        self.leave(state, Nanos::ZERO, cost);
        if ready_at < earliest { Admission::Late } else { Admission::OnSchedule }
    }

    fn leave(&self, state: &mut SmoothState, arrived: Nanos, cost: u64) {
        self.catch_up(state, arrived);
        let time = self.withdraw(&mut state.stored, u128::from(cost));
        state.next = state.next.saturating_add(time).min(MAX_FIXED);
    }

    fn follow(&self, state: &mut SmoothState, arrived: Nanos, cost: u64) {
        self.leave(state, arrived, cost);
    }

    /// Found by binary search: a later call is not admitted sooner.
    fn room(&self, state: &SmoothState, now: Nanos, wait: u64) -> u64 {
        if wait == u64::MAX {
            return u64::MAX;
        }
        let latest = now.saturating_add(wait).min(Nanos(u64::MAX - 1));
        let (mut fit, mut beyond) = (0, u64::MAX);
        while fit < beyond {
            let middle = fit + (beyond - fit) / 2;
            match self.ready_after(state, middle) <= latest {
                true => fit = middle + 1,
                false => beyond = middle,
            }
        }
        fit
    }

    fn time(&self, state: &SmoothState) -> Nanos {
        state.last
    }

    fn keep(&self, state: &SmoothState) -> Option<SmoothState> {
        Some(state.clone())
    }

    /// Needed in a tuple with algorithms that keep no snapshot.
    fn take_back(&self, state: &mut SmoothState, cost: u64, released: Nanos) {
        self.undo(state, state.last, cost, released);
    }

    fn passing(&self, state: &SmoothState, observed: Nanos) -> u64 {
        if !self.is_due(state, 1) {
            return 0;
        }
        let mut state = state.clone();
        self.catch_up(&mut state, observed);
        self.burst_of(state.stored)
    }

    fn observe(&self, state: &mut SmoothState, now: Nanos) -> Nanos {
        let step = step(state.last, now, self.quota.period_nanos());
        if step.set_back > 0 {
            // The schedule moves back with the clock; the idle time until then is stored first.
            let last = state.last;
            self.catch_up(state, last);
            state.next = state.next.saturating_sub(u128::from(step.set_back) << FRACTION_BITS);
        }
        state.last = step.last_update(now);
        state.last
    }

    fn reset(&self, state: &SmoothState, now: Nanos) -> u64 {
        let mut state = state.clone();
        let last = state.last;
        self.catch_up(&mut state, last);
        self.full(&state, now)
    }
}
