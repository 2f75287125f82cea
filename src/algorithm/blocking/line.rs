use super::{Blocking, BlockingState};
use crate::algorithm::{Algorithm, Departure, Line, Patience, Place};
use crate::clock::Nanos;
use crate::decision::Decision;

impl<A: Algorithm> Blocking<A> {
    fn inner(&self) -> &dyn Line<A::State> {
        match self.rule.line() {
            Some(line) => line,
            None => unreachable!("whether there is a line does not change"),
        }
    }
}

/// The line of the rule inside, but for those who are blocked.
impl<A: Algorithm> Line<BlockingState<A::State>> for Blocking<A> {
    fn patience(&self, state: &BlockingState<A::State>) -> Patience {
        self.inner().patience(&state.state)
    }

    fn bottleneck(&self, state: &BlockingState<A::State>, cost: u64) -> usize {
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

    fn follow(&self, state: &mut BlockingState<A::State>, arrived: Nanos, cost: u64) {
        self.inner().follow(&mut state.state, arrived, cost);
    }

    fn unfollow(&self, state: &mut BlockingState<A::State>, cost: u64) -> bool {
        self.inner().unfollow(&mut state.state, cost)
    }

    fn join(&self, cost: u64) -> Option<Place> {
        self.inner().join(cost)
    }

    fn end(&self, state: &mut BlockingState<A::State>, cost: u64) {
        self.inner().end(&mut state.state, cost);
    }

    fn take(&self, state: &mut BlockingState<A::State>, now: Nanos, cost: u64) -> Option<Decision> {
        self.inner().take(&mut state.state, now, cost)
    }

    fn look(&self, state: &mut BlockingState<A::State>, now: Nanos, cost: u64) -> Option<Decision> {
        self.inner().look(&mut state.state, now, cost)
    }

    fn time(&self, state: &BlockingState<A::State>) -> Nanos {
        self.inner().time(&state.state)
    }

    fn depart(
        &self,
        state: &mut BlockingState<A::State>,
        now: Nanos,
        arrived: Nanos,
        cost: u64,
    ) -> Departure {
        self.advance(&mut state.count, now);
        self.inner().depart(&mut state.state, now, arrived, cost)
    }

    fn capacity(&self, state: &BlockingState<A::State>) -> u64 {
        self.inner().capacity(&state.state)
    }

    fn at_once(&self, state: &BlockingState<A::State>) -> u64 {
        self.inner().at_once(&state.state)
    }

    fn fits(&self, state: &BlockingState<A::State>, cost: u64) -> bool {
        self.inner().fits(&state.state, cost)
    }

    fn lends(&self, state: &BlockingState<A::State>) -> Option<u64> {
        self.inner().lends(&state.state)
    }

    fn turn(&self, state: &BlockingState<A::State>, cost: u64) -> Nanos {
        self.inner().turn(&state.state, cost)
    }

    fn is_due(&self, state: &BlockingState<A::State>, cost: u64) -> bool {
        self.inner().is_due(&state.state, cost)
    }

    fn leave(&self, state: &mut BlockingState<A::State>, arrived: Nanos, cost: u64) {
        self.inner().leave(&mut state.state, arrived, cost);
    }

    fn passing(&self, state: &BlockingState<A::State>, seen: Nanos) -> u64 {
        self.inner().passing(&state.state, seen)
    }

    fn room(&self, state: &BlockingState<A::State>, now: Nanos, wait: u64) -> u64 {
        self.inner().room(&state.state, now, wait)
    }

    fn in_time(&self, state: &BlockingState<A::State>, cost: u64, now: Nanos, wait: u64) -> bool {
        self.inner().in_time(&state.state, cost, now, wait)
    }

    fn reset(&self, state: &BlockingState<A::State>, now: Nanos) -> u64 {
        self.inner().reset(&state.state, now)
    }

    fn observe(&self, state: &mut BlockingState<A::State>, now: Nanos) -> Nanos {
        self.advance(&mut state.count, now);
        self.inner().observe(&mut state.state, now)
    }

    fn keep(&self, state: &BlockingState<A::State>) -> Option<BlockingState<A::State>> {
        Some(BlockingState { state: self.inner().keep(&state.state)?, count: state.count })
    }

    fn take_back(&self, state: &mut BlockingState<A::State>, cost: u64, released: Nanos) {
        self.inner().take_back(&mut state.state, cost, released);
    }

    fn restore(&self, state: &mut BlockingState<A::State>, before: BlockingState<A::State>) {
        self.inner().restore(&mut state.state, before.state);
    }

    fn bars(&self, state: &BlockingState<A::State>) -> bool {
        state.count.left > 0
    }

    fn answer(
        &self,
        state: &mut BlockingState<A::State>,
        now: Nanos,
        cost: u64,
        counts: bool,
        decision: Decision,
    ) -> Decision {
        let mut count = state.count;
        let behind = self.advance(&mut count, now);
        if cost == 0 {
            return self.nothing(&count, behind, decision);
        }
        if count.left > 0 || !decision.is_allowed() {
            self.refuse(&mut count);
        }
        let told = self.told(&count, behind, decision);
        if counts {
            state.count = count;
        }
        told
    }
}
