//! States as text, which other machines can keep.
//!
//! A state in memory is a few integers, in units that only its algorithm knows: grains of a rate, offsets in a slice.
//! On another machine a state is text, and the text begins with the *unit* of the state: all that is needed to read its
//! numbers. So a machine with another quota reads the numbers correctly, and then [migrates](Algorithm::migrate) the
//! state.

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
/// All algorithms of this crate can, except [`Priority`](crate::algorithm::Priority), and
/// [`Concurrency`](crate::algorithm::Concurrency), whose calls in progress end with their process. Implement it for your
/// own algorithm to use it with a [`RedisStore`](crate::store::redis::RedisStore): two methods for the unit and two for the
/// state.
///
/// In the text, instants are whole microseconds.
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
    /// Returns the unit of its states: one word of printable ASCII, without a space, a comma or an unpaired parenthesis.
    ///
    /// Two algorithms with the same unit can read each other's states without a conversion.
    fn unit(&self) -> String;

    /// Returns an algorithm that can read and migrate states of `unit`. Settings that this does not need may differ
    /// from those of the algorithm that wrote the states. Returns `None` if `unit` is not one of this type.
    fn with_unit(&self, unit: &str) -> Option<Self>;

    /// Writes the numbers of a state.
    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter);

    /// Reads the numbers that an algorithm of the same unit has written. Returns `None` if they are not a valid state:
    /// a state that was read must not cause a panic later.
    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State>;

    /// Returns an error if this configuration cannot be kept on another machine. The limiter is then not built.
    ///
    /// # Errors
    ///
    /// Returns an error whose text says what to change.
    fn check_storable(&self) -> Result<(), StorableError> {
        Ok(())
    }

    /// Returns the steps by which a script on the server decides a check. With `None`, the store reads the state,
    /// checks it, and writes it unless another process has written it meanwhile. That takes two round trips, and works
    /// for any arithmetic.
    fn script(&self) -> Option<ScriptSteps> {
        None
    }

    /// Returns whether a denial changes the state, so that it must be written.
    fn counts_denials(&self) -> bool {
        false
    }

    /// Returns whether the clock was set back between two states of a key, so that `after` must be written even if
    /// nothing was charged, because its time continues from the new reading. Algorithms whose states have several times
    /// override this method.
    fn is_set_back(&self, before: &Self::State, after: &Self::State) -> bool {
        self.last_update(after) < self.last_update(before)
    }

    /// Replaces each configuration in `state` that has the same unit as `self` by `self`. Only a state of
    /// [`Tiered`](crate::algorithm::Tiered) contains configurations: the algorithms of its tiers.
    fn adopt(&self, _state: &mut Self::State) {}

    /// Charges the units by which the actual cost of a call exceeds its charge, as far as they are available.
    fn charge_more(&self, state: &mut Self::State, now: Nanos, cost: u64) {
        self.charge_saturating(state, now, cost);
    }

    /// Charges a call that may wait, and returns the time of its release. Returns `None` if the algorithm cannot know
    /// that time in advance: the call then waits and checks again.
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
    /// Returns whether it did.
    fn give_back(&self, _state: &mut Self::State, _now: Nanos, _cost: u64, _mark: u128) -> bool {
        false
    }
}

/// The result of [`StoredAlgorithm::reserve_slot`].
#[derive(Clone, Copy, Debug)]
pub struct ReservedTime {
    /// The decision. An admission has the wait as its [`delay`](Decision::delay).
    pub decision: Decision,
    /// A number that identifies the state after the charge. [`give_back`](StoredAlgorithm::give_back) compares it to
    /// detect whether another call was charged since.
    pub mark: u128,
}

/// The error of a configuration whose states cannot be kept on another machine.
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
