//! The schedule of a [`Smooth`]: when a call is due, and how many permits are stored then.

use super::stored_permits::{FRACTION_BITS, StoredPermits};
use super::{MARGIN, MAX_FIXED, Smooth, SmoothState};
use crate::algorithm::clock_step::step;
use crate::algorithm::rate::div_rem;
use crate::clock::Nanos;

impl Smooth {
    /// Returns the time of `units` intervals in fine units, rounded up, but at most [`MAX_FIXED`].
    pub(super) fn nanos_of(&self, units: u128) -> u128 {
        let grains = units.saturating_mul(u128::from(self.rate.period));
        let (nanos, rest) = div_rem(grains, self.rate.limit);
        if nanos >= MAX_FIXED >> FRACTION_BITS {
            return MAX_FIXED;
        }
        (nanos << FRACTION_BITS) + (u128::from(rest) << FRACTION_BITS).div_ceil(u128::from(self.rate.limit))
    }

    /// If `now` is after `next`, stores the permits of the idle time from `next` to `now`, and sets `next` to `now`.
    pub(super) fn catch_up(&self, state: &mut SmoothState, now: Nanos) {
        let now = fine(now);
        if now > state.next {
            state.stored =
                self.max_stored.min(state.stored + self.stored_permits.accrued_in(now - state.next));
            state.next = now;
        }
    }

    /// Returns whether the interval is a whole number of nanoseconds.
    pub(super) fn is_whole(&self) -> bool {
        self.rate.limit == 1
    }

    /// Returns the scheduled time of the next call, rounded up to the nanosecond.
    pub(super) fn turn(&self, state: &SmoothState) -> Nanos {
        ceil(self.exact(state.next))
    }

    /// Returns whether the next call can be admitted at `state.last`, the latest clock reading of the key.
    pub(super) fn is_due(&self, state: &SmoothState) -> bool {
        self.exact(state.next) <= fine(state.last)
    }

    /// Charges a call at its scheduled time. `arrived` is when the call arrived.
    pub(super) fn charge(&self, state: &mut SmoothState, arrived: Nanos, cost: u64) {
        self.catch_up(state, arrived);
        let time = self.withdraw(&mut state.stored, u128::from(cost));
        state.next = state.next.saturating_add(time).min(MAX_FIXED);
    }

    /// Advances the state to `now`, and returns the key's time after this.
    pub(super) fn observe(&self, state: &mut SmoothState, now: Nanos) -> Nanos {
        let step = step(state.last, now, self.quota.period_nanos());
        if step.set_back > 0 {
            // The schedule moves back with the clock. The idle time until the old reading is stored first.
            let last = state.last;
            self.catch_up(state, last);
            state.next = state.next.saturating_sub(u128::from(step.set_back) << FRACTION_BITS);
        }
        state.last = step.last_update(now);
        state.last
    }

    /// Returns how many calls of cost 1 can pass now, one after another.
    pub(super) fn passing(&self, state: &SmoothState, observed: Nanos) -> u64 {
        if !self.is_due(state) {
            return 0;
        }
        let mut state = state.clone();
        self.catch_up(&mut state, observed);
        self.burst_of(state.stored)
    }

    pub(super) fn until(&self, state: &SmoothState, now: Nanos) -> u64 {
        self.turn(state).saturating_since(now)
    }

    /// Returns the scheduled time of a call if other calls, which cost `units` in total, are admitted before it.
    pub(super) fn ready_after(&self, state: &SmoothState, units: u64) -> Nanos {
        if units == 0 {
            return self.turn(state);
        }
        let (mut state, last) = (state.clone(), state.last);
        self.catch_up(&mut state, last);
        let next = state.next.saturating_add(self.withdraw(&mut state.stored, u128::from(units)));
        ceil(self.exact(next))
    }

    /// Returns the time until the key is fresh.
    pub(super) fn reset(&self, state: &SmoothState, now: Nanos) -> u64 {
        let mut state = state.clone();
        let last = state.last;
        self.catch_up(&mut state, last);
        ceil(state.next.saturating_add(self.stored_permits.until(self.max_stored - state.stored)))
            .saturating_since(now)
    }

    /// Returns the time at which a call may be admitted if its scheduled time was computed as `next`.
    ///
    /// If a scheduled time was rounded up, less idle time is left after it, and fewer permits are stored. A limiter
    /// that warms up is then less cold, and the following scheduled times are too early. So with a warm-up, a margin is
    /// added to each time that is not a whole number of nanoseconds.
    pub(super) fn exact(&self, next: u128) -> u128 {
        let is_exact =
            next.is_multiple_of(1 << FRACTION_BITS) || matches!(self.stored_permits, StoredPermits::Bursty);
        if is_exact { next } else { next.saturating_add(MARGIN) }
    }

    /// Returns how many calls of cost 1 can pass at one instant: those that cost no time, and one more, whose cost
    /// delays the next call.
    pub(super) fn burst_of(&self, stored: u128) -> u64 {
        self.stored_permits.free(stored, self.nanos_of(1)).saturating_add(1)
    }

    /// Takes `units` permits: stored permits first, and new permits once `stored` is used up. Returns the time by which
    /// these permits delay the next call, in fine units.
    pub(super) fn withdraw(&self, stored: &mut u128, units: u128) -> u128 {
        self.stored_permits.withdraw(stored, self.nanos_of(units))
    }
}

pub(super) fn fine(now: Nanos) -> u128 {
    u128::from(now.0) << FRACTION_BITS
}

pub(super) fn ceil(fine: u128) -> Nanos {
    Nanos(u64::try_from(fine.div_ceil(1 << FRACTION_BITS)).unwrap_or(u64::MAX))
}
