//! The wakers of queued calls, which are woken after all locks are released.

use std::ops::{Deref, DerefMut};
use std::task::Waker;

use crate::sync::wake_all;

/// Wakers that are woken on drop. Since a waker may run any code, no lock may be held during the drop. So a value of
/// this type is declared before a lock is taken. The wakers are also woken if an algorithm panics. If a waker panics,
/// the others are still woken.
#[derive(Debug, Default)]
pub(super) struct Wakers(Vec<Waker>);

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
    fn drop(&mut self) {
        if !self.0.is_empty() {
            wake_all(self.0.drain(..));
        }
    }
}
