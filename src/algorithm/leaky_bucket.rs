//! The leaky bucket, as a queue.

use std::time::Duration;

use crate::algorithm::clock_step::{earliest_slot, step};
use crate::algorithm::rate::{Rate, div_rem, rescale_ceil};
use crate::algorithm::stored::{MicroRate, StepKind, numbers_of};
use crate::algorithm::{
    Algorithm, QueueConfig, QueueOverflow, QuotaPolicy, ReservedTime, ScriptSteps, StateReader, StateWriter,
    StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum of each number that the script adds to another number. Up to this maximum, the sum is exact.
const MAX_ADDED: u128 = 1 << 52;

/// A queue with a steady outflow.
///
/// Calls of [`acquire`](crate::limiter::RateLimiter::acquire), and so the requests of a layer, are queued and admitted
/// in the order of arrival. At most [`queue`](LeakyBucket::queue) calls wait per key, each at most
/// [`max_wait`](LeakyBucket::max_wait). By default, further calls are denied at once.
/// [`overflow`](LeakyBucket::overflow) can deny the call that has waited longest instead. Each call is admitted at its
/// *slot*, which is a time in the schedule of its key. [`check`](crate::limiter::RateLimiter::check) never waits: it
/// admits a call if no call is queued and the time of the next slot has come.
///
/// Slots are exact to the nanosecond, even if a timer is up to 5 ms late. So with a limit of 1,000 a second, 1,000
/// queued calls take 1.000 s. After a longer stall of the runtime the schedule moves to later times, and missed slots
/// are lost. So in any span `t` at most `1 + (t + 5 ms) * limit / period` calls of cost 1 are admitted.
///
/// A call of cost `n` is admitted at its slot and delays the next slot by `n` intervals. An idle bucket does not save
/// up slots: after any pause, one call passes at once, not two.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_throttle::algorithm::LeakyBucket;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)).queue(3));
/// for wait in [0, 100] {
///     let decision = limiter.acquire("user:42").await;
///     assert!(decision.is_allowed());
///     assert_eq!(decision.delay(), Duration::from_millis(wait));
/// }
/// # }
/// ```
///
/// Each unit that is charged after the fact delays the next slot by one interval. The bound of the
/// [debt](crate::limiter::Builder::max_debt) is the one call that can pass at once, plus `max_debt`: a charge moves the
/// next slot to at most `1 + max_debt` intervals from now.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::LeakyBucket;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let bucket = LeakyBucket::new(Quota::per_second(10));
/// let limiter = RateLimiter::builder(bucket).clock(ManualClock::new()).max_debt(5).build();
/// limiter.charge("user:42", 100);
/// // six intervals of 100 ms
/// let denied = limiter.peek("user:42");
/// assert!(!denied.is_allowed());
/// assert_eq!(denied.retry_after(), Some(Duration::from_millis(600)));
/// let units = limiter.stats().units;
/// assert_eq!((units.charged, units.uncharged), (6, 94));
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("pictures/leaky_bucket.svg"))]
///
/// # How it works
///
/// **Problem.** A service behind the server can process ten calls a second at an even rate, but no bursts. The eleventh
/// call should not be denied, but held until its scheduled time.
///
/// **Naive answer.** Give each caller a time. The state is the next free time. A caller gets this time, moves the next
/// free time on by one interval, and sleeps until its own time.
///
/// **Where it breaks.** A caller that disconnects keeps its time, so all later callers wait longer than necessary. If
/// the next free time is computed from the time at which a sleep ends, each late timer delays all later calls: at 5,000
/// calls a second and with a timer that ticks in milliseconds, four fifths of the rate are lost. And nothing limits how
/// many calls wait.
///
/// **The idea.** The state is only the schedule: the time at which the next call may be admitted. The limiter keeps the
/// queue of waiters. A call is admitted at its *slot*, and the next slot is computed from that slot, not from the time
/// at which a timer fired. Calls whose slots are overdue by up to five milliseconds are released at once, so a late
/// timer does not lower the rate. After a longer stall the schedule moves to later times, so that no burst is released.
/// If a queued call is cancelled, the calls behind it get earlier slots.
///
/// ```text
///   10/s, queue 3: five at one instant
///
///   slots  0 ms   100    200    300
///          ├──────┼──────┼──────┼───▶
///          ① goes ② ─────▶
///                 ③ ───────────▶
///                 ④ ──────────────────▶
///                 ⑤ denied at once: try again in 100 ms, when ② is admitted
/// ```
///
/// Slots are counted in grains. A nanosecond has `limit` grains and an interval has `period` grains. Both are integers,
/// so a rate of 3 per second does not drift.
///
/// **Invariant.** After a call of cost `n`, the next slot is at least `n * period / limit` later, unless units were
/// given back. No call is admitted before its slot.
///
/// **Cost.** A call takes constant time. A key takes 24 bytes, and the memory of each waiter in its queue.
///
/// A leaky bucket can also be used as a *meter*, which denies calls instead of making them wait. A meter decides as a
/// token bucket does: use [`TokenBucket`](crate::algorithm::TokenBucket) for that.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    quota: Quota,
    rate: Rate,
    queue_config: QueueConfig,
}

