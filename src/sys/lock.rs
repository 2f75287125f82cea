//! Locks and atomics. The atomics, and all locks except [`SpinLock`], are those of std. In the tests in
//! `tests/shuttle/main.rs`, all locks and atomics are those of a scheduler that tries many interleavings of threads. A
//! [`SpinLock`] is a lock that is held only for short work, usually for less than a microsecond.

#[cfg(not(tower_throttle_shuttle))]
mod real {
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};
    pub(crate) use std::thread_local;

    use std::hint::spin_loop;
    use std::thread;
    use std::time::Duration;

    use spin::mutex::{SpinMutex, SpinMutexGuard};

    pub(crate) type SpinGuard<'a, T> = SpinMutexGuard<'a, T>;

    /// The number of times that a waiting thread looks at the lock before it lets other threads run.
    const SPINS: u32 = 16;
    /// The maximum number of calls of `spin_loop` between two looks. The number doubles after each look. A waiting
    /// thread that looks often takes the cache line of the lock from the thread that has the lock, and so slows down
    /// that thread.
    const MAX_PAUSE: u32 = 64;
    const SLEEP: Duration = Duration::from_micros(50);

    /// A lock that is taken by one compare-exchange, and unlocked by a plain store. By comparison, a mutex of std needs
    /// a second locked instruction to unlock. A panic does not poison the lock.
    ///
    /// A waiting thread spins for a short time. If the lock is still taken, the thread that has it was probably
    /// preempted, or many threads wait. The waiting thread then takes the mutex `waiting`, so that all waiting threads
    /// but one block, and do not take the processor from the thread that has the lock. The one that does not block
    /// spins, and sleeps whenever it has looked at the lock [`SPINS`] times.
    ///
    /// The lock does not raise the priority of the thread that has it, or of the one that sleeps. So if threads of
    /// different priorities use a limiter, a thread with a high priority may wait for one with a low priority.
    #[derive(Debug)]
    pub(crate) struct SpinLock<T> {
        lock: SpinMutex<T>,
        waiting: Mutex<()>,
    }

    impl<T> SpinLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { lock: SpinMutex::new(value), waiting: Mutex::new(()) }
        }

        #[inline]
        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            match self.lock.try_lock() {
                Some(guard) => guard,
                None => self.wait(),
            }
        }

        #[cold]
        fn wait(&self) -> SpinGuard<'_, T> {
            // The lock is taken at one place only. With several places, the compiler adds instructions to `lock`.
            let mut turn = None;
            loop {
                let mut pause = 1;
                for _ in 0..SPINS {
                    if !self.lock.is_locked()
                        && let Some(guard) = self.lock.try_lock()
                    {
                        return guard;
                    }
                    (0..pause).for_each(|_| spin_loop());
                    pause = (2 * pause).min(MAX_PAUSE);
                }
                match turn {
                    None => turn = Some(self.waiting.lock().unwrap_or_else(PoisonError::into_inner)),
                    Some(_) => thread::sleep(SLEEP),
                }
            }
        }
    }
}

#[cfg(tower_throttle_shuttle)]
mod real {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic};
    pub(crate) use shuttle::thread_local;

    pub(crate) type SpinGuard<'a, T> = MutexGuard<'a, T>;

    /// A lock that the scheduler provides. The lock does not spin, because under the scheduler a thread that spins
    /// makes no progress.
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
}

pub(crate) use real::*;

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Some threads lose the processor while they have the lock, so that other threads block, and the first of those
    /// sleeps.
    #[test]
    fn a_lock_with_more_threads_than_cores_loses_no_change() {
        let lock = SpinLock::new(0_u64);
        thread::scope(|scope| {
            for number in 0..16 {
                let lock = &lock;
                scope.spawn(move || {
                    for call in 0..2_000 {
                        let mut count = lock.lock();
                        let known = *count;
                        if (call + number) % 50 == 0 {
                            thread::yield_now();
                        }
                        *count = known + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 32_000);
    }
}
