//! Small numbers that identify threads, so that each thread counts in counters of its own.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::sys::lock::thread_local;

/// The number of threads that can have a number at the same time.
pub(crate) const THREADS: usize = u128::BITS as usize;

/// The numbers that threads have, as bits. A thread returns its number under this lock, and another thread takes the
/// number under this lock. So the second thread sees everything that the first thread has counted.
static TAKEN: Mutex<u128> = Mutex::new(0);

/// The value of `NUMBER` before the thread has asked for a number.
const NOT_ASKED: usize = usize::MAX;
/// The value of `NUMBER` if no number was left, or if the thread is ending.
const NONE: usize = THREADS;

thread_local! {
    /// The number of this thread. Unlike `OWNER`, this cell has no destructor, so a read of the cell does not check
    /// whether the cell was already destroyed.
    static NUMBER: Cell<usize> = const { Cell::new(NOT_ASKED) };
    /// The owner of the number. When the thread ends, the owner is dropped, which makes the number available again.
    static OWNER: Option<ThreadNumber> = ThreadNumber::take();
}

struct ThreadNumber(u32);

impl ThreadNumber {
    /// Takes the lowest number that no thread has. Returns `None` if all numbers are taken.
    fn take() -> Option<Self> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.trailing_ones();
        *taken |= 1_u128.checked_shl(number)?;
        Some(Self(number))
    }
}

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        let _ = NUMBER.try_with(|number| number.set(NONE));
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.0);
    }
}

/// Locked by tests in which threads take all numbers. Such a test would fail if another one had the numbers.
#[cfg(test)]
pub(crate) static TAKING_ALL: Mutex<()> = Mutex::new(());

/// Returns a number below [`THREADS`] that no other thread has. Returns `None` if [`THREADS`] threads had numbers when
/// this thread first asked for one, or if this thread is ending.
#[inline]
pub(crate) fn thread_number() -> Option<usize> {
    let number = NUMBER.try_with(Cell::get).unwrap_or(NONE);
    if number < THREADS { Some(number) } else { ask(number) }
}

/// Returns the number of this thread. If the thread asks for the first time, takes a number. `found` is the value of
/// `NUMBER`.
#[cold]
fn ask(found: usize) -> Option<usize> {
    if found == NONE {
        return None;
    }
    let taken = OWNER.try_with(|owner| owner.as_ref().map(|owned| owned.0 as usize)).ok().flatten();
    let _ = NUMBER.try_with(|number| number.set(taken.unwrap_or(NONE)));
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn no_two_threads_have_the_same_number_at_the_same_time() {
        let _alone = TAKING_ALL.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2 {
            let ready = Barrier::new(200);
            let ask = || {
                let number = thread_number();
                assert_eq!(thread_number(), number);
                ready.wait();
                number
            };
            let mut numbers: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..200).map(|_| scope.spawn(ask)).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            // Threads of other tests have numbers as well.
            assert!(numbers.len() > 32 && numbers.iter().all(|number| *number < THREADS), "{numbers:?}");
            numbers.sort_unstable();
            assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        }
    }
}
