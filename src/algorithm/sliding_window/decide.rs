//! The implementation of [`Algorithm`] for [`SlidingWindow`].

use super::{SlidingWindow, SlidingWindowState};
use crate::algorithm::clock_step::step;
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;

impl Algorithm for SlidingWindow {
    type State = SlidingWindowState;

    const UNDO_BY_COPY: bool = false;
    const DENIALS_STAND: bool = true;
    const USAGE_IS_OF_QUOTA: bool = true;

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
        if cost > self.quota.limit() - state.total() {
            return self.deny(state, behind, cost);
        }
        if state.total() == 0 {
            state.into = self.width - 1;
        }
        state.set_total(state.total() + cost);
        state.set_open(state.open() + cost);
        self.allow(state, behind)
    }

    fn peek(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(state, now);
        match cost <= self.quota.limit() - state.total() {
            true => self.allow(state, behind),
            false => self.deny(state, behind, cost),
        }
    }

    /// Gives back the oldest units first. These would be available again first, so a refund never gives back too much,
    /// whichever charge the refund is for.
    fn refund(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64) {
        self.advance(state, now);
        self.remove_oldest(state, cost);
    }

    /// Undoes the charge if it was made within the last period.
    fn undo(&self, state: &mut SlidingWindowState, now: Nanos, cost: u64, charged_at: Nanos) {
        self.advance(state, now);
        if charged_at <= state.last && state.last.saturating_since(charged_at) < self.quota.period_nanos() {
            self.remove_at_age(state, cost, state.last.saturating_since(charged_at));
        }
    }

    /// Keeps each unit for at least one period of the new quota, counted from the last instant of the unit's old slice
    /// or, if that slice is open, from the latest clock reading. Units above the new limit are dropped, the oldest
    /// first.
    fn migrate(&self, state: &mut SlidingWindowState, from: &Self, now: Nanos) {
        from.advance(state, now);
        if (self.quota.period(), self.slices) != (from.quota.period(), from.slices) {
            self.reslice(state, from);
        }
        self.remove_oldest(state, state.total().saturating_sub(self.quota.limit()));
    }

    fn is_fresh(&self, state: &SlidingWindowState, now: Nanos) -> bool {
        let step = step(state.last, now, self.quota.period_nanos());
        step.behind == 0 && self.reset(state) <= step.elapsed
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
        let deficit = cost.min(self.quota.limit()).saturating_sub(self.quota.limit() - state.total());
        Some(now.saturating_add(match deficit {
            0 => 0,
            _ => self.until(state, deficit).saturating_add(behind),
        }))
    }
}
