//! An algorithm of one's own, around another algorithm.

use std::fmt;
use std::sync::Arc;

use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, QueueConfig, QuotaPolicy, Semaphore};
use tower_throttle::clock::Nanos;

/// An algorithm that calls a function with the name of each method that takes a state, and then decides as another
/// algorithm does. The function may count the calls, or panic. It is also called with "clone" before a copy of the
/// algorithm is made, and with "drop" when a copy is dropped.
pub(crate) struct OwnAlgorithm<A> {
    inner: A,
    asked: Arc<dyn Fn(&str) + Send + Sync>,
}

impl<A> OwnAlgorithm<A> {
    pub(crate) fn new(inner: A, asked: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { inner, asked: Arc::new(asked) }
    }

    fn ask(&self, method: &str) -> &A {
        (self.asked)(method);
        &self.inner
    }
}

impl<A: Clone> Clone for OwnAlgorithm<A> {
    fn clone(&self) -> Self {
        let inner = self.ask("clone").clone();
        Self { inner, asked: Arc::clone(&self.asked) }
    }
}

impl<A: PartialEq> PartialEq for OwnAlgorithm<A> {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl<A> Drop for OwnAlgorithm<A> {
    fn drop(&mut self) {
        (self.asked)("drop");
    }
}

impl<A: fmt::Debug> fmt::Debug for OwnAlgorithm<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<A: Algorithm> Algorithm for OwnAlgorithm<A> {
    type State = A::State;

    const UNDO_BY_COPY: bool = A::UNDO_BY_COPY;
    const ADDS_UP: bool = A::ADDS_UP;
    const NEEDS_RELEASE: bool = A::NEEDS_RELEASE;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> A::State {
        self.inner.new_state(created_at, now)
    }

    fn last_update(&self, state: &A::State) -> Nanos {
        self.ask("last_update").last_update(state)
    }

    fn check(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.ask("check").check(state, now, cost)
    }

    fn peek(&self, state: &mut A::State, now: Nanos, cost: u64) -> Decision {
        self.ask("peek").peek(state, now, cost)
    }

    fn refund(&self, state: &mut A::State, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.ask("refund").refund(state, now, cost, charged_at);
    }

    fn refund_settled(&self, state: &mut A::State, now: Nanos, charged: u64, actual: u64, charged_at: Nanos) {
        self.ask("refund").refund_settled(state, now, charged, actual, charged_at);
    }

    fn migrate(&self, state: &mut A::State, old: &Self, now: Nanos) {
        self.ask("migrate").migrate(state, &old.inner, now);
    }

    fn charge(&self, state: &mut A::State, now: Nanos, cost: u64, max_debt: u64) -> u64 {
        self.ask("charge").charge(state, now, cost, max_debt)
    }

    fn is_fresh(&self, state: &A::State, now: Nanos) -> bool {
        self.ask("is_fresh").is_fresh(state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.inner.policy()
    }

    fn release(&self, state: &mut A::State, now: Nanos, cost: u64) {
        self.ask("release").release(state, now, cost);
    }

    fn for_each_total(&self, f: &mut dyn FnMut(&Semaphore)) {
        self.inner.for_each_total(f);
    }

    fn in_flight(&self, state: &A::State) -> u64 {
        self.inner.in_flight(state)
    }

    fn queue_config(&self) -> Option<QueueConfig> {
        self.inner.queue_config()
    }

    fn ready_at(&self, state: &mut A::State, now: Nanos, cost: u64) -> Option<Nanos> {
        self.ask("ready_at").ready_at(state, now, cost)
    }

    fn admit_queued(&self, state: &mut A::State, now: Nanos, arrived: Nanos, cost: u64) -> Option<Nanos> {
        self.ask("admit_queued").admit_queued(state, now, arrived, cost)
    }

    fn project(&self, state: &mut A::State, now: Nanos, arrived: Nanos, cost: u64) -> Nanos {
        self.ask("project").project(state, now, arrived, cost)
    }

    fn restore(&self, state: &mut A::State, before: A::State) {
        self.ask("restore").restore(state, before);
    }
}
