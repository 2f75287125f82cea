//! The token bucket.

use crate::algorithm::clock_step::{earliest_slot, step};
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::rate::{Rate, rescale_ceil};
use crate::algorithm::stored::{MAX_EXACT, MicroRate, StepKind, numbers_of};
use crate::algorithm::{
    Algorithm, MAX_DEBT, QueueConfig, QuotaPolicy, ReservedTime, ScriptSteps, StateReader, StateWriter,
    StoredAlgorithm, Usage,
};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum number of tokens that waiting calls may owe in a stored state, as a multiple of the burst.
const MAX_OWED: u64 = 1 << 20;

/// A bucket that allows bursts up to a capacity and is refilled at a steady rate.
///
/// With [`queue(n)`](TokenBucket::queue), a layer queues requests until their tokens are available: the burst passes at
/// once, the next `n` requests are paced, and further requests are denied.
///
/// The capacity is the quota's burst or, if no burst is set, the limit. The bucket of a new key is full, except with
/// [`start_empty`](TokenBucket::start_empty). In any span `t` at most `burst + t * limit / period` units pass without
/// waiting. The arithmetic is exact, in integers without drift. A cost above the burst never fits.
///
/// A queued call is charged at the exact time at which its tokens are available, even if its timer is up to 5 ms late.
/// So in any span `t`, the queued calls that are admitted cost at most `burst + (t + 5 ms) * limit / period` units. If
/// the runtime stalls for longer, the tokens that arrive during the stall fill the bucket up to the burst, and further
/// tokens are lost.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::{Quota, RateLimiter};
///
/// // 100 a minute on average, at most 20 at once
/// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(100).burst(20)));
/// let decision = limiter.check_n("user:42", 15);
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit(), decision.remaining()), (20, 5));
/// assert!(!limiter.check_n("user:42", 15).is_allowed());
/// ```
///
/// This picture shows the [same calls as every picture](crate::algorithm#pictures):
///
#[cfg_attr(doc, doc = include_str!("pictures/token_bucket.svg"))]
///
/// # How it works
///
/// **Problem.** Allow bursts, but hold callers to a rate on average.
///
/// **Naive answer.** Each key has a bucket of tokens, and a task that adds one token every `period / limit`. A call
/// takes a token.
///
/// **Where it breaks.** A task per key overloads a server with a million keys. And `period / limit` is rarely a whole
/// number of nanoseconds: if this interval is rounded, the bucket admits calls too early, or loses tokens. In floating
/// point, the rate drifts.
///
/// **The idea.** When a call arrives, add the tokens for the time since the last call, in [units so
/// small](crate::guide::design#how-a-token-bucket-counts) that nothing is a fraction.
///
/// **Invariant.** Without queued calls and [debt](crate::limiter::Builder::max_debt), in any span of time `t` at most
/// `burst + t * limit / period` units pass.
///
/// **Cost.** A call takes constant time, and a key takes 24 bytes.
///
/// A leaky bucket that is used as a meter, and the generic cell rate algorithm (GCRA), decide exactly as a token bucket
/// does, and only keep a different state. So the crate does not provide them separately. See "Leaky bucket" and
/// "Generic cell rate algorithm" in ITU-T I.371.
///
/// The type implements [`Algorithm`] and [`StoredAlgorithm`], whose methods only limiters call.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    quota: Quota,
    queue_config: QueueConfig,
    rate: Rate,
    empty: bool,
}

/// The state of a key for a [`TokenBucket`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TokenBucketState {
    last: Nanos,
    /// The whole tokens that are missing.
    used: u64,
    /// The grains that are missing in addition to these tokens. One token has more grains than this.
    part: u64,
}

