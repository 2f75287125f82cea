//! The store remembers for a short time which keys have no units available. So a client that retries at once causes no
//! trips.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::states::{Operation, Plan};
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;

/// The number of sets over which keys are distributed by their hashes. Each set has at most [`SET_KEYS`] keys. In a
/// full set, a new key replaces the key whose request was sent first.
const SETS: usize = 1_024;
const SET_KEYS: usize = 10;

/// The states of keys that had no unit available after their last decision.
///
/// With such a state, this process denies a call as long as the units of the call cannot be available. During this
/// time, other processes can only take more units, unless they reset the key or give units back. The work of each call
/// is bounded by the size of a set, even if a flood of keys fills all sets.
#[derive(Debug)]
pub(super) struct Denials<A: StoredAlgorithm> {
    sets: Box<[Mutex<Vec<Remembered<A>>>]>,
    hasher: RandomState,
    /// The maximum time for which a state is remembered, in nanoseconds. With 0, no state is remembered.
    longest: u64,
    /// The number of times that states were forgotten.
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct Remembered<A: StoredAlgorithm> {
    key: Arc<str>,
    plan: Arc<Plan<A>>,
    state: A::State,
    /// The server's time at which the state was read.
    now: Nanos,
    /// The time at which the request was sent, by this process's clock. The server read the state later.
    sent: Nanos,
}

impl<A: StoredAlgorithm> Denials<A> {
    pub(super) fn new(longest: Duration) -> Self {
        let longest = Nanos::from(longest).0;
        let sets = if longest == 0 { 0 } else { SETS };
        let sets = (0..sets).map(|_| Mutex::default()).collect();
        Self { sets, hasher: RandomState::new(), longest, forgotten: AtomicU64::default() }
    }

    /// Returns the set of a key, or `None` if this store remembers no states.
    fn set(&self, key: &str) -> Option<MutexGuard<'_, Vec<Remembered<A>>>> {
        let sets = self.sets.len() as u64;
        // The index is below the number of sets, so it fits.
        let index = self.hasher.hash_one(key).checked_rem(sets)? as usize;
        Some(self.sets[index].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Remembers a state, if no unit is available in the state now, but a unit can become available later.
    pub(super) fn remember(
        &self,
        key: &Arc<str>,
        plan: &Arc<Plan<A>>,
        mut state: A::State,
        now: Nanos,
        sent: Nanos,
    ) {
        // If a denial changes the state, each call must be sent.
        if self.longest == 0 || plan.algorithm.counts_denials() {
            return;
        }
        let one = plan.algorithm.peek(&mut state, now, 1);
        if one.is_allowed() || one.never_fits() {
            return;
        }
        let Some(mut set) = self.set(key) else { return };
        let remembered = Remembered { key: Arc::clone(key), plan: Arc::clone(plan), state, now, sent };
        let same = set.iter().position(|old| old.key == *key);
        let oldest = || (0..set.len()).filter(|_| set.len() >= SET_KEYS).min_by_key(|old| set[*old].sent);
        match same.or_else(oldest) {
            Some(place) => set[place] = remembered,
            None => set.push(remembered),
        }
    }

    /// Returns the denial of a call at `local`, a time of this process's clock, if the remembered state denies the
    /// call.
    pub(super) fn answer(
        &self,
        key: &Arc<str>,
        plan: &Arc<Plan<A>>,
        call: &Operation<A>,
        local: Nanos,
    ) -> Option<Decision> {
        if self.longest == 0 || call.cost() == 0 {
            return None;
        }
        let mut set = self.set(key)?;
        let place = set.iter().position(|remembered| remembered.key == *key)?;
        let remembered = &set[place];
        let elapsed = local.saturating_since(remembered.sent);
        let mut decision = None;
        if elapsed <= self.longest && Arc::ptr_eq(plan, &remembered.plan) {
            let now = remembered.now.saturating_add(elapsed);
            let peeked = call.peek(plan, remembered.state.clone(), now);
            decision = Some(peeked).filter(|decision| !decision.is_allowed());
        }
        if decision.is_none() {
            set.swap_remove(place);
        }
        decision
    }

    /// Returns how often states were forgotten. If this number has changed since a state was read, the state must not
    /// be remembered.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    pub(super) fn forget(&self, key: &str) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        if let Some(mut set) = self.set(key) {
            set.retain(|remembered| *remembered.key != *key);
        }
    }

    pub(super) fn clear(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        for set in &self.sets {
            set.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::TimeSource;
    use crate::states::Action;
    use tower_throttle::Quota;
    use tower_throttle::algorithm::{Algorithm, FixedWindow};

    #[test]
    fn a_flood_of_keys_is_bounded_and_locks_out_no_newer_key() {
        let plan = Plan::new(FixedWindow::new(Quota::per_hour(1)), TimeSource::Server, true).unwrap();
        let denials = Denials::new(Duration::from_secs(1));
        let mut state = plan.algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        assert!(plan.algorithm.check(&mut state, Nanos::ZERO, 1).is_allowed());
        let call = Operation::new(Action::Check, 1, None);
        for number in 0..100_000 {
            let (key, now) = (Arc::from(number.to_string()), Nanos(number));
            denials.remember(&key, &plan, state.clone(), now, now);
            assert!(denials.answer(&key, &plan, &call, now).is_some(), "{number}");
        }
        let kept = denials.sets.iter().map(|set| set.lock().unwrap().len()).sum::<usize>();
        assert!(kept <= SETS * SET_KEYS && kept > SETS * SET_KEYS / 2, "{kept}");
        denials.forget("99999");
        assert!(denials.answer(&Arc::from("99999"), &plan, &call, Nanos(100_000)).is_none());
        denials.clear();
        assert!(denials.sets.iter().all(|set| set.lock().unwrap().is_empty()));
    }
}
