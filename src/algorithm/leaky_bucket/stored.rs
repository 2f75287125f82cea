//! The state as a string: the grains until the next slot, which are those of the [`MicroRate`] unless the string is
//! exact, and the key's time.

use super::slot::Slot;
use super::{LeakyBucket, LeakyBucketState};
use crate::algorithm::clock_step::step;
use crate::algorithm::rate::div_rem;
use crate::algorithm::stored::{MicroRate, StepKind, numbers_of};
use crate::algorithm::{ReservedTime, ScriptSteps, StateReader, StateWriter, StoredAlgorithm};
use crate::clock::Nanos;
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum of each number that the script adds to another number. Up to this maximum, the sum is exact.
const MAX_ADDED: u128 = 1 << 52;

/// Returns the maximum number of grains in a state string.
const fn max_written(is_exact: bool) -> u128 {
    if is_exact { u128::MAX } else { u64::MAX as u128 }
}

impl LeakyBucket {
    fn micro_rate(&self) -> MicroRate {
        MicroRate::of(self.rate)
    }

    /// Advances the state to `now`. Returns how far the clock is behind the key's time, in nanoseconds.
    fn advance(&self, state: &mut LeakyBucketState, now: Nanos) -> u64 {
        let step = step(state.last, now, self.quota.period_nanos());
        state.next = state.next.sooner(self.rate.grains(step.elapsed)).max(Slot::NOW);
        state.last = step.last_update(now);
        step.behind
    }

    /// Returns the time of the next slot, in grains since the clock's zero.
    fn mark(&self, state: &LeakyBucketState) -> u128 {
        self.rate.grains(state.last.0).saturating_add(state.next.until())
    }
}

