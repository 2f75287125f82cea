//! The states of a key: one for the quota of this process, and others for quotas that other machines use with the same
//! name. Also the operations on them, and the plan by which a limiter reads and writes them.
//!
//! While machines use a key with different quotas, the value of the key has one state for each quota, at most four. The
//! quota of each machine decides the calls of that machine. An admitted call is charged to all states. So units that
//! exceed a small quota are still counted for a larger one. No machine admits more calls than its own quota allows,
//! whichever machine has admitted the earlier calls. A call that finds no state for its quota converts the others, and
//! writes the result even if it is denied. Otherwise the units would be forgotten when a shorter period ends. The state
//! of a quota is dropped at the time at which it would be fresh if it were not used any more. Calls of machines with
//! other quotas do not postpone this time.

use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{RedisError, RedisErrorKind};
use super::frame::{self, Frame, newer_version, shown, unit_of};
use super::script::{Packed, Script, ScriptPart, TimeSource, pack};
use super::wait::is_in_time;
use tower_throttle::Decision;
use tower_throttle::algorithm::{AlgorithmInfo, QueueOverflow, StateReader, StateWriter, StoredAlgorithm};
use tower_throttle::clock::Nanos;
use tower_throttle::error::ConfigError;
use tower_throttle::store_support::{StepKind, is_barred};

/// The maximum number of states of other quotas. If there are more, those whose time `until` is earliest are dropped at
/// once.
const MAX_OTHERS: usize = 3;
/// The longest time from the charge of a call that has waited to its admission, in nanoseconds. A state with such a
/// charge is kept for this time after it is fresh, for the charge of the next call.
const MAX_OVERDUE: u64 = 5_000_000;
const DROPS_OLDEST: &str = "in Redis, no call that waits is dropped for a new one, since other processes do not know \
                            which calls wait: remove `.overflow(..)`, or keep the limit in memory";

/// An algorithm, with the script that decides its checks, and the frame of the values that it writes.
#[derive(Debug)]
pub(super) struct Plan<A> {
    pub(super) algorithm: A,
    info: Arc<AlgorithmInfo>,
    frame: Frame,
    script: Option<PlannedScript>,
    /// `true` if a call that waits is charged at once, for the time of its admission.
    hands_out_times: bool,
    /// `true` if a call that has waited in its process may have to be charged before its admission. Otherwise, all
    /// parts of the algorithm are windows, which count a call when it is admitted.
    keeps_schedule: bool,
}

#[derive(Debug)]
struct PlannedScript {
    script: Script,
    part: ScriptPart,
}

/// The states of a key.
#[derive(Clone, Debug)]
pub(super) struct States<A: StoredAlgorithm> {
    /// The state for the quota of this process.
    own: A::State,
    /// `true` if the value has no state for that quota, so that `own` was made from the others.
    is_converted: bool,
    others: Vec<Other<A>>,
    /// `true` if a call may have been charged before its admission.
    is_overdue: bool,
}

#[derive(Clone, Debug)]
struct Other<A: StoredAlgorithm> {
    algorithm: A,
    state: A::State,
    /// The time until which this state is kept, unless its quota is used again.
    until: Nanos,
}

/// An operation on the state of a key.
#[derive(Clone, Debug)]
pub(super) struct Operation<A> {
    action: Action,
    cost: u64,
    /// The algorithm of the call, if it is not the limiter's own.
    tier: Option<A>,
    /// The [generation](AlgorithmInfo::generation) of the algorithm that charged the units which the operation gives
    /// back. An algorithm of another generation gives nothing back: it is not known how many of its units are these.
    charged_by: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Check,
    /// Charges a call that can be queued for at most this many nanoseconds. A denial is counted only if the call cannot
    /// be queued. A call that has been queued, for the second number of nanoseconds, is charged at its scheduled time,
    /// as in a queue in memory.
    CheckToQueue(u64, Option<u64>),
    /// Denies a call whose queue is full, or that has waited too long, and counts the denial. If the units of the call
    /// are available, the denial has a wait of zero.
    Deny,
    Peek,
    Refund,
    Reset,
    /// Sets the rest of the key's lockout to this many nanoseconds, and forgets the denials that were counted.
    LockOut(u64),
    /// Undoes a charge that was made at this time of the server's clock.
    Undo(Nanos),
    /// Settles a call that was charged this number of units at this time of the server's clock. The cost of the
    /// operation is the number of units by which the call has cost less.
    RefundSettled(Nanos, u64),
    /// Charges units after the fact, such as those by which the actual cost of a call exceeds its charge. The state is
    /// then in debt by at most this many units.
    ChargeMore(u64),
    /// Charges a call that may wait for at most this many nanoseconds, and determines the time of its admission.
    Reserve(u64),
    /// Undoes the charge of the `Reserve` whose outcome had this mark.
    GiveBack(u128),
}

