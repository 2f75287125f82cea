use std::fmt;
use std::sync::Arc;

use crate::sys::lock::{PoisonError, RwLock};

/// A value that all clones share, and that can be replaced while it is in use.
#[derive(Clone)]
pub(super) struct Swappable<T> {
    value: Arc<RwLock<T>>,
}

impl<T: Clone> Swappable<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Arc::new(RwLock::new(value)) }
    }

    /// Calls `read` with the value while the value is locked. So `read` must not call a function that a user of the
    /// crate wrote, because such a function might replace the value.
    pub(super) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the value by the value of `other`. The locks of the two values are never held at the same time, because
    /// they may be the same lock.
    pub(super) fn replace(&self, other: &Self) {
        let other = other.with(T::clone);
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = other;
    }
}

impl<T: Clone + fmt::Debug> fmt::Debug for Swappable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|value| value.fmt(f))
    }
}
