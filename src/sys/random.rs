//! Random numbers that a caller cannot predict.

use std::hash::BuildHasher;

#[cfg(not(tower_throttle_fixed_seeds))]
pub(crate) use std::hash::RandomState;

/// A hasher state that is the same in each run, so that failures and counts can be reproduced. Only packages of this
/// repository that are never published are built with it.
#[cfg(tower_throttle_fixed_seeds)]
pub(crate) type RandomState = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Returns a random number. The number is derived from the hash keys of std, which the operating system seeds.
pub fn random_u64() -> u64 {
    RandomState::default().hash_one(0_u64)
}
