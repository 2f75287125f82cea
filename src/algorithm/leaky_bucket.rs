//! # Leaky bucket, as a queue
//!
//! **Problem.** Something behind the server takes ten calls a second, evenly, and no burst. Do not refuse the eleventh: hold it
//! until its turn.
//!
//! **Naive answer.** Give out times: the next free time is a number, a caller takes it, adds an interval, and sleeps.
//!
//! **Where it breaks.** A caller that hangs up takes its time with it, and everyone behind waits for nothing. A sleep that
//! wakes late moves all that follow: at 5,000 a second and a timer that ticks in milliseconds, four fifths of the
//! rate are lost. And nothing says how many may wait.
//!
//! **The idea.** The state knows only the schedule: when the next call may leave. Who waits is a line, kept in order by the
//! store. A call leaves at its *slot*, and the next slot follows from that slot, not from when a timer woke up: slots
//! that are overdue are released at once, so the average holds at any rate. If someone in the line leaves, those
//! behind simply stand further forward.
//!
//! ```text
//!   10/s, queue 3: five at one instant
//!
//!   slots  0 ms   100    200    300
//!          ├──────┼──────┼──────┼───▶
//!          ① goes ② ─────▶
//!                 ③ ───────────▶
//!                 ④ ──────────────────▶
//!                 ⑤ refused at once: try again in 100 ms, when ② has left
//! ```
//!
//! A slot is counted in grains, of which a nanosecond has `limit` and an interval has `period`: integers both, so a rate of 3 per
//! second does not drift.
//!
//! **Invariant.** Slots are at least `cost * period / limit` apart, and no call leaves before its slot.
//!
//! **Cost.** Constant time, 24 bytes a key; who waits costs a place in the line (see the store).
//!
//! Used as a *meter* (refuse instead of hold) a leaky bucket is a token bucket; so [`TokenBucket`](crate::algorithm::TokenBucket)
//! is that one.

use std::time::Duration;

use crate::algorithm::rate::{Rate, div_rem, rescaled};
use crate::algorithm::time::step;
use crate::algorithm::{Algorithm, Line, Overflow, Patience, Policy};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

/// A queue with a steady outflow.
///
/// [`acquire`](crate::limiter::RateLimiter::acquire) (and with it the layer) waits in line: first come, first served, at most
/// [`queue`](LeakyBucket::queue) calls per key, each at most [`max_wait`](LeakyBucket::max_wait); the rest is refused at once.
/// [`check`](crate::limiter::RateLimiter::check) never waits: it passes when nobody waits and the last call is one interval ago.
///
/// A call of cost `n` leaves at its slot and holds the next back `n` intervals. An idle bucket stores nothing: it lets one call
/// pass, not two.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tower_throttle::algorithm::LeakyBucket;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(LeakyBucket::new(Quota::per_second(10)).queue(3));
/// assert_eq!(limiter.acquire("user:42").await.delay(), Duration::ZERO);
/// assert_eq!(limiter.acquire("user:42").await.delay(), Duration::from_millis(100));
/// # }
/// ```
///
/// With the same calls as in [every picture](crate::algorithm#which-one-do-i-want):
///
#[cfg_attr(doc, doc = include_str!("pictures/leaky_bucket.svg"))]
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    quota: Quota,
    rate: Rate,
    patience: Patience,
    capacity: u64,
}

/// What a [`LeakyBucket`] remembers of a key.
#[derive(Clone, Debug)]
pub struct LeakyBucketState {
    last: Nanos,
    next: Slot,
}

/// When the next call may leave, in grains since the key's time; below zero, it might have left already. In words, so that it takes no more
/// room than it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    high: i64,
    low: u64,
}

impl Slot {
    const NOW: Self = Self::new(0);

    const fn new(grains: i128) -> Self {
        Self { high: (grains >> 64) as i64, low: grains as u64 }
    }

    const fn grains(self) -> i128 {
        (self.high as i128) << 64 | self.low as i128
    }

    /// So many grains later: after the key's time, or before it.
    fn plus(self, grains: u128) -> Result<u128, u128> {
        match u128::try_from(self.grains()) {
            Ok(next) => Ok(next.saturating_add(grains)),
            Err(_) => {
                let early = self.grains().unsigned_abs();
                grains.checked_sub(early).ok_or(early.saturating_sub(grains))
            }
        }
    }
}

