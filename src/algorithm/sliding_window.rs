//! The sliding window, in slices. The slices are a ring, whose units are stored in as little memory as they need.

use crate::algorithm::clock_step::step;
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::stored::{MAX_EXACT, StepKind, numbers_of};
use crate::algorithm::{
    Algorithm, MAX_DEBT, QueueConfig, QuotaPolicy, ScriptSteps, StateReader, StateWriter, StoredAlgorithm,
    Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum number of slices of a window.
const MAX_SLICES: u64 = 1_000;

/// The maximum number of slices for which one trip with a script is faster than two trips without a script.
const MAX_SCRIPT_SLICES: u32 = 100;
/// In a stored state, the number of a closed slice is its age, plus this number for each of its units. It is larger
/// than each age.
const PER_UNIT: u128 = 1_024;

/// The maximum number of closed slices that are stored without an allocation.
const FEW: usize = 14;
/// The indexes of three words: the units in all slices, the units in the open slice, and the units in the first closed
/// slice of the ring.
const TOTAL: usize = 0;
const OPEN: usize = 1;
const CLOSED: usize = 2;

/// A window that never admits more than the limit in any period, wherever that period begins.
///
/// A unit is available again between one period and one period plus one slice after it was charged. The quota's burst
/// has no effect. A cost above the limit never fits.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::SlidingWindow;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder(SlidingWindow::new(Quota::per_second(2)))
///     .clock(clock.clone())
///     .build();
/// assert!(limiter.check("user:42").is_allowed());
/// clock.advance(Duration::from_millis(999));
/// assert!(limiter.check("user:42").is_allowed());
/// let denied = limiter.check("user:42");
/// assert!(!denied.is_allowed());
/// assert_eq!(denied.retry_after(), Some(Duration::from_millis(1)));
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("pictures/sliding_window.svg"))]
///
/// # How it works
///
/// **Problem.** Never admit more than `limit` in *any* period, wherever the period begins, without a record of every
/// call.
///
/// **Naive answer.** Cut the period into `n` slices, count the calls in each, and drop a slice when it is `n` slices
/// old. The sum of the slices stands for the last period.
///
/// **Where it breaks.** The sum covers a whole period only when a slice ends. Within a slice, the sum covers less: with
/// two slices, a limit of 100 per second admits 200 calls within little more than half a second. The window of
/// Alibaba's library Sentinel works like that.
///
/// **The idea.** Keep `n + 1` slices, and drop a slice when its *last* instant is a whole period ago. The sum then
/// always covers a period, and up to one slice more. So the limit holds in every period. The price is that a unit is
/// available again up to one slice late.
///
/// ```text
///   period = 4 slices            now
///   ├────┬────┬────┬────┬────┬───┤
///   │ 2  │ 0  │ 3  │ 1  │ 0  │ 2 │  open slice
///   └────┴────┴────┴────┴────┴───┘
///     ↑    └─── closed, counted ─┘
///     forgotten                      a slice counts until its last instant is one period old
/// ```
///
/// The first admitted call after a key was idle sets when the key's slices end: this call is at the last instant of a
/// slice. So the units of this call, and of other calls at the same instant, are available again after exactly one
/// period.
///
/// **Invariant.** `total` is the sum of all slices, and every unit that was charged within the last period and not
/// given back is in `total`. Unless the key is in [debt](crate::limiter::Builder::max_debt), `total <= limit`.
///
/// **Cost.** A call within the open slice touches four words. If slices have ended since the last call, the call closes
/// them one by one, at most `n` of them. A denial examines up to `n` slices. A key takes 56 bytes. With more than 14
/// slices, or once the key has used more than 65,535 units in a window, the key takes 72 bytes plus 8 bytes per slice,
/// and at least 184 bytes.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    quota: Quota,
    queue_config: QueueConfig,
    slices: u32,
    /// The length of a slice, in nanoseconds.
    width: u64,
    /// The offset in the open slice at which the oldest slice expires, in nanoseconds.
    expiry_offset: u64,
}

/// The state of a key for a [`SlidingWindow`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SlidingWindowState {
    last: Nanos,
    /// The time from the beginning of the open slice to `last`, in nanoseconds. It is less than the length of a slice.
    into: u64,
    units: Units,
}

