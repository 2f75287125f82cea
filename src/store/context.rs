use std::borrow::Cow;

use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{PoisonError, RwLock};

/// What belongs to one limiter: the algorithm, the clock, and the store of its keys.
#[derive(Debug)]
pub struct Context<A, S> {
    /// The rule it was built with: of most limiters, for ever.
    first: A,
    replaced: AtomicBool,
    newest: RwLock<Option<A>>,
    clock: AnyClock,
    built: Nanos,
    store: S,
}

impl<A: Algorithm, S> Context<A, S> {
    pub(crate) fn new(algorithm: A, clock: AnyClock, store: S) -> Self {
        Self {
            built: clock.now(),
            first: algorithm,
            replaced: AtomicBool::new(false),
            newest: RwLock::new(None),
            clock,
            store,
        }
    }

    /// The rule, as it is now.
    #[inline]
    pub fn algorithm(&self) -> Cow<'_, A> {
        if !self.is_replaced() {
            return Cow::Borrowed(&self.first);
        }
        match &*self.newest.read().unwrap_or_else(PoisonError::into_inner) {
            Some(newest) => Cow::Owned(newest.clone()),
            None => Cow::Borrowed(&self.first),
        }
    }

    /// Whether the rule is another than that it was built with.
    #[inline]
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Replaces the rule, after `change`. One at a time.
    pub(crate) fn replace<R>(&self, algorithm: A, change: impl FnOnce(&A) -> R) -> R {
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&algorithm);
        *newest = Some(algorithm);
        self.replaced.store(true, Ordering::Release);
        result
    }

    /// What tells the time.
    pub fn clock(&self) -> &AnyClock {
        &self.clock
    }

    /// When the limiter was built: a key never seen counts as idle since then.
    pub fn built(&self) -> Nanos {
        self.built
    }

    /// The state of a key never seen.
    pub fn fresh(&self, now: Nanos) -> A::State {
        self.algorithm().fresh(self.built, now)
    }

    /// Where the keys' state lives.
    pub fn store(&self) -> &S {
        &self.store
    }
}
