//! Locks and atomics, and a function that wakes several wakers. The locks and atomics are those of std. In the tests in
//! `tests/shuttle/main.rs`, they are those of a scheduler that tries many interleavings of threads. A [`SpinLock`] is a
//! lock that is held only for short work, usually for less than a microsecond.

#[cfg(not(shuttle))]
mod real {
    pub(crate) use std::hash::RandomState;
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};
    pub(crate) use std::thread_local;

    use std::hint::spin_loop;
    use std::thread;
    use std::time::Duration;

    use spin::mutex::{SpinMutex, SpinMutexGuard};

    pub(crate) type SpinGuard<'a, T> = SpinMutexGuard<'a, T>;

    /// The number of times that a waiting thread looks at the lock before each yield or sleep.
    const SPINS: u32 = 64;
    /// The number of times that a waiting thread yields before it sleeps for the first time.
    const YIELDS: u32 = 256;
    const SLEEP: Duration = Duration::from_micros(50);

    /// A lock that is taken by one compare-exchange, and released by a plain store. By comparison, a mutex of std needs
    /// a second locked instruction for its release. A panic does not poison the lock.
    ///
    /// A waiting thread spins for a short time. If the lock is still taken, the thread that has it was probably
    /// preempted, so the waiting thread yields its time slice. Finally, the waiting thread sleeps, because a thread
    /// with a high priority that only yields may never let a thread with a low priority run.
    #[derive(Debug)]
    pub(crate) struct SpinLock<T>(SpinMutex<T>);

    impl<T> SpinLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(SpinMutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            match self.0.try_lock() {
                Some(guard) => guard,
                None => self.wait(),
            }
        }

        #[cold]
        fn wait(&self) -> SpinGuard<'_, T> {
            let mut yields = 0;
            loop {
                for _ in 0..SPINS {
                    if !self.0.is_locked()
                        && let Some(guard) = self.0.try_lock()
                    {
                        return guard;
                    }
                    spin_loop();
                }
                if yields < YIELDS {
                    yields += 1;
                    thread::yield_now();
                } else {
                    thread::sleep(SLEEP);
                }
            }
        }
    }
}

#[cfg(shuttle)]
mod real {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};
    pub(crate) use shuttle::thread_local;

    pub(crate) type SpinGuard<'a, T> = MutexGuard<'a, T>;

    /// A lock of the scheduler, under which a thread that spins would make no progress.
    #[derive(Debug)]
    pub(crate) struct SpinLock<T>(Mutex<T>);

    impl<T> SpinLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A hasher state that is the same in each run, so that a failure can be reproduced.
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
