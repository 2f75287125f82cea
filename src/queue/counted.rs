//! Decisions whose `limit` and `remaining` include the places of the queue.

use super::arrival::{Arrival, capacity};
use super::view::QueueView;
use crate::algorithm::Algorithm;
use crate::decision::Decision;

impl<A: Algorithm> QueueView<'_, A> {
    /// Returns whether `limit` and `remaining` of calls like `arrival` include the places of the queue. They do if the
    /// queue is [counted](crate::algorithm::QueueConfig::counted), or if only calls with priority wait and `arrival`
    /// has priority.
    #[inline]
    pub(super) fn counts_places(&self, arrival: Arrival) -> bool {
        self.config.is_counted() || self.borrowable_units(arrival).is_some()
    }

    /// Returns the decision on an admitted call. `decision` is what the algorithm decided without regard to the queue.
    pub(super) fn counted_admission(&mut self, decision: Decision, arrival: Arrival) -> Decision {
        let Arrival { now, cost, priority, max_wait, .. } = arrival;
        let arrival = Arrival { priority, max_wait, ..Arrival::new(now, 1) };
        let reset = self.reset(now);
        let remaining = self.remaining(decision, arrival);
        let decision = Decision::allow(self.limit(decision, arrival), remaining, reset);
        match remaining {
            // A call of cost 0 must not give the key a new tier, as the search for the next call would.
            0 if cost == 0 && self.is_empty() => {
                let mut copy = self.state.clone();
                let mut view = QueueView::empty(self.algorithm, self.config, &mut copy, self.total);
                decision.with_next(view.retry(arrival))
            }
            0 => decision.with_next(self.retry(arrival)),
            _ => decision,
        }
    }

    /// Returns the decision on a denied call. `decision` is what the algorithm decided without regard to the queue.
    pub(super) fn counted_denial(
        &mut self,
        decision: Decision,
        arrival: Arrival,
        retry: Option<u64>,
    ) -> Decision {
        let reset = self.reset(arrival.now);
        let remaining = self.remaining(decision, arrival);
        Decision::deny(self.limit(decision, arrival), remaining, retry, reset)
    }

    /// Returns the limit to report. For a call with priority, this is the algorithm's limit plus the units that may be
    /// borrowed. For any other call, this is the quota of the algorithm's policy, which includes the places of the
    /// queue. The result is at most the algorithm's limit plus the maximum number of waiters of all keys.
    fn limit(&self, decision: Decision, arrival: Arrival) -> u64 {
        let max = decision.limit().saturating_add(self.total.limit());
        let limit = match self.borrowable_units(arrival) {
            Some(units) => decision.limit().saturating_add(units),
            None => self.algorithm.policy().quota,
        };
        limit.min(max)
    }

    /// Returns the number of calls of cost 1 that would pass or wait now, one after another. The calls have the
    /// priority and the maximum wait of `arrival`.
    fn remaining(&mut self, decision: Decision, arrival: Arrival) -> u64 {
        let (algorithm, config) = (self.algorithm, self.config);
        let at_once = if self.is_empty() { decision.remaining() } else { 0 };
        let places = match self.borrowable_units(arrival) {
            Some(units) => units.saturating_sub(u64::try_from(self.ahead()).unwrap_or(u64::MAX)),
            None => config.places().saturating_sub(self.waiting()),
        };
        let places = places.min(self.total.available()).saturating_add(at_once);
        let (tail, at) = self.tail(arrival.now);
        let in_time = capacity(algorithm, tail, at, arrival.now, arrival.max_wait(config));
        // A call that is admitted immediately does not wait, however far the clock is behind.
        places.min(in_time.max(at_once))
    }

    /// Returns the maximum total cost of waiters, if only calls with priority wait and the call has priority.
    #[inline]
    fn borrowable_units(&self, arrival: Arrival) -> Option<u64> {
        self.config.priority_units().filter(|_| arrival.priority)
    }
}
