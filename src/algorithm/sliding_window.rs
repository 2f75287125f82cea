//! # Sliding window, in slices
//!
//! **Problem.** Never more than `limit` in *any* period, wherever it begins; but without a record of every call.
//!
//! **Naive answer.** Cut the period into `n` slices, count in each, forget a slice when it is `n` slices old. The sum
//! is "the last period".
//!
//! **Where it breaks.** It is the last period only at the edge of a slice. In between it covers less: with two
//! slices, a limit of 100 per second admits 200 within little over half a second. Sentinel's window works like
//! that.
//!
//! **The idea.** Keep `n + 1` slices: a slice is forgotten when its *last* instant is a whole period ago. The sum then
//! always covers a period, and up to one slice more. The limit is strict, and the price is that a unit comes
//! back up to one slice late.
//!
//! ```text
//!   period = 4 slices            now
//!   ├────┬────┬────┬────┬────┬───┤
//!   │ 2  │ 0  │ 3  │ 1  │ 0  │ 2 │  open slice
//!   └────┴────┴────┴────┴────┴───┘
//!     ↑    └─── closed, counted ─┘   all are counted until their last instant is one period old
//!     forgotten
//! ```
//!
//! A key's slices begin with the first call after it was idle, and that call is the last instant of its slice: so a
//! lone burst is free again after exactly one period.
//!
//! **Invariant.** `total` is the sum of all slices, `total <= limit`, and every unit admitted within the last period
//! is in it.
//!
//! **Cost.** A call within the open slice touches four words. When slices have closed since the last call, each is
//! moved on: at most `n` of them. 56 bytes a key, and 8 for each slice.

#[cfg(feature = "redis")]
mod stored;

use std::mem;

use crate::algorithm::clock_step::step;
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::window_queue::impl_window_queue;
use crate::algorithm::{Algorithm, QueueConfig, Queueing, QuotaPolicy, Window};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

/// The maximum number of slices of a window.
const MAX_SLICES: u64 = 1_000;

/// A window that never admits more than the limit in any period, wherever it is placed.
///
/// It is strict: no span of one `period` ever holds more than `limit` admitted units. A unit is free again at most one
/// slice after its period. The quota's burst has no effect. A cost above the limit never fits.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::SlidingWindow;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder(SlidingWindow::new(Quota::per_second(2))).clock(clock.clone()).build();
/// assert!(limiter.check("user:42").is_allowed());
/// clock.advance(Duration::from_millis(999));
/// assert!(limiter.check("user:42").is_allowed());
/// assert_eq!(limiter.check("user:42").retry_after(), Some(Duration::from_millis(1)));
/// ```
///
/// With the same calls as in [every picture](crate::algorithm#which-one-do-i-want):
///
#[cfg_attr(doc, doc = include_str!("pictures/sliding_window.svg"))]
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    quota: Quota,
    queue_config: QueueConfig,
    slices: u32,
    /// The length of a slice.
    width: u64,
    /// The offset in the open slice at which the period of the oldest one ends.
    expiry_offset: u64,
}

/// The state of a key for a [`SlidingWindow`].
#[derive(Clone, Debug)]
pub struct SlidingWindowState {
    last: Nanos,
    /// The offset of `last` in the open slice, below the width.
    into: u64,
    /// The units in all slices.
    total: u64,
    /// The units in the open slice.
    open: u64,
    /// The index of the newest of the closed slices, which are a ring.
    newest_index: u32,
    /// An age above which no slice holds anything.
    oldest_age: u32,
    closed: Box<[u64]>,
}

impl SlidingWindow {
    /// Creates a window of ten slices.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self::sliced(quota, QueueConfig::acquire_only(quota.limit()), 10)
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the number of slices of a period.
    #[must_use]
    pub const fn slice_count(&self) -> u32 {
        self.slices
    }

    /// Sets the number of slices: more slices give a unit back sooner, for 8 bytes each per key.
    ///
    /// A slice is `period / n`, rounded up to a nanosecond, and no more slices are kept than cover the period: `n`
    /// need not divide it.
    ///
    /// # Panics
    ///
    /// Panics if `n` is 0 or above 1,000.
    #[must_use]
    pub const fn slices(self, n: usize) -> Self {
        assert!(n > 0, "a window of 0 slices counts nothing: give 1 to 1,000 slices");
        assert!(
            n as u64 <= MAX_SLICES,
            "a window of over 1,000 slices costs over 8 kB per key: give 1 to 1,000 slices"
        );
        Self::sliced(self.quota, self.queue_config, n as u64)
    }

    const fn sliced(quota: Quota, queue_config: QueueConfig, n: u64) -> Self {
        let period = quota.period_nanos();
        let width = period.div_ceil(n);
        // No more slices than cover the period, so that the oldest ends its period within the open one.
        let slices = period.div_ceil(width);
        Self {
            quota,
            queue_config,
            slices: slices as u32,
            width,
            expiry_offset: period - 1 - (slices - 1) * width,
        }
    }

