//! The charge of a call, and the settlement of that charge.

use std::sync::Arc;

use super::context::MemoryContext;
use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::location::Location;
use crate::algorithm::{Algorithm, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::Arrival;
use crate::store::{Attempt, Reservation};

/// The charge of a call that is settled when the actual cost is known.
pub(super) struct MemoryCharge<A: Algorithm> {
    pub(super) context: Arc<MemoryContext<A>>,
    pub(super) key: Fingerprint,
    pub(super) algorithm: Option<A>,
    pub(super) cost: u64,
    pub(super) priority: bool,
    /// The clock reading at which the algorithm charged the call.
    pub(super) charged_at: Nanos,
}

impl<A: Algorithm> MemoryCharge<A> {
    pub(super) fn new(
        context: &Arc<MemoryContext<A>>,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        charged_at: Nanos,
    ) -> Self {
        let Attempt { cost, priority, .. } = *call;
        Self {
            context: Arc::clone(context),
            key,
            algorithm: call.algorithm.cloned(),
            cost,
            priority,
            charged_at,
        }
    }

    /// Settles the call. Returns a decision that describes the key right after the settlement. The key is locked until
    /// the decision is made.
    ///
    /// If `actual` is at most the charged cost, returns `None` if the key is no longer in the table. If `actual` is
    /// higher, a key that is no longer in the table is inserted again, and the result is `None` only if there is no
    /// room for the key. With shared buckets, the result is never `None`.
    fn settle(&self, actual: u64) -> Option<Decision> {
        let Self { context, key, algorithm, cost, priority, charged_at } = self;
        let settle = |mut entry: KeyEntry<'_, A>, now| {
            if actual < *cost {
                entry.undo(now, cost - actual, *charged_at);
            } else if actual > *cost {
                entry.charge_saturating(now, actual - cost);
            }
            let may_wait = entry.holds_requests();
            entry.preview(Arrival::new(now, 0).with_options(*priority, may_wait, u64::MAX)).decision()
        };
        let table = &context.table;
        match actual > *cost {
            true => table.with_entry(*key, algorithm.as_ref(), settle),
            false => table.with_used(*key, algorithm.as_ref(), settle),
        }
    }
}

impl<A: Algorithm> From<MemoryCharge<A>> for Reservation {
    fn from(charge: MemoryCharge<A>) -> Self {
        Self::on_settle(move |actual| charge.settle(actual))
    }
}

/// The data from which the reservation of a call is made when the call is admitted.
pub(super) enum Held<A: Algorithm> {
    Permit { location: Location, algorithm: A, cost: u64 },
    Charge(MemoryCharge<A>),
}

impl<A: Algorithm> Held<A> {
    /// Returns the reservation of the call. The call must have been admitted.
    pub(super) fn reserve(self, context: &Arc<MemoryContext<A>>) -> Reservation {
        match self {
            Self::Permit { location, algorithm, cost } => permit_for(context, location, algorithm, cost),
            Self::Charge(charge) => charge.into(),
        }
    }
}

/// Returns the permit of a call that `algorithm` has admitted at `location`.
pub(super) fn permit_for<A: Algorithm>(
    context: &Arc<MemoryContext<A>>,
    location: Location,
    algorithm: A,
    cost: u64,
) -> Reservation {
    let context = Arc::clone(context);
    Reservation::on_release(move || {
        drop(SharedPermit::of_admitted(&algorithm, cost));
        context.table.end(location, &algorithm, cost);
    })
}

impl<A: Algorithm> MemoryContext<A> {
    pub(super) fn undo(&self, key: Fingerprint, algorithm: Option<&A>, cost: u64, charged_at: Nanos) {
        let _ = self.table.with_used(key, algorithm, |mut entry, now| entry.undo(now, cost, charged_at));
    }
}
