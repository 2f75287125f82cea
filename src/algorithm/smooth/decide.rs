//! The implementation of [`Algorithm`] for [`Smooth`].

use super::schedule::fine;
use super::{MAX_FIXED, Smooth, SmoothState};
use crate::algorithm::clock_step::earliest_slot;
use crate::algorithm::smooth::wide_math::mul_div_ceil;
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;

impl Algorithm for Smooth {
    type State = SmoothState;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> SmoothState {
        let stored = self.stored_permits.initial();
        SmoothState { last: now, next: fine(created_at.min(now)), stored }
    }

    #[inline]
    fn last_update(&self, state: &SmoothState) -> Nanos {
        state.last
    }

    fn check(&self, state: &mut SmoothState, now: Nanos, cost: u64) -> Decision {
        let observed = self.observe(state, now);
        let passes = self.is_due(state);
        if cost > 0 && !passes {
            return Decision::deny(self.at_once, 0, Some(self.until(state, now)), self.reset(state, now));
        }
        if cost > 0 {
            self.charge(state, observed, cost);
        }
        let remaining = self.passing(state, observed);
        let decision = Decision::allow(self.at_once, remaining, self.reset(state, now));
        if remaining == 0 { decision.with_next(self.until(state, now)) } else { decision }
    }

    fn peek(&self, state: &mut SmoothState, now: Nanos, cost: u64) -> Decision {
        let observed = self.observe(state, now);
        match self.passing(state, observed) {
            0 if cost > 0 => {
                Decision::deny(self.at_once, 0, Some(self.until(state, now)), self.reset(state, now))
            }
            passing => Decision::allow(self.at_once, passing, self.reset(state, now)),
        }
    }

    /// Moves the next scheduled time earlier by one interval per unit, but not before the key's time. Stored permits
    /// that were used are not given back.
    ///
    /// A charge is rounded up and a refund is rounded down. So if the interval is not a whole number of nanoseconds, a
    /// tiny part of the charge remains.
    fn refund(&self, state: &mut SmoothState, now: Nanos, cost: u64) {
        let observed = fine(self.observe(state, now));
        // The exact value of a saturated scheduled time is not known, so nothing is subtracted from it.
        if state.next > observed && state.next < MAX_FIXED {
            let charged = self.nanos_of(u128::from(cost));
            let given = if self.is_whole() { charged } else { charged.saturating_sub(1) };
            state.next = state.next.saturating_sub(given).max(observed);
        }
    }

    /// Undoes the part of the charge whose time cannot have passed since `charged_at`.
    fn undo(&self, state: &mut SmoothState, now: Nanos, cost: u64, charged_at: Nanos) {
        let observed = fine(self.observe(state, now));
        if charged_at <= state.last && state.next > observed && state.next < MAX_FIXED {
            let charged = self.nanos_of(u128::from(cost)).saturating_sub(1);
            let given = charged.saturating_sub(fine(Nanos(state.last.saturating_since(charged_at))));
            state.next = state.next.saturating_sub(given).max(observed);
        }
    }

    /// Charges the call if it is due. Otherwise moves the next scheduled time to `cost` intervals after the key's time,
    /// unless the scheduled time is later already. A `cost` of 0 changes nothing.
    fn charge_saturating(&self, state: &mut SmoothState, now: Nanos, cost: u64) {
        let observed = self.observe(state, now);
        match self.is_due(state) {
            _ if cost == 0 => {}
            true => self.charge(state, observed, cost),
            false => {
                state.next =
                    state.next.max(fine(observed).saturating_add(self.nanos_of(cost.into())).min(MAX_FIXED));
            }
        }
    }

    /// Keeps the number of intervals until the next scheduled time. If both configurations are bursty, keeps the stored
    /// time. If both warm up, and the old configuration can store permits, keeps the stored time as a fraction of the
    /// maximum. Otherwise starts with the initial stored time.
    fn migrate(&self, state: &mut SmoothState, from: &Self, now: Nanos) {
        let observed = from.observe(state, now);
        from.catch_up(state, observed);
        let observed = fine(observed);
        let (new, old) = (self.rate, from.rate);
        let times = u128::from(new.period) * u128::from(old.limit);
        let away = mul_div_ceil(state.next - observed, times, 1, &[new.limit, old.period], 0);
        state.next = observed.saturating_add(away).min(MAX_FIXED);
        state.stored = self.stored_permits.refill(state.stored, from.stored_permits);
    }

    fn is_fresh(&self, state: &SmoothState, now: Nanos) -> bool {
        let mut state = state.clone();
        let observed = self.observe(&mut state, now);
        self.catch_up(&mut state, observed);
        observed == now && self.is_due(&state) && state.stored == self.max_stored
    }

    fn policy(&self) -> QuotaPolicy {
        QuotaPolicy::refilled(self.capacity, self.rate)
    }

    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        Some(self.queue_config.counted())
    }

    fn ready_at(&self, state: &mut SmoothState, now: Nanos, _cost: u64) -> Option<Nanos> {
        self.observe(state, now);
        // The call is ready even while the clock is behind the key's time.
        Some(if self.is_due(state) { self.turn(state).min(now) } else { self.turn(state) })
    }

    /// Charges the call at its scheduled time. If this time is more than 5 ms before the key's time, charges the call
    /// at 5 ms before the key's time instead, and the schedule continues from there. The time of the stall is not
    /// stored as permits.
    fn admit_queued(&self, state: &mut SmoothState, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        let observed = self.observe(state, now);
        if !self.is_due(state) {
            return None;
        }
        self.catch_up(state, arrived.min(observed));
        state.next = state.next.max(fine(earliest_slot(observed)));
        let ready_at = self.turn(state);
        self.charge(state, Nanos::ZERO, cost);
        Some(ready_at)
    }

    fn project(&self, state: &mut SmoothState, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.charge(state, arrived, cost);
        now
    }

    /// Finds the number of calls by binary search, which is possible because no call is ready before the calls ahead of
    /// it.
    fn queue_capacity(&self, state: &mut SmoothState, now: Nanos, max_wait: u64) -> u64 {
        if max_wait == u64::MAX {
            return u64::MAX;
        }
        self.observe(state, now);
        let latest = now.saturating_add(max_wait).min(Nanos(u64::MAX - 1));
        let (mut fit, mut beyond) = (0, u64::MAX);
        while fit < beyond {
            let middle = fit + (beyond - fit) / 2;
            match self.ready_after(state, middle) <= latest {
                true => fit = middle + 1,
                false => beyond = middle,
            }
        }
        fit
    }
}
