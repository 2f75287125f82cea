use std::borrow::Cow;

use super::fingerprint::HashSeed;
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{PoisonError, RwLock};

/// What the clones of a store share.
#[derive(Debug)]
pub(super) struct MemoryContext<A: Algorithm> {
    /// The algorithm that the limiter was created with, which most limiters keep for ever.
    initial: A,
    replaced: AtomicBool,
    replacement: RwLock<Option<A>>,
    clock: AnyClock,
    created_at: Nanos,
    pub(super) seed: HashSeed,
    pub(super) table: Table<A>,
}

impl<A: Algorithm> MemoryContext<A> {
    pub(super) fn new(algorithm: A, clock: AnyClock, table: Table<A>) -> Self {
        Self {
            created_at: clock.now(),
            initial: algorithm,
            replaced: AtomicBool::new(false),
            replacement: RwLock::new(None),
            clock,
            seed: HashSeed::random(),
            table,
        }
    }

    /// Returns the current algorithm.
    #[inline]
    pub(super) fn algorithm(&self) -> Cow<'_, A> {
        if !self.is_replaced() {
            return Cow::Borrowed(&self.initial);
        }
        match &*self.replacement.read().unwrap_or_else(PoisonError::into_inner) {
            Some(replacement) => Cow::Owned(replacement.clone()),
            None => Cow::Borrowed(&self.initial),
        }
    }

    #[inline]
    fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Replaces the algorithm, after `change`. One replacement at a time.
    pub(super) fn replace<R>(&self, algorithm: A, change: impl FnOnce(&A) -> R) -> R {
        let mut replacement = self.replacement.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&algorithm);
        *replacement = Some(algorithm);
        self.replaced.store(true, Ordering::Release);
        result
    }

    /// Returns the clock.
    pub(super) fn clock(&self) -> &AnyClock {
        &self.clock
    }

    /// Returns the time at which the limiter was created: a key never seen counts as idle since then.
    pub(super) fn created_at(&self) -> Nanos {
        self.created_at
    }
}
