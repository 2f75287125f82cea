//! The outcomes of a request, one for each policy that decided the request. The outcomes are kept until the response is
//! made.

use std::mem;
use std::sync::Arc;

use super::info::PolicyInfo;
use super::meter::{Meter, Unmetered};
use super::names::PolicyNames;
use crate::algorithm::info::longest_queueing;
use crate::algorithm::{Algorithm, QuotaPolicy};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::limiter::{Permit, Reservation};
use crate::stats::{CallOutcome, Event, Timeline};

/// The decision of one policy, with what is needed until the response is made.
#[derive(Debug)]
pub struct Outcome {
    decision: Decision,
    /// `true` if the decision was made in shadow mode: the request is admitted, and nothing is reported to the caller.
    is_shadow: bool,
    /// The permit of the call, or the charge that is to be settled when the response is known. Empty if there is
    /// neither a permit nor such a charge.
    reservation: Reservation,
    /// The names of the policy for the limiter's algorithm. `None` if these are the policy's first names.
    names: Option<Arc<PolicyNames>>,
    /// The part that few requests have. It is boxed, so that the outcomes of all other requests stay small.
    details: Option<Box<OutcomeDetails>>,
}

/// The part of an [`Outcome`] that few requests have.
#[derive(Debug, Default)]
struct OutcomeDetails {
    /// The quotas of the algorithm that a function chose for the request. Empty if there is no such algorithm.
    quotas: Vec<QuotaPolicy>,
    /// How long that algorithm queues requests, in nanoseconds.
    queues_for: u64,
    /// The units that the call has borrowed from the next window.
    borrowed: u64,
}

impl OutcomeDetails {
    /// Creates the details of a decision by the algorithm that a function chose for the request.
    fn of_tier(algorithm: &impl Algorithm) -> Box<Self> {
        let mut quotas = Vec::new();
        algorithm.for_each_policy(&mut |quota| quotas.push(quota));
        Box::new(Self { quotas, queues_for: longest_queueing(algorithm), ..Self::default() })
    }
}

impl Outcome {
    /// Creates the outcome of a request that is reported with the first names of the policy.
    #[inline(always)]
    pub(super) fn new(decision: Decision, is_shadow: bool, reservation: Reservation) -> Self {
        Self { decision, is_shadow, reservation, names: None, details: None }
    }

    /// Puts the outcome into its place, which is empty.
    // The compiler does not know that the place is empty. An assignment, or a check in all builds, takes 15 to 20
    // instructions more.
    #[inline(always)]
    pub(super) fn put(self, place: &mut Option<Self>) {
        debug_assert!(place.is_none(), "a policy decides a request once");
        mem::forget(place.replace(self));
    }

    /// Returns the same outcome with these names. `None` stands for the policy's first names.
    #[inline(always)]
    pub(super) fn with_names(self, names: Option<Arc<PolicyNames>>) -> Self {
        Self { names, ..self }
    }

    /// Returns the names of the policy for the limiter's algorithm.
    #[inline]
    pub(super) fn names<'a>(&'a self, info: &'a PolicyInfo) -> &'a PolicyNames {
        self.names.as_deref().unwrap_or(info.names())
    }

    /// Returns whether nothing is left to do for the call when its response is made: it has no permit, and its cost is
    /// final.
    #[inline]
    pub(super) fn holds_nothing(&self) -> bool {
        self.reservation.is_empty()
    }

    #[inline]
    pub(super) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns whether the decision was made in shadow mode.
    #[inline]
    pub(super) fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns the quotas of the algorithm that a function chose for the request. Empty if there is no such algorithm.
    #[inline]
    pub(super) fn quotas(&self) -> &[QuotaPolicy] {
        self.details.as_ref().map_or(&[], |details| &details.quotas)
    }

    /// Sets the algorithm that a function chose for the request.
    #[inline(always)]
    pub(super) fn set_tier(&mut self, tier: Option<&impl Algorithm>) {
        // Without this test, the assignment would drop the old value for each request.
        if let Some(tier) = tier {
            self.details = Some(OutcomeDetails::of_tier(tier));
        }
    }

    /// Lets `meter` settle the call when its response has ended, if the call was charged. `info` is that of the policy.
    pub(super) fn settle_at_end(&mut self, info: &PolicyInfo, meter: &Meter, unmetered: Unmetered) {
        if self.reservation.is_charge() {
            let charge = mem::take(&mut self.reservation);
            self.reservation = meter.settle_at_end(charge, info.name(), unmetered);
        }
    }

    /// Returns how long the algorithm that decided the request queues requests, in nanoseconds.
    pub(super) fn queues_for(&self, info: &PolicyInfo) -> u64 {
        match &self.details {
            Some(details) if !details.quotas.is_empty() => details.queues_for,
            _ => self.names(info).algorithm().queues_for(),
        }
    }

    /// Settles the call, if it was charged and `actual` returns its cost.
    #[inline]
    pub(super) fn settle(&mut self, actual: impl FnOnce() -> Option<u64>) {
        if self.reservation.is_charge()
            && let Some(actual) = actual()
            && let Some(decision) = mem::take(&mut self.reservation).settle(actual)
        {
            self.decision = decision.with_delay(Nanos::from(self.decision.delay()).0);
        }
    }