/// The units in all slices, in the open slice, and in each closed slice. The closed slices are a ring.
///
/// `newest_index` is the index of the newest closed slice, and `oldest_age` is an age above which all slices are empty.
/// Both numbers are fields of each variant, because they then fit into the padding next to the discriminant.
#[derive(Clone, Debug)]
enum Units {
    /// At most 14 closed slices. The units in all slices have never exceeded 16 bits.
    Few {
        newest_index: u16,
        oldest_age: u16,
        words: [u16; CLOSED + FEW],
    },
    Many {
        newest_index: u16,
        oldest_age: u16,
        words: Box<[u64]>,
    },
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

    /// Sets the number of slices. With more slices, a unit is available again sooner. With more than 14 slices, each
    /// key has an allocation of 16 bytes plus 8 bytes per slice.
    ///
    /// The length of a slice is `period / n`, rounded up to a nanosecond, so `n` need not divide the period. Slices
    /// that are not needed to cover the period are left out, so [`slice_count`](SlidingWindow::slice_count) may be less
    /// than `n`.
    ///
    /// # Panics
    ///
    /// Panics if `n` is 0 or above 1,000.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::Quota;
    /// use tower_throttle::algorithm::SlidingWindow;
    ///
    /// // a unit is available again at most 1 s after its minute, instead of 6 s
    /// let window = SlidingWindow::new(Quota::per_minute(100)).slices(60);
    /// assert_eq!(window.slice_count(), 60);
    /// ```
    #[must_use]
    #[track_caller]
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
        // There are no more slices than needed to cover the period, so that the oldest slice expires before the open
        // slice ends.
        let slices = period.div_ceil(width);
        Self {
            quota,
            queue_config,
            slices: slices as u32,
            width,
            expiry_offset: period - 1 - (slices - 1) * width,
        }
    }

    /// Advances the state to `now`. Returns how far the clock is behind the key's time, in nanoseconds.
    #[inline]
    fn advance(&self, state: &mut SlidingWindowState, now: Nanos) -> u64 {
        let step = step(state.last, now, self.quota.period_nanos());
        state.last = step.last_update(now);
        if state.total() == 0 {
            return step.behind;
        }
        state.into = state.into.saturating_add(step.elapsed);
        if state.into >= self.width {
            self.close(state);
        }
        if state.into >= self.expiry_offset {
            let oldest_age = self.slot(state, self.slices);
            let expired = state.take_closed(oldest_age, u64::MAX);
            state.set_total(state.total() - expired);
        }
        step.behind
    }

    #[cold]
    fn close(&self, state: &mut SlidingWindowState) {
        let passed = state.into / self.width;
        state.into %= self.width;
        if passed > u64::from(self.slices) {
            state.clear();
            return;
        }
        if state.oldest_age() > 0 || state.open() > 0 {
            state.set_oldest_age((state.oldest_age() + passed as u32).min(self.slices));
        }
        for _ in 0..passed {
            let newest_index = (state.newest_index() + 1) % self.slices;
            state.set_newest_index(newest_index);
            let expired = state.take_closed(newest_index as usize, u64::MAX);
            state.set_total(state.total() - expired);
            state.set_closed(newest_index as usize, state.open());
            state.set_open(0);
        }
    }

    /// Returns the index of the slice that is `age` slices (1 to `slices`) older than the open slice.
    #[inline]
    fn slot(&self, state: &SlidingWindowState, age: u32) -> usize {
        let back = state.newest_index() + self.slices - (age - 1);
        (if back >= self.slices { back - self.slices } else { back }) as usize
    }

    /// Returns the time until one period has passed since the last instant of the slice with this `age`. The open slice
    /// has the age 0.
    #[inline]
    fn expires_in(&self, state: &SlidingWindowState, age: u32) -> u64 {
        // The sum is at most two periods of at most 2^63 ns each, so it does not overflow.
        let from_open = self.quota.period_nanos() + self.width - 1 - state.into;
        from_open.saturating_sub(u64::from(age) * self.width)
    }

    /// Returns the time until `deficit` units are available again.
    fn until(&self, state: &mut SlidingWindowState, deficit: u64) -> u64 {
        let (until, oldest_age) = self.free_after(state, deficit);
        state.set_oldest_age(oldest_age);
        until
    }

    /// Returns the time until `deficit` units are available again, and an age above which all closed slices are empty.
    fn free_after(&self, state: &SlidingWindowState, deficit: u64) -> (u64, u32) {
        let mut oldest_age = state.oldest_age();
        if state.total() - state.open() < deficit {
            return (self.expires_in(state, 0), oldest_age);
        }
        let mut freed = 0;
        for age in (1..=oldest_age).rev() {
            let units = state.closed(self.slot(state, age));
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

    /// Returns the time until every unit is available again.
    fn reset(&self, state: &SlidingWindowState) -> u64 {
        match (state.total(), state.open()) {
            (0, _) => 0,
            (_, 1..) => self.expires_in(state, 0),
            (_, 0) => (1..=state.oldest_age())
                .find(|age| state.closed(self.slot(state, *age)) > 0)
                .map_or(0, |newest_index| self.expires_in(state, newest_index)),
        }
    }

    /// Removes `units` from the oldest slices, or all units if there are fewer.
    fn remove_oldest(&self, state: &mut SlidingWindowState, units: u64) {
        let mut left = units.min(state.total());
        state.set_total(state.total() - left);
        for age in (1..=self.slices).rev() {
            left -= state.take_closed(self.slot(state, age), left);
        }
        state.set_open(state.open() - left);
    }

    /// Removes `units` from the slice that was open `ago` nanoseconds ago, and from older slices if that slice has
    /// fewer units. Newer slices keep their units.
    fn remove_at_age(&self, state: &mut SlidingWindowState, units: u64, ago: u64) {
        let mut left = units;
        let mut age = 0;
        match ago.checked_sub(state.into + 1) {
            None => {
                let given = left.min(state.open());
                state.set_open(state.open() - given);
                state.set_total(state.total() - given);
                left -= given;
            }
            // `ago` is below a period, so this age is at most that of the oldest slice.
            Some(before) => age = (before / self.width) as u32,
        }
        for age in age + 1..=self.slices {
            let given = state.take_closed(self.slot(state, age), left);
            state.set_total(state.total() - given);
            left -= given;
        }
    }

    /// Distributes the units in the slices of `from` to the slices of `self`. The latest clock reading becomes the last
    /// instant of the open slice.
    fn reslice(&self, state: &mut SlidingWindowState, from: &Self) {
        let mut new = self.empty(state.last);
        new.into = self.width - 1;
        new.set_open(state.open());
        new.set_total(state.open());
        for age in 1..=from.slices {
            let units = state.closed(from.slot(state, age));
            // The time since the last instant of that slice. It is at most two periods of at most 2^63 ns each.
            let past = state.into + 1 + u64::from(age - 1) * from.width;
            if units == 0 || past >= self.quota.period_nanos() {
                continue;
            }
            new.set_total(new.total() + units);
            match (past / self.width) as u32 {
                0 => new.set_open(new.open() + units),
                age => {
                    let slot = self.slot(&new, age);
                    new.set_closed(slot, new.closed(slot) + units);
                    new.set_oldest_age(new.oldest_age().max(age));
                }
            }
        }
        *state = new;
    }

    fn empty(&self, now: Nanos) -> SlidingWindowState {
        SlidingWindowState::new(now, self.slices)
    }

    fn deny(&self, state: &mut SlidingWindowState, behind: u64, cost: u64) -> Decision {
        let limit = self.quota.limit();
        let retry = (cost <= limit).then(|| {
            let deficit = state.total() - (limit - cost);
            self.until(state, deficit).saturating_add(behind)
        });
        Decision::deny(limit, self.available(state), retry, self.reset(state).saturating_add(behind))
    }

    #[inline]
    fn allow(&self, state: &SlidingWindowState, behind: u64, remaining: u64) -> Decision {
        Decision::allow(self.quota.limit(), remaining, self.reset(state).saturating_add(behind))
    }

    #[inline]
    fn available(&self, state: &SlidingWindowState) -> u64 {
        self.quota.limit().saturating_sub(state.total())
    }

    /// Counts `cost` units in the open slice.
    #[inline]
    fn count(&self, state: &mut SlidingWindowState, cost: u64) {
        if state.total() == 0 {
            state.into = self.width - 1;
        }
        state.set_total(state.total() + cost);
        state.set_open(state.open() + cost);
    }
}

queue_methods!(SlidingWindow);

#[doc(hidden)]
impl Algorithm for SlidingWindow {
    type State = SlidingWindowState;

    const USAGE_IS_OF_QUOTA: bool = true;

    const UNDO_BY_COPY: bool = false;
    const DENIALS_STAND: bool = true;

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
        let Some(remaining) = self.available(state).checked_sub(cost) else {
            return self.deny(state, behind, cost);
        };
        self.count(state, cost);
        self.allow(state, behind, remaining)
    }

    fn peek(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        match self.available(state) {
            remaining if cost <= remaining => self.allow(state, behind, remaining),
            _ => self.deny(state, behind, cost),
        }
    }

    /// Gives back the oldest units first. These would be available again first, so a refund never gives back too much,
    /// whichever charge the refund is for. If the time of the charge is known, undoes the charge if it was made within
    /// the last period.
    fn refund(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.advance(state, now);
        let Some(charged_at) = charged_at else { return self.remove_oldest(state, cost) };
        let ago = state.last.saturating_since(charged_at);
        if charged_at <= state.last && ago < self.quota.period_nanos() {
            self.remove_at_age(state, cost, ago);
        }
    }

    fn charge(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.advance(state, now);
        let charged = cost.min(self.quota.limit().saturating_add(max_debt).saturating_sub(state.total()));
        if charged > 0 {
            self.count(state, charged);
        }
        charged
    }

    /// Keeps each unit for at least one period of the new quota, counted from the last instant of the unit's old slice
    /// or, if that slice is open, from the latest clock reading. Units above the new limit and the debt are dropped,
    /// the oldest first.
    fn migrate(&self, state: &mut SlidingWindowState, from: &Self, now: Nanos) {
        from.advance(state, now);
        let debt = state.total().saturating_sub(from.quota.limit());
        if (self.quota.period(), self.slices) != (from.quota.period(), from.slices) {
            self.reslice(state, from);
        }
        let most = self.quota.limit().saturating_add(debt);
        self.remove_oldest(state, state.total().saturating_sub(most));
    }

    fn is_fresh(&self, state: &SlidingWindowState, now: Nanos) -> bool {
        let step = step(state.last, now, self.quota.period_nanos());
        step.behind == 0 && self.reset(state) <= step.elapsed
    }

    fn usage(&self, state: &SlidingWindowState, now: Nanos) -> Usage {
        let mut state = state.clone();
        self.advance(&mut state, now);
        Usage::of(state.total(), self.quota.limit())
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::of_window(self.quota)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) -> Option<Nanos> {
        let behind = self.advance(state, now);
        let limit = self.quota.limit();
        let deficit = state.total().saturating_sub(limit - cost.min(limit));
        Some(now.saturating_add(match deficit {
            0 => 0,
            _ => self.until(state, deficit).saturating_add(behind),
        }))
    }
}

