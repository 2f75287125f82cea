//! The implementation of [`Algorithm`] for [`LeakyBucket`].

use super::{LeakyBucket, LeakyBucketState};
use crate::algorithm::clock_step::earliest_slot;
use crate::algorithm::leaky_bucket::slot::Slot;
use crate::algorithm::rate::{div_rem, rescale_ceil};
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;

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
        self.charge(state, observed, cost);
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

    /// Moves the next slot earlier by one interval per unit, but not before the key's time.
    fn refund(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) {
        self.observe(state, now);
        if !state.next.is_due() {
            state.next = state.next.sooner(self.rate.units(cost)).max(Slot::NOW);
        }
    }

    /// Undoes the part of the charge whose intervals cannot have passed since `charged_at`.
    fn undo(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64, charged_at: Nanos) {
        self.observe(state, now);
        if charged_at <= state.last && !state.next.is_due() {
            let grains = self
                .rate
                .units(cost)
                .saturating_sub(self.rate.grains(state.last.saturating_since(charged_at)));
            state.next = state.next.sooner(grains).max(Slot::NOW);
        }
    }

    /// Moves the next slot to `cost` intervals after the key's time, unless the slot is later already. A `cost` of 0
    /// changes nothing.
    fn charge_saturating(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64) {
        self.observe(state, now);
        if cost > 0 {
            state.next = state.next.max(Slot::NOW.later(self.rate.units(cost)));
        }
    }

    /// Keeps the number of intervals until the next slot.
    fn migrate(&self, state: &mut LeakyBucketState, from: &Self, now: Nanos) {
        from.observe(state, now);
        let (new, old) = (self.rate.period, from.rate.period);
        let (intervals, rest) = div_rem(state.next.until(), old);
        let away =
            intervals.saturating_mul(u128::from(new)).saturating_add(rescale_ceil(rest, new, old).into());
        state.next = Slot::NOW.later(away);
    }

    fn is_fresh(&self, state: &LeakyBucketState, now: Nanos) -> bool {
        let mut state = state.clone();
        self.observe(&mut state, now) == now && state.next.is_due()
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::refilled(self.capacity, self.rate)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config.counted())
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
        self.charge(state, arrived, cost);
        // A slot that is saturated cannot be moved back.
        if state.next.is_saturated() { Nanos::MAX } else { now }
    }

    fn queue_capacity(&self, state: &mut LeakyBucketState, now: Nanos, max_wait: u64) -> u64 {
        if max_wait == u64::MAX {
            return u64::MAX;
        }
        self.observe(state, now);
        if state.next.is_saturated() {
            return 0;
        }
        let first = state.next.until();
        let behind = self.rate.grains(state.last.saturating_since(now));
        let latest = self.rate.grains(max_wait).checked_sub(behind);
        let Some(spare) = latest.and_then(|latest| latest.checked_sub(first)) else { return 0 };
        let (intervals, _) = div_rem(spare, self.rate.period);
        u64::try_from(intervals).unwrap_or(u64::MAX).saturating_add(1)
    }
}
