//! The state as a string: the states of the members, one after another.

use crate::algorithm::stored::split_members;
use crate::algorithm::{ScriptSteps, StateReader, StateWriter, StoredAlgorithm};
use crate::clock::Nanos;
use crate::error::ConfigError;

macro_rules! tuple {
    ($($part:ident $at:tt)+) => {
        impl<$($part: StoredAlgorithm),+> StoredAlgorithm for ($($part,)+) {
            fn unit(&self) -> String {
                format!("({})", [$(self.$at.unit()),+].join(","))
            }

            fn with_unit(&self, unit: &str) -> Option<Self> {
                let mut members = split_members(unit.strip_prefix('(')?.strip_suffix(')')?);
                let all = ($(self.$at.with_unit(members.next()?)?,)+);
                members.next().is_none().then_some(all)
            }

            fn write_state(&self, state: &Self::State, numbers: &mut StateWriter) {
                $(self.$at.write_state(&state.$at, numbers);)+
            }

            fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State> {
                Some(($(self.$at.read_state(numbers)?,)+))
            }

            fn check_storable(&self) -> Result<(), ConfigError> {
                $(self.$at.check_storable()?;)+
                Ok(())
            }

            fn script(&self) -> Option<ScriptSteps> {
                let members = [$(self.$at.script()?),+];
                members.into_iter().reduce(ScriptSteps::and)
            }

            fn counts_denials(&self) -> bool {
                $(self.$at.counts_denials())||+
            }

            fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
                $(self.$at.must_keep(&before.$at, &after.$at))||+
            }

            fn adopt(&self, state: &mut Self::State) {
                $(self.$at.adopt(&mut state.$at);)+
            }

            fn charge_more(&self, state: &mut Self::State, now: Nanos, cost: u64) {
                $(self.$at.charge_more(&mut state.$at, now, cost);)+
            }
        }
    };
}

tuple!(A 0 B 1);
tuple!(A 0 B 1 C 2);
tuple!(A 0 B 1 C 2 D 3);
tuple!(A 0 B 1 C 2 D 3 E 4);
