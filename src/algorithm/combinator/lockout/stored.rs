//! The state as a string: the latest clock reading of the denial count, the rest of the lockout, the number of denials,
//! the age of the window in which they are counted, and the state of the inner algorithm.

use super::{Lockout, LockoutState, RejectionCount};
use crate::algorithm::stored::numbers_of;
use crate::algorithm::{StateReader, StateWriter, StoredAlgorithm};
use crate::clock::Nanos;
use crate::error::ConfigError;

impl<A: StoredAlgorithm> StoredAlgorithm for Lockout<A> {
    fn unit(&self) -> String {
        let Self { duration, window, refusals, .. } = self;
        format!("b:{duration}/{window}/{refusals}({})", self.algorithm.unit())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let (own, inner) = unit.strip_suffix(')')?.split_once('(')?;
        let [duration, window, refusals] = numbers_of(own, "b:")?;
        let is_valid = (1..=i64::MAX as u64).contains(&window) && duration > 0 && refusals > 0;
        let algorithm = is_valid.then(|| self.algorithm.with_unit(inner))??;
        Some(Self { algorithm, duration, window, refusals, extends: self.extends })
    }

    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter) {
        let RejectionCount { last, left, refusals, age } = state.count;
        numbers.instant(last);
        numbers.number(left);
        numbers.number(refusals);
        numbers.number(if refusals == 0 { 0 } else { age });
        self.algorithm.write_state(&state.state, numbers);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State> {
        let count = RejectionCount {
            last: numbers.instant()?,
            left: numbers.at_most(self.duration)?,
            refusals: numbers.at_most(self.refusals - 1)?,
            age: numbers.at_most(self.window - 1)?,
        };
        Some(LockoutState { state: self.algorithm.read_state(numbers)?, count })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.algorithm.check_storable()
    }

    fn counts_denials(&self) -> bool {
        true
    }

    fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
        after.count.last < before.count.last || self.algorithm.must_keep(&before.state, &after.state)
    }

    fn adopt(&self, state: &mut Self::State) {
        self.algorithm.adopt(&mut state.state);
    }

    fn charge_more(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.algorithm.charge_more(&mut state.state, now, cost);
    }
}
