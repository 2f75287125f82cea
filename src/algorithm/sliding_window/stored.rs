//! The state as a string: the key's time, its offset in the open slice, the units in the open slice, the number of
//! closed slices that are not empty, and the age and the units of each such slice.

use super::{SlidingWindow, SlidingWindowState};
use crate::algorithm::stored::{MAX_EXACT, StepKind, numbers_of};
use crate::algorithm::{ScriptSteps, StateReader, StateWriter, StoredAlgorithm};
use crate::quota::Quota;

/// The maximum number of slices for which one trip with a script is faster than two trips without a script.
const MAX_SCRIPT_SLICES: u32 = 100;

impl StoredAlgorithm for SlidingWindow {
    fn unit(&self) -> String {
        format!("w:{}/{}/{}", self.quota.limit(), self.quota.period_nanos(), self.slices)
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period, slices] = numbers_of(unit, "w:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        let slices = usize::try_from(slices).ok().filter(|slices| (1..=1_000).contains(slices))?;
        let window = Self { queue_config: self.queue_config, ..Self::new(quota).slices(slices) };
        (window.unit() == unit).then_some(window)
    }

    fn write_state(&self, state: &SlidingWindowState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        if state.total() == 0 {
            (0..3).for_each(|_| numbers.number(0));
            return;
        }
        numbers.number(state.into);
        numbers.number(state.open());
        let closed = || {
            let slices = (1..=self.slices).map(|age| (age, state.closed(self.slot(state, age))));
            slices.filter(|(_, units)| *units > 0)
        };
        numbers.number(closed().count() as u64);
        for (age, units) in closed() {
            numbers.number(age.into());
            numbers.number(units);
        }
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SlidingWindowState> {
        let mut state = self.empty(numbers.instant()?);
        state.into = numbers.at_most(self.width - 1)?;
        state.set_open(numbers.at_most(self.quota.limit())?);
        state.set_total(state.open());
        for _ in 0..numbers.at_most(self.slices.into())? {
            let age = numbers.at_most(self.slices.into())? as u32;
            let units = numbers.at_most(self.quota.limit() - state.total()).filter(|units| *units > 0)?;
            if age <= state.oldest_age() {
                return None;
            }
            let slot = self.slot(&state, age);
            state.set_closed(slot, units);
            state.set_oldest_age(age);
            state.set_total(state.total() + units);
        }
        Some(state)
    }

    fn script(&self) -> Option<ScriptSteps> {
        let period = self.quota.period_nanos();
        if self.slices > MAX_SCRIPT_SLICES || u128::from(period) * 4 >= MAX_EXACT {
            return None;
        }
        let numbers = [self.quota.limit(), period, self.width, self.slices.into()];
        ScriptSteps::one(StepKind::SlidingWindow, numbers.map(u128::from))
    }
}
