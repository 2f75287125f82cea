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

/// The kind of a limit in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// A token bucket or a leaky bucket. The arguments are the grains in a microsecond, the grains that each unit of
    /// the cost adds, the capacity in grains, the grains that must be free for each unit of the cost (0 for a leaky
    /// bucket), the period in microseconds, and the maximum number of grains in a state.
    Bucket,
    /// The arguments are the limit, the period in microseconds, and whether windows are aligned: 1 or 0.
    FixedWindow,
    /// The arguments are the limit, and the period in microseconds.
    SlidingCounter,
    /// The arguments are the limit, the period in nanoseconds, the length of a slice in nanoseconds, and the number of
    /// slices.
    SlidingWindow,
}

impl StepKind {
    /// Returns the number of arguments.
    pub const fn argument_count(self) -> usize {
        match self {
            Self::Bucket => 6,
            Self::FixedWindow => 3,
            Self::SlidingCounter => 2,
            Self::SlidingWindow => 4,
        }
    }

    /// Returns the number of local variables, including arguments, that a step of this kind keeps until the script
    /// ends.
    pub const fn local_count(self) -> usize {
        let own = match self {
            Self::Bucket => 3,
            Self::FixedWindow => 4,
            Self::SlidingCounter => 6,
            Self::SlidingWindow => 7,
        };
        own + self.argument_count()
    }
}

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
