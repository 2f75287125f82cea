//! The states of a key: one for the quota of this process, and others for quotas that other machines use with the same
//! name.
//!
//! While machines use a key with different quotas, the value of the key has one state for each quota, at most four. The
//! quota of each machine decides the calls of that machine. An admitted call is charged to all states. So units that
//! exceed a small quota are still counted for a larger one. No machine admits more calls than its own quota allows,
//! whichever machine has admitted the earlier calls. The state of a quota is dropped at the time at which it would be
//! fresh if it were not used any more. Calls of machines with other quotas do not postpone this time.

use super::error::{RedisError, RedisErrorKind};
use super::operation::{Action, Operation, Outcome};
use super::plan::{Plan, VERSION};
use tower_throttle::algorithm::{StateReader, StateWriter, StoredAlgorithm};
use tower_throttle::clock::Nanos;

/// The string between two states in the value of a key.
const SEPARATOR: &str = " | ";
/// The maximum number of states of other quotas. If there are more, those whose time `until` is earliest are dropped at
/// once.
const MAX_OTHERS: usize = 3;

/// The states of a key.
#[derive(Clone, Debug)]
pub(super) struct States<A: StoredAlgorithm> {
    /// The state for the quota of this process.
    pub(super) own: A::State,
    others: Vec<Other<A>>,
}

#[derive(Clone, Debug)]
struct Other<A: StoredAlgorithm> {
    algorithm: A,
    state: A::State,
    /// The time until which this state is kept, unless its quota is used again.
    until: Nanos,
}

impl<A: StoredAlgorithm> Plan<A> {
    /// Parses the value of a key at `now`. An empty value stands for a missing key, whose state is new.
    pub(super) fn decode(&self, text: &str, now: Nanos) -> Result<States<A>, RedisError> {
        if text.is_empty() {
            return Ok(States::new(self.algorithm.new_state(Nanos::ZERO, now)));
        }
        States::read(self, text, now).ok_or_else(|| {
            let shown: String = text.chars().take(60).collect();
            RedisError::new(RedisErrorKind::Foreign, format!("the value is {shown:?}"))
        })
    }
}

impl<A: StoredAlgorithm> States<A> {
    pub(super) fn new(own: A::State) -> Self {
        Self { own, others: Vec::new() }
    }

    /// Parses the value of a key at `now`. If the value has no state of this process's quota, the states of other
    /// quotas are converted. Returns `None` if the value is not in the format of this crate.
    pub(super) fn read(plan: &Plan<A>, text: &str, now: Nanos) -> Option<Self> {
        let mut parts = text.strip_prefix(VERSION)?.strip_prefix(' ')?.split(SEPARATOR);
        let first = parts.next()?;
        let mut others = Vec::new();
        for part in parts {
            let (until, part) = part.split_once(' ')?;
            let until = Nanos(until.parse::<u64>().ok()?.checked_mul(1_000)?);
            let (algorithm, mut state) = read(plan, part)?;
            // The time may have been written by a server whose clock was ahead.
            let until = until.min(now.saturating_add(reset(&algorithm, &mut state, now)));
            others.push(Other { algorithm, state, until });
        }
        if let Some(numbers) = plan.own_numbers(first) {
            let own = numbers_of(&plan.algorithm, numbers)?;
            return Some(Self { own, others });
        }
        let (algorithm, mut state) = read(plan, first)?;
        let until = now.saturating_add(reset(&algorithm, &mut state, now));
        others.insert(0, Other { algorithm, state, until });
        let unit = plan.algorithm.unit();
        let own = others.iter().position(|other| other.algorithm.unit() == unit && other.until > now);
        let own = match own {
            Some(own) => others.remove(own).state,
            None => converted(&plan.algorithm, &others, now)?,
        };
        Some(Self { own, others })
    }

    /// Applies a call to the states of other quotas, after the quota of this process has decided the call.
    pub(super) fn follow(&mut self, call: &Operation<A>, outcome: &Outcome, has_changed: bool) {
        let (now, cost) = (outcome.now, call.cost);
        if call.action == Action::Reset {
            self.others.clear();
        }
        for Other { algorithm, state, .. } in &mut self.others {
            match call.action {
                Action::Check | Action::Reserve(_) if outcome.decision.is_allowed() => {
                    algorithm.charge_more(state, now, cost);
                }
                Action::ChargeMore => algorithm.charge_more(state, now, cost),
                Action::Refund => algorithm.refund(state, now, cost),
                Action::Undo(charged_at) => algorithm.undo(state, now, cost, charged_at),
                Action::GiveBack(_) if has_changed => algorithm.refund(state, now, cost),
                _ => {}
            }
        }
    }

