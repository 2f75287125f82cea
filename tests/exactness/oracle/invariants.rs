//! Checks that what a decision reports is true, by the model, and by calls on copies of the state.

use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::Nanos;

use super::checker::{Sequence, ensure, nanos};
use super::model::{Oracle, Verdict};

impl<A: Algorithm, O: Oracle> Sequence<'_, A, O> {
    /// Checks what `decision` reports against the state after the decision.
    pub(super) fn its_reports_are_true(
        &mut self,
        decision: &Decision,
        at: u64,
        cost: u64,
    ) -> Result<(), String> {
        self.retry_after_is_true(decision, at, cost)?;
        self.remaining_is_true(decision, at)?;
        self.reset_after_is_true(decision, at)
    }

    fn check(&self, state: &mut A::State, at: u64, cost: u64) -> Decision {
        self.algorithm.check(state, Nanos(at), cost)
    }

    /// Returns whether a call on a copy of the state would be admitted.
    fn admits(&self, state: &A::State, at: u64, cost: u64) -> bool {
        self.check(&mut state.clone(), at, cost).is_allowed()
    }

    fn retry_after_is_true(&mut self, decision: &Decision, at: u64, cost: u64) -> Result<(), String> {
        let fits = self.oracle.capacity().is_none_or(|capacity| cost <= capacity);
        let reported = decision.retry_after();
        if decision.is_allowed() {
            ensure!(reported.is_none(), "an admission has a retry_after");
            return Ok(());
        }
        ensure!(reported.is_some() == fits, "retry_after is there exactly if the cost can fit");
        let Some(wait) = reported.map(|reported| nanos(Some(reported))) else {
            let later = at.saturating_add(self.random.any_size());
            ensure!(!self.admits(&self.state, later, cost), "never fits, but was admitted later");
            return Ok(());
        };
        // If the clock shows its last reading, there is no later reading.
        ensure!(wait > 0 || at == u64::MAX, "denied, but to be retried at once");
        let end = self.setup.end;
        let too_early = self.admits(&self.state, end, cost) && self.oracle_denies(end, cost);
        ensure!(!too_early, "when the clock ends, admitted early");
        if wait == 0 {
            return Ok(());
        }
        let in_time = at.saturating_add(wait);
        let mut hammering = self.state.clone();
        for early in [self.random.below(wait), self.random.below(wait), wait - 1] {
            let early = at.saturating_add(early).min(self.setup.end);
            if early < in_time {
                ensure!(!self.admits(&self.state, early, cost), "admitted at {early}, before retry_after");
                ensure!(
                    !self.oracle_admits(early, cost),
                    "the rule admits it at {early}, before retry_after"
                );
            }
        }
        let _ = self.check(&mut hammering, in_time.saturating_sub(1).min(self.setup.end), cost);
        if self.due(at, wait).is_some() {
            ensure!(self.admits(&self.state, in_time, cost), "denied at retry_after");
            ensure!(self.admits(&hammering, in_time, cost), "denied at retry_after, having hammered");
            ensure!(!self.oracle_denies(in_time, cost), "the rule denies it at retry_after");
        }
        Ok(())
    }

    /// Returns when a reported time will have passed. Returns `None` if 584 years are reported, or if the clock ends
    /// before.
    fn due(&self, at: u64, reported: u64) -> Option<u64> {
        let due = at.checked_add(reported)?;
        (reported < u64::MAX - 1 && due < u64::MAX && due <= self.setup.end).then_some(due)
    }

    fn oracle_at(&self, at: u64) -> O {
        let mut oracle = self.oracle.clone();
        oracle.observe(at);
        oracle
    }

    fn oracle_admits(&self, at: u64, cost: u64) -> bool {
        self.oracle_at(at).verdict(cost) == Verdict::Admit
    }

    fn oracle_denies(&self, at: u64, cost: u64) -> bool {
        self.oracle_at(at).verdict(cost) == Verdict::Deny
    }

    fn remaining_is_true(&self, decision: &Decision, at: u64) -> Result<(), String> {
        let reported = decision.remaining();
        let due = self.oracle.remaining();
        ensure!(due.contains(&reported), "remaining should be {due:?}");
        let mut state = self.state.clone();
        if reported <= 6 || self.oracle.capacity().is_none() {
            for n in 0..reported.min(100) {
                ensure!(self.check(&mut state, at, 1).is_allowed(), "only {n} more were admitted");
            }
        } else {
            ensure!(self.check(&mut state, at, reported).is_allowed(), "what remains was denied");
            let more = reported.checked_add(1);
            ensure!(
                more.is_none_or(|more| !self.admits(&self.state, at, more)),
                "more than remaining admitted"
            );
        }
        let tried = self.oracle.capacity().is_some() || reported <= 100;
        ensure!(
            !tried || !self.check(&mut state, at, 1).is_allowed(),
            "one more than remaining was admitted"
        );
        Ok(())
    }

    fn reset_after_is_true(&self, decision: &Decision, at: u64) -> Result<(), String> {
        let reported = nanos(Some(decision.reset_after()));
        let due = self.oracle.reset();
        let (least, most) = (*due.start(), *due.end());
        let end = u128::from(self.setup.end);
        if u128::from(at) + least > end {
            ensure!(u128::from(at) + u128::from(reported) >= end, "reset_after should be {due:?}");
        } else {
            let reported = u128::from(reported);
            let beyond = reported + u128::from(at) >= end && most + u128::from(at) >= end;
            ensure!((least..=most).contains(&reported) || beyond, "reset_after should be {due:?}");
        }
        if reported > 0 && least > 0 && self.oracle.behind() == 0 {
            let least = u64::try_from(least).unwrap_or(u64::MAX).min(reported);
            let early = at.saturating_add(least.saturating_sub(1)).min(self.setup.end);
            ensure!(!self.algorithm.is_fresh(&self.state, Nanos(early)), "fresh before reset_after");
            if let Some(whole) = self.oracle.whole() {
                ensure!(!self.admits(&self.state, early, whole), "all was admitted before reset_after");
            }
        }
        let Some(due) = self.due(at, reported) else { return Ok(()) };
        ensure!(self.algorithm.is_fresh(&self.state, Nanos(due)), "not fresh at reset_after");
        if let Some(whole) = self.oracle.whole() {
            let full = *self.oracle_at(due).remaining().start() == whole;
            ensure!(full, "the rule has not reset at reset_after");
            ensure!(self.admits(&self.state, due, whole), "not all is admitted at reset_after");
        }
        Ok(())
    }

    /// Checks that a peek reports the same as a call, and charges nothing.
    pub(super) fn peeking_agrees_with_calling(
        &self,
        state: &A::State,
        at: u64,
        cost: u64,
    ) -> Result<(), String> {
        let idle = self.check(&mut state.clone(), at, 0);
        for cost in [cost, 1] {
            let mut peeked = state.clone();
            let peek = self.algorithm.peek(&mut peeked, Nanos(at), cost);
            let check = self.check(&mut state.clone(), at, cost);
            ensure!(peek.is_allowed() == check.is_allowed(), "peek says {peek:?}, check {check:?}");
            ensure!(peek.retry_after() == check.retry_after(), "peek says {peek:?}, check {check:?}");
            ensure!(peek.remaining() == idle.remaining(), "peek says {peek:?}, a cost of 0 {idle:?}");
            ensure!(peek.reset_after() == idle.reset_after(), "peek says {peek:?}, a cost of 0 {idle:?}");
            let after = self.check(&mut peeked, at, cost);
            ensure!(after == check, "check {check:?}, but after a look {after:?}");
        }
        Ok(())
    }

    pub(super) fn splitting_changes_nothing(&self, before: &A::State, at: u64) -> Result<(), String> {
        if self.oracle.capacity().is_none() {
            return Ok(());
        }
        let whole = self.check(&mut before.clone(), at, 3);
        let mut split = before.clone();
        let parts = [(); 3].map(|()| self.check(&mut split, at, 1));
        if whole.is_allowed() {
            ensure!(parts[2] == whole, "three at once: {whole:?}, one by one: {:?}", parts[2]);
        } else {
            ensure!(!parts[2].is_allowed(), "three at once are denied, one by one admitted");
        }
        Ok(())
    }
}