/// The result of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    decision: Decision,
    /// The server's time at which the decision was made.
    now: Nanos,
    /// The time for which the call was charged: the key's time or, for a call that waits, the time of its admission. Of
    /// a call that was queued, this may be its slot, up to [`MAX_OVERDUE`] before `now`.
    charged_at: Nanos,
    /// The mark of a `Reserve`, which identifies its charge, so that the charge can be given back.
    mark: Option<u128>,
    /// The number of units that a `ChargeMore` has charged, or a `RefundSettled` has given back.
    settled: u64,
    /// The generation of the algorithm that decided.
    generation: u64,
    /// `true` if a `Reset` has found a state that was not fresh, or a `LockOut` a lockout or counted denials.
    was_used: bool,
}

impl<A: StoredAlgorithm> Plan<A> {
    /// Creates the plan, or returns an error if the states or the queue of the algorithm cannot be kept in Redis.
    pub(super) fn new(algorithm: A, source: TimeSource, scripts: bool) -> Result<Arc<Self>, RedisError> {
        Self::with(algorithm, source, scripts, AlgorithmInfo::of)
    }

    /// Creates the plan of the algorithm that replaces the one of this plan. See [`new`](Self::new).
    pub(super) fn replaced_by(
        &self,
        algorithm: A,
        source: TimeSource,
        scripts: bool,
    ) -> Result<Arc<Self>, RedisError> {
        Self::with(algorithm, source, scripts, |algorithm| self.info.replaced_by(algorithm))
    }

    fn with(
        algorithm: A,
        source: TimeSource,
        scripts: bool,
        info: impl FnOnce(&A) -> Arc<AlgorithmInfo>,
    ) -> Result<Arc<Self>, RedisError> {
        let unstorable = |error: ConfigError| RedisError::new(RedisErrorKind::Algorithm, error.to_string());
        algorithm.check_storable().map_err(unstorable)?;
        if algorithm.queue_config().is_some_and(|queue| queue.overflow() != QueueOverflow::RejectNew) {
            return Err(RedisError::new(RedisErrorKind::Algorithm, DROPS_OLDEST));
        }
        let frame = Frame::new(&algorithm.unit());
        // In the argument of a script, a zero byte ends the tail.
        let has_script = scripts && !frame.tail.contains('\0');
        let steps = algorithm.script();
        let keeps_schedule =
            steps.as_ref().is_none_or(|all| all.steps.iter().any(|step| step.kind == StepKind::Bucket));
        let script = steps.filter(|_| has_script).map(ScriptPart::new).and_then(|part| {
            let script = Script::of_checks(source, &[part.steps(false)])?;
            Some(PlannedScript { script, part })
        });
        let mut fresh = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        let hands_out_times = algorithm.reserve_slot(&mut fresh, Nanos::ZERO, 0, 0).is_some();
        let info = info(&algorithm);
        Ok(Arc::new(Self { info, algorithm, frame, script, hands_out_times, keeps_schedule }))
    }

    /// Returns what a layer reports of the algorithm.
    pub(super) fn info(&self) -> Arc<AlgorithmInfo> {
        Arc::clone(&self.info)
    }

