use std::borrow::Cow;

use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{PoisonError, RwLock};

/// A limiter's algorithm, its clock, and the store of its keys.
#[derive(Debug)]
pub struct Context<A, S> {
    /// The algorithm that the limiter was created with, which most limiters keep for ever.
    initial: A,
    replaced: AtomicBool,
    replacement: RwLock<Option<A>>,
    clock: AnyClock,
    created_at: Nanos,
    store: S,
}

impl<A: Algorithm, S> Context<A, S> {
    pub(crate) fn new(algorithm: A, clock: AnyClock, store: S) -> Self {
        Self {
            created_at: clock.now(),
            initial: algorithm,
            replaced: AtomicBool::new(false),
            replacement: RwLock::new(None),
            clock,
            store,
        }
    }

    /// Returns the current algorithm.
    #[inline]
    pub fn algorithm(&self) -> Cow<'_, A> {
        if !self.is_replaced() {
            return Cow::Borrowed(&self.initial);
        }
        match &*self.replacement.read().unwrap_or_else(PoisonError::into_inner) {
            Some(replacement) => Cow::Owned(replacement.clone()),
            None => Cow::Borrowed(&self.initial),
        }
    }

    /// Returns whether the algorithm was replaced since the limiter was created.
    #[inline]
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Replaces the algorithm, after `change`. One replacement at a time.
    pub(crate) fn replace<R>(&self, algorithm: A, change: impl FnOnce(&A) -> R) -> R {
        let mut replacement = self.replacement.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&algorithm);
        *replacement = Some(algorithm);
        self.replaced.store(true, Ordering::Release);
        result
    }

    /// Returns the clock.
    pub fn clock(&self) -> &AnyClock {
        &self.clock
    }

    /// Returns the time at which the limiter was created: a key never seen counts as idle since then.
    pub fn created_at(&self) -> Nanos {
        self.created_at
    }

    /// Returns the state of a key never seen.
    pub fn new_state(&self, now: Nanos) -> A::State {
        self.algorithm().new_state(self.created_at, now)
    }

    /// Returns the store that holds the keys' state.
    pub fn store(&self) -> &S {
        &self.store
    }
}
