//! Random numbers that a caller cannot predict.

use std::hash::BuildHasher;

use crate::sync::RandomState;

/// Returns a random number. The number is derived from the hash keys of std, which the operating system seeds.
pub(crate) fn random_u64() -> u64 {
    RandomState::default().hash_one(0_u64)
}
