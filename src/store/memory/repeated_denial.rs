//! Calls that are decided by the latest denial of their shard, without a lock.

use super::fingerprint::Fingerprint;
use super::shard::{LockedShard, Shard};
use super::table::Table;
use crate::algorithm::{Algorithm, holds_requests};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::Attempt;
use crate::sync::SpinGuard;

impl<A: Algorithm> Table<A> {
    /// Returns the decision on a call whose key was denied before, without a lock. Unless a layer counts the call, it
    /// is counted here. Returns `None` if the call must be decided while the shard is locked.
    #[inline]
    pub(super) fn standing_denial(
        &self,
        shard: &LockedShard<A>,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        now: Nanos,
    ) -> Option<Decision> {
        if !A::DENIALS_STAND {
            return None;
        }
        // Few calls are of the key that was denied, so the denial is read before the call is examined.
        let denial = shard.denial.standing(key, now).filter(|_| is_plain(call))?;
        self.counters.count(call, &denial);
        Some(denial)
    }

    /// Keeps the decision on a call, if later calls can be denied by it. The shard is locked.
    #[inline]
    pub(super) fn keep_denial(
        &self,
        shard: &LockedShard<A>,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        now: Nanos,
        algorithm: &A,
        decision: &Decision,
    ) {
        // An algorithm that queues the requests of a layer denies only those calls that cannot wait.
        let is_kept = || is_plain(call) && self.clock.is_monotonic() && !holds_requests(algorithm);
        if !decision.is_allowed() && is_kept() {
            shard.denial.keep(key, now, decision);
        }
    }

    /// Locks the shard for a call that is decided by its algorithm alone. With the limiter's algorithm, such a call
    /// changes no decision on a call that was denied.
    #[inline]
    pub(super) fn lock_for<'a>(
        &self,
        shard: &'a LockedShard<A>,
        call: &Attempt<'_, A>,
    ) -> SpinGuard<'a, Shard<A>> {
        match call.algorithm {
            None => shard.lock_and_keep_denial(),
            Some(_) => shard.lock(),
        }
    }
}

/// Returns whether an earlier denial can deny a call. This requires that the call has cost 1 and no priority, may not
/// wait, and is decided by the limiter's own algorithm.
#[inline]
fn is_plain<A: Algorithm>(call: &Attempt<'_, A>) -> bool {
    A::DENIALS_STAND && call.cost == 1 && call.algorithm.is_none() && !call.may_wait && !call.priority
}
