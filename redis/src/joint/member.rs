//! The part of one limiter in a joint call.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::error::{RedisError, RedisErrorKind};
use crate::limit::{RedisLimit, Request, Shared};
use crate::links::Links;
use crate::operation::{Action, Operation, Outcome};
use crate::plan::{Plan, ScriptPart};
use crate::states::States;
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;
use tower_throttle::store::{Attempt, Reservation};
use tower_throttle::store_support::{AnyAlgorithm, JointRequest};
use tower_throttle::store_support::{CallCounts, CallOutcome, memory_part};

/// The part of one limiter in a joint call, with the type of the algorithm erased.
pub(super) trait Member: Send + Sync {
    fn links(&self) -> &Links;
    fn key(&self) -> &Arc<str>;
    fn cost(&self) -> u64;
    fn is_in_shadow(&self) -> bool;
    fn count(&self, outcome: CallOutcome);
    fn counts(&self) -> Arc<CallCounts>;

    /// Returns an error if the call may have to wait in a queue of this process.
    fn check_supported(&self) -> Result<(), RedisError>;

    /// Returns the denial of the call if this process remembers a state that denies the call.
    fn known_denial(&self) -> Option<Decision>;

    /// Returns the part of this limiter in a script, and the beginning of each value that the limiter writes. Returns
    /// `None` if no script can decide the call at this cost.
    fn script_part(&self, cost: u64) -> Option<(&ScriptPart, &str)>;

    /// Reads the state of the key from its value.
    fn read(&mut self, value: &str, now: Nanos) -> Result<(), RedisError>;

    /// Returns the decision on the call, without a charge.
    fn preview(&self, cost: u64, now: Nanos) -> Decision;

    /// Decides and charges the call. Returns the outcome, and whether the state must be written.
    fn apply(&mut self, cost: u64, now: Nanos) -> (Outcome, bool);

    /// Returns the new value of the key, which is empty if the state is fresh, and its time to live in milliseconds.
    fn write(&mut self, now: Nanos) -> (String, u64);

    /// Remembers the state, which was read at `now` by a request that was sent at `sent`.
    fn remember(&mut self, now: Nanos, sent: Nanos);

    /// Undoes the charge of the call, which had this outcome.
    fn undo(&self, cost: u64, outcome: &Outcome, runtime: &Handle);

    /// Returns the reservation of the call, which was charged at this time of the server's clock.
    fn reservation(&self, charged_at: Nanos) -> Reservation;

    /// Returns the algorithm of the call, if it is not the limiter's own.
    fn algorithm(&self) -> Option<AnyAlgorithm>;

    /// Returns the part of the fallback in a joint call. Returns `None` if there is no fallback.
    fn fallback_part(&self) -> Option<JointRequest<'_>>;
}

struct Part<A: StoredAlgorithm> {
    shared: Arc<Shared<A>>,
    plan: Arc<Plan<A>>,
    key: Arc<str>,
    request: Request<A>,
    in_shadow: bool,
    counts: Arc<CallCounts>,
    states: Option<States<A>>,
    /// The number of times that the limiter had forgotten states when the call was made.
    forgotten: u64,
}

const NOT_READ: &str = "the state is read first";

impl<A: StoredAlgorithm> RedisLimit<A> {
    pub(super) fn member(
        &self,
        key: Arc<str>,
        attempt: &Attempt<'_, A>,
        counts: &Arc<CallCounts>,
    ) -> Box<dyn Member> {
        let mut request = self.request(attempt);
        let (shared, plan) = (Arc::clone(&self.shared), self.shared.plan());
        let Operation { action, cost, tier } = &mut request.operation;
        // In shadow mode, a call must not wait.
        request.may_wait &= *cost > 0 && !attempt.is_in_shadow();
        if request.may_wait && plan.hands_out_times && tier.is_none() {
            *action = Action::Reserve(request.max_wait);
        }
        let (forgotten, counts) = (shared.denials.forgotten(), Arc::clone(counts));
        let in_shadow = attempt.is_in_shadow();
        Box::new(Part { shared, plan, key, request, in_shadow, counts, states: None, forgotten })
    }
}