impl StoredAlgorithm for LeakyBucket {
    fn unit(&self) -> String {
        format!("l:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "l:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, ..Self::new(quota) })
    }

    /// Writes the grains until the next slot, and the key's time. If the grains are rounded, they are at most
    /// `u64::MAX`.
    fn write_state(&self, state: &LeakyBucketState, numbers: &mut StateWriter) {
        let until = self.micro_rate().written(state.next.until(), numbers.is_exact());
        numbers.wide(until.min(max_written(numbers.is_exact())));
        numbers.instant(state.last);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<LeakyBucketState> {
        let is_exact = numbers.is_exact();
        let until = numbers.wide().filter(|until| *until <= max_written(is_exact))?;
        let until = self.micro_rate().read(until, is_exact)?;
        Some(LeakyBucketState { last: numbers.instant()?, next: Slot::NOW.later(until) })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.micro_rate().check_storable()
    }

    fn script(&self) -> Option<ScriptSteps> {
        let MicroRate { micro, unit, .. } = self.micro_rate();
        let period = u128::from(self.quota.period_nanos() / 1_000);
        let max_cost = u64::try_from(MAX_ADDED / unit).unwrap_or(u64::MAX);
        let steps = ScriptSteps::one(StepKind::Bucket, [micro, unit, 0, 0, period, MAX_ADDED])?;
        Some(steps.with_max_cost(max_cost))
    }

    fn reserve_slot(
        &self,
        state: &mut LeakyBucketState,
        now: Nanos,
        cost: u64,
        max_wait: u64,
    ) -> Option<ReservedTime> {
        let lag = self.rate.grains(self.advance(state, now));
        let until = state.next.until();
        // Each place in the queue allows one interval of waiting.
        let places = self.rate.units(self.queue_config.places());
        let max_wait = max_wait.min(self.queue_config.max_wait());
        let longest = if max_wait == u64::MAX { u128::MAX } else { self.rate.grains(max_wait) };
        let in_time = longest.saturating_sub(lag);
        let max = places.min(in_time);
        let room = |until: u128| match max.checked_sub(until) {
            Some(spare) => {
                let (intervals, _) = div_rem(spare, self.rate.period);
                u64::try_from(intervals).unwrap_or(u64::MAX).saturating_add(1)
            }
            None => 0,
        };
        let wait = if until == 0 { 0 } else { until.saturating_add(lag) };
        // The clock must catch up with the key's time before the queue gets shorter.
        let retry = |until: u128| {
            let free = if until > places { (until - places).saturating_add(lag) } else { 0 };
            free.max(until.saturating_add(lag).saturating_sub(longest))
        };
        let decision = if until > max {
            let denial = self.rate.deny(self.capacity, 0, Some(retry(until)), until.saturating_add(lag));
            let is_full = until <= in_time && self.queue_config.places() > 0;
            if is_full { denial.with_queue_full() } else { denial }
        } else {
            state.next = state.next.later(self.rate.units(cost));
            let after = state.next.until();
            let remaining = room(after);
            let next = if remaining == 0 { retry(after) } else { 0 };
            let decision = self.rate.allow(self.capacity, remaining, after.saturating_add(lag), next);
            decision.with_delay(self.rate.nanos_of(wait))
        };
        Some(ReservedTime { decision, mark: self.mark(state) })
    }

    fn give_back(&self, state: &mut LeakyBucketState, now: Nanos, cost: u64, mark: u128) -> bool {
        self.advance(state, now);
        let is_last = self.mark(state) == mark;
        if is_last {
            state.next = state.next.sooner(self.rate.units(cost)).max(Slot::NOW);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    #[test]
    fn calls_that_wait_have_slots_in_order() {
        let bucket = LeakyBucket::new(Quota::per_second(10)).queue(3);
        let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
        let mut reserve = || bucket.reserve_slot(&mut state, Nanos(MS), 1, u64::MAX).unwrap();
        let all: Vec<_> = (0..4).map(|_| reserve()).collect();
        let delays: Vec<_> = all.iter().map(|call| call.decision.delay().as_millis()).collect();
        assert_eq!(delays, [0, 100, 200, 300]);
        let remaining: Vec<_> = all.iter().map(|call| call.decision.remaining()).collect();
        assert_eq!(remaining, [3, 2, 1, 0]);
        let denied = reserve().decision;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_millis(100))));
        assert!(!bucket.give_back(&mut state, Nanos(2 * MS), 1, all[2].mark));
        assert!(bucket.give_back(&mut state, Nanos(2 * MS), 1, all[3].mark));
        let again = bucket.reserve_slot(&mut state, Nanos(2 * MS), 1, u64::MAX).unwrap().decision;
        assert_eq!(again.delay(), Duration::from_millis(299));
        let late = bucket.reserve_slot(&mut state, Nanos(2 * MS), 1, 100 * MS).unwrap().decision;
        assert_eq!(late.retry_after(), Some(Duration::from_millis(299)));
    }

    #[test]
    fn a_charge_whose_delay_cannot_be_stored_has_the_longest_delay() {
        let bucket = LeakyBucket::new(Quota::per_second(999_999_999));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos(MS));
        assert!(bucket.check(&mut state, Nanos(MS), u64::MAX).is_allowed());
        let mut text = StateWriter::default();
        bucket.write_state(&state, &mut text);
        let mut read = bucket.read_state(&mut StateReader::new(text.as_str())).unwrap();
        let wait = |state: &mut _| bucket.check(state, Nanos(MS), 1).retry_after().unwrap();
        let longest = (u128::from(u64::MAX) * 1_000).div_ceil(999_999_999) as u64;
        assert_eq!(wait(&mut read), Duration::from_nanos(longest));
        assert_eq!(longest / 3_600_000_000_000, 5, "hours");
        assert_eq!(wait(&mut state).as_secs() / 31_557_600, 584, "years");
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let bucket = LeakyBucket::new(Quota::per_minute(7));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos(MS));
        for now in [MS, 10_000 * MS] {
            assert!(bucket.check(&mut state, Nanos(now), 1).is_allowed());
            let mut text = StateWriter::default();
            bucket.write_state(&state, &mut text);
            let read = bucket.read_state(&mut StateReader::new(text.as_str())).unwrap();
            assert_eq!((read.last, read.next), (state.last, state.next));
        }
    }
}
