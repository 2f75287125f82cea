//! Denials that are remembered for a short time, so that a client that retries at once causes no trips.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use super::operation::Operation;
use super::plan::Plan;
use crate::algorithm::StoredAlgorithm;
use crate::clock::Nanos;
use crate::decision::Decision;

/// The maximum number of keys that are remembered.
const MAX_KEYS: usize = 10_000;

/// The states of keys that had no unit left at their last decision.
///
/// Such a state denies the same calls until a unit is free, because other processes can only take more units, unless
/// they reset or refund the key.
#[derive(Debug)]
pub(super) struct Denials<A: StoredAlgorithm> {
    keys: DashMap<Arc<str>, Remembered<A>>,
    /// The maximum time for which a denial is remembered, in nanoseconds. With 0, nothing is remembered.
    longest: u64,
}

#[derive(Debug)]
struct Remembered<A: StoredAlgorithm> {
    plan: Arc<Plan<A>>,
    state: A::State,
    /// The server's time at which the state was read.
    now: Nanos,
    /// This process's time at which the request was sent, before the server read the state.
    sent: Nanos,
}

impl<A: StoredAlgorithm> Denials<A> {
    pub(super) fn new(longest: Duration) -> Self {
        Self { keys: DashMap::new(), longest: Nanos::from(longest).0 }
    }

    /// Remembers a state, if no unit is available in it.
    pub(super) fn remember(
        &self,
        key: &Arc<str>,
        plan: &Arc<Plan<A>>,
        mut state: A::State,
        now: Nanos,
        sent: Nanos,
    ) {
        // If denials change the state, each call must be sent.
        if self.longest == 0 || plan.algorithm.counts_denials() {
            return;
        }
        let one = plan.algorithm.peek(&mut state, now, 1);
        if one.is_allowed() || one.never_fits() {
            return;
        }
        if self.keys.len() >= MAX_KEYS {
            self.keys.retain(|_, old| sent.saturating_since(old.sent) < self.longest);
            if self.keys.len() >= MAX_KEYS {
                return;
            }
        }
        let remembered = Remembered { plan: Arc::clone(plan), state, now, sent };
        self.keys.insert(Arc::clone(key), remembered);
    }

    /// Returns the denial of a call at `local`, if the remembered state denies the call.
    pub(super) fn answer(
        &self,
        key: &Arc<str>,
        plan: &Arc<Plan<A>>,
        call: &Operation<A>,
        local: Nanos,
    ) -> Option<Decision> {
        if self.longest == 0 || call.cost == 0 {
            return None;
        }
        let remembered = self.keys.get(key)?;
        let elapsed = local.saturating_since(remembered.sent);
        let mut decision = None;
        if elapsed <= self.longest && Arc::ptr_eq(plan, &remembered.plan) {
            let mut state = remembered.state.clone();
            let algorithm = call.algorithm(&plan.algorithm, &mut state);
            let now = remembered.now.saturating_add(elapsed);
            decision =
                Some(algorithm.peek(&mut state, now, call.cost)).filter(|decision| !decision.is_allowed());
        }
        drop(remembered);
        if decision.is_none() {
            self.forget(key);
        }
        decision
    }

    pub(super) fn forget(&self, key: &str) {
        self.keys.remove(key);
    }

    pub(super) fn clear(&self) {
        self.keys.clear();
    }
}
