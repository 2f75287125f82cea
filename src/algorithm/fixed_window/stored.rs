//! The state as a string: the key's time, the age of the window, and the units counted in the window.

use super::{FixedWindow, FixedWindowState};
use crate::algorithm::stored::{StepKind, numbers_of, scale_of};
use crate::algorithm::{ScriptSteps, StateReader, StateWriter, StoredAlgorithm};
use crate::quota::Quota;

impl StoredAlgorithm for FixedWindow {
    fn unit(&self) -> String {
        let tag = if self.aligned { "fa" } else { "f" };
        format!("{tag}:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let (tag, aligned) = if unit.starts_with("fa:") { ("fa:", true) } else { ("f:", false) };
        let [limit, period] = numbers_of(unit, tag)?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, aligned, ..Self::new(quota) })
    }

    fn write_state(&self, state: &FixedWindowState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        // The age is rounded down, so that the window ends a little later rather than earlier.
        let age = if state.count == 0 { 0 } else { state.age };
        numbers.number(age / scale_of(self.quota.period_nanos()));
        numbers.number(state.count);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<FixedWindowState> {
        let (last, period) = (numbers.instant()?, self.quota.period_nanos());
        let age = numbers.number()?.checked_mul(scale_of(period)).filter(|age| *age < period)?;
        Some(FixedWindowState { last, age, count: numbers.at_most(self.quota.limit())? })
    }

    fn script(&self) -> Option<ScriptSteps> {
        let period = self.quota.period_nanos();
        let micros = period.is_multiple_of(1_000).then_some(u128::from(period / 1_000))?;
        let limit = self.quota.limit().into();
        ScriptSteps::one(StepKind::FixedWindow, [limit, micros, self.aligned.into()])
    }
}
