//! The implementation of [`Algorithm`] for [`TokenBucket`].

use super::{TokenBucket, TokenBucketState};
use crate::algorithm::clock_step::{earliest_slot, step};
use crate::algorithm::rate::{div_rem, rescale_ceil};
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

impl Algorithm for TokenBucket {
    type State = TokenBucketState;

    const ADDS_UP: bool = true;
    const DENIALS_STAND: bool = true;
    const USAGE_IS_OF_QUOTA: bool = true;

    #[inline]
    fn new_state(&self, created_at: Nanos, now: Nanos) -> TokenBucketState {
        let mut state = TokenBucketState { last: now, used: 0, part: 0 };
        if self.empty {
            state.used = self.burst();
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

    /// Gives back `cost` tokens, but at most the burst, and at most the tokens that are missing from a full bucket.
    fn refund(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) {
        self.advance(state, now);
        // No single call was charged more than the burst, although queued calls together may owe more.
        let cost = cost.min(self.burst());
        if cost > state.used {
            state.part = 0;
        }
        state.used = state.used.saturating_sub(cost);
    }

    /// Charges `cost` tokens, or all tokens in the bucket if these are fewer.
    fn charge_saturating(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) {
        self.advance(state, now);
        state.used = state.used.saturating_add(cost);
        if state.used >= self.burst() {
            (state.used, state.part) = (self.burst(), 0);
        }
    }

    /// Undoes the part of the charge that cannot have been refilled since `charged_at`.
    fn undo(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, charged_at: Nanos) {
        self.advance(state, now);
        if charged_at <= state.last {
            let grains = self
                .rate
                .units(cost)
                .saturating_sub(self.rate.grains(state.last.saturating_since(charged_at)));
            let (used, part) = div_rem(self.missing(state).saturating_sub(grains), self.rate.period);
            // The quotient is at most the number of tokens that were missing, so it fits.
            (state.used, state.part) = (used as u64, part);
        }
    }

    /// Keeps the number of missing tokens, at most the new burst.
    fn migrate(&self, state: &mut TokenBucketState, from: &Self, now: Nanos) {
        from.advance(state, now);
        state.part = rescale_ceil(state.part, self.rate.period, from.rate.period);
        if state.part == self.rate.period {
            // The part was rounded up to a whole token.
            (state.used, state.part) = (state.used.saturating_add(1), 0);
        }
        if state.used >= self.burst() {
            (state.used, state.part) = (self.burst(), 0);
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
        Usage::of(self.burst() - self.available(&state), self.burst())
    }

    #[inline]
    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::refilled(self.burst(), self.rate)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config)
    }

    fn ready_at(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) -> Option<Nanos> {
        self.advance(state, now);
        // The call is ready even while the clock is behind the key's time.
        let is_due = self.until(state, cost.min(self.burst())) == 0;
        Some(if is_due { now } else { self.turn(state, cost) })
    }

    /// Usually adds the cost to `used` without advancing the state first. The scheduled time can lie between two
    /// nanoseconds, and a state can be advanced only to a whole nanosecond. If the bucket were full at that nanosecond,
    /// the tokens since the scheduled time would be lost. So `used` may exceed the burst until the state is next
    /// advanced, which subtracts the tokens that have arrived.
    ///
    /// If the scheduled time is more than 5 ms before `now`, the call is charged at 5 ms before `now` instead. The
    /// tokens that have arrived by then fill the bucket up to the burst, and further tokens are lost.
    fn admit_queued(&self, state: &mut TokenBucketState, now: Nanos, _: Nanos, cost: u64) -> Option<Nanos> {
        let ready_at = self.turn(state, cost);
        if ready_at > now || ready_at == Nanos::MAX {
            self.advance(state, now);
            // The call seems not to be due. But the clock may have been set back, or the scheduled time may be beyond
            // the clock's range. So the advanced state decides.
            if self.until(state, cost.min(self.burst())) > 0 {
                return None;
            }
        }
        let earliest = earliest_slot(now);
        if ready_at < earliest {
            self.advance(state, earliest);
        }
        self.owe(state, cost);
        Some(ready_at.max(earliest))
    }

    fn project(&self, state: &mut TokenBucketState, now: Nanos, _: Nanos, cost: u64) -> Nanos {
        let last = state.last;
        self.owe(state, cost);
        if state.last == last { now } else { state.last.max(now) }
    }
}