/// The state of a key for a [`LeakyBucket`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LeakyBucketState {
    last: Nanos,
    next: Slot,
}

impl LeakyBucket {
    /// Creates a bucket that admits calls at the quota's rate and queues as many calls per key as the quota's burst.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { quota, rate: Rate::of(quota), queue_config: QueueConfig::enabled(quota.capacity()) }
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Sets how many calls may wait, per key. The default is the quota's burst, so calls wait unless the number is set
    /// to 0. This holds for calls of [`acquire`](crate::RateLimiter::acquire) and for the requests of a layer. With 0, a
    /// call that cannot pass at once is denied. How many calls wait for a key is not reported: the
    /// [`remaining`](crate::Decision::remaining) of a decision is 1 if a call would pass at once, and otherwise 0.
    #[must_use]
    pub const fn queue(mut self, places: u64) -> Self {
        self.queue_config = self.queue_config.queue(places);
        self
    }

    /// Sets how long a call may wait. A call that would wait longer is denied at once.
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

    /// Returns the grains from `now` until the next slot. `now` is not after the key's time.
    fn until(&self, state: &LeakyBucketState, now: Nanos) -> u128 {
        match state.last.saturating_since(now) {
            0 => state.next.until(),
            behind => state.next.until().saturating_add(self.rate.grains(behind)),
        }
    }

    /// Returns the slot at `instant`, which is not after the key's time.
    fn slot(&self, state: &LeakyBucketState, instant: Nanos) -> Slot {
        match state.last.saturating_since(instant) {
            0 => Slot::NOW,
            ago => Slot::NOW.sooner(self.rate.grains(ago)),
        }
    }

    /// Returns the time of `slot`, rounded up to the nanosecond, or [`Nanos::MAX`] if the slot is beyond the range of
    /// the clock.
    fn instant(&self, state: &LeakyBucketState, slot: Slot) -> Nanos {
        if slot.is_saturated() {
            return Nanos::MAX;
        }
        if slot.is_due() {
            let (past, _) = div_rem(slot.overdue(), self.rate.grains_per_nano());
            return Nanos(state.last.0.saturating_sub(u64::try_from(past).unwrap_or(u64::MAX)));
        }
        state.last.saturating_add(self.rate.nanos_of(slot.until()))
    }

    /// Advances the state to `now`, and returns the key's time after this. If the clock was set back by more than one
    /// period, the schedule moves back by the same time.
    #[inline]
    fn observe(&self, state: &mut LeakyBucketState, now: Nanos) -> Nanos {
        let step = step(state.last, now, self.quota.period_nanos());
        state.next = state.next.sooner(self.rate.grains(step.elapsed));
        state.last = step.last_update(now);
        state.last
    }

