use std::fmt::Debug;
use std::time::Duration;

use super::{LockoutBuilder, QueueConfig, QuotaPolicy, SharedPermit, Usage};
use crate::clock::Nanos;
use crate::decision::Decision;

/// An algorithm that decides whether a call may pass.
///
/// Implement it to bring your own. Every method should return in constant time, must not panic for any `now` and
/// `cost`, and must allow a cost of 0 without changing what the key may do. All values of a type must agree on whether
/// there is a [queue](Algorithm::queue_config).
///
/// An algorithm that only decides implements the required methods. One that also queues calls adds
/// [`queue_config`](Algorithm::queue_config).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no algorithm that decides whether a call may pass",
    note = "take one of `tower_throttle::algorithm`, or a tuple of them; `block_for(..)` becomes one by `.after(n)`"
)]
pub trait Algorithm: Clone + Debug + Send + Sync + 'static {
    /// The state of one key.
    type State: Clone + Debug + Send + Sync + 'static;

    /// The way in which the latest admission of a queued call is undone: `true` by [restoring](Algorithm::restore) a copy
    /// of the state, `false` by [`undo`](Algorithm::undo). Choose `false` if that is as exact, or a copy expensive.
    const UNDO_BY_COPY: bool = true;

    /// `true` if a [projected](Algorithm::project) call can be removed from among others by a
    /// [`refund`](Algorithm::refund) of its cost, exactly.
    const ADDS_UP: bool = false;

    /// `true` if an admitted call holds units until it ends. When the call ends, it is [released](Algorithm::release)
    /// once, and so is its part of the [total](Algorithm::release_total) of all keys.
    const NEEDS_RELEASE: bool = false;

    /// Returns the state, at `now`, of a fresh key, for a limiter created at `created_at`.
    ///
    /// Such a key counts as idle since `created_at`.
    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State;

    /// Undoes a charge of `cost` made at `charged_at`, as far as it still counts.
    ///
    /// Only that very charge is given back, however much else the key has used, and nothing of it if the clock was set
    /// back behind `charged_at`. A [`refund`](Algorithm::refund), in contrast, does not know which charge it is for. By
    /// default, a charge no longer counts once time has passed.
    fn undo(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Nanos) {
        if now <= charged_at {
            self.refund(state, now, cost);
        }
    }

    /// Returns the latest clock reading that the state has observed.
    fn last_update(&self, state: &Self::State) -> Nanos;

    /// Charges `cost` units if they are available, all or none.
    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Returns the decision that [`check`](Algorithm::check) of that cost would make, without charging: `remaining` and
    /// `reset_after` describe the state as it is.
    ///
    /// The state may be advanced to `now`, which changes no decision.
    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision;

    /// Gives back up to `cost` units that were charged and still count. Units that no longer count are not given back: a
    /// key never has more than a fresh one.
    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64);

    /// Converts `state` at `now` from the configuration `old` to this one.
    ///
    /// What was used stays used, but no more of it than this configuration could ever charge a key: so no call waits
    /// longer than this configuration could demand. See
    /// [replacing an algorithm](crate::limiter::RateLimiter::replace).
    fn migrate(&self, state: &mut Self::State, old: &Self, now: Nanos);

    /// Charges units that another tier has admitted, as far as there is room for them. For [`Tiered`](super::Tiered).
    fn charge_saturating(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        let room = self.peek(state, now, 0).remaining();
        let _ = self.check(state, now, cost.min(room));
    }

    /// Returns whether the state is fresh: it answers, now and later, as that of a new key, and may be forgotten. It is
    /// not fresh while `now` is behind its latest clock reading.
    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool;

    /// Returns the policy that is reported to clients: the quota and the window of the `RateLimit-Policy` field.
    fn policy(&self) -> QuotaPolicy;

    /// Calls `f` with the policy of each limit, in the order of [`Decision::limit_index`]. A tuple has more than one.
    fn for_each_policy(&self, f: &mut dyn FnMut(QuotaPolicy)) {
        f(self.policy());
    }

    /// Denies every call of a key for the whole of `duration` [`after`](LockoutBuilder::after) a number of
    /// denials. See [`Lockout`](super::Lockout).
    ///
    /// # Panics
    ///
    /// Panics if `duration` is zero.
    fn block_for(self, duration: Duration) -> LockoutBuilder<Self> {
        LockoutBuilder::new(self, duration)
    }

    /// Releases the units of a call of `cost` that has ended: its key holds that much less.
    fn release(&self, _state: &mut Self::State, _now: Nanos, _cost: u64) {}

    /// Releases a call of `cost` that has ended from the total of all keys. The call was made with this algorithm.
    fn release_total(&self, _cost: u64) {}

    /// Returns the number of units that calls in progress hold. A key with units in flight is never evicted.
    fn in_flight(&self, _state: &Self::State) -> u64 {
        0
    }

    /// Returns how near the key is to its limit at `now`. A store that is full evicts the least used of several keys.
    ///
    /// By default, this is the fraction of the limit that a [`peek`](Algorithm::peek) of a copy reports as used.
    fn usage(&self, state: &Self::State, now: Nanos) -> Usage {
        Usage::reported_by(&self.peek(&mut state.clone(), now, 0))
    }

    /// Marks the state as one that several keys share, or as a key's own again. A shared state never locks its keys
    /// out, so that one of them cannot lock out the others. For [`Lockout`](super::Lockout), and algorithms that contain it.
    fn set_shared(&self, _state: &mut Self::State, _shared: bool) {}

    /// Resets the state to `fresh`, except for the units that calls in progress hold.
    fn reset_state(&self, state: &mut Self::State, fresh: Self::State) {
        *state = fresh;
    }

    /// Returns how calls are queued. `None` if the algorithm cannot queue: a call that may not pass now is denied.
    ///
    /// All methods below are for queues. An algorithm that queues needs to implement this one only: by default, a
    /// queued call is admitted when a [`check`](Algorithm::check) of it passes, at the time that a
    /// [`peek`](Algorithm::peek) reports.
    #[inline]
    fn queue_config(&self) -> Option<QueueConfig> {
        None
    }

    /// Returns the time at which the next queued call, of `cost`, can be admitted. `None` if it is unknown.
    ///
    /// A time in the past means that it can be admitted now, and [`Nanos::MAX`] a time beyond the end of time. A cost
    /// that never fits is that of a call which was made with another algorithm: it is admitted when the whole limit is
    /// available.
    fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
        let mut decision = self.peek(state, now, cost);
        if decision.never_fits() {
            decision = self.peek(state, now, decision.limit());
        }
        match decision.is_allowed() {
            true => Some(now),
            false => decision.retry_after().map(|wait| now.saturating_add(Nanos::from(wait).0)),
        }
    }

    /// Charges the next queued call, of `cost`, that arrived at `arrived`, if it can be admitted at `now`. Returns the
    /// time for which it was charged: by default `now`, for a bucket its scheduled time, though the timer was late.
    ///
    /// It counts no denial.
    fn admit_queued(&self, state: &mut Self::State, now: Nanos, _arrived: Nanos, cost: u64) -> Option<Nanos> {
        let mut decision = self.check(state, now, cost);
        if decision.never_fits() {
            decision = self.check(state, now, decision.limit());
        }
        decision.is_allowed().then_some(now)
    }

    /// Charges a queued call to `state`, a copy, as if it were admitted at its scheduled time, which may be in the
    /// future. Returns the clock reading with which the copy is to be asked from then on, at least `now`.
    fn project(&self, state: &mut Self::State, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        let ready_at = self.ready_at(state, now, cost).map_or(now, |ready_at| ready_at.max(now));
        let _ = self.admit_queued(state, ready_at, arrived, cost);
        ready_at
    }

    /// Returns how many calls of cost 1 that arrive at `now`, one after another, would wait no longer than `max_wait`
    /// nanoseconds, regardless of the number of places. Only for algorithms whose queued calls
    /// [count as admitted](QueueConfig::counted).
    fn queue_capacity(&self, _state: &mut Self::State, _now: Nanos, _max_wait: u64) -> u64 {
        u64::MAX
    }

    /// Adjusts a decision that the queue has made on a call of `cost` before it is returned. `counts` is false for a
    /// peek. For [`Lockout`](super::Lockout), which counts denials.
    #[inline]
    fn report(
        &self,
        _state: &mut Self::State,
        _now: Nanos,
        _cost: u64,
        _counts: bool,
        decision: Decision,
    ) -> Decision {
        decision
    }

    /// Reserves the share of a queued call of `cost` in the total of all keys, for algorithms whose queued calls count
    /// there. Returns `None` if the total is reached.
    #[inline]
    fn reserve(&self, _cost: u64) -> Option<SharedPermit> {
        Some(SharedPermit::default())
    }

    /// Undoes the latest admission of a queued call: restores the state `before`, at the time that is known by now.
    fn restore(&self, state: &mut Self::State, before: Self::State) {
        let now = self.last_update(state);
        *state = before;
        let _ = self.peek(state, now, 0);
    }
}