    /// Advances the state to `now`. Returns the time by which the clock is behind the key's time.
    #[inline]
    fn advance(&self, state: &mut SlidingWindowState, now: Nanos) -> u64 {
        let step = step(state.last, now, self.quota.period_nanos());
        state.last = step.last_update(now);
        if state.total == 0 {
            return step.behind;
        }
        state.into = state.into.saturating_add(step.elapsed);
        if state.into >= self.width {
            self.close(state);
        }
        if state.into >= self.expiry_offset {
            let oldest_age = self.slot(state, self.slices);
            state.total -= state.closed[oldest_age];
            state.closed[oldest_age] = 0;
        }
        step.behind
    }

    #[cold]
    fn close(&self, state: &mut SlidingWindowState) {
        let passed = state.into / self.width;
        state.into %= self.width;
        if passed > u64::from(self.slices) {
            state.closed.fill(0);
            (state.total, state.open, state.oldest_age) = (0, 0, 0);
            return;
        }
        if state.oldest_age > 0 || state.open > 0 {
            state.oldest_age = (state.oldest_age + passed as u32).min(self.slices);
        }
        for _ in 0..passed {
            state.newest_index = (state.newest_index + 1) % self.slices;
            state.total -= mem::replace(&mut state.closed[state.newest_index as usize], state.open);
            state.open = 0;
        }
    }

    /// Returns the index of the slice that is `age` slices (1 to `slices`) older than the open one.
    #[inline]
    fn slot(&self, state: &SlidingWindowState, age: u32) -> usize {
        let back = state.newest_index + self.slices - (age - 1);
        (if back >= self.slices { back - self.slices } else { back }) as usize
    }

    /// Returns the time until a slice's last instant is one period ago; `age` 0 is the open slice.
    #[inline]
    fn expires_in(&self, state: &SlidingWindowState, age: u32) -> u64 {
        // At most two periods, of at most 2^63 ns: no overflow.
        let from_open = self.quota.period_nanos() + self.width - 1 - state.into;
        from_open.saturating_sub(u64::from(age) * self.width)
    }

    /// Returns the time until `deficit` units are free again.
    fn until(&self, state: &mut SlidingWindowState, deficit: u64) -> u64 {
        let (until, oldest_age) = self.free_after(state, deficit);
        state.oldest_age = oldest_age;
        until
    }

    /// Returns the time until `deficit` units are free again, and the age of the oldest slice that holds anything.
    fn free_after(&self, state: &SlidingWindowState, deficit: u64) -> (u64, u32) {
        let mut oldest_age = state.oldest_age;
        if state.total - state.open < deficit {
            return (self.expires_in(state, 0), oldest_age);
        }
        let mut freed = 0;
        for age in (1..=oldest_age).rev() {
            let units = state.closed[self.slot(state, age)];
            if freed + units == 0 {
                oldest_age = age - 1;
            }
            freed += units;
            if freed >= deficit {
                return (self.expires_in(state, age), oldest_age);
            }
        }
        (self.expires_in(state, 0), oldest_age)
    }

    /// Returns the time until every unit is free again.
    fn reset(&self, state: &SlidingWindowState) -> u64 {
        match (state.total, state.open) {
            (0, _) => 0,
            (_, 1..) => self.expires_in(state, 0),
            (_, 0) => (1..=state.oldest_age)
                .find(|age| state.closed[self.slot(state, *age)] > 0)
                .map_or(0, |newest_index| self.expires_in(state, newest_index)),
        }
    }

    /// Removes `units`, at most all, from the oldest slices.
    fn remove_oldest(&self, state: &mut SlidingWindowState, units: u64) {
        let mut left = units.min(state.total);
        state.total -= left;
        for age in (1..=self.slices).rev() {
            let slot = self.slot(state, age);
            let given = left.min(state.closed[slot]);
            state.closed[slot] -= given;
            left -= given;
        }
        state.open -= left;
    }

    /// Removes `units` from the slice that was open `ago` nanoseconds ago, then from older slices, so that units charged
    /// later do not expire later.
    fn remove_at_age(&self, state: &mut SlidingWindowState, units: u64, ago: u64) {
        let mut left = units;
        let mut age = 0;
        match ago.checked_sub(state.into + 1) {
            None => {
                let given = left.min(state.open);
                state.open -= given;
                state.total -= given;
                left -= given;
            }
            // Less than a period ago, and so among the slices.
            Some(before) => age = (before / self.width) as u32,
        }
        for age in age + 1..=self.slices {
            let slot = self.slot(state, age);
            let given = left.min(state.closed[slot]);
            state.closed[slot] -= given;
            state.total -= given;
            left -= given;
        }
    }

