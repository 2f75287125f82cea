//! Locks and atomics, and a function that wakes a list of wakers. The locks and atomics are those of std, or those of a
//! scheduler that tries out orders of threads (`tests/shuttle/main.rs`).

#[cfg(not(shuttle))]
mod real {
    pub(crate) use std::hash::RandomState;
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};
}

#[cfg(shuttle)]
mod real {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};

    /// A state that is the same in each run, so that a failure can be reproduced.
    pub(crate) type RandomState = BuildHasherDefault<DefaultHasher>;
}

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;
use std::thread;

pub(crate) use real::*;

/// Wakes all `wakers`, even if one of them panics. The first panic is resumed afterwards, unless the thread is already
/// panicking.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut first = None;
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first
        && !thread::panicking()
    {
        resume_unwind(panic);
    }
}