    /// Returns the value of the key, with the states that are in use at `now`. Returns `None` if all states are fresh.
    pub(super) fn write(&mut self, plan: &Plan<A>, now: Nanos) -> Option<String> {
        self.others.retain(|other| other.until > now && !other.algorithm.is_fresh(&other.state, now));
        self.others.sort_by_key(|other| std::cmp::Reverse(other.until));
        self.others.truncate(MAX_OTHERS);
        if self.others.is_empty() && plan.algorithm.is_fresh(&self.own, now) {
            return None;
        }
        let mut numbers = StateWriter::default();
        plan.algorithm.write_state(&self.own, &mut numbers);
        let mut text = format!("{}{}", plan.prefix(), numbers.as_str());
        for Other { algorithm, state, until } in &self.others {
            let mut numbers = StateWriter::default();
            algorithm.write_state(state, &mut numbers);
            let (until, unit) = (until.0.div_ceil(1_000), algorithm.unit());
            text.push_str(&format!("{SEPARATOR}{until} {unit}{}", numbers.as_str()));
        }
        Some(text)
    }

    /// Returns how long the key is kept, in milliseconds: until all states are fresh, and up to 2 ms longer.
    pub(super) fn time_to_live(&mut self, algorithm: &A, now: Nanos) -> u64 {
        let own = reset(algorithm, &mut self.own, now);
        let others = self.others.iter().map(|other| other.until.saturating_since(now)).max();
        own.max(others.unwrap_or(0)).div_ceil(1_000_000).saturating_add(1)
    }
}

/// Returns the time until the state is fresh, in nanoseconds.
fn reset<A: StoredAlgorithm>(algorithm: &A, state: &mut A::State, now: Nanos) -> u64 {
    Nanos::from(algorithm.peek(state, now, 0).reset_after()).0
}

/// Converts each state of `others` to `algorithm`, and returns the result with the fewest remaining units.
fn converted<A: StoredAlgorithm>(algorithm: &A, others: &[Other<A>], now: Nanos) -> Option<A::State> {
    let convert = |other: &Other<A>| {
        let mut state = other.state.clone();
        algorithm.migrate(&mut state, &other.algorithm, now);
        let left = algorithm.peek(&mut state, now, 0).remaining();
        (left, state)
    };
    others.iter().map(convert).min_by_key(|(left, _)| *left).map(|(_, state)| state)
}

/// Parses one state: the algorithm's [`unit`](StoredAlgorithm::unit), and the numbers after it.
fn read<A: StoredAlgorithm>(plan: &Plan<A>, text: &str) -> Option<(A, A::State)> {
    let (unit, _) = text.split_once(' ')?;
    let algorithm = match plan.own_numbers(text) {
        Some(_) => plan.algorithm.clone(),
        None => plan.algorithm.with_unit(unit)?,
    };
    let state = numbers_of(&algorithm, &text[unit.len()..])?;
    Some((algorithm, state))
}