    /// Distributes the units counted in the slices of `from` to slices of its own. The present is the last instant of
    /// the open one.
    fn reslice(&self, state: &mut SlidingWindowState, from: &Self) {
        let mut new = self.empty(state.last);
        (new.into, new.open, new.total) = (self.width - 1, state.open, state.open);
        for age in 1..=from.slices {
            let units = state.closed[from.slot(state, age)];
            // Since the last instant of that slice; at most two periods, of at most 2^63 ns.
            let past = state.into + 1 + u64::from(age - 1) * from.width;
            if units == 0 || past >= self.quota.period_nanos() {
                continue;
            }
            new.total += units;
            match (past / self.width) as u32 {
                0 => new.open += units,
                age => {
                    let slot = self.slot(&new, age);
                    new.closed[slot] += units;
                    new.oldest_age = new.oldest_age.max(age);
                }
            }
        }
        *state = new;
    }

    fn empty(&self, now: Nanos) -> SlidingWindowState {
        let closed = vec![0; self.slices as usize].into_boxed_slice();
        SlidingWindowState { last: now, into: 0, total: 0, open: 0, newest_index: 0, oldest_age: 0, closed }
    }

    fn deny(&self, state: &mut SlidingWindowState, behind: u64, cost: u64) -> Decision {
        let limit = self.quota.limit();
        let retry = (cost <= limit).then(|| {
            let deficit = state.total - (limit - cost);
            self.until(state, deficit).saturating_add(behind)
        });
        Decision::deny(limit, limit - state.total, retry, self.reset(state).saturating_add(behind))
    }

    #[inline]
    fn allow(&self, state: &SlidingWindowState, behind: u64) -> Decision {
        let limit = self.quota.limit();
        Decision::allow(limit, limit - state.total, self.reset(state).saturating_add(behind))
    }
}

impl Algorithm for SlidingWindow {
    type State = SlidingWindowState;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> SlidingWindowState {
        self.empty(now)
    }

    #[inline]
    fn last_update(&self, state: &SlidingWindowState) -> Nanos {
        state.last
    }

    #[inline]
    fn check(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        if cost > self.quota.limit() - state.total {
            return self.deny(state, behind, cost);
        }
        if state.total == 0 {
            state.into = self.width - 1;
        }
        state.total += cost;
        state.open += cost;
        self.allow(state, behind)
    }

    fn peek(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        match cost <= self.quota.limit() - state.total {
            true => self.allow(state, behind),
            false => self.deny(state, behind, cost),
        }
    }

    /// Gives back the oldest units first: they would be free soonest, so whichever were meant, never too much is given.
    fn refund(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) {
        self.advance(state, now);
        self.remove_oldest(state, cost);
    }

    /// Undoes the charge if it was made within the last period.
    fn undo(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64, charged_at: Nanos) {
        self.advance(state, now);
        if charged_at <= state.last && state.last.saturating_since(charged_at) < self.quota.period_nanos() {
            self.remove_at_age(state, cost, state.last.saturating_since(charged_at));
        }
    }

    /// Keeps units until one new period after the last instant of the slice they were in. If there are more than the new
    /// limit, the oldest are dropped.
    fn migrate(&self, state: &mut SlidingWindowState, from: &Self, now: Nanos) {
        from.advance(state, now);
        if (self.quota.period(), self.slices) != (from.quota.period(), from.slices) {
            self.reslice(state, from);
        }
        self.remove_oldest(state, state.total.saturating_sub(self.quota.limit()));
    }

    fn is_fresh(&self, state: &SlidingWindowState, now: Nanos) -> bool {
        let step = step(state.last, now, self.quota.period_nanos());
        step.behind == 0 && self.reset(state) <= step.elapsed
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::new(self.quota.limit(), self.quota.period())
    }

    fn ignores_burst(&self) -> bool {
        self.quota.has_burst()
    }

    fn queueing(&self) -> Option<&dyn Queueing<SlidingWindowState>> {
        Some(self)
    }

    #[inline]
    fn holds_requests(&self) -> bool {
        self.queue_config.holds_requests()
    }
}

impl Window for SlidingWindow {
    fn limit(&self) -> u64 {
        self.quota.limit()
    }

    fn left(&self, state: &SlidingWindowState) -> u64 {
        self.quota.limit() - state.total
    }

    fn reset_in(&self, state: &SlidingWindowState) -> u64 {
        self.reset(state)
    }

    fn withdraw(&self, state: &mut SlidingWindowState, units: u64, charged_at: Nanos) {
        if charged_at > state.last || state.last.saturating_since(charged_at) >= self.quota.period_nanos() {
            return;
        }
        let mut left = units.min(state.total);
        state.total -= left;
        let given = left.min(state.open);
        state.open -= given;
        left -= given;
        for age in 1..=self.slices {
            let slot = self.slot(state, age);
            let given = left.min(state.closed[slot]);
            state.closed[slot] -= given;
            left -= given;
        }
    }

    fn room_in(&self, state: &SlidingWindowState, units: u64) -> u64 {
        match units.checked_sub(self.quota.limit() - state.total) {
            None | Some(0) => 0,
            _ if units > self.quota.limit() => u64::MAX,
            Some(deficit) => self.free_after(state, deficit).0,
        }
    }
}

queue_methods!(SlidingWindow, "as many calls as the limit");
impl_window_queue!(SlidingWindow, SlidingWindowState);
