use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};

/// What belongs to one limiter: the algorithm, the clock, and the store of its keys.
#[derive(Debug)]
pub struct Context<A, S> {
    algorithm: A,
    clock: AnyClock,
    built: Nanos,
    store: S,
}

impl<A: Algorithm, S> Context<A, S> {
    pub(crate) fn new(algorithm: A, clock: AnyClock, store: S) -> Self {
        Self { built: clock.now(), algorithm, clock, store }
    }

    /// The rule.
    pub fn algorithm(&self) -> &A {
        &self.algorithm
    }

    /// What tells the time.
    pub fn clock(&self) -> &AnyClock {
        &self.clock
    }

    /// When the limiter was built: a key never seen counts as idle since then.
    pub fn built(&self) -> Nanos {
        self.built
    }

    /// Where the keys' state lives.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The state of a key never seen.
    pub fn fresh(&self, now: Nanos) -> A::State {
        self.algorithm.fresh(self.built, now)
    }
}
