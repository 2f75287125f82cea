//! The leaky bucket, as a queue.

mod decide;
mod slot;
mod stored;

use std::time::Duration;

use self::slot::Slot;
use crate::algorithm::clock_step::step;
use crate::algorithm::rate::{Rate, div_rem};
use crate::algorithm::{QueueConfig, QueueOverflow};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

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
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("../pictures/leaky_bucket.svg"))]
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
/// **The idea.** The state is only the schedule: the time at which the next call may be admitted. The store keeps the
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
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    quota: Quota,
    rate: Rate,
    queue_config: QueueConfig,
    capacity: u64,
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
        let places = quota.capacity();
        let queue_config = QueueConfig::enabled(places);
        Self { quota, rate: Rate::of(quota), queue_config, capacity: places.saturating_add(1) }
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Sets how many calls may wait, per key. With 0, a call that cannot pass at once is denied.
    #[must_use]
    pub fn queue(mut self, places: u64) -> Self {
        self.queue_config = self.queue_config.queue(places);
        self.measured()
    }

    /// Sets how long a call may wait. A call that would wait longer is denied at once.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.queue_config = self.queue_config.within(max_wait);
        self.measured()
    }

    /// Sets which call is denied when the queue is full, by default the call that arrives.
    #[must_use]
    pub const fn overflow(mut self, overflow: QueueOverflow) -> Self {
        self.queue_config = self.queue_config.with_overflow(overflow);
        self
    }

    fn measured(mut self) -> Self {
        let queue_config = self.queue_config;
        self.capacity = queue_config.places().min(self.intervals(queue_config.max_wait())).saturating_add(1);
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
            let (past, _) = div_rem(slot.overdue(), self.rate.limit);
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
    fn charge(&self, state: &mut LeakyBucketState, arrived: Nanos, cost: u64) {
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

    /// Returns how many intervals fit into `nanos`. `u64::MAX` means no bound, both in `nanos` and in the result.
    fn intervals(&self, nanos: u64) -> u64 {
        if nanos == u64::MAX {
            return u64::MAX;
        }
        let (intervals, _) = div_rem(self.rate.grains(nanos), self.rate.period);
        u64::try_from(intervals).unwrap_or(u64::MAX)
    }
}