// The state as it is stored: the key's time, its offset in the open slice, the units in the open slice, the number of
// closed slices that are not empty, and for each such slice a number: its units times `PER_UNIT`, plus its age.
#[doc(hidden)]
impl StoredAlgorithm for SlidingWindow {
    fn kind() -> String {
        "w".to_owned()
    }

    fn unit(&self) -> String {
        format!("w:{}/{}/{}", self.quota.limit(), self.quota.period_nanos(), self.slices)
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period, slices] = numbers_of(unit, "w:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        let slices = usize::try_from(slices).ok().filter(|slices| (1..=1_000).contains(slices))?;
        let window = Self { queue_config: self.queue_config, ..Self::new(quota).slices(slices) };
        (window.unit() == unit).then_some(window)
    }

    fn write_state(&self, state: &SlidingWindowState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        if state.total() == 0 {
            (0..3).for_each(|_| numbers.number(0));
            return;
        }
        numbers.number(state.into);
        numbers.number(state.open());
        let closed = || {
            let slices = (1..=self.slices).map(|age| (age, state.closed(self.slot(state, age))));
            slices.filter(|(_, units)| *units > 0)
        };
        numbers.number(closed().count() as u64);
        for (age, units) in closed() {
            numbers.wide(u128::from(units) * PER_UNIT + u128::from(age));
        }
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SlidingWindowState> {
        let mut state = self.empty(numbers.instant()?);
        state.into = numbers.at_most(self.width - 1)?;
        state.set_open(numbers.in_debt(self.quota.limit())?);
        state.set_total(state.open());
        for _ in 0..numbers.at_most(self.slices.into())? {
            let slice = numbers.wide()?;
            let age = (slice % PER_UNIT) as u32;
            let units = u64::try_from(slice / PER_UNIT).ok().filter(|units| *units > 0)?;
            let is_in_range = age > state.oldest_age() && age <= self.slices;
            if !is_in_range || units > self.quota.limit().saturating_add(MAX_DEBT) {
                return None;
            }
            let slot = self.slot(&state, age);
            state.set_closed(slot, units);
            state.set_oldest_age(age);
            state.set_total(state.total().checked_add(units)?);
        }
        Some(state)
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.check_no_priority()
    }

    fn script(&self) -> Option<ScriptSteps> {
        let period = self.quota.period_nanos();
        let largest = (u128::from(period) * 4).max((u128::from(self.quota.limit()) + 1) * PER_UNIT);
        if self.slices > MAX_SCRIPT_SLICES || largest >= MAX_EXACT {
            return None;
        }
        let numbers = [self.quota.limit(), period, self.width, self.slices.into()];
        ScriptSteps::one(StepKind::SlidingWindow, numbers.map(u128::from))
    }
}

impl SlidingWindowState {
    /// Creates the state of a key that has used nothing. The state has `slices` closed slices, at most 1,000.
    fn new(now: Nanos, slices: u32) -> Self {
        let slices = slices as usize;
        let units = if slices <= FEW {
            Units::Few { newest_index: 0, oldest_age: 0, words: [0; CLOSED + FEW] }
        } else {
            Units::Many { newest_index: 0, oldest_age: 0, words: vec![0; CLOSED + slices].into() }
        };
        Self { last: now, into: 0, units }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        match &self.units {
            Units::Few { words, .. } => words[index].into(),
            Units::Many { words, .. } => words[index],
        }
    }