    /// Charges a call at the next slot or, if that slot is before `arrived`, at `arrived`.
    fn take_slot(&self, state: &mut LeakyBucketState, arrived: Nanos, cost: u64) {
        state.next = state.next.max(self.slot(state, arrived)).later(self.rate.units(cost));
    }

    /// Returns the grains until the next slot is due and the clock has caught up with the key's time.
    fn reset(&self, state: &LeakyBucketState, now: Nanos) -> u128 {
        self.until(state, now).max(self.rate.grains(state.last.saturating_since(now)))
    }

    /// Returns the admission of a call that charges nothing.
    fn allow_free(&self, state: &LeakyBucketState, now: Nanos) -> Decision {
        let reset = self.reset(state, now);
        match state.next.is_due() {
            true => self.rate.allow(1, 1, reset, 0),
            false => self.rate.allow(1, 0, reset, reset),
        }
    }

    fn deny(&self, state: &LeakyBucketState, now: Nanos) -> Decision {
        let until = self.until(state, now);
        self.rate.deny(1, 0, Some(until), until)
    }

    fn micro_rate(&self) -> MicroRate {
        MicroRate::of(self.rate)
    }

    /// Advances the state to `now`, and makes an overdue slot due now. Returns how far the clock is behind the key's
    /// time, in nanoseconds.
    fn advance(&self, state: &mut LeakyBucketState, now: Nanos) -> u64 {
        let step = step(state.last, now, self.quota.period_nanos());
        state.next = state.next.sooner(self.rate.grains(step.elapsed)).max(Slot::NOW);
        state.last = step.last_update(now);
        step.behind
    }

    /// Returns the time of the next slot, in grains since the clock's zero.
    fn mark(&self, state: &LeakyBucketState) -> u128 {
        self.rate.grains(state.last.0).saturating_add(state.next.until())
    }
}

#[doc(hidden)]
impl Algorithm for LeakyBucket {
    type State = LeakyBucketState;

    const ADDS_UP: bool = true;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> LeakyBucketState {
        LeakyBucketState { last: now, next: Slot::NOW }
    }

    #[inline]
    fn last_update(&self, state: &LeakyBucketState) -> Nanos {
        state.last
    }

    #[inline]
    fn check(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) -> Decision {
        let observed = self.observe(state, now);
        let now = now.min(observed);
        if cost == 0 {
            return self.allow_free(state, now);
        }
        if !state.next.is_due() {
            return self.deny(state, now);
        }
        self.take_slot(state, observed, cost);
        let until = self.until(state, now);
        self.rate.allow(1, 0, until, until)
    }

    fn peek(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) -> Decision {
        let now = now.min(self.observe(state, now));
        match cost == 0 || state.next.is_due() {
            true => self.allow_free(state, now),
            false => self.deny(state, now),
        }
    }

    /// Moves the next slot earlier by one interval per unit, but not before the key's time. If the time of the charge
    /// is known, undoes the part of the charge whose intervals cannot have passed since then.
    fn refund(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.observe(state, now);
        let passed = match charged_at {
            None => 0,
            Some(at) if at <= state.last => self.rate.grains(state.last.saturating_since(at)),
            Some(_) => return,
        };
        if !state.next.is_due() {
            let grains = self.rate.units(cost).saturating_sub(passed);
            state.next = state.next.sooner(grains).max(Slot::NOW);
        }
    }

    /// Moves the next slot by the difference, but at most by the intervals of the charge that have not passed since then.
    // Right after the charge, the next slot was at least `charged` intervals away.
    fn refund_settled(
        &self,
        state: &mut LeakyBucketState,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        self.observe(state, now);
        if charged_at <= state.last && !state.next.is_due() {
            let passed = self.rate.grains(state.last.saturating_since(charged_at));
            let counts = self.rate.units(charged).saturating_sub(passed);
            let grains = self.rate.units(charged.saturating_sub(actual)).min(counts);
            state.next = state.next.sooner(grains).max(Slot::NOW);
        }
    }

