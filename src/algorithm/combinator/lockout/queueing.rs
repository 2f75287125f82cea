use super::{Lockout, LockoutState};
use crate::algorithm::{Admission, Algorithm, QueueConfig, Queueing, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

impl<A: Algorithm> Lockout<A> {
    fn inner(&self) -> &dyn Queueing<A::State> {
        match self.algorithm.queueing() {
            Some(queueing) => queueing,
            None => unreachable!("whether an algorithm queues does not change"),
        }
    }
}

/// The queue of the inner algorithm, closed to keys that are locked out.
impl<A: Algorithm> Queueing<LockoutState<A::State>> for Lockout<A> {
    fn queue_config(&self, state: &LockoutState<A::State>) -> QueueConfig {
        self.inner().queue_config(&state.state)
    }

    fn bottleneck(&self, state: &LockoutState<A::State>, cost: u64) -> usize {
        self.inner().bottleneck(&state.state, cost)
    }

    fn is_timed(&self) -> bool {
        self.inner().is_timed()
    }

    fn keeps_schedule(&self) -> bool {
        self.inner().keeps_schedule()
    }

    fn is_plain(&self) -> bool {
        false
    }

    fn follow(&self, state: &mut LockoutState<A::State>, arrived: Nanos, cost: u64) {
        self.inner().follow(&mut state.state, arrived, cost);
    }

    fn unfollow(&self, state: &mut LockoutState<A::State>, cost: u64) -> bool {
        self.inner().unfollow(&mut state.state, cost)
    }

    fn join(&self, cost: u64) -> Option<SharedPermit> {
        self.inner().join(cost)
    }

    fn end(&self, state: &mut LockoutState<A::State>, cost: u64) {
        self.inner().end(&mut state.state, cost);
    }

    fn take(&self, state: &mut LockoutState<A::State>, now: Nanos, cost: u64) -> Option<Decision> {
        self.inner().take(&mut state.state, now, cost)
    }

    fn look(&self, state: &mut LockoutState<A::State>, now: Nanos, cost: u64) -> Option<Decision> {
        self.inner().look(&mut state.state, now, cost)
    }

    fn time(&self, state: &LockoutState<A::State>) -> Nanos {
        self.inner().time(&state.state)
    }

    fn depart(&self, state: &mut LockoutState<A::State>, now: Nanos, arrived: Nanos, cost: u64) -> Admission {
        self.advance(&mut state.count, now);
        self.inner().depart(&mut state.state, now, arrived, cost)
    }

    fn capacity(&self, state: &LockoutState<A::State>) -> u64 {
        self.inner().capacity(&state.state)
    }

    fn at_once(&self, state: &LockoutState<A::State>) -> u64 {
        self.inner().at_once(&state.state)
    }

    fn fits(&self, state: &LockoutState<A::State>, cost: u64) -> bool {
        self.inner().fits(&state.state, cost)
    }

    fn lends(&self, state: &LockoutState<A::State>) -> Option<u64> {
        self.inner().lends(&state.state)
    }

    fn turn(&self, state: &LockoutState<A::State>, cost: u64) -> Nanos {
        self.inner().turn(&state.state, cost)
    }

    fn is_due(&self, state: &LockoutState<A::State>, cost: u64) -> bool {
        self.inner().is_due(&state.state, cost)
    }

    fn leave(&self, state: &mut LockoutState<A::State>, arrived: Nanos, cost: u64) {
        self.inner().leave(&mut state.state, arrived, cost);
    }

    fn passing(&self, state: &LockoutState<A::State>, seen: Nanos) -> u64 {
        self.inner().passing(&state.state, seen)
    }

    fn room(&self, state: &LockoutState<A::State>, now: Nanos, wait: u64) -> u64 {
        self.inner().room(&state.state, now, wait)
    }

    fn in_time(&self, state: &LockoutState<A::State>, cost: u64, now: Nanos, wait: u64) -> bool {
        self.inner().in_time(&state.state, cost, now, wait)
    }

    fn reset(&self, state: &LockoutState<A::State>, now: Nanos) -> u64 {
        self.inner().reset(&state.state, now)
    }

    fn observe(&self, state: &mut LockoutState<A::State>, now: Nanos) -> Nanos {
        self.advance(&mut state.count, now);
        self.inner().observe(&mut state.state, now)
    }

    fn keep(&self, state: &LockoutState<A::State>) -> Option<LockoutState<A::State>> {
        Some(LockoutState { state: self.inner().keep(&state.state)?, count: state.count })
    }

    fn take_back(&self, state: &mut LockoutState<A::State>, cost: u64, released: Nanos) {
        self.inner().take_back(&mut state.state, cost, released);
    }

    fn restore(&self, state: &mut LockoutState<A::State>, before: LockoutState<A::State>) {
        self.inner().restore(&mut state.state, before.state);
    }

    fn bars(&self, state: &LockoutState<A::State>) -> bool {
        state.count.left > 0
    }

    fn answer(
        &self,
        state: &mut LockoutState<A::State>,
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
}
