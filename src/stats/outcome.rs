//! The outcomes by which calls are counted.

use crate::decision::Decision;

/// The outcome by which a call is counted. `Queued` is counted in addition to the final outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call was admitted.
    Admitted,
    /// The call was denied by the limit.
    Denied,
    /// The call was denied because the queue was full.
    QueueFull,
    /// The call was denied because the key table was full.
    TableFull,
    /// The call was denied because the limiter was closed.
    Closed,
    /// The call was denied by another limit of a joint call.
    DeniedByOthers,
    /// The future of the call was dropped before it was ready.
    Cancelled,
    /// The call was admitted only because of shadow mode.
    ShadowDenied,
    /// The call has joined a queue.
    Queued,
}

/// The number of outcomes.
pub(super) const OUTCOMES: usize = CallOutcome::Queued as usize + 1;

impl CallOutcome {
    /// Returns the outcome of a call with this decision.
    #[inline]
    pub fn of(decision: &Decision, in_shadow: bool) -> Self {
        match decision.is_allowed() {
            true => Self::Admitted,
            false => Self::of_denial(decision, in_shadow),
        }
    }

    /// Returns the name of the outcome in events and metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::QueueFull => "queue_full",
            Self::TableFull => "table_full",
            Self::Closed => "closed",
            Self::DeniedByOthers => "denied_by_others",
            Self::Cancelled => "cancelled",
            Self::ShadowDenied => "shadow_denied",
            Self::Queued => "queued",
        }
    }

    /// Returns the outcome of a call that `decision` denies.
    #[inline]
    pub(super) fn of_denial(decision: &Decision, in_shadow: bool) -> Self {
        match decision {
            _ if in_shadow => Self::ShadowDenied,
            decision if decision.is_closed() => Self::Closed,
            decision if decision.is_table_full() => Self::TableFull,
            decision if decision.is_queue_full() => Self::QueueFull,
            _ => Self::Denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_off_the_decision() {
        let denial = Decision::deny(3, 0, Some(4), 9);
        for (decision, outcome) in [
            (Decision::allow(3, 2, 9), CallOutcome::Admitted),
            (denial, CallOutcome::Denied),
            (denial.with_queue_full(), CallOutcome::QueueFull),
            (Decision::closed(3), CallOutcome::Closed),
            (Decision::table_full(3), CallOutcome::TableFull),
        ] {
            assert_eq!(CallOutcome::of(&decision, false), outcome);
            let in_shadow =
                if decision.is_allowed() { CallOutcome::Admitted } else { CallOutcome::ShadowDenied };
            assert_eq!(CallOutcome::of(&decision, true), in_shadow);
        }
    }
}
