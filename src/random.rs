//! Words that nobody can foresee.

use std::hash::BuildHasher;

use crate::sync::RandomState;

/// std seeds these from the operating system.
pub(crate) fn random_u64() -> u64 {
    RandomState::default().hash_one(0_u64)
}
