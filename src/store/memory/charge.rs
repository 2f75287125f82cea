//! What a call was charged, and how it is settled.

use std::sync::Arc;

use super::fingerprint::Fingerprint;
use super::seat::Seat;
use super::{Call, MemoryStore, Own};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::Comer;
use crate::store::Reservation;

/// An admitted call that is settled when its true cost is known.
pub(super) struct MemoryCharge<A: Algorithm> {
    pub(super) context: Arc<Own<A>>,
    pub(super) key: Fingerprint,
    pub(super) rule: Option<A>,
    pub(super) cost: u64,
    pub(super) priority: bool,
    /// The reading of the clock that the algorithm charged the call at.
    pub(super) charged_at: Nanos,
}

impl<A: Algorithm> MemoryCharge<A> {
    pub(super) fn new(
        context: &Arc<Own<A>>,
        key: Fingerprint,
        call: &Call<'_, A>,
        charged_at: Nanos,
    ) -> Self {
        let Call { cost, priority, .. } = *call;
        Self { context: Arc::clone(context), key, rule: call.rule.cloned(), cost, priority, charged_at }
    }

    /// Settles the call; returns what the key has left afterwards, read under the same lock.
    /// `None` if the key has no state any more: it was evicted, and nothing of the call counts.
    fn settle(&self, actual: u64) -> Option<Decision> {
        let Self { context, key, rule, cost, priority, charged_at } = self;
        let settle = |mut seat: Seat<'_, A>, now| {
            if actual < *cost {
                seat.give_back(now, cost - actual, *charged_at);
            } else if actual > *cost {
                seat.absorb(now, actual - cost);
            }
            let waits = seat.rule.queues();
            seat.foretell(Comer { priority: *priority, waits, ..Comer::new(now, 0) }).decision()
        };
        let table = &context.store().table;
        match actual > *cost {
            true => table.with(context, *key, rule.as_ref(), settle),
            false => table.with_used(context, *key, rule.as_ref(), settle),
        }
    }
}

impl<A: Algorithm> From<MemoryCharge<A>> for Reservation {
    fn from(charge: MemoryCharge<A>) -> Self {
        Self::new(move |actual| charge.settle(actual))
    }
}

impl<A: Algorithm> MemoryStore<A> {
    pub(super) fn give_back(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        rule: Option<&A>,
        cost: u64,
        charged_at: Nanos,
    ) {
        let _ =
            self.table.with_used(context, key, rule, |mut seat, now| seat.give_back(now, cost, charged_at));
    }
}
