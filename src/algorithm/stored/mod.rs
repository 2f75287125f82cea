//! States as bytes, which other machines can keep.
//!
//! A state in memory is a few integers that only its algorithm can interpret, such as grains of a rate or offsets in a
//! slice. On another machine, for example in Redis, these numbers are bytes. They are kept with the *unit of the
//! state*: the settings of the algorithm without which the numbers cannot be read. So a process with another quota
//! reads the numbers correctly, and then [migrates](Algorithm::migrate) the state.

mod micro_rate;
mod numbers;
mod script;

use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::ConfigError;

pub(in crate::algorithm) use micro_rate::MicroRate;
pub use numbers::{StateReader, StateWriter};
pub(in crate::algorithm) use numbers::{numbers_of, scale_of};
pub(in crate::algorithm) use script::MAX_EXACT;
pub use script::{MAX_LOCALS, ScriptSteps, Step, StepKind};

/// An algorithm whose states can be kept on other machines, as bytes.
///
/// All algorithms of this crate implement this trait, except [`Concurrency`](crate::algorithm::Concurrency), and
/// combinations that contain it. Calls in progress end when their process ends, while a count on another machine would
/// remain. In Redis, [`RedisPermits`] counts them instead. A window with [priority](crate::algorithm#priority) cannot
/// be [stored](Self::check_storable) either, because its calls wait in the queue of one process.
///
/// Implement the trait for an algorithm of your own to use that algorithm with a [`RedisStore`] of the crate
/// `tower-throttle-redis`. For such an algorithm, the limiter reads the state, decides the call, and then writes the
/// new state if no other process has changed the state since it was read. This usually takes two trips, but the
/// algorithm itself decides the call, with any arithmetic.
///
/// [`RedisPermits`]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisPermits.html
/// [`RedisStore`]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/struct.RedisStore.html
///
/// [`write_state`](Self::write_state) and [`read_state`](Self::read_state) write and read the numbers of a state.
/// [`unit`](Self::unit) and [`with_unit`](Self::with_unit) concern the *unit of a state*: the settings of the algorithm
/// without which these numbers cannot be read. [`kind`](Self::kind) is the shape of the states, which is part of the
/// names of the keys.
///
/// Among the numbers, the latest clock reading of a state is in whole microseconds.
///
/// ```
/// use tower_throttle::algorithm::{FixedWindow, StateReader, StateWriter, StoredAlgorithm};
/// use tower_throttle::Quota;
///
/// let window = FixedWindow::new(Quota::per_minute(5));
/// let mut numbers = StateWriter::default();
/// [1_700_000_000_000_000, 20_000_000, 3].map(|number| numbers.number(number));
/// let state = window.read_state(&mut StateReader::new(numbers.as_bytes())).unwrap();
/// let mut written = StateWriter::default();
/// window.write_state(&state, &mut written);
/// assert_eq!(written.as_bytes(), numbers.as_bytes());
/// ```
#[diagnostic::on_unimplemented(
    message = "the states of `{Self}` cannot be kept on other machines",
    note = "in Redis: each of `tower_throttle::algorithm` but `Concurrency`, tuples of them, and `Tiered` and \
            `Lockout` around them; implement `StoredAlgorithm` for an algorithm of your own",
    note = "the calls in progress of all machines, in place of a `Concurrency`, are limited by \
            `redis.permits(name, limit)`"
)]
pub trait StoredAlgorithm: Algorithm {
    /// Returns the *kind* of the states: the shape of this type, without any number. It is one word of printable ASCII,
    /// without a space or a colon.
    ///
    /// A store keeps the states of different kinds under different keys. So a deployment that replaces an algorithm by
    /// one of another kind finds no states that it cannot read: each key starts over. Two types with the same kind must
    /// be able to read each other's states.
    ///
    /// ```
    /// use tower_throttle::algorithm::{FixedWindow, Lockout, StoredAlgorithm, TokenBucket};
    ///
    /// assert_eq!(TokenBucket::kind(), "t");
    /// assert_eq!(<(Lockout<TokenBucket>, FixedWindow)>::kind(), "(b(t),f)");
    /// ```
    ///
    /// The kinds of this crate and of `tower-throttle-redis` begin with a parenthesis, a single letter or `lease/`. So
    /// give an algorithm of your own a word, such as `acme-gcra`.
    fn kind() -> String;