fn numbers_of<A: StoredAlgorithm>(algorithm: &A, numbers: &str) -> Option<A::State> {
    let mut reader = StateReader::new(numbers);
    algorithm.read_state(&mut reader).filter(|_| reader.is_at_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts::TimeSource;
    use std::time::Duration;
    use tower_throttle::Quota;
    use tower_throttle::algorithm::{
        FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
    };

    const MICRO: u64 = 1_000;
    const SECOND: u64 = 1_000_000_000;
    const START: Nanos = Nanos(1_700_000_000 * SECOND);

    /// A key in Redis, and one machine for each quota.
    struct Machines<A: StoredAlgorithm> {
        plans: Vec<std::sync::Arc<Plan<A>>>,
        text: String,
        now: Nanos,
    }

    impl<A: StoredAlgorithm> Machines<A> {
        fn new(algorithms: impl IntoIterator<Item = A>) -> Self {
            let plan = |algorithm| Plan::new(algorithm, TimeSource::Server, true).unwrap();
            let plans = algorithms.into_iter().map(plan).collect();
            Self { plans, text: String::new(), now: START }
        }

        /// Makes a call at one machine, by compare-and-set.
        fn call(&mut self, machine: usize, action: Action, cost: u64) -> Outcome {
            let plan = &self.plans[machine];
            let mut states = plan.decode(&self.text, self.now).unwrap();
            let call = Operation::new(action, cost);
            let (outcome, changed) = call.apply(&plan.algorithm, &mut states.own, self.now);
            states.follow(&call, &outcome, changed);
            if changed {
                self.text = states.write(plan, self.now).unwrap_or_default();
            }
            outcome
        }

        fn admits(&mut self, machine: usize, cost: u64) -> bool {
            self.call(machine, Action::Check, cost).decision.is_allowed()
        }
    }

    #[test]
    fn what_the_smaller_quota_cannot_hold_is_not_lost() {
        let bucket = |burst| TokenBucket::new(Quota::per_hour(3_600).burst(burst)).queue(5);
        for action in [Action::Refund, Action::ChargeMore, Action::Reserve(u64::MAX)] {
            let mut machines = Machines::new([bucket(100), bucket(10)]);
            assert!(machines.admits(0, 100));
            machines.call(1, action, 1);
            let left = machines.call(0, Action::Peek, 1).decision.remaining();
            assert!(left <= u64::from(action == Action::Refund), "{action:?}: {left} of 100");
        }
    }

    #[test]
    fn a_window_that_ends_sooner_does_not_end_the_other() {
        let window =
            |limit, seconds| FixedWindow::new(Quota::per(limit, Duration::from_secs(seconds)).unwrap());
        let mut machines = Machines::new([window(100, 3_600), window(10, 60)]);
        assert!(machines.admits(0, 95));
        machines.now.0 += 61 * SECOND;
        assert!(machines.admits(1, 3));
        assert!(!machines.admits(0, 3) && machines.admits(0, 2), "{}", machines.text);
    }

    #[test]
    fn a_quota_that_is_no_longer_used_is_dropped() {
        let window = |limit| FixedWindow::new(Quota::per_minute(limit));
        let mut machines = Machines::new([window(100), window(10)]);
        assert!(machines.admits(0, 1));
        machines.now.0 += 30 * SECOND;
        assert!(machines.admits(1, 1));
        assert_eq!(machines.text.matches('|').count(), 1, "{}", machines.text);
        let plan = std::sync::Arc::clone(&machines.plans[1]);
        let mut states = plan.decode(&machines.text, machines.now).unwrap();
        assert!((30_000..=30_002).contains(&states.time_to_live(&plan.algorithm, machines.now)));
        machines.now.0 += 30 * SECOND;
        assert!(machines.admits(1, 1));
        assert_eq!(machines.text.matches('|').count(), 0, "{}", machines.text);
    }

    /// Makes random calls at two machines. Neither machine may admit a call that the larger quota would deny if it
    /// decided all calls alone.
    fn never_above_the_larger_quota<A: StoredAlgorithm>(larger: A, smaller: A, max_cost: u64) {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |limit: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % limit
        };
        let mut machines = Machines::new([larger.clone(), smaller]);
        let mut exact = larger.new_state(Nanos::ZERO, START);
        let mut admitted = [0_u64; 2];
        for call in 0..20_000 {
            // At times, only one of the machines makes calls.
            let machine = match call / 500 % 4 {
                0 => 0,
                1 => 1,
                _ => below(2) as usize,
            };
            let step = match below(12) {
                0..2 => 0,
                2..8 => below(100_000),
                8..11 => below(2_000_000),
                _ => below(70_000_000),
            };
            machines.now.0 += MICRO * step;
            let cost = 1 + below(max_cost);
            if machines.admits(machine, cost) {
                let is_allowed = larger.check(&mut exact, machines.now, cost).is_allowed();
                assert!(is_allowed, "call {call} of {larger:?} at machine {machine}: {}", machines.text);
                admitted[machine] += 1;
            }
        }
        assert!(admitted.iter().all(|admitted| *admitted > 500), "{admitted:?}");
    }

    #[test]
    fn machines_with_two_quotas_admit_no_more_than_the_larger() {
        let (large, small) = (Quota::per_minute(100), Quota::per_minute(10));
        never_above_the_larger_quota(TokenBucket::new(large), TokenBucket::new(small), 3);
        never_above_the_larger_quota(TokenBucket::new(large), TokenBucket::new(large.burst(10)), 3);
        never_above_the_larger_quota(FixedWindow::new(large), FixedWindow::new(small), 3);
        never_above_the_larger_quota(SlidingWindow::new(large), SlidingWindow::new(small), 3);
        never_above_the_larger_quota(SlidingCounter::new(large), SlidingCounter::new(small), 3);
        never_above_the_larger_quota(SlidingLog::new(large), SlidingLog::new(small), 3);
        never_above_the_larger_quota(LeakyBucket::new(large), LeakyBucket::new(small), 1);
    }
}
