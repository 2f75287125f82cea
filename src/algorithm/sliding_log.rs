//! The sliding log.

use std::collections::VecDeque;

use crate::algorithm::clock_step::step;
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::stored::numbers_of;
use crate::algorithm::{
    Algorithm, QueueConfig, QuotaPolicy, StateReader, StateWriter, StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum limit of a log that is kept in Redis, because each call sends all records of the log.
const MAX_HITS: u64 = 100;

/// The exact window: at most the limit passes in any period, and each unit is available again after exactly one period.
///
/// With a high limit, a key takes up to 32 bytes for each unit of the limit, and a
/// [`SlidingWindow`](crate::algorithm::SlidingWindow) takes less. The quota's burst has no effect. A cost above the
/// limit never fits.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::algorithm::SlidingLog;
/// use tower_throttle::clock::ManualClock;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder(SlidingLog::new(Quota::per_second(2)))
///     .clock(clock.clone())
///     .build();
/// assert!(limiter.check("user:42").is_allowed());
/// clock.advance(Duration::from_millis(300));
/// assert!(limiter.check("user:42").is_allowed());
/// let denied = limiter.check("user:42");
/// assert!(!denied.is_allowed());
/// assert_eq!(denied.retry_after(), Some(Duration::from_millis(700)));
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("pictures/sliding_log.svg"))]
///
/// # How it works
///
/// **Problem.** Admit at most `limit` units in any period. Each unit is available again after exactly one period.
///
/// **Naive answer.** Record when each call passed, and count the records of the last period.
///
/// **Where it breaks.** The cost is proportional to the limit. Each call counts all records, and with a limit of a
/// million, the records of a busy key take 16 MB.
///
/// **The idea.** Keep a deque of records, oldest first. Each record has a *running total*: the units of this record and
/// of all earlier records. Records that are a period old are dropped. The difference of two running totals is the units
/// between them, so a binary search finds when more units are available. Calls at the same instant share a record.
///
/// **Invariant.** The records are those of the last period, in order of time. Their units add up to at most `limit`,
/// unless the key is in [debt](crate::limiter::Builder::max_debt). There are at most `limit` records, unless the limit
/// was lowered. If there are as many, a charge after the fact is added to the newest record, and the other units of
/// that record then expire together with the charge. If one of the calls that took these units is settled below its
/// charge, units of older records are given back instead, or none if there are none. So units are available late, never
/// early.
///
/// **Cost.** An admitted call takes amortised constant time, since each record is written and dropped once. A denial
/// takes a binary search. A key takes 64 bytes, and 16 bytes for each record that its deque has room for. At the first
/// record, the deque has room for four. It grows by doubling, and never shrinks.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    quota: Quota,
    queue_config: QueueConfig,
}

/// The state of a key for a [`SlidingLog`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SlidingLogState {
    last: Nanos,
    /// The time that has elapsed for the key. The number wraps around: only differences are used.
    time: u64,
    /// The units in all records.
    total: u64,
    /// The running total before the first record. It wraps around.
    base: u64,
    hits: VecDeque<Hit>,
}

#[derive(Clone, Copy, Debug)]
struct Hit {
    time: u64,
    /// The running total, this record included. It wraps around.
    cumulative: u64,
}

impl SlidingLog {
    /// Creates an exact window.
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
    fn advance(&self, state: &mut SlidingLogState, now: Nanos) -> u64 {
        let period = self.quota.period_nanos();
        let step = step(state.last, now, period);
        state.last = step.last_update(now);
        if step.elapsed >= period {
            // All records have expired. They are dropped here, because `time` may wrap around now.
            state.hits.clear();
            state.total = 0;
        }
        state.time = state.time.wrapping_add(step.elapsed);
        self.expire(state);
        step.behind
    }

    /// Drops the records that are at least one period old.
    #[inline]
    fn expire(&self, state: &mut SlidingLogState) {
        while let Some(oldest) = state.hits.front() {
            if state.time.wrapping_sub(oldest.time) < self.quota.period_nanos() {
                break;
            }
            state.total -= oldest.cumulative.wrapping_sub(state.base);
            state.base = oldest.cumulative;
            state.hits.pop_front();
        }
    }