impl TokenBucket {
    /// Creates a bucket whose capacity is the quota's burst. The bucket is full at first, and is refilled at the
    /// quota's rate.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self {
            quota,
            rate: Rate::of(quota),
            empty: false,
            queue_config: QueueConfig::acquire_only(quota.capacity()),
        }
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns whether the bucket is empty when the limiter is built.
    #[must_use]
    pub const fn starts_empty(&self) -> bool {
        self.empty
    }

    /// Makes the bucket empty when the limiter is built.
    ///
    /// The bucket of a new key has been filling since that time, so it may have tokens at the key's first call. Until
    /// the bucket is full for the first time, a refund cannot distinguish tokens that were charged from those that were
    /// missing at the start. So a refund adds tokens even to the bucket of a key that was never charged, up to the
    /// burst.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::{Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(10)).start_empty());
    /// assert!(!limiter.check("user:42").is_allowed());
    /// ```
    #[must_use]
    pub const fn start_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    pub(super) const fn with_queue_config(self, queue_config: QueueConfig) -> Self {
        Self { queue_config, ..self }
    }

    fn capacity(&self) -> u64 {
        self.quota.capacity()
    }

    /// Advances the state to `now`. Returns how far `now` is before the key's time, which is the latest clock reading
    /// that the key has observed, in nanoseconds. Returns 0 if the clock was set back by more than one period.
    #[inline(always)]
    fn advance(&self, state: &mut TokenBucketState, now: Nanos) -> u64 {
        let step = step(state.last, now, self.quota.period_nanos());
        // Unless the clock is behind, which is rare, no sum is needed.
        state.last = if step.behind == 0 { now } else { step.last_update(now) };
        self.refill(state, step.elapsed);
        step.behind
    }

    #[inline(always)]
    fn refill(&self, state: &mut TokenBucketState, elapsed: u64) {
        match elapsed.checked_mul(self.rate.grains_per_nano()) {
            Some(grains) if grains <= state.part => state.part -= grains,
            _ => self.refill_tokens(state, self.rate.grains(elapsed)),
        }
    }

    /// Refills the bucket by `grains`, which are more than `state.part`.
    fn refill_tokens(&self, state: &mut TokenBucketState, grains: u128) {
        let grains = grains - u128::from(state.part);
        let period = u128::from(self.rate.grains_per_unit());
        // With less than one more token, the quotient is 0, and no division is needed.
        let (whole, rest) = if grains < period { (0, grains as u64) } else { self.rate.whole_units(grains) };
        match u64::try_from(whole) {
            Ok(whole) if whole < state.used => {
                state.used -= whole;
                state.part = 0;
                if rest > 0 {
                    state.used -= 1;
                    state.part = self.rate.grains_per_unit() - rest;
                }
            }
            _ => (state.used, state.part) = (0, 0),
        }
    }

    #[inline]
    fn available(&self, state: &TokenBucketState) -> u64 {
        // Queued calls, and settlements, may owe more than the bucket holds.
        self.capacity().saturating_sub(state.used).saturating_sub(u64::from(state.part > 0))
    }

    /// Returns the grains that must arrive before a call of `cost`, which is at most the burst, fits.
    #[inline]
    fn until(&self, state: &TokenBucketState, cost: u64) -> u128 {
        let spare = self.capacity() - cost;
        match state.used.checked_sub(spare) {
            Some(deficit) => self.rate.units(deficit) + u128::from(state.part),
            None => 0,
        }
    }

    /// Returns the grains that must arrive before the bucket is full.
    #[inline]
    fn missing(&self, state: &TokenBucketState) -> u128 {
        self.rate.units(state.used) + u128::from(state.part)
    }

    /// Adds grains to the bucket, up to a full bucket.
    fn add_grains(&self, state: &mut TokenBucketState, grains: u128) {
        let (used, part) = self.rate.whole_units(self.missing(state).saturating_sub(grains));
        // The quotient is at most the number of tokens that were missing, so it fits.
        (state.used, state.part) = (used as u64, part);
    }

    /// Returns [`missing`](TokenBucket::missing) if this number fits into 64 bits, as it does for most quotas. 64-bit
    /// arithmetic takes a third of the time of 128-bit arithmetic.
    #[inline(always)]
    fn missing_in_word(&self, state: &TokenBucketState) -> Option<u64> {
        state.used.checked_mul(self.rate.grains_per_unit())?.checked_add(state.part)
    }

    /// Returns the time at which the bucket has `tokens`, which are at most the burst. If the bucket has them already,
    /// this is the latest clock reading of the state.
    fn turn(&self, state: &TokenBucketState, tokens: u64) -> Nanos {
        state.last.saturating_add(self.rate.nanos_of(self.until(state, tokens)))
    }

    /// Charges a queued call at the time at which the bucket has `tokens`, usually without advancing the state. So
    /// `used` may exceed the burst until the state is advanced to that time. Returns the clock reading that goes with
    /// the state: `now` or, if the state was advanced, a later one.
    pub(super) fn owe(&self, state: &mut TokenBucketState, now: Nanos, tokens: u64, cost: u64) -> Nanos {
        if let Some(used) = state.used.checked_add(cost) {
            state.used = used;
            return now;
        }
        // `used` would overflow, so the tokens that arrive until the scheduled time are subtracted first.
        let ready_at = self.turn(state, tokens);
        let owed = self.missing(state) + self.rate.units(cost);
        let missing = owed.saturating_sub(self.rate.grains(ready_at.saturating_since(state.last)));
        let (used, part) = self.rate.whole_units(missing);
        // After this subtraction, `used` can overflow only at the end of the clock's range.
        (state.used, state.part) = u64::try_from(used).map_or((u64::MAX, 0), |used| (used, part));
        state.last = ready_at;
        now.max(ready_at)
    }

    /// Charges a queued call if the bucket has `tokens`, which are at most the burst, at `now`. See
    /// [`admit_queued`](TokenBucket::admit_queued).
    pub(super) fn admit(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        tokens: u64,
        cost: u64,
    ) -> Option<Nanos> {
        let ready_at = self.turn(state, tokens);
        if ready_at > now || ready_at == Nanos::MAX {
            self.advance(state, now);
            // The call seems not to be due. But the clock may have been set back, or the scheduled time may be beyond
            // the clock's range. So the advanced state decides.
            if self.until(state, tokens) > 0 {
                return None;
            }
        }
        let earliest = earliest_slot(now);
        if ready_at < earliest {
            self.advance(state, earliest);
        }
        self.owe(state, now, tokens, cost);
        Some(ready_at.max(earliest))
    }

    /// Returns an admission that reports `remaining` available tokens. The reported times include `behind`, which is
    /// how far the clock is behind the key's time.
    #[inline(always)]
    fn allow(&self, state: &TokenBucketState, behind: u64, remaining: u64) -> Decision {
        match self.missing_in_word(state) {
            Some(reset) if behind == 0 && remaining > 0 => {
                Decision::allow(self.capacity(), remaining, reset).in_grains(self.rate.grains_per_nano())
            }
            _ => self.allow_in_full(state, behind, remaining),
        }
    }

    fn allow_in_full(&self, state: &TokenBucketState, behind: u64, remaining: u64) -> Decision {
        let lag = self.rate.grains(behind);
        let next = if remaining == 0 { self.until(state, 1).saturating_add(lag) } else { 0 };
        let reset = self.missing(state).saturating_add(lag);
        self.rate.allow(self.capacity(), remaining, reset, next)
    }

    #[inline(always)]
    fn deny(&self, state: &TokenBucketState, behind: u64, cost: u64) -> Decision {
        match (self.missing_in_word(state), self.capacity().checked_sub(cost)) {
            (Some(reset), Some(spare)) if behind == 0 && reset < u64::MAX => {
                // The call does not fit, so `used` is at least `spare`, and the wait is at most `reset`.
                let wait = (state.used - spare) * self.rate.grains_per_unit() + state.part;
                Decision::deny(self.capacity(), self.available(state), Some(wait), reset)
                    .in_grains(self.rate.grains_per_nano())
            }
            _ => self.deny_in_full(state, behind, cost),
        }
    }

    fn deny_in_full(&self, state: &TokenBucketState, behind: u64, cost: u64) -> Decision {
        let lag = self.rate.grains(behind);
        let retry = (cost <= self.capacity()).then(|| self.until(state, cost).saturating_add(lag));
        let reset = self.missing(state).saturating_add(lag);
        self.rate.deny(self.capacity(), self.available(state), retry, reset)
    }

    pub(super) fn micro_rate(&self) -> MicroRate {
        MicroRate::of(self.rate)
    }

    /// Returns the maximum number of tokens by which a stored state may be short of a full bucket because of calls that
    /// wait.
    fn max_owed(&self) -> u64 {
        self.capacity().saturating_mul(MAX_OWED)
    }

    /// Returns the maximum number of tokens by which a stored state may be short of a full bucket.
    fn max_missing(&self) -> u64 {
        self.max_owed().max(self.capacity().saturating_add(MAX_DEBT))
    }

    /// Returns the missing grains, plus the grains of the time from the clock's zero to the key's time. A charge
    /// changes this sum. The passing of time does not change the sum until the bucket is full.
    pub(super) fn mark(&self, state: &TokenBucketState) -> u128 {
        self.rate.grains(state.last.0).saturating_add(self.missing(state))
    }
}