    /// Returns the unit of this algorithm's states: one word of printable ASCII, without a space, an unpaired
    /// parenthesis, or a comma outside parentheses.
    ///
    /// Two algorithms with the same unit can read each other's states without a conversion.
    fn unit(&self) -> String;

    /// Returns an algorithm that can read and migrate states with this `unit`. The settings that `unit` does not
    /// contain, such as the queue, are those of `self`, and may differ from those of the algorithm that wrote the
    /// states. Returns `None` if `unit` is not a unit of this [kind](Self::kind) of algorithm.
    fn with_unit(&self, unit: &str) -> Option<Self>;

    /// Writes the numbers of a state.
    fn write_state(&self, state: &Self::State, numbers: &mut StateWriter);

    /// Reads the numbers that an algorithm with the same unit has written. Returns `None` if the numbers are not a
    /// valid state. A state that was read must not cause a panic later.
    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<Self::State>;

    /// Returns an error if states of this configuration cannot be kept on another machine. In this case, a limiter with
    /// this configuration is not built, and the algorithm of a limiter is not replaced by this configuration.
    ///
    /// # Errors
    ///
    /// Returns an error whose text says what to change.
    fn check_storable(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the steps by which a script on the server decides a check in one trip. Returns `None` if there is no
    /// script. The numbers of a script are floating-point, so a script computes exactly only with integers up to 2^53.
    #[doc(hidden)]
    fn script(&self) -> Option<ScriptSteps> {
        None
    }

    /// Returns whether a denial changes the state, so that the state must be written after a denial.
    fn counts_denials(&self) -> bool {
        false
    }

    /// Returns whether the state `after` of a key must be written even if nothing was charged since the state `before`.
    /// By default, this is so if the clock was set back: the time of `after` continues from the new reading. Algorithms
    /// override this method if their states have several clock readings, or parts that a denial can add.
    fn must_keep(&self, before: &Self::State, after: &Self::State) -> bool {
        self.last_update(after) < self.last_update(before)
    }

    /// For [`Tiered`](crate::algorithm::Tiered) only: replaces each stored tier that has the [unit](Self::unit) of the
    /// default algorithm by the default algorithm.
    fn adopt(&self, _state: &mut Self::State) {}

    /// For [`Lockout`](crate::algorithm::Lockout) only: sets the rest of the key's lockout to `left` nanoseconds from
    /// `now`, and forgets the counted denials. Returns whether the key was locked out or had such denials.
    fn lock_out(&self, _state: &mut Self::State, _now: Nanos, _left: u64) -> bool {
        false
    }

    /// Decides a call that may wait for up to `max_wait` nanoseconds, and charges the call if it is admitted, at once
    /// or after a wait. The delay of the decision is the time until the admission of the call. The default
    /// implementation returns `None`, which means that the algorithm does not reserve times in advance. In this case,
    /// the call waits in a queue of its process, and is then checked again.
    fn reserve_slot(
        &self,
        _state: &mut Self::State,
        _now: Nanos,
        _cost: u64,
        _max_wait: u64,
    ) -> Option<ReservedTime> {
        None
    }

    /// Gives back the charge of a call that was cancelled while it waited, unless another call has been charged since.
    /// `mark` is the [mark](ReservedTime::mark) of the cancelled call. Returns whether the charge was given back. The
    /// default implementation gives nothing back.
    fn give_back(&self, _state: &mut Self::State, _now: Nanos, _cost: u64, _mark: u128) -> bool {
        false
    }
}

/// The result of [`StoredAlgorithm::reserve_slot`].
#[derive(Clone, Copy, Debug)]
pub struct ReservedTime {
    /// The decision. If the call is admitted, its wait is the [`delay`](Decision::delay) of the decision.
    pub decision: Decision,
    /// A number that identifies the state after the charge. [`give_back`](StoredAlgorithm::give_back) compares the
    /// number to detect whether another call has been charged since.
    pub mark: u128,
}
