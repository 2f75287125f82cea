//! What std does too, but more slowly or less precisely: locks, a keyed hash, random numbers, numbers of threads, and
//! the waking of several wakers. Each file says why std's is not enough.

pub(crate) mod hash;
pub(crate) mod lock;
pub(crate) mod random;
pub(crate) mod thread_number;
pub(crate) mod wakers;
