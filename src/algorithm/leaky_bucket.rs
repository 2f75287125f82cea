//! The leaky bucket, as a queue: a token bucket that holds one token, and whose calls wait.

use std::time::Duration;

use crate::algorithm::rate::Rate;
use crate::algorithm::stored::{StepKind, numbers_of};
use crate::algorithm::token_bucket::TokenBucketState;
use crate::algorithm::{
    Algorithm, QueueConfig, QueueOverflow, QuotaPolicy, ReservedTime, ScriptSteps, StateReader, StateWriter,
    StoredAlgorithm, TokenBucket, Usage,
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
/// at which a timer fired. Calls whose slots are overdue by up to five milliseconds are admitted at once, so a late
/// timer does not lower the rate. After a longer stall the schedule moves to later times, so that no burst is admitted.
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
/// The schedule is kept as a [`TokenBucket`] that holds one token: the next slot is the time at which it has the token
/// again. It counts in integers, so a rate of 3 per second does not drift.
///
/// **Invariant.** After a call of cost `n`, the next slot is at least `n * period / limit` later, unless units were
/// given back. No call is admitted before its slot.
///
/// **Cost.** A call takes constant time. A key takes 24 bytes, and the memory of each waiter in its queue.
///
/// A leaky bucket can also be used as a *meter*, which denies calls instead of making them wait. A meter decides as a
/// token bucket does: use [`TokenBucket`] for that.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    /// The bucket, with one token and the queue.
    bucket: TokenBucket,
    /// The burst of the quota.
    burst: u64,
}

impl LeakyBucket {
    /// Creates a bucket that admits calls at the quota's rate and queues as many calls per key as the quota's burst.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self::queueing(quota, QueueConfig::enabled(quota.capacity()))
    }

    const fn queueing(quota: Quota, queue_config: QueueConfig) -> Self {
        let bucket = TokenBucket::new(quota.burst(1)).with_queue_config(queue_config);
        Self { bucket, burst: quota.capacity() }
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.bucket.quota().burst(self.burst)
    }

    /// Sets how many calls may wait, per key. The default is the quota's burst, so calls wait unless the number is set
    /// to 0. This holds for calls of [`acquire`](crate::RateLimiter::acquire) and for the requests of a layer. With 0,
    /// a call that cannot pass at once is denied. How many calls wait for a key is not reported: the
    /// [`remaining`](crate::Decision::remaining) of a decision is 1 if a call would pass at once, and otherwise 0.
    ///
    /// In Redis, a call is queued if its slot is at most as many intervals away, and at most 1,048,575. With calls that
    /// cost more than one unit, this may be fewer calls.
    #[must_use]
    pub const fn queue(self, places: u64) -> Self {
        Self { bucket: self.bucket.queue(places), ..self }
    }

    /// Sets how long a call may wait. A call that would wait longer is denied at once.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { bucket: self.bucket.max_wait(max_wait), ..self }
    }

    /// Sets which call is denied when the queue is full, by default the call that arrives.
    #[must_use]
    pub const fn overflow(self, overflow: QueueOverflow) -> Self {
        Self { bucket: self.bucket.overflow(overflow), ..self }
    }
}

/// A call of any cost is admitted at its slot: its first unit is decided by the bucket, and the others are charged.
#[doc(hidden)]
impl Algorithm for LeakyBucket {
    type State = TokenBucketState;

    const ADDS_UP: bool = true;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> TokenBucketState {
        self.bucket.new_state(created_at, now)
    }

    #[inline]
    fn last_update(&self, state: &TokenBucketState) -> Nanos {
        self.bucket.last_update(state)
    }

    #[inline]
    fn check(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) -> Decision {
        let decision = self.bucket.check(state, now, cost.min(1));
        if cost <= 1 || !decision.is_allowed() {
            return decision;
        }
        self.bucket.charge(state, now, cost - 1, u64::MAX);
        self.bucket.peek(state, now, 0)
    }

    fn peek(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) -> Decision {
        self.bucket.peek(state, now, cost.min(1))
    }

    fn refund(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.bucket.refund(state, now, cost, charged_at);
    }

    fn refund_settled(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        self.bucket.refund_settled(state, now, charged, actual, charged_at);
    }

