//! The implementation of [`Algorithm`] for [`Lockout`].

use super::{Lockout, LockoutState, RejectionCount, SHARED, nanos};
use crate::algorithm::{Algorithm, QueueConfig, QuotaPolicy, Semaphore, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

impl<A: Algorithm> Algorithm for Lockout<A> {
    type State = LockoutState<A::State>;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;
    const ADDS_UP: bool = A::ADDS_UP;
    const NEEDS_RELEASE: bool = A::NEEDS_RELEASE;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
        let count = RejectionCount { last: now, left: 0, refusals: 0, age: 0 };
        LockoutState { state: self.algorithm.new_state(created_at, now), count }
    }

    #[inline]
    fn last_update(&self, state: &Self::State) -> Nanos {
        self.algorithm.last_update(&state.state)
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(&mut state.count, now);
        if cost == 0 {
            return self.zero_cost(&state.count, behind, self.algorithm.check(&mut state.state, now, 0));
        }
        let blocked = state.count.left > 0;
        let decision = match blocked {
            true => self.algorithm.peek(&mut state.state, now, cost),
            false => self.algorithm.check(&mut state.state, now, cost),
        };
        if blocked || !decision.is_allowed() {
            self.refuse(&mut state.count);
        }
        self.reported(&state.count, behind, decision)
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        let behind = self.advance(&mut state.count, now);
        let decision = self.algorithm.peek(&mut state.state, now, cost);
        if cost == 0 {
            return self.zero_cost(&state.count, behind, decision);
        }
        let mut after_check = state.count;
        if after_check.left > 0 || !decision.is_allowed() {
            self.refuse(&mut after_check);
        }
        // `retry_after` and whether the key is locked out are what a check would report. The other fields describe the
        // state before the check.
        let checked = self.reported(&after_check, behind, decision);
        self.reported(&state.count, behind, decision)
            .with_retry_after(checked.retry_after().map(nanos))
            .with_locked_out(checked.is_locked_out())
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.algorithm.refund(&mut state.state, now, cost);
    }

    fn undo(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Nanos) {
        self.algorithm.undo(&mut state.state, now, cost, charged_at);
    }

    /// Keeps the rest of a lockout, at most the new duration. Keeps the counted denials if the new window has not
    /// ended, but always fewer than the number that begins a lockout.
    fn migrate(&self, state: &mut Self::State, from: &Self, now: Nanos) {
        from.advance(&mut state.count, now);
        self.algorithm.migrate(&mut state.state, &from.algorithm, now);
        let count = &mut state.count;
        count.left = count.left.min(self.duration);
        if count.refusals != SHARED {
            count.refusals = if count.age < self.window { count.refusals.min(self.refusals - 1) } else { 0 };
        }
    }

    /// Charges even during a lockout, because another tier has admitted the call.
    fn charge_saturating(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.algorithm.charge_saturating(&mut state.state, now, cost);
    }

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        let mut count = state.count;
        self.advance(&mut count, now);
        matches!((count.left, count.refusals), (0, 0 | SHARED)) && self.algorithm.is_fresh(&state.state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.algorithm.policy()
    }

    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        self.algorithm.for_each_policy(f);
    }

    fn release(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.algorithm.release(&mut state.state, now, cost);
    }

    fn reset_state(&self, state: &mut Self::State, fresh: Self::State) {
        state.count = fresh.count;
        self.algorithm.reset_state(&mut state.state, fresh.state);
    }

    fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
        self.algorithm.for_each_total(f);
    }

    fn in_flight(&self, state: &Self::State) -> u64 {
        self.algorithm.in_flight(&state.state)
    }

    /// Returns [`Usage::LOCKED_OUT`] during a lockout. Otherwise returns the higher of two usages: that of the inner
    /// algorithm, and the counted denials as a fraction of the denials that begin a lockout.
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        let mut count = state.count;
        self.advance(&mut count, now);
        match (count.left, count.refusals) {
            (0, 0 | SHARED) => self.algorithm.usage(&state.state, now),
            (0, refusals) => self.algorithm.usage(&state.state, now).max(Usage::of(refusals, self.refusals)),
            _ => Usage::LOCKED_OUT,
        }
    }

    fn set_shared(&self, state: &mut Self::State, shared: bool) {
        self.algorithm.set_shared(&mut state.state, shared);
        if shared != (state.count.refusals == SHARED) {
            state.count.refusals = if shared { SHARED } else { 0 };
            state.count.left = 0;
        }
    }

    /// Returns the queue configuration of the inner algorithm, made exclusive. Calls that arrive during a lockout are
    /// not queued.
    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        self.algorithm.queue_config().map(QueueConfig::exclusive)
    }

    fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
        self.algorithm.ready_at(&mut state.state, now, cost)
    }

    /// Admits a queued call even during a lockout, because the call was queued before the lockout began.
    fn admit_queued(&self, state: &mut Self::State, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        self.algorithm.admit_queued(&mut state.state, now, arrived, cost)
    }

    fn project(&self, state: &mut Self::State, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.algorithm.project(&mut state.state, now, arrived, cost)
    }

    fn queue_capacity(&self, state: &mut Self::State, now: Nanos, max_wait: u64) -> u64 {
        self.algorithm.queue_capacity(&mut state.state, now, max_wait)
    }

    fn report(
        &self,
        state: &mut Self::State,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        let mut count = state.count;
        let behind = self.advance(&mut count, now);
        if cost == 0 {
            return self.zero_cost(&count, behind, decision);
        }
        if count.left > 0 || !decision.is_allowed() {
            self.refuse(&mut count);
        }
        let reported = self.reported(&count, behind, decision);
        if counts {
            state.count = count;
        }
        reported
    }

    /// Restores only the state of the inner algorithm. Denials that were counted after the copy was made stay counted.
    fn restore(&self, state: &mut Self::State, before: Self::State) {
        self.algorithm.restore(&mut state.state, before.state);
    }
}
