//! The wakers of queued calls. All of them are woken, even if one of them panics, once no lock is held.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;
use std::thread;

/// Wakers that are woken on drop. Since a waker may run any code, no lock may be held during the drop. So a value of
/// this type is declared before a lock is taken. The wakers are also woken if an algorithm panics. If a waker panics,
/// the others are still woken.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Vec<Waker>);

impl Deref for Wakers {
    type Target = Vec<Waker>;

    fn deref(&self) -> &Vec<Waker> {
        &self.0
    }
}

impl DerefMut for Wakers {
    fn deref_mut(&mut self) -> &mut Vec<Waker> {
        &mut self.0
    }
}

impl Drop for Wakers {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.wake();
        }
    }
}

impl Wakers {
    #[cold]
    fn wake(&mut self) {
        wake_all(self.0.drain(..));
    }
}

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
