//! The second phase of a joint decision, which begins when the previews of all calls are known.

use super::few::Few;
use super::wait::JointWait;
use super::{JointRequest, LockedShards, Participant};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Enqueued, Preview};
use crate::store::Reservation;

/// The second phase of a joint decision: charges the calls, or counts their denials.
pub(super) struct Commit<'c, 'p, 'a> {
    pub(super) calls: &'c [Participant<'p, 'a>],
    pub(super) shards: &'c mut LockedShards<'a>,
    pub(super) preview: &'c [Preview],
    pub(super) denied: bool,
    pub(super) wait: &'c mut JointWait,
}

impl Commit<'_, '_, '_> {
    pub(super) fn all(&mut self) {
        let count = self.calls.len();
        self.wait.decisions = (0..count).map(|_| None).collect();
        self.wait.charged.resize_with(count, || None);
        self.wait.charged_at.resize(count, Nanos::ZERO);
        self.wait.settles.resize(count, false);
        self.wait.permits.resize_with(count, Reservation::default);
        // The calls that their limits will certainly admit are made last. A call that holds units until it is released
        // is not one of them, because it may use totals of all keys, which the locks of the shards do not protect.
        let is_sure = |at: &usize| matches!(self.preview[*at], Preview::Admit(_)) && !self.needs_release(*at);
        let (sure, unsure): (Few<usize>, Few<usize>) = (0..count).partition(is_sure);
        for at in unsure.into_iter().chain(sure) {
            self.one(at);
        }
    }

    fn one(&mut self, at: usize) {
        let call = &self.calls[at];
        let decision = match self.preview[at] {
            // The key has no state, so there is nothing to charge.
            preview if call.overflowed => Some(preview.decision()),
            Preview::Admit(decision) | Preview::Queue(decision) if self.denied => Some(decision),
            // The leader also charges the cost of this call. If this call has its own algorithm, its decision describes
            // the state after that charge.
            Preview::Admit(_) | Preview::Queue(_) if call.leader != at => {
                match call.reports_separately(at, self.denied) {
                    true => Some(self.shards.of(call).preview(call.ask(0)).decision()),
                    false => None,
                }
            }
            Preview::Deny(decision) if self.is_denial_counted(at) => Some(decision),
            // A call that would be denied is made nevertheless, because the algorithm may count the denial. Each state
            // counts at most one denial per joint call.
            Preview::Deny(decision) => match self.enter(at) {
                // Units of a total became available after the preview, too late for this call. The charge of the call
                // is undone.
                Some(outcome) if outcome.is_allowed() => {
                    let charged_at = self.wait.charged_at[at];
                    let rollback = self.wait.charged[at].take().map(|undo| (charged_at, undo));
                    self.wait.rollbacks.extend(rollback);
                    Some(decision)
                }
                outcome => outcome,
            },
            _ => self.enter(at),
        };
        self.wait.decisions[at] = decision;
    }

    /// Returns whether an admitted call holds units until it is released.
    fn needs_release(&self, at: usize) -> bool {
        let call = &self.calls[at];
        self.shards.held[call.held].2.needs_release(call.ask(call.total))
    }

    /// Returns whether the state of the call at index `at` has already counted a denial, because an earlier call with
    /// the same state is denied as well.
    fn is_denial_counted(&self, at: usize) -> bool {
        let leader = self.calls[at].leader;
        let is_denied = |other: usize| matches!(self.preview[other], Preview::Deny(_));
        (0..at).any(|other| self.calls[other].leader == leader && is_denied(other))
    }

    fn enter(&mut self, at: usize) -> Option<Decision> {
        let call = &self.calls[at];
        let JointRequest { limiter, key, algorithm, .. } = call.part;
        let outcome = self.shards.of(call).enter(call.ask(call.total));
        self.wait.charged_at[at] = self.shards.of(call).last_update(call.ask(call.total));
        self.wait.settles[at] = self.shards.of(call).settles();
        let charged = || Some(limiter.undo(*key, call.total, algorithm.as_ref()));
        match outcome {
            Enqueued::Decided(decision) if decision.is_allowed() => {
                let permit = self.shards.of(call).permit(call.ask(call.total));
                let may_wait = |preview: &Preview| matches!(preview, Preview::Queue(_));
                if !permit.is_empty() || self.preview.iter().any(may_wait) {
                    self.wait.charged[at] = charged();
                }
                self.wait.permits[at] = permit;
                Some(decision)
            }
            Enqueued::Decided(decision) => {
                self.denied = true;
                Some(decision)
            }
            Enqueued::Queued(ticket) => {
                self.wait.charged[at] = charged();
                let wait = self.shards.of(call).wait(call.ask(call.total), *key, ticket);
                self.wait.may_wait.push((at, wait));
                None
            }
        }
    }
}
