//! Counts calls that were decided together.

use super::Participant;
use super::wait::JointWait;
use crate::stats::CallOutcome;
use crate::store::memory::table::SHARDS;

/// Counts the calls, whose shards are locked: those that were decided, and those that wait in a queue.
pub(super) fn count(calls: &[Participant<'_, '_>], wait: &JointWait, denied: bool) {
    let outcome = |at: usize| match &wait.decisions[at] {
        Some(decision) if denied => match CallOutcome::of(decision, false) {
            CallOutcome::Admitted => Some(CallOutcome::DeniedByOthers),
            outcome => Some(outcome),
        },
        _ if wait.may_wait.iter().any(|(waiting, _)| *waiting == at) => Some(CallOutcome::Queued),
        _ => wait.may_wait.is_empty().then_some(CallOutcome::Admitted),
    };
    for (at, call) in calls.iter().enumerate() {
        if let Some(outcome) = outcome(at) {
            call.part.counts.add_locked(call.part.key.shard(SHARDS), outcome);
        }
    }
}