    /// Returns the frame of the values that this process writes.
    pub(super) fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns the script that decides these operations in one trip, and the function that packs the rest of its
    /// argument, after the deadline. Returns `None` if no script can decide them.
    pub(super) fn script<'a>(
        &'a self,
        operations: impl Iterator<Item = &'a Operation<A>>,
    ) -> Option<(&'a Script, impl Fn(&mut Packed))> {
        let PlannedScript { script, part } = self.script.as_ref()?;
        let costs = operations
            .map(|call| Some(call.cost).filter(|_| call.is_plain_check() && part.decides(call.cost)));
        let costs = costs.collect::<Option<SmallVec<[u64; 4]>>>()?;
        let pack = move |last: &mut Packed| pack(&[(part, &self.frame)], costs.iter().copied(), last);
        Some((script, pack))
    }

    /// Returns the part of this plan in the script of a joint call, and the frame of the values that it writes. Returns
    /// `None` if no script can decide the operation at this cost.
    pub(super) fn script_part(&self, operation: &Operation<A>, cost: u64) -> Option<(&ScriptPart, &Frame)> {
        let part = self.script.as_ref().map(|planned| &planned.part).filter(|part| part.decides(cost))?;
        operation.is_plain_check().then_some((part, &self.frame))
    }

    /// Parses the value of a key at `now`. An empty value stands for a missing key, whose state is new.
    pub(super) fn decode(&self, value: &[u8], now: Nanos) -> Result<States<A>, RedisError> {
        if value.is_empty() {
            return Ok(States::new(self.algorithm.new_state(Nanos::ZERO, now)));
        }
        States::read(self, value, now).ok_or_else(|| foreign(value))
    }

    /// Returns the algorithm that reads states with this [`unit`](StoredAlgorithm::unit).
    fn algorithm_of(&self, unit: &str) -> Option<A> {
        if unit == self.frame.unit() { Some(self.algorithm.clone()) } else { self.algorithm.with_unit(unit) }
    }
}

impl<A: StoredAlgorithm> States<A> {
    fn new(own: A::State) -> Self {
        Self { own, is_converted: false, others: Vec::new(), is_overdue: false }
    }

    /// Parses the value of a key at `now`. If the value has no state of this process's quota, the states of other
    /// quotas are converted. Returns `None` if the value is not in the format of this crate.
    fn read(plan: &Plan<A>, value: &[u8], now: Nanos) -> Option<Self> {
        if let Some(bytes) = plan.frame.strip(value) {
            let mut numbers = StateReader::new(bytes);
            let own = plan.algorithm.read_state(&mut numbers)?;
            let others = others(plan, numbers, now)?;
            return Some(Self { others, ..Self::new(own) });
        }
        let unit = unit_of(value)?;
        let mut numbers = StateReader::new(Frame::new(unit).strip(value)?);
        let algorithm = plan.algorithm_of(unit)?;
        let mut state = algorithm.read_state(&mut numbers)?;
        let until = now.saturating_add(reset(&algorithm, &mut state, now));
        let mut others = others(plan, numbers, now)?;
        others.insert(0, Other { algorithm, state, until });
        let unit = plan.frame.unit();
        let own = others.iter().position(|other| other.algorithm.unit() == unit && other.until > now);
        let (own, is_converted) = match own {
            Some(own) => (others.remove(own).state, false),
            None => (converted(&plan.algorithm, &others, now)?, true),
        };
        Some(Self { is_converted, others, ..Self::new(own) })
    }

    /// Applies an operation at `now`. Returns the outcome, and whether the states must be written.
    pub(super) fn apply(&mut self, plan: &Plan<A>, operation: &Operation<A>, now: Nanos) -> (Outcome, bool) {
        // A state that was made from others contains what they were charged, and not what this quota was.
        let is_void = |generation| self.is_converted || generation != plan.info.generation();
        if operation.charged_by.is_some_and(is_void) {
            return operation.with(Action::Peek).at_cost(0).apply(plan, &mut self.own, now);
        }
        let (mut outcome, changed) = operation.apply(plan, &mut self.own, now);
        if operation.action == Action::Reset {
            outcome.was_used |= self.others.iter().any(|other| other.is_used(now));
        }
        if let Action::LockOut(left) = operation.action {
            for Other { algorithm, state, until } in &mut self.others {
                outcome.was_used |= algorithm.lock_out(state, now, left);
                *until = (*until).max(now.saturating_add(reset(algorithm, state, now)));
            }
        }
        self.is_overdue |= matches!(operation.action, Action::CheckToQueue(_, Some(_)));
        self.follow(operation, &outcome);
        (outcome, changed || self.is_converted && operation.action != Action::Peek)
    }

