//! The slices of a [`SlidingWindow`], which are kept in a ring buffer.

use super::{SlidingWindow, SlidingWindowState};
use crate::algorithm::clock_step::step;
use crate::clock::Nanos;
use crate::decision::Decision;

impl SlidingWindow {
    /// Advances the state to `now`. Returns how far the clock is behind the key's time, in nanoseconds.
    #[inline]
    pub(super) fn advance(&self, state: &mut SlidingWindowState, now: Nanos) -> u64 {
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
    pub(super) fn close(&self, state: &mut SlidingWindowState) {
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
    pub(super) fn slot(&self, state: &SlidingWindowState, age: u32) -> usize {
        let back = state.newest_index() + self.slices - (age - 1);
        (if back >= self.slices { back - self.slices } else { back }) as usize
    }

    /// Returns the time until one period has passed since the last instant of the slice with this `age`. The open slice
    /// has the age 0.
    #[inline]
    pub(super) fn expires_in(&self, state: &SlidingWindowState, age: u32) -> u64 {
        // The sum is at most two periods of at most 2^63 ns each, so it does not overflow.
        let from_open = self.quota.period_nanos() + self.width - 1 - state.into;
        from_open.saturating_sub(u64::from(age) * self.width)
    }

    /// Returns the time until `deficit` units are available again.
    pub(super) fn until(&self, state: &mut SlidingWindowState, deficit: u64) -> u64 {
        let (until, oldest_age) = self.free_after(state, deficit);
        state.set_oldest_age(oldest_age);
        until
    }

    /// Returns the time until `deficit` units are available again, and an age above which all closed slices are empty.
    pub(super) fn free_after(&self, state: &SlidingWindowState, deficit: u64) -> (u64, u32) {
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
    pub(super) fn reset(&self, state: &SlidingWindowState) -> u64 {
        match (state.total(), state.open()) {
            (0, _) => 0,
            (_, 1..) => self.expires_in(state, 0),
            (_, 0) => (1..=state.oldest_age())
                .find(|age| state.closed(self.slot(state, *age)) > 0)
                .map_or(0, |newest_index| self.expires_in(state, newest_index)),
        }
    }

    /// Removes `units` from the oldest slices, or all units if there are fewer.
    pub(super) fn remove_oldest(&self, state: &mut SlidingWindowState, units: u64) {
        let mut left = units.min(state.total());
        state.set_total(state.total() - left);
        for age in (1..=self.slices).rev() {
            left -= state.take_closed(self.slot(state, age), left);
        }
        state.set_open(state.open() - left);
    }

    /// Removes `units` from the slice that was open `ago` nanoseconds ago, and from older slices if that slice has
    /// fewer units. Newer slices keep their units.
    pub(super) fn remove_at_age(&self, state: &mut SlidingWindowState, units: u64, ago: u64) {
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
    pub(super) fn reslice(&self, state: &mut SlidingWindowState, from: &Self) {
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

    pub(super) fn empty(&self, now: Nanos) -> SlidingWindowState {
        SlidingWindowState::new(now, self.slices)
    }

    pub(super) fn deny(&self, state: &mut SlidingWindowState, behind: u64, cost: u64) -> Decision {
        let limit = self.quota.limit();
        let retry = (cost <= limit).then(|| {
            let deficit = state.total() - (limit - cost);
            self.until(state, deficit).saturating_add(behind)
        });
        Decision::deny(limit, limit - state.total(), retry, self.reset(state).saturating_add(behind))
    }

    #[inline]
    pub(super) fn allow(&self, state: &SlidingWindowState, behind: u64) -> Decision {
        let limit = self.quota.limit();
        Decision::allow(limit, limit - state.total(), self.reset(state).saturating_add(behind))
    }
}