    /// Moves the next slot by `cost` intervals, but to at most `1 + max_debt` intervals after the key's time or, with a
    /// `max_debt` of 0, to at most `cost` intervals, because a call of any cost is admitted when the slot is due.
    fn charge(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        let max_debt = if max_debt == 0 { cost.saturating_sub(1) } else { max_debt };
        self.bucket.charge(state, now, cost, max_debt)
    }

    fn migrate(&self, state: &mut TokenBucketState, from: &Self, now: Nanos) {
        self.bucket.migrate(state, &from.bucket, now);
    }

    fn is_fresh(&self, state: &TokenBucketState, now: Nanos) -> bool {
        self.bucket.is_fresh(state, now)
    }

    /// Returns the number of intervals until the next slot, as the usage of a limit of one call.
    fn usage(&self, state: &TokenBucketState, now: Nanos) -> Usage {
        self.bucket.usage(state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        let quota = self.bucket.quota();
        QuotaPolicy::refilled(quota.limit(), Rate::of(quota))
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        self.bucket.queue_config()
    }

    fn ready_at(&self, state: &mut TokenBucketState, now: Nanos, _cost: u64) -> Option<Nanos> {
        self.bucket.ready_at(state, now, 1)
    }

    fn admit_queued(&self, state: &mut TokenBucketState, now: Nanos, _: Nanos, cost: u64) -> Option<Nanos> {
        self.bucket.admit(state, now, 1, cost)
    }

    fn project(&self, state: &mut TokenBucketState, now: Nanos, _: Nanos, cost: u64) -> Nanos {
        self.bucket.owe(state, now, 1, cost)
    }
}

// The state as it is stored: that of the bucket.
#[doc(hidden)]
impl StoredAlgorithm for LeakyBucket {
    fn kind() -> String {
        "l".to_owned()
    }

    fn unit(&self) -> String {
        let quota = self.bucket.quota();
        format!("l:{}/{}", quota.limit(), quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "l:")?;
        let quota = Quota::per(limit, Duration::from_nanos(period)).ok()?;
        Some(Self::queueing(quota, self.bucket.queue_config()?))
    }

    /// Writes the grains until the next slot, and the key's time. If the grains are rounded, they are at most
    /// `u64::MAX`.
    fn write_state(&self, state: &TokenBucketState, numbers: &mut StateWriter) {
        let most = if numbers.is_exact() { u128::MAX } else { u64::MAX.into() };
        self.bucket.write(state, numbers, most);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<TokenBucketState> {
        self.bucket.read(numbers, u64::MAX)
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.bucket.check_storable()
    }

    fn script(&self) -> Option<ScriptSteps> {
        let (micro, unit) = self.bucket.micro_rate().grains();
        let period = u128::from(self.bucket.quota().period_nanos() / 1_000);
        let max_cost = u64::try_from(MAX_ADDED / unit).unwrap_or(u64::MAX);
        let steps = ScriptSteps::one(StepKind::Bucket, [micro, unit, 0, 0, period, MAX_ADDED])?;
        Some(steps.with_max_cost(max_cost))
    }

    fn reserve_slot(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        cost: u64,
        max_wait: u64,
    ) -> Option<ReservedTime> {
        Some(self.bucket.reserve(state, now, (cost.min(1), cost), max_wait))
    }

    fn give_back(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, mark: u128) -> bool {
        self.bucket.give_back(state, now, cost, mark)
    }
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
        // When a call is admitted, the next slot is an interval away.
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
        let mut numbers = StateWriter::default();
        bucket.write_state(&state, &mut numbers);
        let mut read = bucket.read_state(&mut StateReader::new(numbers.as_bytes())).unwrap();
        let wait = |state: &mut _| bucket.check(state, Nanos(MS), 1).retry_after().unwrap();
        let longest = (u128::from(u64::MAX) * 1_000).div_ceil(999_999_999) as u64;
        assert_eq!(wait(&mut read), Duration::from_nanos(longest));
        assert_eq!(longest / 3_600_000_000_000, 5, "hours");
        assert_eq!(wait(&mut state).as_secs() / 31_557_600, 584, "years");
    }
}
