//! The counters in which the table counts calls.

use std::sync::Arc;

use super::table::Table;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::stats::{CallCounts, CallOutcome};
use crate::store::Attempt;

impl<A: Algorithm> Table<A> {
    /// Counts a call that was decided immediately and was made without a layer. A layer counts such calls itself.
    #[inline]
    pub(super) fn count(&self, call: &Attempt<'_, A>, decision: &Decision) {
        if call.counts.is_none() {
            self.counters.calls.direct.add(CallOutcome::of(decision, false));
        }
    }

    /// Returns the counters of a call: those of the call's policy, or those of all calls that are made without a layer.
    #[inline]
    pub(super) fn counts<'a>(&'a self, call: &Attempt<'a, A>) -> &'a Arc<CallCounts> {
        call.counts.unwrap_or(&self.counters.calls.direct)
    }
}
