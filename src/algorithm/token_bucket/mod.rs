//! The token bucket.

mod decide;
mod stored;

use crate::algorithm::QueueConfig;
use crate::algorithm::clock_step::step;
use crate::algorithm::queue_config::queue_methods;
use crate::algorithm::rate::{Rate, div_rem};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::quota::Quota;

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
#[cfg_attr(doc, doc = include_str!("../pictures/token_bucket.svg"))]
///
/// # How it works
///
/// **Problem.** Allow bursts, but hold callers to a rate on average.
///
/// **Naive answer.** Each key has a bucket of tokens, and a task that adds one token every `period / limit`. A call
/// takes a token.
///
/// **Where it breaks.** A task per key overloads a server with a million keys. And `period / limit` is rarely a whole
/// number of nanoseconds: 7 per minute is one per 8,571,428,571.43 ns. If this interval is rounded down, the bucket
/// admits calls too early. If it is rounded up, the bucket loses tokens. In floating point, the rate drifts. Systems in
/// wide use admit 0.96 calls a minute for "1 per minute", or 1,006 at once for a burst of 1,000.
///
/// **The idea.** When a call arrives, add the tokens for the time since the last call. Count in *grains*, so that
/// nothing is a fraction: one token is `period` grains, and `limit` grains arrive per nanosecond. Both numbers are
/// integers, and stay small because the fraction `limit / period` is in lowest terms. Grains that are less than a whole
/// token are kept, not rounded away.
///
/// ```text
///  tokens
///  burst 4 ─●      ╭──────────  never above the burst
///        3  │●    ╱   ↑ refills at limit / period
///        2  │ ●  ╱
///        1  │  ●╱
///        0 ─┴───●───────────── time
///           four at once, then one per period / limit
/// ```
///
/// The state counts the tokens that are *missing* from a full bucket: `used` whole tokens and `part` grains of one
/// more. Nothing is missing from a full bucket, so both numbers are zero for a key that was idle for long enough, and
/// the key may be removed.
///
/// **Invariant.** Without queued calls, `used + part / period <= burst`. A call of cost `n` passes exactly when `used +
/// n + part / period <= burst`. So in any span of time `t` at most `burst + t * limit / period` units pass.
///
/// **Cost.** A call takes constant time, and a key takes 24 bytes. There is no division if less than the time of one
/// token has passed since the last call, as for a busy key.
///
/// A leaky bucket that is used as a meter, and the generic cell rate algorithm (GCRA), decide exactly as a token bucket
/// does, and only keep a different state. So the crate does not provide them separately. See "Leaky bucket" and
/// "Generic cell rate algorithm" in ITU-T I.371.
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

    fn burst(&self) -> u64 {
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
        match elapsed.checked_mul(self.rate.limit) {
            Some(grains) if grains <= state.part => state.part -= grains,
            _ => self.refill_tokens(state, self.rate.grains(elapsed)),
        }
    }

    /// Refills the bucket by `grains`, which are more than `state.part`.
    fn refill_tokens(&self, state: &mut TokenBucketState, grains: u128) {
        let grains = grains - u128::from(state.part);
        let period = u128::from(self.rate.period);
        // With less than one more token, the quotient is 0, and no division is needed.
        let (whole, rest) =
            if grains < period { (0, grains as u64) } else { div_rem(grains, self.rate.period) };
        match u64::try_from(whole) {
            Ok(whole) if whole < state.used => {
                state.used -= whole;
                state.part = 0;
                if rest > 0 {
                    state.used -= 1;
                    state.part = self.rate.period - rest;
                }
            }
            _ => (state.used, state.part) = (0, 0),
        }
    }

    #[inline]
    fn available(&self, state: &TokenBucketState) -> u64 {
        // Queued calls may owe more than the bucket holds.
        self.burst().saturating_sub(state.used).saturating_sub(u64::from(state.part > 0))
    }

    /// Returns the grains that must arrive before a call of `cost`, which is at most the burst, fits.
    #[inline]
    fn until(&self, state: &TokenBucketState, cost: u64) -> u128 {
        let spare = self.burst() - cost;
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

    /// Returns [`missing`](TokenBucket::missing) if this number fits into 64 bits, as it does for most quotas. 64-bit
    /// arithmetic takes a third of the time of 128-bit arithmetic.
    #[inline(always)]
    fn missing_in_word(&self, state: &TokenBucketState) -> Option<u64> {
        state.used.checked_mul(self.rate.period)?.checked_add(state.part)
    }

    /// Returns the time at which the bucket has the tokens for the first queued call, which costs `cost`. If the bucket
    /// has these tokens already, this is the latest clock reading of the state. A queued call can cost more than the
    /// burst only if the algorithm was replaced after the call was queued. Such a call waits for a full bucket.
    fn turn(&self, state: &TokenBucketState, cost: u64) -> Nanos {
        state.last.saturating_add(self.rate.nanos_of(self.until(state, cost.min(self.burst()))))
    }

    /// Charges a call at its scheduled time, usually without advancing the state. So `used` may exceed the burst until
    /// the state is advanced to the scheduled time.
    fn owe(&self, state: &mut TokenBucketState, cost: u64) {
        let cost = cost.min(self.burst());
        if let Some(used) = state.used.checked_add(cost) {
            state.used = used;
            return;
        }
        // `used` would overflow, so the tokens that arrive until the scheduled time are subtracted first.
        let ready_at = self.turn(state, cost);
        let owed = self.missing(state) + self.rate.units(cost);
        let missing = owed.saturating_sub(self.rate.grains(ready_at.saturating_since(state.last)));
        let (used, part) = div_rem(missing, self.rate.period);
        // After this subtraction, `used` can overflow only at the end of the clock's range.
        (state.used, state.part) = u64::try_from(used).map_or((u64::MAX, 0), |used| (used, part));
        state.last = ready_at;
    }

    /// Returns an admission that reports `remaining` available tokens. The reported times include `behind`, which is
    /// how far the clock is behind the key's time.
    #[inline(always)]
    fn allow(&self, state: &TokenBucketState, behind: u64, remaining: u64) -> Decision {
        match self.missing_in_word(state) {
            Some(reset) if behind == 0 && remaining > 0 => {
                Decision::allow(self.burst(), remaining, reset).in_grains(self.rate.limit)
            }
            _ => self.allow_in_full(state, behind, remaining),
        }
    }

    fn allow_in_full(&self, state: &TokenBucketState, behind: u64, remaining: u64) -> Decision {
        let lag = self.rate.grains(behind);
        let next = if remaining == 0 { self.until(state, 1).saturating_add(lag) } else { 0 };
        let reset = self.missing(state).saturating_add(lag);
        self.rate.allow(self.burst(), remaining, reset, next)
    }

    #[inline(always)]
    fn deny(&self, state: &TokenBucketState, behind: u64, cost: u64) -> Decision {
        match (self.missing_in_word(state), self.burst().checked_sub(cost)) {
            (Some(reset), Some(spare)) if behind == 0 && reset < u64::MAX => {
                // The call does not fit, so `used` is at least `spare`, and the wait is at most `reset`.
                let wait = (state.used - spare) * self.rate.period + state.part;
                Decision::deny(self.burst(), self.available(state), Some(wait), reset)
                    .in_grains(self.rate.limit)
            }
            _ => self.deny_in_full(state, behind, cost),
        }
    }

    fn deny_in_full(&self, state: &TokenBucketState, behind: u64, cost: u64) -> Decision {
        let lag = self.rate.grains(behind);
        let retry = (cost <= self.burst()).then(|| self.until(state, cost).saturating_add(lag));
        let reset = self.missing(state).saturating_add(lag);
        self.rate.deny(self.burst(), self.available(state), retry, reset)
    }
}

queue_methods!(TokenBucket, "as many calls as the burst");

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::time::Duration;

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
            let mut state = TokenBucketState { last: Nanos::ZERO, used, part: part % bucket.rate.period };
            let (mut full, grains) = (state.clone(), bucket.rate.grains(elapsed >> bits));
            bucket.refill(&mut state, elapsed >> bits);
            match grains <= u128::from(full.part) {
                true => full.part -= grains as u64,
                false => bucket.refill_tokens(&mut full, grains),
            }
            assert_eq!((state.used, state.part), (full.used, full.part), "seed {seed}");

            let (remaining, behind) = (bucket.available(&state), if bits % 2 == 0 { 0 } else { behind });
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
}