impl<A: StoredAlgorithm> Part<A> {
    fn operation(&self, cost: u64) -> Operation<A> {
        Operation { cost, ..self.request.operation.clone() }
    }
}

impl<A: StoredAlgorithm> Member for Part<A> {
    fn links(&self) -> &Links {
        &self.shared.links
    }

    fn key(&self) -> &Arc<str> {
        &self.key
    }

    fn cost(&self) -> u64 {
        self.request.operation.cost
    }

    fn is_in_shadow(&self) -> bool {
        self.in_shadow
    }

    fn count(&self, outcome: CallOutcome) {
        self.counts.add(outcome);
    }

    fn counts(&self) -> Arc<CallCounts> {
        Arc::clone(&self.counts)
    }

    fn check_supported(&self) -> Result<(), RedisError> {
        let algorithm = self.request.operation.tier.as_ref().unwrap_or(&self.plan.algorithm);
        let queues = || algorithm.queue_config().is_some_and(|config| config.places() > 0);
        match self.request.may_wait && self.request.operation.action == Action::Check && queues() {
            true => Err(RedisError::new(
                RedisErrorKind::Algorithm,
                "in joined layers, only a `TokenBucket` or a `LeakyBucket` without tiers can have a queue",
            )),
            false => Ok(()),
        }
    }

    fn known_denial(&self) -> Option<Decision> {
        let is_asked = self.in_shadow || self.request.may_wait;
        if is_asked { None } else { self.shared.known_denial(&self.key, &self.request) }
    }

    fn script_part(&self, cost: u64) -> Option<(&ScriptPart, &str)> {
        let part = self.plan.script_part(cost).filter(|_| self.request.operation.is_plain_check())?;
        Some((part, self.plan.prefix()))
    }

    fn read(&mut self, value: &str, now: Nanos) -> Result<(), RedisError> {
        self.states = Some(self.plan.decode(value, now)?);
        Ok(())
    }

    fn preview(&self, cost: u64, now: Nanos) -> Decision {
        let peek = |action: Action| {
            let mut state = self.states.as_ref().expect(NOT_READ).own.clone();
            let operation = Operation { action, ..self.operation(cost) };
            operation.apply(&self.plan.algorithm, &mut state, now).0.decision
        };
        let decided = peek(self.request.operation.action);
        // For a call that is admitted at once, the preview is a peek: the units of the call are still among the
        // remaining units.
        match decided.is_allowed() && decided.delay().is_zero() {
            true => Some(peek(Action::Peek)).filter(Decision::is_allowed).unwrap_or(decided),
            false => decided,
        }
    }

    fn apply(&mut self, cost: u64, now: Nanos) -> (Outcome, bool) {
        let operation = self.operation(cost);
        let states = self.states.as_mut().expect(NOT_READ);
        let (outcome, changed) = operation.apply(&self.plan.algorithm, &mut states.own, now);
        states.follow(&operation, &outcome, changed);
        (outcome, changed)
    }

    fn write(&mut self, now: Nanos) -> (String, u64) {
        let states = self.states.as_mut().expect(NOT_READ);
        let value = states.write(&self.plan, now).unwrap_or_default();
        (value, states.time_to_live(&self.plan.algorithm, now))
    }

    fn remember(&mut self, now: Nanos, sent: Nanos) {
        let denials = &self.shared.denials;
        if let Some(states) = self.states.take()
            && denials.forgotten() == self.forgotten
        {
            denials.remember(&self.key, &self.plan, states.own, now, sent);
        }
    }

    fn undo(&self, cost: u64, outcome: &Outcome, runtime: &Handle) {
        if let Some(undo) = self.operation(cost).undone(outcome) {
            self.shared.tell(&self.key, undo, runtime);
        }
    }

    fn reservation(&self, charged_at: Nanos) -> Reservation {
        self.shared.reservation(&self.key, &self.request, charged_at)
    }

    fn algorithm(&self) -> Option<AnyAlgorithm> {
        self.request.operation.tier.clone().map(|tier| Box::new(tier) as AnyAlgorithm)
    }

    fn fallback_part(&self) -> Option<JointRequest<'_>> {
        let local = self.shared.fallback.as_ref()?;
        Some(memory_part(local, &*self.key, self.request.attempt()))
    }
}
