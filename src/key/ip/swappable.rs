use std::fmt;
use std::sync::Arc;

use crate::sync::{PoisonError, RwLock};

/// A value that its clones share, and that can be replaced while it is in use.
#[derive(Clone)]
pub(super) struct Swappable<T> {
    value: Arc<RwLock<T>>,
}

impl<T: Clone> Swappable<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Arc::new(RwLock::new(value)) }
    }

    /// Looks at it while it is locked: no function of the user's may be called then.
    pub(super) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over the other's value. Never holds both locks: they may be one.
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
