//! The steps of a script that decides a check on a server.

/// The largest integer up to which a script computes exactly, because the numbers of a script are floating-point.
pub(in crate::algorithm) const MAX_EXACT: u128 = 1 << 53;

/// The maximum number of local variables of all steps and keys of a script together. The rest of the script, including
/// the temporary variables within a step, needs fewer than 30 more. A function of Lua can have 200.
pub const MAX_LOCALS: usize = 170;

/// The steps by which a script decides a check: one for each limit. See `StoredAlgorithm::script`.
///
/// Only this crate creates `ScriptSteps`, for its own algorithms.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScriptSteps {
    /// The steps, in the order of the limits.
    pub steps: Vec<Step>,
    /// The largest cost that the script computes exactly.
    pub max_cost: u64,
}

/// One limit in a script.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The kind of the limit.
    pub kind: StepKind,
    /// The arguments that the kind needs, and then zeros.
    pub arguments: [u64; 6],
}

macro_rules! step_kind {
    ($($algorithm:ident [$($(#[$docs:meta])+ $kind:ident $arguments:literal $locals:literal)?];)+) => {
        /// The kind of a limit in a script.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StepKind {
            $($($(#[$docs])+ $kind,)?)+
        }

        impl StepKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$($(Self::$kind,)?)+];

            /// Returns the number of arguments.
            pub const fn argument_count(self) -> usize {
                match self {
                    $($(Self::$kind => $arguments,)?)+
                }
            }

            /// Returns the number of local variables, including arguments, that a step of this kind keeps until the
            /// script ends.
            pub const fn local_count(self) -> usize {
                let own = match self {
                    $($(Self::$kind => $locals,)?)+
                };
                own + self.argument_count()
            }
        }
    };
}

for_each_algorithm!(step_kind);

impl ScriptSteps {
    /// Creates a single step. Returns `None` if an argument is too large for exact computation in a script.
    pub(in crate::algorithm) fn one<const N: usize>(kind: StepKind, arguments: [u128; N]) -> Option<Self> {
        let mut all = [0; 6];
        for (place, argument) in all.iter_mut().zip(arguments) {
            *place = u64::try_from(argument).ok().filter(|argument| u128::from(*argument) < MAX_EXACT)?;
        }
        Some(Self { steps: vec![Step { kind, arguments: all }], max_cost: u64::MAX })
    }

    pub(in crate::algorithm) fn with_max_cost(self, max_cost: u64) -> Self {
        Self { max_cost, ..self }
    }

    /// Adds the steps of another member of a tuple.
    pub(in crate::algorithm) fn and(mut self, other: Self) -> Self {
        self.steps.extend(other.steps);
        self.max_cost = self.max_cost.min(other.max_cost);
        self
    }
}