    /// Removes `units` from the oldest records, or all units if there are fewer.
    fn remove_oldest(state: &mut SlidingLogState, units: u64) {
        let units = units.min(state.total);
        state.total -= units;
        state.base = state.base.wrapping_add(units);
        while state.hits.front().is_some_and(|oldest| {
            // All units of this record are removed.
            state.base.wrapping_sub(oldest.cumulative) <= units
        }) {
            state.hits.pop_front();
        }
    }

    /// Removes `units` from the newest record that is at least `ago` nanoseconds old, and then from older records.
    /// Newer records keep their units. The work for each of these records grows with the number of records behind it.
    fn remove_at_age(state: &mut SlidingLogState, units: u64, ago: u64) {
        let mut left = units;
        let mut at = state.hits.partition_point(|hit| state.time.wrapping_sub(hit.time) >= ago);
        while left > 0 && at > 0 {
            at -= 1;
            let before = if at == 0 { state.base } else { state.hits[at - 1].cumulative };
            let held = state.hits[at].cumulative.wrapping_sub(before);
            let given = left.min(held);
            left -= given;
            state.total -= given;
            for hit in state.hits.range_mut(at..) {
                hit.cumulative = hit.cumulative.wrapping_sub(given);
            }
            if given == held {
                state.hits.remove(at);
            }
        }
    }

    /// Returns the time until `deficit` of the units in the log are available again.
    fn until(&self, state: &SlidingLogState, deficit: u64) -> u64 {
        let enough = state.hits.partition_point(|hit| hit.cumulative.wrapping_sub(state.base) < deficit);
        state.hits.get(enough).map_or(0, |hit| self.free_in(state, hit))
    }

    fn free_in(&self, state: &SlidingLogState, hit: &Hit) -> u64 {
        self.quota.period_nanos() - state.time.wrapping_sub(hit.time)
    }

    #[inline]
    fn reset(&self, state: &SlidingLogState, behind: u64) -> u64 {
        state.hits.back().map_or(0, |newest| self.free_in(state, newest)).saturating_add(behind)
    }

    fn deny(&self, state: &SlidingLogState, behind: u64, cost: u64) -> Decision {
        let limit = self.quota.limit();
        let retry = (cost <= limit).then(|| {
            let deficit = state.total - (limit - cost);
            self.until(state, deficit).saturating_add(behind)
        });
        Decision::deny(limit, self.available(state), retry, self.reset(state, behind))
    }

    #[inline]
    fn allow(&self, state: &SlidingLogState, behind: u64) -> Decision {
        Decision::allow(self.quota.limit(), self.available(state), self.reset(state, behind))
    }

    #[inline]
    fn available(&self, state: &SlidingLogState) -> u64 {
        self.quota.limit().saturating_sub(state.total)
    }

    /// Records `cost` units now.
    fn record(&self, state: &mut SlidingLogState, cost: u64) {
        let has_room = (state.hits.len() as u64) < self.quota.limit();
        let (time, base) = (state.time, state.base);
        state.total += cost;
        match state.hits.back_mut() {
            Some(newest) if newest.time == time || !has_room => {
                *newest = Hit { time, cumulative: newest.cumulative.wrapping_add(cost) };
            }
            newest => {
                let before = newest.map_or(base, |newest| newest.cumulative);
                state.hits.push_back(Hit { time, cumulative: before.wrapping_add(cost) });
            }
        }
    }
}

#[doc(hidden)]
impl Algorithm for SlidingLog {
    type State = SlidingLogState;

    const USAGE_IS_OF_QUOTA: bool = true;

    const UNDO_BY_COPY: bool = false;
    const DENIALS_STAND: bool = true;

    fn new_state(&self, _created_at: Nanos, now: Nanos) -> SlidingLogState {
        SlidingLogState { last: now, time: 0, total: 0, base: 0, hits: VecDeque::new() }
    }

    #[inline]
    fn last_update(&self, state: &SlidingLogState) -> Nanos {
        state.last
    }

    fn check(&self, state: &mut SlidingLogState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        if cost > self.available(state) {
            return self.deny(state, behind, cost);
        }
        if cost > 0 {
            self.record(state, cost);
        }
        self.allow(state, behind)
    }

    fn peek(&self, state: &mut SlidingLogState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        if cost <= self.available(state) { self.allow(state, behind) } else { self.deny(state, behind, cost) }
    }