    /// Returns whether the value has no state for the quota of this process. The state that was made from the others
    /// must be written, even if it denies the call: the others may expire earlier, and their units with them.
    pub(super) fn is_converted(&self) -> bool {
        self.is_converted
    }

    /// Returns the outcome that an operation would have at `now`. Of a call that is admitted at once, the decision is
    /// that of a peek: the units of the call are still among the remaining units.
    pub(super) fn preview(&self, plan: &Plan<A>, operation: &Operation<A>, now: Nanos) -> Outcome {
        let outcome = |operation: &Operation<A>| operation.apply(plan, &mut self.own.clone(), now).0;
        let decided = outcome(operation);
        if decided.decision.is_allowed() && decided.decision.delay().is_zero() {
            let peeked = outcome(&operation.with(Action::Peek));
            if peeked.decision.is_allowed() { peeked } else { decided }
        } else {
            decided
        }
    }

    /// Returns the state for the quota of this process.
    pub(super) fn into_own(self) -> A::State {
        self.own
    }

    /// Applies a call to the states of other quotas, after the quota of this process has decided the call. Those states
    /// are charged only as many units as they have available, so a charge makes debt only in the state of this process.
    /// A schedule moves by the cost of the call, even if it is not due. It is not known how many units of a call they
    /// were charged, so they get none back.
    fn follow(&mut self, call: &Operation<A>, outcome: &Outcome) {
        let now = outcome.now;
        let cost = call.cost;
        if call.action == Action::Reset {
            self.others.clear();
        }
        for Other { algorithm, state, .. } in &mut self.others {
            match call.action {
                Action::Check | Action::CheckToQueue(..) | Action::Reserve(_)
                    if outcome.decision.is_allowed() =>
                {
                    let _ = algorithm.charge(state, now, cost, 0);
                }
                Action::ChargeMore(_) => _ = algorithm.charge(state, now, cost, 0),
                _ => {}
            }
        }
    }

    /// Returns the value of the key, with the states that are in use at `now`. Returns `None` if all states are fresh.
    pub(super) fn write(&mut self, plan: &Plan<A>, now: Nanos) -> Option<Vec<u8>> {
        self.others.retain(|other| other.is_used(now));
        self.others.sort_by_key(|other| std::cmp::Reverse(other.until));
        self.others.truncate(MAX_OTHERS);
        if !self.is_overdue && self.others.is_empty() && plan.algorithm.is_fresh(&self.own, now) {
            return None;
        }
        let mut numbers = StateWriter::default();
        plan.algorithm.write_state(&self.own, &mut numbers);
        for Other { algorithm, state, until } in &self.others {
            numbers.instant(*until);
            numbers.word(&algorithm.unit());
            algorithm.write_state(state, &mut numbers);
        }
        let Frame { head, tail } = &plan.frame;
        Some([head, numbers.as_bytes(), tail.as_bytes()].concat())
    }

    /// Returns how long the key is kept, in milliseconds: until all states are fresh, and up to 2 ms longer, or 7 ms if
    /// a call may have been charged before its admission.
    pub(super) fn time_to_live(&mut self, algorithm: &A, now: Nanos) -> u64 {
        let own = reset(algorithm, &mut self.own, now);
        let own = own.saturating_add(if self.is_overdue { MAX_OVERDUE } else { 0 });
        let others = self.others.iter().map(|other| other.until.saturating_since(now)).max();
        own.max(others.unwrap_or(0)).div_ceil(1_000_000).saturating_add(1)
    }
}

impl<A: StoredAlgorithm> Other<A> {
    fn is_used(&self, now: Nanos) -> bool {
        self.until > now && !self.algorithm.is_fresh(&self.state, now)
    }
}