/// A state on another machine.
impl TokenBucket {
    /// Writes the missing tokens, in at most `most` grains, and the key's time.
    pub(super) fn write(&self, state: &TokenBucketState, numbers: &mut StateWriter, most: u128) {
        numbers.wide(self.micro_rate().written(self.missing(state), numbers.is_exact()).min(most));
        numbers.instant(state.last);
    }

    /// Reads what [`write`](TokenBucket::write) has written, if at most `most` tokens are missing.
    pub(super) fn read(&self, numbers: &mut StateReader<'_>, most: u64) -> Option<TokenBucketState> {
        let missing = self.micro_rate().read(numbers.wide()?, numbers.is_exact())?;
        let (used, part) = self.rate.whole_units(missing);
        let used = u64::try_from(used).ok().filter(|used| *used <= most)?;
        Some(TokenBucketState { last: numbers.instant()?, used, part })
    }

    /// Reserves the time at which the bucket has `tokens`, which are at most the burst, for a call of `cost`. See
    /// [`reserve_slot`](StoredAlgorithm::reserve_slot).
    pub(super) fn reserve(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        (tokens, cost): (u64, u64),
        max_wait: u64,
    ) -> ReservedTime {
        let behind = self.advance(state, now);
        let lag = self.rate.grains(behind);
        let until = self.until(state, tokens);
        // A call whose units are available does not wait for the clock to catch up.
        let wait = if until == 0 { 0 } else { until.saturating_add(lag) };
        // The state does not show how many calls wait. So a call may wait if those before it wait for fewer units than
        // there are places.
        let most =
            self.queue_config.places().checked_sub(1).map_or(0, |others| others.saturating_add(tokens));
        let most = self.rate.units(most.min(self.max_owed() - self.capacity()));
        let max_wait = max_wait.min(self.queue_config.max_wait());
        let max = if max_wait == u64::MAX { u128::MAX } else { self.rate.grains(max_wait) };
        // The clock must catch up with the key's time before the queue gets shorter.
        let free = if until > most { (until - most).saturating_add(lag) } else { 0 };
        let excess = free.max(wait.saturating_sub(max));
        let reset = self.missing(state).saturating_add(lag);
        let decision = match (wait, excess) {
            (0, _) => {
                state.used = state.used.saturating_add(cost);
                self.allow(state, behind, self.available(state))
            }
            (_, 0) => {
                state.used = state.used.saturating_add(cost);
                // The times count from the admission.
                let at_admission = |grains: u128| grains.saturating_add(lag).saturating_sub(wait);
                let (owed, next) = (at_admission(self.missing(state)), at_admission(self.until(state, 1)));
                let decision = self.rate.allow(self.capacity(), 0, owed, next);
                decision.with_delay(self.rate.nanos_of(wait))
            }
            (_, excess) => {
                let denial = self.rate.deny(self.capacity(), self.available(state), Some(excess), reset);
                let is_full = wait <= max && self.queue_config.places() > 0;
                if is_full { denial.with_queue_full() } else { denial }
            }
        };
        ReservedTime { decision, mark: self.mark(state) }
    }
}

