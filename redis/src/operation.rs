use tokio::sync::oneshot;

use super::error::RedisError;
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;

/// An operation on the state of a key.
#[derive(Clone, Debug)]
pub(super) struct Operation<A> {
    pub(super) action: Action,
    pub(super) cost: u64,
    /// The algorithm of the call, if it is not the limiter's own.
    pub(super) tier: Option<A>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Check,
    Peek,
    Refund,
    Reset,
    /// Undoes a charge that was made at this time of the server's clock.
    Undo(Nanos),
    /// Charges the units by which the actual cost of a call exceeds its charge.
    ChargeMore,
    /// Charges a call that may wait for at most this many nanoseconds, and determines the time of its release.
    Reserve(u64),
    /// Undoes the charge of the `Reserve` whose outcome had this mark.
    GiveBack(u128),
}

/// The result of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) decision: Decision,
    /// The server's time at which the decision was made.
    pub(super) now: Nanos,
    /// The time for which the call was charged: the key's time or, for a call that waits, the time of its release.
    pub(super) charged_at: Nanos,
    /// The mark of a `Reserve`, which identifies its charge, so that the charge can be given back.
    pub(super) mark: Option<u128>,
}

/// A call that will be decided in a trip.
#[derive(Debug)]
pub(super) struct Pending<A> {
    pub(super) operation: Operation<A>,
    /// The time until which the caller waits for the result.
    pub(super) deadline: Nanos,
    /// `None` if no caller waits for the result.
    pub(super) reply: Option<oneshot::Sender<Result<Outcome, RedisError>>>,
}

impl<A> Pending<A> {
    /// Returns whether the caller has dropped the call.
    pub(super) fn is_cancelled(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Sends the result to the caller. If the caller has dropped the call, and the call was charged, returns the
    /// operation that undoes the charge.
    pub(super) fn answer(self, result: Result<Outcome, RedisError>) -> Option<Operation<A>> {
        let sent = self.reply?.send(result);
        let Err(Ok(outcome)) = sent else { return None };
        self.operation.undone(&outcome)
    }
}

impl<A> Operation<A> {
    pub(super) fn new(action: Action, cost: u64) -> Self {
        Self { action, cost, tier: None }
    }

    /// Returns the operation that undoes the charge of this operation. Returns `None` if there is no charge to undo.
    /// `outcome` is the outcome of this operation.
    pub(super) fn undone(self, outcome: &Outcome) -> Option<Self> {
        if !outcome.decision.is_allowed() || self.cost == 0 {
            return None;
        }
        let action = match (self.action, outcome.mark) {
            (Action::Check, _) | (Action::Reserve(_), None) => Action::Undo(outcome.charged_at),
            (Action::Reserve(_), Some(mark)) => Action::GiveBack(mark),
            _ => return None,
        };
        Some(Self { action, ..self })
    }

    /// Returns whether a script can decide the operation, if the algorithm has a script.
    pub(super) fn is_plain_check(&self) -> bool {
        self.action == Action::Check && self.tier.is_none() && self.cost > 0
    }
}

impl<A: StoredAlgorithm> Operation<A> {
    /// Returns the algorithm that decides the operation: the tier of the call, or the limiter's own algorithm. It also
    /// replaces each tier in `state` that has the same [`unit`](StoredAlgorithm::unit). The states of the replaced
    /// tiers are kept.
    pub(super) fn algorithm<'a>(&'a self, limiter: &'a A, state: &mut A::State) -> &'a A {
        let algorithm = self.tier.as_ref().unwrap_or(limiter);
        algorithm.adopt(state);
        algorithm
    }

    /// Changes `state` at `now`. Returns the outcome, and whether the state must be written.
    pub(super) fn apply(&self, limiter: &A, state: &mut A::State, now: Nanos) -> (Outcome, bool) {
        let algorithm = self.algorithm(limiter, state);
        let (cost, before) = (self.cost, state.clone());
        let mut mark = None;
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
            Action::Peek => (algorithm.peek(state, now, cost), false),
            Action::Refund => {
                algorithm.refund(state, now, cost);
                (algorithm.peek(state, now, 0), true)
            }
            Action::Undo(charged_at) => {
                algorithm.undo(state, now, cost, charged_at);
                (algorithm.peek(state, now, 0), true)
            }
            Action::ChargeMore => {
                let available = algorithm.peek(state, now, 0).remaining();
                (algorithm.check(state, now, cost.min(available)), true)
            }
            Action::GiveBack(mark) => {
                let changed = algorithm.give_back(state, now, cost, mark);
                (algorithm.peek(state, now, 0), changed)
            }
            Action::Reset => {
                *state = limiter.new_state(Nanos::ZERO, now);
                (limiter.peek(state, now, 0), true)
            }
        };
        let charged_at =
            now.saturating_add(Nanos::from(decision.delay()).0).max(algorithm.last_update(state));
        // If the clock was set back by more than a period, the state continues from the new time. That state must be
        // written: otherwise the key would not change until the clock reaches the old time again.
        let must_keep = limiter.must_keep(&before, state);
        (Outcome { decision, now, charged_at, mark }, changed || must_keep)
    }
}