impl<A> Operation<A> {
    /// Creates an operation. `tier` is the algorithm of the call, if it is not the limiter's own.
    pub(super) fn new(action: Action, cost: u64, tier: Option<A>) -> Self {
        Self { action, cost, tier, charged_by: None }
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns whether the operation may make units available.
    pub(super) fn gives_units(&self) -> bool {
        matches!(
            self.action,
            Action::Refund
                | Action::Reset
                | Action::LockOut(_)
                | Action::Undo(_)
                | Action::RefundSettled(..)
                | Action::GiveBack(_)
        )
    }

    /// Returns the operation that undoes the charge of this operation. Returns `None` if there is no charge to undo.
    /// `outcome` is the outcome of this operation.
    pub(super) fn undone(self, outcome: &Outcome) -> Option<Self> {
        if !outcome.decision.is_allowed() || self.cost == 0 {
            return None;
        }
        let (action, charged_by) = match (self.action, outcome.mark) {
            (Action::Check | Action::CheckToQueue(..), _) | (Action::Reserve(_), None) => {
                (Action::Undo(outcome.charged_at), Some(outcome.generation))
            }
            // The mark says whether the charge is in the state.
            (Action::Reserve(_), Some(mark)) => (Action::GiveBack(mark), None),
            _ => return None,
        };
        Some(Self { action, charged_by, ..self })
    }

    /// Returns whether a script can decide the operation, if the algorithm has a script.
    fn is_plain_check(&self) -> bool {
        self.action == Action::Check && self.tier.is_none() && self.cost > 0
    }
}

impl<A: StoredAlgorithm> Operation<A> {
    /// Returns the same call with another action.
    pub(super) fn with(&self, action: Action) -> Self {
        Self { action, ..self.clone() }
    }

    /// Returns the same operation at another cost.
    pub(super) fn at_cost(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }

    /// Adds the cost of another charge after the fact to this one. Does nothing and returns `false` if the charges are
    /// of different tiers, or have different bounds of debt.
    pub(super) fn add(&mut self, other: &Self) -> bool {
        let unit = |operation: &Self| operation.tier.as_ref().map(StoredAlgorithm::unit);
        let is_same = self.action == other.action && unit(self) == unit(other);
        if is_same {
            self.cost = self.cost.saturating_add(other.cost);
        }
        is_same
    }

    /// Returns the operation that charges a check at once for the time of its admission, which is at most
    /// `max_wait` nanoseconds later. Returns `None` if no such time can be determined when the call is charged.
    pub(super) fn reserving(&self, plan: &Plan<A>, max_wait: u64) -> Option<Self> {
        (plan.hands_out_times && self.tier.is_none()).then(|| self.with(Action::Reserve(max_wait)))
    }

    /// Returns the operation that decides a check that can be queued for at most `max_wait` nanoseconds, and has been
    /// queued for `waited`, unless it asks for the first time.
    pub(super) fn queueing(self, plan: &Plan<A>, max_wait: u64, waited: Option<u64>) -> Self {
        let counts_denials = self.tier.as_ref().unwrap_or(&plan.algorithm).counts_denials();
        let waited = waited.filter(|_| plan.keeps_schedule);
        if counts_denials || waited.is_some() {
            Self { action: Action::CheckToQueue(max_wait, waited), ..self }
        } else {
            self
        }
    }

    /// Returns the operation that replaces the charge of this call, which had this outcome, by the charge of its actual
    /// cost. The state is then in debt by at most `max_debt` units. Returns `None` if both costs are the same.
    pub(super) fn settled(&self, outcome: &Outcome, actual: u64, max_debt: u64) -> Option<Self> {
        let (action, cost, charged_by) = match actual.checked_sub(self.cost) {
            Some(0) => return None,
            Some(more) => (Action::ChargeMore(max_debt), more, None),
            None => {
                let action = Action::RefundSettled(outcome.charged_at, self.cost);
                (action, self.cost - actual, Some(outcome.generation))
            }
        };
        Some(Self { action, cost, tier: self.tier.clone(), charged_by })
    }

    /// Returns the algorithm that decides the operation: the tier of the call, or the limiter's own algorithm. It also
    /// replaces each tier in `state` that has the same [`unit`](StoredAlgorithm::unit). The states of the replaced
    /// tiers are kept.
    fn algorithm<'a>(&'a self, limiter: &'a A, state: &mut A::State) -> &'a A {
        let algorithm = self.tier.as_ref().unwrap_or(limiter);
        algorithm.adopt(state);
        algorithm
    }

