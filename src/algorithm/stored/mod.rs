//! States as text, which other machines can keep.
//!
//! A state in memory is a few integers, in units that only its algorithm knows: grains of a rate, offsets in a slice.
//! On another machine a state is a text that begins with the *unit of the state*: the settings of the algorithm that
//! are needed to read the numbers of the text. So a machine with another quota reads the numbers correctly, and then
//! [migrates](Algorithm::migrate) the state.

mod micro_rate;
mod script;
mod text;

use std::fmt;

use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;

pub(in crate::algorithm) use micro_rate::MicroRate;
pub(in crate::algorithm) use script::MAX_EXACT;
pub use script::ScriptSteps;
pub(crate) use script::{Step, StepKind};
pub(crate) use text::split_members;
pub use text::{StateReader, StateWriter};
pub(in crate::algorithm) use text::{numbers_of, scale_of};

/// An algorithm whose states can be kept on other machines, as text.
///
/// All algorithms of this crate implement this trait, except [`Priority`](crate::algorithm::Priority),
/// [`Concurrency`](crate::algorithm::Concurrency), and combinations that contain one of these. The calls in progress
/// that a `Concurrency` counts end with their process. Implement the trait for an algorithm of your own to use it with
/// a [`RedisStore`](crate::store::redis::RedisStore). Two methods handle the *unit of a state*, which is the settings
/// that are needed to read the numbers of a state, and two methods handle the state.
///
/// In the text of a state, instants are whole microseconds.
///
/// ```
/// use tower_throttle::algorithm::{FixedWindow, StateReader, StateWriter, StoredAlgorithm};
/// use tower_throttle::Quota;
///
/// let window = FixedWindow::new(Quota::per_minute(5));
/// let mut numbers = StateReader::new(" 1700000000000000 20000000 3");
/// let state = window.read_state(&mut numbers).unwrap();
/// let mut text = StateWriter::default();
/// window.write_state(&state, &mut text);
/// assert_eq!(text.as_str(), " 1700000000000000 20000000 3");
/// ```
#[diagnostic::on_unimplemented(
    message = "the states of `{Self}` cannot be kept on other machines",
    note = "in Redis: `TokenBucket`, `LeakyBucket`, `FixedWindow`, `SlidingWindow`, `SlidingCounter`, `SlidingLog`, `Smooth`, \
            tuples of them, `Tiered` and `Lockout`; implement `StoredAlgorithm` for an algorithm of your own"
)]
pub trait StoredAlgorithm: Algorithm {
    /// Returns the unit of this algorithm's states: one word of printable ASCII, without a space, a comma or an
    /// unpaired parenthesis.
    ///
    /// Two algorithms of the same unit can read each other's states without a conversion.
    fn unit(&self) -> String;

    /// Returns an algorithm that can read and migrate states of `unit`. Settings that are not needed for this may
    /// differ from those of the algorithm that wrote the states. Returns `None` if `unit` is not a unit of this type of
    /// algorithm.
    fn with_unit(&self, unit: &str) -> Option<Self>;

    /// Writes the numbers of a state.
    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter);

    /// Reads the numbers that an algorithm of the same unit has written. Returns `None` if the numbers are not a valid
    /// state. A state that was read must not cause a panic later.
    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State>;

    /// Returns an error if states of this configuration cannot be kept on another machine. A limiter is then not built,
    /// and a replacement is ignored.
    ///
    /// # Errors
    ///
    /// Returns an error whose text says what to change.
    fn check_storable(&self) -> Result<(), StorableError> {
        Ok(())
    }

    /// Returns the steps by which a script on the server decides a check in one round trip. Returns `None` if there is
    /// no script. In this case, the store reads the state, decides, and writes the new state unless another process has
    /// changed it meanwhile. This takes two round trips, and works for any arithmetic.
    fn script(&self) -> Option<ScriptSteps> {
        None
    }

    /// Returns whether a denial changes the state, so that the state must be written after a denial.
    fn counts_denials(&self) -> bool {
        false
    }

    /// Returns whether the clock was set back between the states `before` and `after` of a key. The time of `after`
    /// then continues from the new reading, so `after` must be written even if nothing was charged. Algorithms whose
    /// states have several times override this method.
    fn is_set_back(&self, before: &Self::State, after: &Self::State) -> bool {
        self.last_update(after) < self.last_update(before)
    }

    /// Replaces each configuration in `state` whose unit is that of `self` by `self`. Only a state of
    /// [`Tiered`](crate::algorithm::Tiered) contains configurations: the algorithms of its tiers.
    fn adopt(&self, _state: &mut Self::State) {}

    /// Charges `cost` units, or as many of them as are available, when a call is settled at more units than it was
    /// charged. `cost` is the difference.
    fn charge_more(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.charge_saturating(state, now, cost);
    }

    /// Charges a call that may wait, and returns the decision, whose delay is the time until the release of the call.
    /// Returns `None` if the algorithm cannot know that time in advance: the call then waits and checks again.
    fn reserve_slot(
        &self,
        _state: &mut Self::State,
        _now: Nanos,
        _cost: u64,
        _max_wait: u64,
    ) -> Option<ReservedTime> {
        None
    }

    /// Gives back the charge of a call that was cancelled while it waited, unless another call was charged after it.
    /// Returns whether the charge was given back.
    fn give_back(&self, _state: &mut Self::State, _now: Nanos, _cost: u64, _mark: u128) -> bool {
        false
    }
}

/// The result of [`StoredAlgorithm::reserve_slot`].
#[derive(Clone, Copy, Debug)]
pub struct ReservedTime {
    /// The decision. If the call is admitted, its wait is the [`delay`](Decision::delay) of the decision.
    pub decision: Decision,
    /// A number that identifies the state after the charge. [`give_back`](StoredAlgorithm::give_back) compares it to
    /// detect whether another call was charged since.
    pub mark: u128,
}

/// The error of an algorithm whose states cannot be kept on another machine, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorableError(String);

impl StorableError {
    /// Creates the error. `reason` says what to change.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for StorableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StorableError {}