queue_methods!(TokenBucket, "as many calls as the burst");

#[doc(hidden)]
impl Algorithm for TokenBucket {
    type State = TokenBucketState;

    const USAGE_IS_OF_QUOTA: bool = true;

    const ADDS_UP: bool = true;
    const DENIALS_STAND: bool = true;

    #[inline]
    fn new_state(&self, created_at: Nanos, now: Nanos) -> TokenBucketState {
        let mut state = TokenBucketState { last: now, used: 0, part: 0 };
        if self.empty {
            state.used = self.capacity();
            self.refill(&mut state, now.saturating_since(created_at));
        }
        state
    }

    #[inline]
    fn last_update(&self, state: &TokenBucketState) -> Nanos {
        state.last
    }

    // Inlining this function saves a tenth of its time, although it is also called by queues.
    #[inline(always)]
    fn check(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        match self.available(state).checked_sub(cost) {
            Some(remaining) => {
                state.used += cost;
                self.allow(state, behind, remaining)
            }
            None => self.deny(state, behind, cost),
        }
    }

    fn peek(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        match self.available(state) {
            remaining if cost <= remaining => self.allow(state, behind, remaining),
            _ => self.deny(state, behind, cost),
        }
    }

    /// Gives back `cost` tokens, but at most the tokens that are missing from a full bucket. If the time of the charge
    /// is known, undoes the part of the charge that cannot have been refilled since then.
    fn refund(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.advance(state, now);
        match charged_at {
            None => {
                if cost > state.used {
                    state.part = 0;
                }
                state.used = state.used.saturating_sub(cost);
            }
            Some(charged_at) if charged_at <= state.last => {
                let grains = self
                    .rate
                    .units(cost)
                    .saturating_sub(self.rate.grains(state.last.saturating_since(charged_at)));
                self.add_grains(state, grains);
            }
            Some(_) => {}
        }
    }