    /// Gives back the oldest units first, because all newer units stay counted for longer. If the time of the charge is
    /// known, undoes the charge if it was made within the last period.
    fn refund(&self, state: &mut SlidingLogState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.advance(state, now);
        let Some(charged_at) = charged_at else { return Self::remove_oldest(state, cost) };
        let ago = state.last.saturating_since(charged_at);
        if charged_at <= state.last && ago < self.quota.period_nanos() {
            Self::remove_at_age(state, cost, ago);
        }
    }

    fn charge(&self, state: &mut SlidingLogState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.advance(state, now);
        let charged = cost.min(self.quota.limit().saturating_add(max_debt).saturating_sub(state.total));
        if charged > 0 {
            self.record(state, charged);
        }
        charged
    }

    /// Keeps the records. Each record now expires one period of the new quota after its instant. Units above the new
    /// limit and the debt are dropped, the oldest first.
    fn migrate(&self, state: &mut SlidingLogState, from: &Self, now: Nanos) {
        from.advance(state, now);
        let debt = state.total.saturating_sub(from.quota.limit());
        self.expire(state);
        let most = self.quota.limit().saturating_add(debt);
        Self::remove_oldest(state, state.total.saturating_sub(most));
    }

    fn is_fresh(&self, state: &SlidingLogState, now: Nanos) -> bool {
        let step = step(state.last, now, self.quota.period_nanos());
        step.behind == 0 && self.reset(state, 0) <= step.elapsed
    }

    /// Returns the usage, by binary search instead of copying the log.
    fn usage(&self, state: &SlidingLogState, now: Nanos) -> Usage {
        let period = self.quota.period_nanos();
        let elapsed = step(state.last, now, period).elapsed;
        if elapsed >= period {
            return Usage::of(0, self.quota.limit());
        }
        let time = state.time.wrapping_add(elapsed);
        let expired = state.hits.partition_point(|hit| time.wrapping_sub(hit.time) >= period);
        let base = match expired.checked_sub(1) {
            Some(last) => state.hits[last].cumulative.wrapping_sub(state.base),
            None => 0,
        };
        Usage::of(state.total - base, self.quota.limit())
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::of_window(self.quota)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut SlidingLogState, now: Nanos, cost: u64) -> Option<Nanos> {
        let behind = self.advance(state, now);
        let limit = self.quota.limit();
        let deficit = state.total.saturating_sub(limit - cost.min(limit));
        Some(now.saturating_add(match deficit {
            0 => 0,
            _ => self.until(state, deficit).saturating_add(behind),
        }))
    }
}

// The state as it is stored: the key's time, the number of records, then the age and the units of each record, the
// oldest record first.
#[doc(hidden)]
impl StoredAlgorithm for SlidingLog {
    fn kind() -> String {
        "g".to_owned()
    }

    fn unit(&self) -> String {
        format!("g:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "g:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, ..Self::new(quota) })
    }

    fn write_state(&self, state: &SlidingLogState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        numbers.number(state.hits.len() as u64);
        let mut before = state.base;
        for hit in &state.hits {
            numbers.number(state.time.wrapping_sub(hit.time));
            numbers.number(hit.cumulative.wrapping_sub(before));
            before = hit.cumulative;
        }
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SlidingLogState> {
        let last = numbers.instant()?;
        let period = self.quota.period_nanos();
        let mut state = SlidingLogState { last, time: period, total: 0, base: 0, hits: Default::default() };
        let mut oldest = period;
        // If the limit was lowered while the key was in debt, there may be more records than the limit.
        for _ in 0..numbers.number()? {
            let age = numbers.number().filter(|age| *age < oldest)?;
            let units = numbers.in_debt(self.quota.limit()).filter(|units| *units > 0)?;
            oldest = age;
            state.total = state.total.checked_add(units)?;
            state.hits.push_back(Hit { time: period - age, cumulative: state.total });
        }
        Some(state)
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.check_no_priority()?;
        if self.quota.limit() <= MAX_HITS {
            Ok(())
        } else {
            Err(ConfigError::new(format!(
                "a SlidingLog in Redis has a limit of at most {MAX_HITS}, since each call sends the whole log: take a \
                 SlidingWindow for a limit of {}",
                self.quota.limit()
            )))
        }
    }
}

queue_methods!(SlidingLog);