    /// Sets the number of units that the call has borrowed from the next window.
    pub(super) fn set_borrowed(&mut self, units: u64) {
        if units > 0 {
            self.details.get_or_insert_default().borrowed = units;
        }
    }

    fn borrowed(&self) -> u64 {
        self.details.as_ref().map_or(0, |details| details.borrowed)
    }
}

/// Takes the permits of all policies out of the outcomes. Returns one permit that holds all of them, and that is empty
/// if no policy limits calls in progress.
#[inline]
pub(super) fn take_permit(outcomes: &mut [Option<Outcome>]) -> Permit {
    let has_permit = |outcome: &Outcome| outcome.reservation.is_permit();
    if outcomes.iter().flatten().any(has_permit) {
        Permit::merged(
            outcomes
                .iter_mut()
                .flatten()
                .filter(|outcome| has_permit(outcome))
                .map(|outcome| mem::take(&mut outcome.reservation)),
        )
    } else {
        Permit::default()
    }
}

/// Returns the policies that have an outcome for a request, each with its outcome. A policy from which the request is
/// exempt has none.
#[inline]
pub(super) fn limited<'a>(
    infos: &'a [PolicyInfo],
    outcomes: &'a [Option<Outcome>],
) -> impl Iterator<Item = (&'a PolicyInfo, &'a Outcome)> {
    infos.iter().zip(outcomes).filter_map(|(info, outcome)| Some((info, outcome.as_ref()?)))
}

/// Returns the decision of the last policy in shadow mode that would have denied the request.
#[inline]
pub(super) fn shadow_denial(outcomes: &[Option<Outcome>]) -> Option<&Decision> {
    let denied = |outcome: &&Outcome| outcome.is_shadow && !outcome.decision.is_allowed();
    outcomes.iter().flatten().rfind(denied).map(|outcome| &outcome.decision)
}

/// Records the decisions on a request in the timelines of its policies. `is_admitted` says whether the request was
/// admitted. Returns the clock reading from which the response time is measured. This is a reading of the clock of the
/// first timeline. Returns zero if no policy with an outcome has a timeline.
// This function is inlined, so that the loop over a single policy disappears.
#[inline(always)]
pub(super) fn record_decisions(
    infos: &[PolicyInfo],
    outcomes: &[Option<Outcome>],
    is_admitted: bool,
) -> Nanos {
    let mut started = None;
    for (info, outcome) in infos.iter().zip(outcomes) {
        let (Some(timeline), Some(outcome)) = (info.timeline(), outcome) else { continue };
        let now = timeline.now();
        started.get_or_insert(now);
        match (is_admitted, outcome.decision.is_allowed()) {
            (true, _) if outcome.decision.is_delayed() => record_waited(timeline, now, outcome.borrowed()),
            (true, _) => timeline.record(now, Event::Admitted),
            (false, false) => timeline.record(now, Event::Denied),
            // Another policy denied the request.
            (false, true) => {}
        }
    }
    started.unwrap_or(Nanos::ZERO)
}

/// Records that a request was admitted after a wait.
#[cold]
fn record_waited(timeline: &Timeline, now: Nanos, borrowed: u64) {
    timeline.record(now, Event::Waited(borrowed));
}

/// Records the response to a request, or the error of the inner service, in the timelines of its policies. `started` is
/// the reading that [`record_decisions`] returned for the request.
#[inline(always)]
pub(super) fn record_end(
    infos: &[PolicyInfo],
    outcomes: &[Option<Outcome>],
    started: Nanos,
    is_success: bool,
) {
    let mut time = None;
    for (info, outcome) in infos.iter().zip(outcomes) {
        let (Some(timeline), Some(_)) = (info.timeline(), outcome) else { continue };
        let now = timeline.now();
        let time = *time.get_or_insert_with(|| now.saturating_since(started));
        if is_success {
            timeline.record(now, Event::Succeeded(time));
        } else {
            timeline.record(now, Event::Failed(time));
        }
    }
}

/// Returns a word for the outcome of a request. If a policy denied the request, this is the word for the denial, and
/// that of a limiter that is closed or full before any other. Otherwise, the word is for the first of these that is
/// true of the request: denied in shadow mode, queued, admitted. Returns `None` if no policy has an outcome.
pub(super) fn word(outcomes: &[Option<Outcome>]) -> Option<&'static str> {
    let word = |outcome: &Outcome| match &outcome.decision {
        decision if decision.is_allowed() && decision.is_delayed() => CallOutcome::Queued,
        decision => CallOutcome::of(decision, outcome.is_shadow),
    };
    let rank = |outcome: &CallOutcome| match outcome {
        CallOutcome::Admitted => 0,
        CallOutcome::Queued => 1,
        CallOutcome::ShadowDenied => 2,
        CallOutcome::Closed | CallOutcome::TableFull => 4,
        _ => 3,
    };
    outcomes.iter().flatten().map(word).max_by_key(rank).map(CallOutcome::label)
}
