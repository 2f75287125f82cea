//! The outcomes of the policies for a request, which are kept until the response is made.

use super::info::PolicyInfo;
use crate::algorithm::{Algorithm, QuotaPolicy};
use crate::decision::Decision;
use crate::stats::CallOutcome;
use crate::store::Reservation;

/// The decision of one policy, with the quotas that are reported with it.
#[derive(Debug)]
pub struct Outcome {
    pub(in crate::middleware) decision: Decision,
    /// The quotas of the algorithm that decided. `None` if they are those that the policy was created with.
    pub(in crate::middleware) quotas: Option<Box<[QuotaPolicy]>>,
    /// `true` if the algorithm was chosen for the request.
    pub(in crate::middleware) is_tiered: bool,
    /// `true` if the decision was made in shadow mode: the request is admitted, and nothing is reported to the caller.
    pub(in crate::middleware) is_shadow: bool,
    /// The charge to settle, if the request's cost is settled.
    pub(in crate::middleware) reservation: Option<Reservation>,
}

impl Outcome {
    /// Creates the outcome of `decision`. `quotas` are the quotas of the algorithm that decided, or `None` if they are
    /// those that the policy was created with.
    #[inline]
    pub(in crate::middleware) fn new(decision: Decision, quotas: Option<Box<[QuotaPolicy]>>) -> Self {
        Self { decision, quotas, is_tiered: false, is_shadow: false, reservation: None }
    }

    /// Returns whether the outcome can be settled.
    #[inline]
    pub(in crate::middleware) fn has_reservation(&self) -> bool {
        self.reservation.is_some()
    }
}

/// Returns the policies that limited a request, each with its outcome.
#[inline]
pub(in crate::middleware) fn limited<'a>(
    infos: &'a [PolicyInfo],
    outcomes: &'a [Option<Outcome>],
) -> impl Iterator<Item = (&'a PolicyInfo, &'a Outcome)> {
    infos.iter().zip(outcomes).filter_map(|(info, outcome)| Some((info, outcome.as_ref()?)))
}

/// Returns the decision of the last policy in shadow mode that would have denied the request.
#[inline]
pub(in crate::middleware) fn shadow_denial(outcomes: &[Option<Outcome>]) -> Option<&Decision> {
    let denied = |outcome: &&Outcome| outcome.is_shadow && !outcome.decision.is_allowed();
    outcomes.iter().flatten().rfind(denied).map(|outcome| &outcome.decision)
}

/// Returns a word for the outcome of a request: the denial, if a policy denied it; or else whether it was denied in
/// shadow mode, queued or admitted. Returns `None` if no policy limited the request.
pub(in crate::middleware) fn word(outcomes: &[Option<Outcome>]) -> Option<&'static str> {
    let word = |outcome: &Outcome| match &outcome.decision {
        decision if decision.is_allowed() && !decision.delay().is_zero() => CallOutcome::Queued,
        decision => CallOutcome::of(decision, outcome.is_shadow),
    };
    let rank = |outcome: &CallOutcome| match outcome {
        CallOutcome::Admitted => 0,
        CallOutcome::Queued => 1,
        CallOutcome::ShadowDenied => 2,
        _ => 3,
    };
    outcomes.iter().flatten().map(word).max_by_key(rank).map(CallOutcome::label)
}

/// Returns the quotas of an algorithm. A tuple has several.
pub(super) fn quotas(algorithm: &impl Algorithm) -> Box<[QuotaPolicy]> {
    let mut quotas = Vec::new();
    algorithm.for_each_policy(&mut |quota| quotas.push(quota));
    quotas.into()
}