    /// Moves the next slot by `cost` intervals, but to at most `1 + max_debt` intervals after the key's time or, with a
    /// `max_debt` of 0, to at most `cost` intervals. Does not move the slot back. A `cost` of 0 changes nothing. A part
    /// of an interval that is charged counts as one.
    fn charge(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.observe(state, now);
        if cost == 0 {
            return 0;
        }
        let latest = match max_debt {
            // A call of any cost is admitted when the slot is due.
            0 => Slot::NOW.later(self.rate.units(cost)),
            u64::MAX => Slot::NOW.later(u128::MAX),
            _ => Slot::NOW.later(self.rate.units(1)).later(self.rate.units(max_debt)),
        };
        let before = state.next.max(Slot::NOW);
        state.next = before.later(self.rate.units(cost)).min(latest).max(before);
        let (charged, rest) = self.rate.whole_units(state.next.until() - before.until());
        u64::try_from(charged).unwrap_or(u64::MAX).saturating_add(u64::from(rest > 0))
    }

    /// Keeps the number of intervals until the next slot.
    fn migrate(&self, state: &mut LeakyBucketState, from: &Self, now: Nanos) {
        from.observe(state, now);
        let (new, old) = (self.rate.grains_per_unit(), from.rate.grains_per_unit());
        let (intervals, rest) = from.rate.whole_units(state.next.until());
        let away =
            intervals.saturating_mul(u128::from(new)).saturating_add(rescale_ceil(rest, new, old).into());
        state.next = Slot::NOW.later(away);
    }

    fn is_fresh(&self, state: &LeakyBucketState, now: Nanos) -> bool {
        let mut state = state.clone();
        self.observe(&mut state, now) == now && state.next.is_due()
    }

    /// Returns the number of intervals until the next slot, as the usage of a limit of one call.
    fn usage(&self, state: &LeakyBucketState, now: Nanos) -> Usage {
        let mut state = state.clone();
        self.observe(&mut state, now);
        let (intervals, rest) = self.rate.whole_units(state.next.until());
        Usage::of(u64::try_from(intervals).unwrap_or(u64::MAX).saturating_add(u64::from(rest > 0)), 1)
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::refilled(self.quota.limit(), self.rate)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut LeakyBucketState, now: Nanos, _cost: u64) -> Option<Nanos> {
        self.observe(state, now);
        let instant = self.instant(state, state.next);
        // The call is ready even while the clock is behind the key's time.
        Some(if state.next.is_due() { instant.min(now) } else { instant })
    }

    /// Charges the call at its slot. The charge is at most 5 ms before the key's time, and not before the arrival of
    /// the call. The next slot is counted from the time of the charge.
    fn admit_queued(
        &self,
        state: &mut LeakyBucketState,
        now: Nanos,
        arrived: Nanos,
        cost: u64,
    ) -> Option<Nanos> {
        let observed = self.observe(state, now);
        if !state.next.is_due() {
            return None;
        }
        let earliest = self.slot(state, earliest_slot(observed));
        let slot = state.next.max(self.slot(state, arrived)).max(earliest);
        state.next = slot.later(self.rate.units(cost));
        Some(self.instant(state, slot))
    }

    fn project(&self, state: &mut LeakyBucketState, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.take_slot(state, arrived, cost);
        // A slot that is saturated cannot be moved back.
        if state.next.is_saturated() { Nanos::MAX } else { now }
    }
}

// The state as a string: the grains until the next slot, which are those of the `MicroRate` unless the string is
// exact, and the key's time.
#[doc(hidden)]
impl StoredAlgorithm for LeakyBucket {
    fn kind() -> String {
        "l".to_owned()
    }

