//! Calls of one joint decision that draw on the same state.

use super::Participant;

/// Groups the calls that draw on one state: they are admitted together or not at all, each with its algorithm.
pub(super) fn group_by_state(calls: &mut [Participant<'_, '_>]) {
    for at in 0..calls.len() {
        let alike = || calls.iter().enumerate().filter(|(_, other)| other.shares_state_with(&calls[at]));
        let total = alike().fold(0_u64, |total, (_, other)| total.saturating_add(other.part.cost));
        let leader = alike().map(|(leader, _)| leader).next().unwrap_or(at);
        (calls[at].total, calls[at].leader) = (total, leader);
    }
}