    /// Changes `state` at `now`, which was read by `plan`. Returns the outcome, and whether the state must be written.
    pub(super) fn apply(&self, plan: &Plan<A>, state: &mut A::State, now: Nanos) -> (Outcome, bool) {
        let limiter = &plan.algorithm;
        let algorithm = self.algorithm(limiter, state);
        let cost = self.cost;
        let before = state.clone();
        let mut mark = None;
        let mut slot = None;
        let mut settled = 0;
        let mut was_used = false;
        let (decision, changed) = match self.action {
            Action::Check | Action::Reserve(_) => {
                let reserved = match self.action {
                    Action::Reserve(max_wait) => algorithm.reserve_slot(state, now, cost, max_wait),
                    _ => None,
                };
                let decision = match reserved {
                    Some(reserved) => {
                        mark = Some(reserved.mark);
                        reserved.decision
                    }
                    None => algorithm.check(state, now, cost),
                };
                (decision, cost > 0 && (decision.is_allowed() || algorithm.counts_denials()))
            }
            Action::CheckToQueue(max_wait, waited) => {
                let queued =
                    waited.and_then(|waited| admission_of_queued(algorithm, state, now, cost, waited));
                let queued = queued.map(|(decision, at)| {
                    slot = Some(at);
                    decision
                });
                match queued.or_else(|| denial_to_queue(algorithm, state, now, cost, max_wait)) {
                    Some(decision) => (decision, decision.is_allowed()),
                    None => {
                        let decision = algorithm.check(state, now, cost);
                        (decision, cost > 0 && (decision.is_allowed() || algorithm.counts_denials()))
                    }
                }
            }
            Action::Deny => {
                let mut denial = algorithm.peek(state, now, cost);
                if denial.is_allowed() {
                    let reset = Nanos::from(denial.reset_after()).0;
                    denial = Decision::deny(denial.limit(), 0, Some(0), reset);
                }
                let denial = algorithm.report(state, now, cost, true, denial);
                (denial, cost > 0 && algorithm.counts_denials())
            }
            Action::Peek => (algorithm.peek(state, now, cost), false),
            Action::Refund => {
                algorithm.refund(state, now, cost, None);
                (algorithm.peek(state, now, 0), true)
            }
            Action::Undo(charged_at) => {
                algorithm.refund(state, now, cost, Some(charged_at));
                (algorithm.peek(state, now, 0), true)
            }
            Action::RefundSettled(charged_at, charged) => {
                algorithm.refund_settled(state, now, charged, charged - cost, charged_at);
                settled = cost;
                (algorithm.peek(state, now, 0), true)
            }
            Action::ChargeMore(max_debt) => {
                settled = match max_debt {
                    0 => algorithm.charge_available(state, now, cost),
                    _ => algorithm.charge(state, now, cost, max_debt),
                };
                (algorithm.peek(state, now, 0), true)
            }
            Action::GiveBack(mark) => {
                let changed = algorithm.give_back(state, now, cost, mark);
                (algorithm.peek(state, now, 0), changed)
            }
            Action::Reset => {
                was_used = !limiter.is_fresh(state, now);
                *state = limiter.new_state(Nanos::ZERO, now);
                (limiter.peek(state, now, 0), true)
            }
            Action::LockOut(left) => {
                was_used = limiter.lock_out(state, now, left);
                (limiter.peek(state, now, 0), true)
            }
        };
        let last = algorithm.last_update(state);
        let charged_at = match slot {
            // A call that was queued is charged at its slot, from which its units are refilled.
            Some(slot) if last <= now => slot.min(now),
            _ => now.saturating_add(Nanos::from(decision.delay()).0).max(last),
        };
        // If the clock was set back by more than a period, the state continues from the new time. That state must be
        // written: otherwise the key would not change until the clock reaches the old time again.
        let must_keep = limiter.must_keep(&before, state);
        let generation = plan.info.generation();
        let outcome = Outcome { decision, now, charged_at, mark, settled, generation, was_used };
        (outcome, changed || must_keep)
    }
}

impl Outcome {
    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns the same outcome, with another decision.
    pub(super) fn map(self, change: impl FnOnce(Decision) -> Decision) -> Self {
        Self { decision: change(self.decision), ..self }
    }