    #[inline(always)]
    fn set_word(&mut self, index: usize, units: u64) {
        match &mut self.units {
            Units::Few { words, .. } => match u16::try_from(units) {
                Ok(units) => words[index] = units,
                Err(_) => self.widen()[index] = units,
            },
            Units::Many { words, .. } => words[index] = units,
        }
    }

    #[cold]
    fn widen(&mut self) -> &mut [u64] {
        if let Units::Few { newest_index, oldest_age, words } = self.units {
            let words = words.map(u64::from).into();
            self.units = Units::Many { newest_index, oldest_age, words };
        }
        match &mut self.units {
            Units::Many { words, .. } => words,
            Units::Few { .. } => unreachable!("it was replaced"),
        }
    }

    /// Returns the units in all slices.
    #[inline]
    fn total(&self) -> u64 {
        self.word(TOTAL)
    }

    #[inline]
    fn set_total(&mut self, units: u64) {
        self.set_word(TOTAL, units);
    }

    /// Returns the units in the open slice.
    #[inline]
    fn open(&self) -> u64 {
        self.word(OPEN)
    }

    #[inline]
    fn set_open(&mut self, units: u64) {
        self.set_word(OPEN, units);
    }

    /// Returns the units in a closed slice.
    #[inline]
    fn closed(&self, slot: usize) -> u64 {
        self.word(CLOSED + slot)
    }

