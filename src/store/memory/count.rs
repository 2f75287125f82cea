//! Where the table counts its calls.

use std::sync::Arc;

use super::table::Table;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::stats::{CallCounts, CallOutcome};
use crate::store::Attempt;

impl<A: Algorithm> Table<A> {
    /// Counts a call that was decided. `shard` is the index of the key's shard, which is locked.
    #[inline]
    pub(super) fn count(&self, shard: usize, call: &Attempt<'_, A>, decision: &Decision) {
        let counts = self.counts(call);
        // Most calls are admitted. What follows is then compiled without another test of the decision.
        match decision.is_allowed() {
            true => counts.add_locked(shard, CallOutcome::Admitted),
            false => counts.add_locked(shard, CallOutcome::of(decision, call.in_shadow)),
        }
    }

    /// Returns the counters of a call: those of its policy, or those of all calls that are made without a layer.
    #[inline]
    pub(super) fn counts<'a>(&'a self, call: &Attempt<'a, A>) -> &'a Arc<CallCounts> {
        call.counts.unwrap_or(&self.counters.calls.direct)
    }
}
