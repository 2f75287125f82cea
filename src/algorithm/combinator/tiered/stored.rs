//! The state as a string: the number of tiers other than the current one, then for each tier the unit of its state and
//! the numbers of its state. The current tier is first. The grains of a state are exact, because the state may have been
//! converted. Instants and the ages of windows are rounded as in the state of any other limit.

use std::iter;

use super::{MAX_TIERS, Tiered, TieredState};
use crate::algorithm::{StateReader, StateWriter, StoredAlgorithm};
use crate::error::ConfigError;

impl<A: StoredAlgorithm + PartialEq> StoredAlgorithm for Tiered<A> {
    fn unit(&self) -> String {
        format!("d({})", self.algorithm.unit())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let inner = unit.strip_prefix("d(")?.strip_suffix(')')?;
        Some(Self { algorithm: self.algorithm.with_unit(inner)? })
    }

    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter) {
        numbers.number(state.other_tiers.len() as u64);
        for (algorithm, state) in state.tiers() {
            numbers.word(&algorithm.unit());
            numbers.exactly(|numbers| algorithm.write_state(state, numbers));
        }
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State> {
        let others = numbers.at_most(MAX_TIERS as u64)?;
        let own = self.algorithm.unit();
        let mut tier = || {
            let unit = numbers.word()?;
            let algorithm =
                if unit == own { self.algorithm.clone() } else { self.algorithm.with_unit(unit)? };
            let state = numbers.exactly(|numbers| algorithm.read_state(numbers))?;
            Some((algorithm, state))
        };
        let (by, state) = tier()?;
        let other_tiers = (0..others).map(|_| tier()).collect::<Option<Vec<_>>>()?;
        Some(TieredState { by, state, other_tiers })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.algorithm.check_storable()
    }

    fn counts_denials(&self) -> bool {
        self.algorithm.counts_denials()
    }

    /// Also returns `true` if the key has other tiers than before.
    fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
        let must_keep = |(algorithm, before): (&A, &A::State)| {
            let same = after.tiers().find(|(other, _)| *other == algorithm);
            same.is_none_or(|(_, after)| algorithm.must_keep(before, after))
        };
        before.other_tiers.len() != after.other_tiers.len() || before.tiers().any(must_keep)
    }

    /// Replaces the algorithm of each tier of `state` by `self.algorithm`, if both algorithms have the same unit. A
    /// tier that was read from a string has the queue configuration of the limiter's own algorithm, which may differ
    /// from the queue configuration of the call's tier.
    fn adopt(&self, state: &mut Self::State) {
        let unit = self.algorithm.unit();
        let others = state.other_tiers.iter_mut().map(|(algorithm, _)| algorithm);
        for algorithm in iter::once(&mut state.by).chain(others) {
            if *algorithm != self.algorithm && algorithm.unit() == unit {
                *algorithm = self.algorithm.clone();
            }
        }
    }
}