    /// Gives back the difference, but at most the tokens of the charge that cannot have been refilled since then.
    // Right after the charge, at least `charged` tokens were missing. So since then, at least `charged` less what was
    // refilled were missing all the time: a call that had cost that much less would have left them in the bucket.
    fn refund_settled(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        charged: u64,
        actual: u64,
        charged_at: Nanos,
    ) {
        self.advance(state, now);
        if charged_at <= state.last {
            let refilled = self.rate.grains(state.last.saturating_since(charged_at));
            let counts = self.rate.units(charged).saturating_sub(refilled);
            self.add_grains(state, self.rate.units(charged.saturating_sub(actual)).min(counts));
        }
    }

    /// Charges `cost` tokens, or all tokens in the bucket and `max_debt` more if these are fewer. A part of a token
    /// that is charged counts as one.
    fn charge(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.advance(state, now);
        let (before, most) = (state.used, self.capacity().saturating_add(max_debt));
        // Calls that wait, or an earlier bound, may have charged more.
        if before < most && cost > 0 {
            state.used = before.saturating_add(cost);
            if state.used >= most {
                (state.used, state.part) = (most, 0);
            }
        }
        state.used - before
    }

    /// Keeps the number of missing tokens, at most the new burst, and adds the debt.
    fn migrate(&self, state: &mut TokenBucketState, from: &Self, now: Nanos) {
        from.advance(state, now);
        let is_empty = state.used >= from.capacity();
        state.part = rescale_ceil(state.part, self.rate.grains_per_unit(), from.rate.grains_per_unit());
        if state.part == self.rate.grains_per_unit() {
            // The part was rounded up to a whole token.
            (state.used, state.part) = (state.used.saturating_add(1), 0);
        }
        if is_empty {
            // The part belongs to the debt, so it stays.
            let debt = state.used - from.capacity();
            state.used = self.capacity().min(from.capacity()).saturating_add(debt);
        } else if state.used >= self.capacity() {
            (state.used, state.part) = (self.capacity(), 0);
        }
    }

    #[inline]
    fn is_fresh(&self, state: &TokenBucketState, now: Nanos) -> bool {
        let step = step(state.last, now, self.quota.period_nanos());
        step.behind == 0 && self.rate.grains(step.elapsed) >= self.missing(state)
    }

    #[inline]
    fn usage(&self, state: &TokenBucketState, now: Nanos) -> Usage {
        let mut state = state.clone();
        self.advance(&mut state, now);
        Usage::of(state.used.saturating_add(u64::from(state.part > 0)), self.capacity())
    }