    #[inline]
    fn set_closed(&mut self, slot: usize, units: u64) {
        self.set_word(CLOSED + slot, units);
    }

    /// Removes up to `units` from a closed slice. Returns how many were removed.
    fn take_closed(&mut self, slot: usize, units: u64) -> u64 {
        let given = units.min(self.closed(slot));
        self.set_closed(slot, self.closed(slot) - given);
        given
    }

    /// Returns the index of the newest closed slice.
    #[inline]
    fn newest_index(&self) -> u32 {
        let (Units::Few { newest_index, .. } | Units::Many { newest_index, .. }) = &self.units;
        (*newest_index).into()
    }

    fn set_newest_index(&mut self, index: u32) {
        let (Units::Few { newest_index, .. } | Units::Many { newest_index, .. }) = &mut self.units;
        // There are 1,000 slices at most.
        *newest_index = index as u16;
    }

    /// Returns an age, in slices. All slices that are older than this are empty.
    #[inline]
    fn oldest_age(&self) -> u32 {
        let (Units::Few { oldest_age, .. } | Units::Many { oldest_age, .. }) = &self.units;
        (*oldest_age).into()
    }

    fn set_oldest_age(&mut self, age: u32) {
        let (Units::Few { oldest_age, .. } | Units::Many { oldest_age, .. }) = &mut self.units;
        // There are 1,000 slices at most.
        *oldest_age = age as u16;
    }

