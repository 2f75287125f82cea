//! The data that the clones of a store share: the current algorithm, the hash seed, and the table of keys.

use std::borrow::Cow;

use super::fingerprint::{Fingerprint, HashSeed, MemoryKey};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::sys::lock::atomic::{AtomicBool, Ordering};
use crate::sys::lock::{PoisonError, RwLock};
use crate::sys::wakers::Wakers;

/// The data that the clones of a store share.
#[derive(Debug)]
pub(super) struct MemoryContext<A: Algorithm> {
    /// The algorithm with which the limiter was created. Most limiters never replace it.
    initial: A,
    replaced: AtomicBool,
    replacement: RwLock<Option<A>>,
    seed: HashSeed,
    table: Table<A>,
}

impl<A: Algorithm> MemoryContext<A> {
    pub(super) fn new(algorithm: A, table: Table<A>) -> Self {
        Self {
            initial: algorithm,
            replaced: AtomicBool::new(false),
            replacement: RwLock::new(None),
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
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Replaces the algorithm of all keys, and then makes the new algorithm the current one. Only one replacement runs
    /// at a time. Returns the wakers to wake once no lock is held.
    pub(super) fn replace(&self, algorithm: A) -> Wakers {
        let mut replacement = self.replacement.write().unwrap_or_else(PoisonError::into_inner);
        let wake = self.table.replace(&algorithm);
        *replacement = Some(algorithm);
        self.replaced.store(true, Ordering::Release);
        wake
    }

    /// Returns the fingerprint of a key.
    #[inline]
    pub(super) fn fingerprint<K: MemoryKey + ?Sized>(&self, key: &K) -> Fingerprint {
        self.seed.fingerprint(key)
    }

    #[inline]
    pub(super) fn table(&self) -> &Table<A> {
        &self.table
    }
}