    #[inline]
    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::refilled(self.capacity(), self.rate)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) -> Option<Nanos> {
        self.advance(state, now);
        // The call is ready even while the clock is behind the key's time.
        let cost = cost.min(self.capacity());
        Some(if self.until(state, cost) == 0 { now } else { self.turn(state, cost) })
    }

    /// Usually adds the cost to `used` without advancing the state first. The scheduled time can lie between two
    /// nanoseconds, and a state can be advanced only to a whole nanosecond. If the bucket were full at that nanosecond,
    /// the tokens since the scheduled time would be lost. So `used` may exceed the burst until the state is next
    /// advanced, which subtracts the tokens that have arrived.
    ///
    /// If the scheduled time is more than 5 ms before `now`, the call is charged at 5 ms before `now` instead. The
    /// tokens that have arrived by then fill the bucket up to the burst, and further tokens are lost.
    ///
    /// A queued call can cost more than the burst only if the algorithm was replaced after the call was queued. Such a
    /// call waits for a full bucket.
    fn admit_queued(&self, state: &mut TokenBucketState, now: Nanos, _: Nanos, cost: u64) -> Option<Nanos> {
        let cost = cost.min(self.capacity());
        self.admit(state, now, cost, cost)
    }

    fn project(&self, state: &mut TokenBucketState, now: Nanos, _: Nanos, cost: u64) -> Nanos {
        let cost = cost.min(self.capacity());
        self.owe(state, now, cost, cost)
    }
}

// The state as it is stored: the missing tokens, in grains, which are those of the `MicroRate` unless the numbers are
// exact, and the key's time.
#[doc(hidden)]
impl StoredAlgorithm for TokenBucket {
    fn kind() -> String {
        "t".to_owned()
    }

    fn unit(&self) -> String {
        format!("t:{}/{}/{}", self.quota.limit(), self.quota.period_nanos(), self.capacity())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period, burst] = numbers_of(unit, "t:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        let quota = (burst > 0).then(|| quota.burst(burst))?;
        Some(Self { queue_config: self.queue_config, empty: self.empty, ..Self::new(quota) })
    }