/// As a signed number; what does not fit is centuries away.
fn signed(grains: u128) -> i128 {
    i128::try_from(grains).unwrap_or(i128::MAX)
}

impl LeakyBucket {
    /// A bucket that leaks at the quota's rate and lets the quota's burst wait.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        let places = quota.capacity();
        let patience = Patience::asked(places);
        Self { quota, rate: Rate::of(quota), patience, capacity: places.saturating_add(1) }
    }

    /// How many calls may wait, per key. 0: none, whoever cannot leave at once is refused.
    #[must_use]
    pub fn queue(mut self, places: u64) -> Self {
        self.patience = self.patience.queue(places);
        self.measured()
    }

    /// How long a call may wait. One whose turn would come later is refused at once, not after having waited.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.patience = self.patience.within(max_wait);
        self.measured()
    }

    /// Who is refused when the line is full; whoever comes, unless set.
    #[must_use]
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.patience = self.patience.overflowing(overflow);
        self
    }

    fn measured(mut self) -> Self {
        let patience = self.patience;
        self.capacity = patience.places().min(self.intervals(patience.max_wait())).saturating_add(1);
        self
    }

    /// The grains from `now`, at most the key's time, until the next slot.
    fn until(&self, state: &LeakyBucketState, now: Nanos) -> u128 {
        state.next.plus(self.rate.grains(state.last.since(now))).unwrap_or(0)
    }

    /// The grains until nothing is left of it, and the clock has caught up.
    fn reset(&self, state: &LeakyBucketState, now: Nanos) -> u128 {
        self.until(state, now).max(self.rate.grains(state.last.since(now)))
    }

    fn deny(&self, state: &LeakyBucketState, now: Nanos) -> Decision {
        let until = self.until(state, now);
        self.rate.deny(1, 0, Some(until), until)
    }

    /// How many intervals fit into `nanos`; `u64::MAX` means for ever.
    fn intervals(&self, nanos: u64) -> u64 {
        if nanos == u64::MAX {
            return u64::MAX;
        }
        let (intervals, _) = div_rem(self.rate.grains(nanos), self.rate.period);
        u64::try_from(intervals).unwrap_or(u64::MAX)
    }
}

impl Algorithm for LeakyBucket {
    type State = LeakyBucketState;

    fn fresh(&self, _built: Nanos, now: Nanos) -> LeakyBucketState {
        LeakyBucketState { last: now, next: Slot::NOW }
    }

    #[inline]
    fn seen(&self, state: &LeakyBucketState) -> Nanos {
        state.last
    }

    #[inline]
    fn check(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) -> Decision {
        let seen = self.observe(state, now);
        let now = now.min(seen);
        let idle = self.is_due(state, 1);
        if cost == 0 {
            return self.rate.allow(1, u64::from(idle), self.reset(state, now), 0);
        }
        if !idle {
            return self.deny(state, now);
        }
        self.leave(state, seen, cost);
        let until = self.until(state, now);
        self.rate.allow(1, 0, until, until)
    }

    fn peek(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) -> Decision {
        let now = now.min(self.observe(state, now));
        let idle = self.is_due(state, 1);
        match idle || cost == 0 {
            true => self.rate.allow(1, u64::from(idle), self.reset(state, now), 0),
            false => self.deny(state, now),
        }
    }

    /// Moves the next slot up, but not to before now.
    fn refund(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) {
        self.observe(state, now);
        let next = state.next.grains();
        if next > 0 {
            state.next = Slot::new(next.saturating_sub(signed(self.rate.units(cost))).max(0));
        }
    }

    /// As much as cannot have come back since.
    fn give_back(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64, taken: Nanos) {
        self.observe(state, now);
        let next = state.next.grains();
        if taken <= state.last && next > 0 {
            let grains = self.rate.units(cost).saturating_sub(self.rate.grains(state.last.since(taken)));
            state.next = Slot::new(next.saturating_sub(signed(grains)).max(0));
        }
    }

    /// The next slot is not before it would be, had the call left now.
    fn absorb(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) {
        self.observe(state, now);
        if cost > 0 {
            state.next = Slot::new(state.next.grains().max(signed(self.rate.units(cost))));
        }
    }