    /// Returns the number of units that a settlement or a charge after the fact has charged or given back.
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns whether a reset has found a state that was not fresh, or a `LockOut` a lockout or counted denials.
    pub(super) fn was_used(&self) -> bool {
        self.was_used
    }
}

/// Charges a call that has been queued for `waited` nanoseconds, if it is due. A bucket or a `Smooth` charges it at its
/// scheduled time, but at most [`MAX_OVERDUE`] before `now`. So a late question does not lower the rate, and a stall of
/// the process stores nothing. Returns the decision, and the time for which the call was charged.
fn admission_of_queued<A: StoredAlgorithm>(
    algorithm: &A,
    state: &mut A::State,
    now: Nanos,
    cost: u64,
    waited: u64,
) -> Option<(Decision, Nanos)> {
    // These looks must not advance the state, which may be overdue.
    if !algorithm.peek(&mut state.clone(), now, cost).is_allowed() {
        return None;
    }
    let at = algorithm.admit_queued(state, now, Nanos(now.0.saturating_sub(waited)), cost)?;
    Some((algorithm.peek(&mut state.clone(), now, 0), at))
}

/// Returns the denial of a call that can be queued for at most `max_wait` nanoseconds. Counts nothing. The wait in the
/// denial is that until the units of the call are available, even if a further denial would begin a lockout. Returns
/// `None` if the call is not to be queued.
fn denial_to_queue<A: StoredAlgorithm>(
    algorithm: &A,
    state: &mut A::State,
    now: Nanos,
    cost: u64,
    max_wait: u64,
) -> Option<Decision> {
    let peeked = algorithm.peek(state, now, cost);
    if peeked.is_allowed() || is_barred(&peeked) || peeked.never_fits() {
        return None;
    }
    let wait = algorithm.ready_at(state, now, cost)?.saturating_since(now);
    is_in_time(wait, max_wait).then(|| peeked.with_retry_after(Some(wait)))
}

/// Returns the time until the state is fresh, in nanoseconds.
fn reset<A: StoredAlgorithm>(algorithm: &A, state: &mut A::State, now: Nanos) -> u64 {
    Nanos::from(algorithm.peek(state, now, 0).reset_after()).0
}

/// Converts each state of `others` to `algorithm`. Returns the result with the fewest remaining units, as it is read
/// once it is stored: what is stored is rounded, so otherwise a mark that is taken now would not be its mark then.
fn converted<A: StoredAlgorithm>(algorithm: &A, others: &[Other<A>], now: Nanos) -> Option<A::State> {
    let convert = |other: &Other<A>| {
        let mut state = other.state.clone();
        algorithm.migrate(&mut state, &other.algorithm, now);
        let left = algorithm.peek(&mut state, now, 0).remaining();
        (left, state)
    };
    let (_, state) = others.iter().map(convert).min_by_key(|(left, _)| *left)?;
    let mut numbers = StateWriter::default();
    algorithm.write_state(&state, &mut numbers);
    algorithm.read_state(&mut StateReader::new(numbers.as_bytes()))
}

/// Reads the states of other quotas: for each, the time until which it is kept, the algorithm's
/// [`unit`](StoredAlgorithm::unit), and the numbers.
fn others<A: StoredAlgorithm>(
    plan: &Plan<A>,
    mut numbers: StateReader<'_>,
    now: Nanos,
) -> Option<Vec<Other<A>>> {
    let mut others = Vec::new();
    while !numbers.is_at_end() {
        let until = numbers.instant()?;
        let algorithm = plan.algorithm_of(numbers.word()?)?;
        let mut state = algorithm.read_state(&mut numbers)?;
        // The time may have been written by a server whose clock was ahead.
        let until = until.min(now.saturating_add(reset(&algorithm, &mut state, now)));
        others.push(Other { algorithm, state, until });
    }
    Some(others)
}

/// Returns the error of a value that is not one of this limiter.
fn foreign(value: &[u8]) -> RedisError {
    frame::foreign(newer_version(value), || format!("the value is {}", shown(value)))
}

#[cfg(test)]
mod tests;
