//! Locks and atomics: std's, or those of a scheduler that tries out what threads may do (`tests/shuttle.rs`).

#[cfg(not(shuttle))]
mod real {
    pub(crate) use std::hash::RandomState;
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};
}

#[cfg(shuttle)]
mod real {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};

    /// The same each time: what is found can be seen again.
    pub(crate) type RandomState = BuildHasherDefault<DefaultHasher>;
}

pub(crate) use real::*;
