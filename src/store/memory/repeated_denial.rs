//! Calls that are decided by the latest denial of their shard, without a lock.

use super::fingerprint::Fingerprint;
use super::shard::{LockedShard, Shard};
use super::table::Table;
use crate::algorithm::{Algorithm, holds_requests};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::Attempt;
use crate::sys::lock::SpinGuard;

impl<A: Algorithm> Table<A> {
    /// Returns the decision on a call if the latest denial of the shard denies it, and counts the call, unless a layer
    /// counts it. Takes no lock. Returns `None` if the call must be decided while the shard is locked.
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
        // Few calls have the key that was denied, so the denial is read before the call is examined.
        let denial = shard.denial.standing(key, now).filter(|_| is_plain(call))?;
        self.counters.count(call, &denial);
        Some(denial)
    }

    /// Keeps the decision on a call if it is a denial by which later calls can be denied. The shard is locked.
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
        // If the algorithm queues the requests of a layer, a denial by `check` must not deny a request that could wait.
        let is_kept = || is_plain(call) && self.clock.is_monotonic() && !holds_requests(algorithm);
        if !decision.is_allowed() && is_kept() {
            shard.denial.keep(key, now, decision);
        }
    }

    /// Locks the shard for a new call. If the limiter's own algorithm decides the call, the latest denial is not
    /// removed, because such a call cannot change it.
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

/// Returns whether a call can be denied by an earlier denial. This requires that the call has cost 1 and no priority,
/// may not wait, and is decided by the limiter's own algorithm, whose denials must stand.
#[inline]
fn is_plain<A: Algorithm>(call: &Attempt<'_, A>) -> bool {
    A::DENIALS_STAND && call.cost == 1 && call.algorithm.is_none() && !call.may_wait && !call.priority
}