    /// The next slot stays as many intervals away as it was.
    fn adapt(&self, state: &mut LeakyBucketState, from: &Self, now: Nanos) {
        from.observe(state, now);
        let (new, old) = (self.rate.period, from.rate.period);
        let (intervals, rest) = div_rem(u128::try_from(state.next.grains()).unwrap_or(0), old);
        let away = intervals.saturating_mul(u128::from(new)).saturating_add(rescaled(rest, new, old).into());
        state.next = Slot::new(signed(away));
    }

    fn is_fresh(&self, state: &LeakyBucketState, now: Nanos) -> bool {
        let mut state = state.clone();
        self.observe(&mut state, now) == now && self.is_due(&state, 1)
    }

    fn policy(&self) -> Policy {
        Policy::new(self.capacity, Duration::from_nanos(self.rate.time(self.capacity)))
    }

    fn window(&self, decision: &Decision) -> Option<Duration> {
        self.rate.window(decision)
    }

    fn line(&self) -> Option<&dyn Line<LeakyBucketState>> {
        Some(self)
    }
}

impl Line<LeakyBucketState> for LeakyBucket {
    fn patience(&self, _state: &LeakyBucketState) -> Patience {
        self.patience
    }

    fn capacity(&self, _state: &LeakyBucketState) -> u64 {
        self.capacity
    }

    fn at_once(&self, _state: &LeakyBucketState) -> u64 {
        1
    }

    fn keeps_schedule(&self) -> bool {
        true
    }

    fn turn(&self, state: &LeakyBucketState, _cost: u64) -> Nanos {
        match state.next.plus(0) {
            // Beyond what can be counted.
            _ if state.next.grains() == i128::MAX => Nanos::MAX,
            Ok(until) => state.last.after(self.rate.time_of(until)),
            Err(past) => {
                let (past, _) = div_rem(past, self.rate.limit);
                Nanos(state.last.0.saturating_sub(u64::try_from(past).unwrap_or(u64::MAX)))
            }
        }
    }

    fn is_due(&self, state: &LeakyBucketState, _cost: u64) -> bool {
        state.next.grains() <= 0
    }

    fn leave(&self, state: &mut LeakyBucketState, arrived: Nanos, cost: u64) {
        let arrived = -signed(self.rate.grains(state.last.since(arrived)));
        let slot = state.next.grains().max(arrived);
        state.next = Slot::new(slot.saturating_add(signed(self.rate.units(cost))));
    }

    fn follow(&self, state: &mut LeakyBucketState, arrived: Nanos, cost: u64) {
        self.leave(state, arrived, cost);
    }

    /// Slots follow on each other without a gap.
    fn unfollow(&self, state: &mut LeakyBucketState, cost: u64) -> bool {
        let next = state.next.grains();
        // What was too much to count cannot be taken off.
        let counted = next < i128::MAX;
        if counted {
            state.next = Slot::new(next - signed(self.rate.units(cost)));
        }
        counted
    }

    fn keep(&self, state: &LeakyBucketState) -> Option<LeakyBucketState> {
        Some(state.clone())
    }

    fn passing(&self, state: &LeakyBucketState, _seen: Nanos) -> u64 {
        u64::from(self.is_due(state, 1))
    }

    fn room(&self, state: &LeakyBucketState, now: Nanos, wait: u64) -> u64 {
        if wait == u64::MAX {
            return u64::MAX;
        }
        let first = state.next.plus(0).unwrap_or(0);
        let behind = self.rate.grains(state.last.since(now));
        let latest = self.rate.grains(wait).checked_sub(behind);
        let Some(spare) = latest.and_then(|latest| latest.checked_sub(first)) else { return 0 };
        let (intervals, _) = div_rem(spare, self.rate.period);
        u64::try_from(intervals).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn in_time(&self, state: &LeakyBucketState, _cost: u64, now: Nanos, wait: u64) -> bool {
        self.room(state, now, wait) > 0
    }

    fn time(&self, state: &LeakyBucketState) -> Nanos {
        state.last
    }

    fn observe(&self, state: &mut LeakyBucketState, now: Nanos) -> Nanos {
        // Set back, the schedule goes along with the clock.
        let step = step(state.last, now, self.quota.period_nanos());
        let elapsed = signed(self.rate.grains(step.elapsed));
        state.next = Slot::new(state.next.grains().saturating_sub(elapsed));
        state.last = step.seen(now);
        state.last
    }
}