    fn unit(&self) -> String {
        format!("l:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "l:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, ..Self::new(quota) })
    }

    /// Writes the grains until the next slot, and the key's time. If the grains are rounded, they are at most
    /// `u64::MAX`.
    fn write_state(&self, state: &LeakyBucketState, numbers: &mut StateWriter) {
        let until = self.micro_rate().written(state.next.until(), numbers.is_exact());
        numbers.wide(until.min(max_written(numbers.is_exact())));
        numbers.instant(state.last);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<LeakyBucketState> {
        let is_exact = numbers.is_exact();
        let until = numbers.wide().filter(|until| *until <= max_written(is_exact))?;
        let until = self.micro_rate().read(until, is_exact)?;
        Some(LeakyBucketState { last: numbers.instant()?, next: Slot::NOW.later(until) })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.micro_rate().check_storable()
    }

    fn script(&self) -> Option<ScriptSteps> {
        let (micro, unit) = self.micro_rate().grains();
        let period = u128::from(self.quota.period_nanos() / 1_000);
        let max_cost = u64::try_from(MAX_ADDED / unit).unwrap_or(u64::MAX);
        let steps = ScriptSteps::one(StepKind::Bucket, [micro, unit, 0, 0, period, MAX_ADDED])?;
        Some(steps.with_max_cost(max_cost))
    }

    fn reserve_slot(
        &self,
        state: &mut LeakyBucketState,
        now: Nanos,
        cost: u64,
        max_wait: u64,
    ) -> Option<ReservedTime> {
        let lag = self.rate.grains(self.advance(state, now));
        let until = state.next.until();
        // Each place in the queue allows one interval of waiting.
        let places = self.rate.units(self.queue_config.places());
        let max_wait = max_wait.min(self.queue_config.max_wait());
        let longest = if max_wait == u64::MAX { u128::MAX } else { self.rate.grains(max_wait) };
        let in_time = longest.saturating_sub(lag);
        let wait = if until == 0 { 0 } else { until.saturating_add(lag) };
        let decision = if until > places.min(in_time) {
            // The clock must catch up with the key's time before the queue gets shorter.
            let free = if until > places { (until - places).saturating_add(lag) } else { 0 };
            let retry = free.max(wait.saturating_sub(longest));
            let denial = self.rate.deny(1, 0, Some(retry), wait);
            let is_full = until <= in_time && self.queue_config.places() > 0;
            if is_full { denial.with_queue_full() } else { denial }
        } else {
            let charged = self.rate.units(cost);
            state.next = state.next.later(charged);
            match wait {
                0 => self.allow_free(state, now),
                // The times count from the release.
                _ => self.rate.allow(1, 0, charged, charged).with_delay(self.rate.nanos_of(wait)),
            }
        };
        Some(ReservedTime { decision, mark: self.mark(state) })
    }

    fn give_back(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64, mark: u128) -> bool {
        self.advance(state, now);
        let is_last = self.mark(state) == mark;
        if is_last {
            state.next = state.next.sooner(self.rate.units(cost)).max(Slot::NOW);
        }
        is_last
    }
}

/// The time of the next admission, in grains relative to the key's time. A slot before the key's time is overdue. The
/// number is stored as two 64-bit words, so that the state needs no padding for its alignment.
///
/// The number is counted from [`EPOCH_OFFSET`] grains before the key's time. So nearly all 128-bit numbers are slots in
/// the future, and the range of slots reaches beyond the end of the clock's range. Few numbers are needed for overdue
/// slots, because only queued calls use them, and a call uses at most the last 5 ms. A slot that would be overdue by
/// more than the offset is stored as the earliest slot that can be represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    high: u64,
    low: u64,
}

const EPOCH_OFFSET: u128 = 1 << 96;

impl Slot {
    const NOW: Self = Self::new(EPOCH_OFFSET);

    const fn new(count: u128) -> Self {
        Self { high: (count >> 64) as u64, low: count as u64 }
    }

