//! The state as a string: the key's time, its offset in the current window, and the units counted in the previous and
//! in the current window.

use super::{SlidingCounter, SlidingCounterState};
use crate::algorithm::rate::div_rem;
use crate::algorithm::stored::{MAX_EXACT, StepKind, numbers_of, scale_of};
use crate::algorithm::{ScriptSteps, StateReader, StateWriter, StoredAlgorithm};
use crate::quota::Quota;

impl SlidingCounter {
    /// Returns the number of nanoseconds in one unit of the offset in a state string. The offset of a state that was
    /// converted is not always a whole number of microseconds.
    fn scale(&self, is_exact: bool) -> u64 {
        if is_exact { 1 } else { scale_of(self.quota.period_nanos()) }
    }
}

impl StoredAlgorithm for SlidingCounter {
    fn unit(&self) -> String {
        format!("c:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "c:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, ..Self::new(quota) })
    }

    fn write_state(&self, state: &SlidingCounterState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        // The offset is rounded down, so that the previous window weighs more rather than less.
        let into = if state.previous == 0 && state.current == 0 { 0 } else { state.into };
        numbers.number(into / self.scale(numbers.is_exact()));
        numbers.number(state.previous);
        numbers.number(state.current);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SlidingCounterState> {
        let (last, limit, period) = (numbers.instant()?, self.quota.limit(), self.quota.period_nanos());
        let scale = self.scale(numbers.is_exact());
        let into = numbers.number()?.checked_mul(scale).filter(|into| *into < period)?;
        // The previous window may have had another quota, with a higher limit.
        let (previous, current) = (numbers.number()?, numbers.at_most(limit)?);
        // The estimate of a state is at most the limit, except for what rounding the offset down adds.
        let spare = u128::from(limit - current) * u128::from(period);
        let (max, _) = div_rem(spare, period - into);
        let previous = previous.min(u64::try_from(max).unwrap_or(u64::MAX));
        Some(SlidingCounterState { last, into, previous, current })
    }

    fn script(&self) -> Option<ScriptSteps> {
        let (limit, period) = (u128::from(self.quota.limit()), self.quota.period_nanos());
        let micros = period.is_multiple_of(1_000).then_some(u128::from(period / 1_000))?;
        // The script multiplies a count by a time, and the product must be exact.
        if limit * micros >= MAX_EXACT {
            return None;
        }
        ScriptSteps::one(StepKind::SlidingCounter, [limit, micros])
    }
}