    /// Removes the units of all slices.
    fn clear(&mut self) {
        match &mut self.units {
            Units::Few { words, .. } => words.fill(0),
            Units::Many { words, .. } => words.fill(0),
        }
        self.set_oldest_age(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::MAX_DEBT;

    fn is_boxed(state: &SlidingWindowState) -> bool {
        matches!(state.units, Units::Many { .. })
    }

    #[test]
    fn few_slices_hold_any_number_of_units() {
        for (units, boxed) in [(65_535, false), (65_536, true), (u64::MAX, true)] {
            let mut state = SlidingWindowState::new(Nanos(7), FEW as u32);
            assert!(!is_boxed(&state));
            (0..FEW).for_each(|slot| state.set_closed(slot, slot as u64));
            state.set_newest_index(4);
            state.set_oldest_age(9);
            state.set_open(3);
            state.set_total(units);
            assert_eq!(is_boxed(&state), boxed);
            assert_eq!((state.total(), state.open()), (units, 3));
            assert_eq!((state.newest_index(), state.oldest_age()), (4, 9));
            assert!((0..FEW).all(|slot| state.closed(slot) == slot as u64));
            assert_eq!((state.take_closed(9, 4), state.take_closed(9, 7), state.closed(9)), (4, 5, 0));
            // A count that has become small again keeps its memory.
            state.set_total(1);
            assert_eq!((state.total(), is_boxed(&state)), (1, boxed));
            state.clear();
            assert_eq!((state.total(), state.oldest_age(), state.closed(8)), (0, 0, 0));
            assert_eq!((state.last, is_boxed(&state)), (Nanos(7), boxed));
        }
    }

    /// Each operation takes the count over the border.
    #[test]
    fn a_count_above_16_bits_is_boxed() {
        const MOST: u64 = 65_535;
        let window = |limit| SlidingWindow::new(Quota::per_second(limit));
        let (large, now) = (window(MOST + 5), Nanos(1));
        let most = || {
            let mut state = large.new_state(now, now);
            assert_eq!(large.check(&mut state, now, MOST).remaining(), 5);
            assert!(!is_boxed(&state));
            state
        };
        let mut called = most();
        assert_eq!(large.check(&mut called, now, 1).remaining(), 4);
        assert!(is_boxed(&called));
        let mut charged = most();
        assert_eq!(large.charge(&mut charged, now, 9, MAX_DEBT), 9);
        assert!(is_boxed(&charged) && large.usage(&charged, now).is_full());
        // The debt of 4 units stays, so the count is again above the border.
        let (less, few) = (window(MOST - 3), window(9));
        less.migrate(&mut charged, &large, now);
        assert_eq!((charged.total(), charged.open()), (MOST + 1, MOST + 1));
        few.migrate(&mut charged, &less, now);
        assert_eq!((charged.total(), charged.open()), (9 + 4, 9 + 4));
        large.refund(&mut called, now, 2, Some(now));
        assert_eq!(large.peek(&mut called, now, 0).remaining(), 6);
        // Other slices get a state of their own, which is boxed only if it must be.
        let mut back = called.clone();
        large.clone().slices(3).migrate(&mut back, &large, now);
        assert_eq!((back.total(), is_boxed(&back)), (MOST - 1, false));
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let window = SlidingWindow::new(Quota::per_second(1 << 40));
        for (units, boxed) in [(65_534, false), (65_535, true), (1 << 39, true)] {
            let mut state = window.new_state(Nanos(1), Nanos(1));
            assert!(window.check(&mut state, Nanos(1), units).is_allowed());
            assert!(window.check(&mut state, Nanos(500_000_000), 1).is_allowed());
            let mut numbers = StateWriter::default();
            window.write_state(&state, &mut numbers);
            let read = window.read_state(&mut StateReader::new(numbers.as_bytes())).unwrap();
            let slices = |state: &SlidingWindowState| {
                (1..=window.slices).map(|age| state.closed(window.slot(state, age))).collect::<Vec<_>>()
            };
            assert_eq!(
                (read.last, read.into, read.total(), read.open()),
                (state.last, state.into, units + 1, 1)
            );
            assert_eq!((slices(&read), is_boxed(&read), is_boxed(&state)), (slices(&state), boxed, boxed));
        }
    }

    #[test]
    fn more_slices_are_allocated() {
        assert!(!is_boxed(&SlidingWindowState::new(Nanos(7), 14)));
        assert!(is_boxed(&SlidingWindowState::new(Nanos(7), 15)));
        let mut state = SlidingWindowState::new(Nanos(7), 1_000);
        state.set_closed(999, 5);
        state.set_newest_index(999);
        state.set_oldest_age(1_000);
        assert_eq!((state.closed(999), state.newest_index(), state.oldest_age()), (5, 999, 1_000));
    }
}