    const fn count(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    const fn later(self, grains: u128) -> Self {
        Self::new(self.count().saturating_add(grains))
    }

    /// Returns the slot that is `grains` earlier, or the earliest slot that can be represented. A
    /// [saturated](Slot::is_saturated) slot stays the same.
    const fn sooner(self, grains: u128) -> Self {
        if self.is_saturated() { self } else { Self::new(self.count().saturating_sub(grains)) }
    }

    const fn is_due(self) -> bool {
        self.count() <= EPOCH_OFFSET
    }

    /// Returns whether the slot is too far in the future to be represented, and so beyond the range of the clock.
    const fn is_saturated(self) -> bool {
        self.count() == u128::MAX
    }

    /// Returns the grains until the slot, or 0 if the slot is due.
    const fn until(self) -> u128 {
        self.count().saturating_sub(EPOCH_OFFSET)
    }

    /// Returns the grains since the slot, or 0 if the slot is not due.
    const fn overdue(self) -> u128 {
        EPOCH_OFFSET.saturating_sub(self.count())
    }
}

/// Returns the maximum number of grains in a state string.
const fn max_written(is_exact: bool) -> u128 {
    if is_exact { u128::MAX } else { u64::MAX as u128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn calls_that_wait_have_slots_in_order() {
        let bucket = LeakyBucket::new(Quota::per_second(10)).queue(3);
        let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
        let mut reserve = || bucket.reserve_slot(&mut state, Nanos(MS), 1, u64::MAX).unwrap();
        let all: Vec<_> = (0..4).map(|_| reserve()).collect();
        let delays: Vec<_> = all.iter().map(|call| call.decision.delay().as_millis()).collect();
        assert_eq!(delays, [0, 100, 200, 300]);
        // When a call is released, the next slot is an interval away.
        let left = all.iter().map(|call| (call.decision.remaining(), call.decision.next()));
        assert!(left.into_iter().all(|left| left == (0, Some(100 * MS))));
        let denied = reserve().decision;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_millis(100))));
        assert!(!bucket.give_back(&mut state, Nanos(2 * MS), 1, all[2].mark));
        assert!(bucket.give_back(&mut state, Nanos(2 * MS), 1, all[3].mark));
        let again = bucket.reserve_slot(&mut state, Nanos(2 * MS), 1, u64::MAX).unwrap().decision;
        assert_eq!(again.delay(), Duration::from_millis(299));
        let late = bucket.reserve_slot(&mut state, Nanos(2 * MS), 1, 100 * MS).unwrap().decision;
        assert_eq!(late.retry_after(), Some(Duration::from_millis(299)));
    }

    #[test]
    fn a_charge_whose_delay_cannot_be_stored_has_the_longest_delay() {
        let bucket = LeakyBucket::new(Quota::per_second(999_999_999));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos(MS));
        assert!(bucket.check(&mut state, Nanos(MS), u64::MAX).is_allowed());
        let mut text = StateWriter::default();
        bucket.write_state(&state, &mut text);
        let mut read = bucket.read_state(&mut StateReader::new(text.as_str())).unwrap();
        let wait = |state: &mut _| bucket.check(state, Nanos(MS), 1).retry_after().unwrap();
        let longest = (u128::from(u64::MAX) * 1_000).div_ceil(999_999_999) as u64;
        assert_eq!(wait(&mut read), Duration::from_nanos(longest));
        assert_eq!(longest / 3_600_000_000_000, 5, "hours");
        assert_eq!(wait(&mut state).as_secs() / 31_557_600, 584, "years");
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let bucket = LeakyBucket::new(Quota::per_minute(7));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos(MS));
        for now in [MS, 10_000 * MS] {
            assert!(bucket.check(&mut state, Nanos(now), 1).is_allowed());
            let mut text = StateWriter::default();
            bucket.write_state(&state, &mut text);
            let read = bucket.read_state(&mut StateReader::new(text.as_str())).unwrap();
            assert_eq!((read.last, read.next), (state.last, state.next));
        }
    }
}
