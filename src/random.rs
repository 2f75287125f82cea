//! Random numbers that a caller cannot predict.

use std::hash::BuildHasher;

use crate::sync::RandomState;

/// Returns a random number. It is made by std's hash keys, which are seeded by the operating system.
pub(crate) fn random_u64() -> u64 {
    RandomState::default().hash_one(0_u64)
}