    fn write_state(&self, state: &TokenBucketState, numbers: &mut StateWriter) {
        self.write(state, numbers, u128::MAX);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<TokenBucketState> {
        self.read(numbers, self.max_missing())
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.micro_rate().check_storable()
    }

    /// A script does not support `start_empty`: for a script, a new key has been idle since the clock's zero, so its
    /// bucket is full.
    fn script(&self) -> Option<ScriptSteps> {
        let (micro, unit) = self.micro_rate().grains();
        let period = u128::from(self.quota.period_nanos() / 1_000);
        let full = u128::from(self.capacity()) * unit;
        let max = (u128::from(self.max_missing()) * unit).min(MAX_EXACT - 1);
        ScriptSteps::one(StepKind::Bucket, [micro, unit, full, unit, period, max])
    }

    fn reserve_slot(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        cost: u64,
        max_wait: u64,
    ) -> Option<ReservedTime> {
        if cost > self.capacity() {
            let behind = self.advance(state, now);
            return Some(ReservedTime { decision: self.deny(state, behind, cost), mark: 0 });
        }
        Some(self.reserve(state, now, (cost, cost), max_wait))
    }

    fn give_back(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, mark: u128) -> bool {
        self.advance(state, now);
        let is_last = self.mark(state) == mark;
        if is_last {
            state.used = state.used.saturating_sub(cost);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    /// Arithmetic in 64 bits has the same results as arithmetic in 128 bits, if they fit into 64 bits.
    #[test]
    fn arithmetic_in_words_is_that_in_full() {
        for seed in 0..10_000 {
            let mut random = Rng::with_seed(seed);
            let limit = if random.bool() { random.u64(1..1_000) } else { random.u64(..) };
            let (longest, largest) = (
                if random.bool() { 1_000_000_000_000 } else { i64::MAX as u64 },
                if random.bool() { 1_000 } else { u64::MAX },
            );
            let (period, burst) = (random.u64(1..=longest), random.u64(1..=largest));
            let [used, part, elapsed, cost, behind] = std::array::from_fn(|_| random.u64(..));
            let bits = random.u32(..64);
            let Ok(quota) = Quota::per(limit, Duration::from_nanos(period)) else { continue };
            let bucket = TokenBucket::new(quota.burst(burst));
            let used = (used >> bits) % burst;
            let mut state =
                TokenBucketState { last: Nanos::ZERO, used, part: part % bucket.rate.grains_per_unit() };
            let (mut full, grains) = (state.clone(), bucket.rate.grains(elapsed >> bits));
            bucket.refill(&mut state, elapsed >> bits);
            if grains <= u128::from(full.part) {
                full.part -= grains as u64;
            } else {
                bucket.refill_tokens(&mut full, grains);
            }
            assert_eq!((state.used, state.part), (full.used, full.part), "seed {seed}");

            let (remaining, behind) =
                (bucket.available(&state), if bits.is_multiple_of(2) { 0 } else { behind });
            let described = |decision: Decision| (decision, decision.next());
            assert_eq!(
                described(bucket.allow(&state, behind, remaining)),
                described(bucket.allow_in_full(&state, behind, remaining)),
                "seed {seed}"
            );
            let cost = (cost >> bits).max(remaining).saturating_add(1);
            assert_eq!(
                bucket.deny(&state, behind, cost),
                bucket.deny_in_full(&state, behind, cost),
                "seed {seed}"
            );
        }
    }

    /// The queue is full for a call if those before it wait for as many tokens as there are places.
    #[test]
    fn the_own_cost_of_a_call_takes_no_place() {
        for (places, used, cost, waits) in [
            (0, 7, 5, false),
            (1, 10, 10, true),
            (1, 11, 1, false),
            (2, 11, 10, true),
            (2, 12, 1, false),
            (u64::MAX, 1_000, 10, true),
        ] {
            let bucket = TokenBucket::new(Quota::per_second(10)).queue(places);
            let mut state = TokenBucketState { last: Nanos(MS), used, part: 0 };
            let reserved = bucket.reserve_slot(&mut state, Nanos(MS), cost, u64::MAX).unwrap();
            assert_eq!(reserved.decision.is_allowed(), waits, "{cost} with {used} used, {places} places");
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let bucket = TokenBucket::new(Quota::per_minute(7).burst(3));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos(MS));
        for now in [MS, 2 * MS, 999 * MS] {
            assert!(bucket.check(&mut state, Nanos(now), 1).is_allowed());
            let mut numbers = StateWriter::default();
            bucket.write_state(&state, &mut numbers);
            let read = bucket.read_state(&mut StateReader::new(numbers.as_bytes())).unwrap();
            assert_eq!((read.last, read.used, read.part), (state.last, state.used, state.part));
        }
        assert_eq!(bucket.with_unit(&bucket.unit()), Some(bucket));
    }

    #[test]
    fn calls_that_wait_are_paced_and_give_back_only_the_last_place() {
        let bucket = TokenBucket::new(Quota::per_second(10).burst(2)).queue(2);
        let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
        let mut reserve = |now: u64| bucket.reserve_slot(&mut state, Nanos(now * MS), 1, u64::MAX).unwrap();
        let waits: Vec<_> = (0..4).map(|_| reserve(0)).collect();
        let delays: Vec<_> = waits.iter().map(|wait| wait.decision.delay().as_millis()).collect();
        assert_eq!(delays, [0, 0, 100, 200]);
        let denied = reserve(0).decision;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_millis(100))));
        assert!(!bucket.give_back(&mut state, Nanos(50 * MS), 1, waits[2].mark), "another is behind it");
        assert!(bucket.give_back(&mut state, Nanos(50 * MS), 1, waits[3].mark));
        let next = bucket.reserve_slot(&mut state, Nanos(50 * MS), 1, 149 * MS).unwrap().decision;
        assert_eq!((next.is_allowed(), next.retry_after()), (false, Some(Duration::from_millis(1))));
        let next = bucket.reserve_slot(&mut state, Nanos(50 * MS), 1, 150 * MS).unwrap().decision;
        assert_eq!(next.delay(), Duration::from_millis(150));
        assert!(!bucket.check(&mut state, Nanos(50 * MS), 1).is_allowed(), "a state that owes can be asked");
        assert_eq!(bucket.peek(&mut state, Nanos(50 * MS), 1).remaining(), 0);
    }
}
