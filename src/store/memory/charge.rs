//! The charge of a call, and the settlement of that charge.

use std::sync::Arc;

use super::context::MemoryContext;
use super::entry::KeyEntry;
use super::fingerprint::{Fingerprint, Location};
use crate::algorithm::{Algorithm, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::Reservation;

/// The charge of a call that is settled when the actual cost is known.
pub(super) struct MemoryCharge<A: Algorithm> {
    context: Arc<MemoryContext<A>>,
    key: Fingerprint,
    algorithm: Option<A>,
    cost: u64,
    priority: bool,
    /// The clock reading at which the algorithm charged the call.
    charged_at: Nanos,
}

impl<A: Algorithm> MemoryCharge<A> {
    /// Creates the charge of a call of `cost` units that was charged at `charged_at`. `algorithm` is the algorithm that
    /// the call chose.
    pub(super) fn new(
        context: Arc<MemoryContext<A>>,
        key: Fingerprint,
        algorithm: Option<A>,
        cost: u64,
        priority: bool,
        charged_at: Nanos,
    ) -> Self {
        Self { context, key, algorithm, cost, priority, charged_at }
    }

    /// Settles the call. Returns a decision that describes the key right after the settlement. The key is locked until
    /// the decision is made.
    ///
    /// If `actual` is at most the charged cost, returns `None` if the key is no longer in the table. If `actual` is
    /// higher, a key that is no longer in the table is inserted again, and the result is `None` only if there is no
    /// room for the key. With shared buckets, the result is never `None`.
    fn settle(&self, actual: u64) -> Option<Decision> {
        let Self { context, key, algorithm, cost, priority, charged_at } = self;
        let settle =
            |mut entry: KeyEntry<'_, A>, now| entry.settle(now, *cost, *charged_at, actual, *priority);
        match actual > *cost {
            true => context.table().with_entry(*key, algorithm.as_ref(), settle),
            false => context.table().with_used(*key, algorithm.as_ref(), settle),
        }
    }
}

impl<A: Algorithm> From<MemoryCharge<A>> for Reservation {
    fn from(charge: MemoryCharge<A>) -> Self {
        Self::on_settle(move |actual| charge.settle(actual))
    }
}

/// The data from which the reservation of a call is made when the call is admitted.
pub(super) enum Reservable<A: Algorithm> {
    Permit { location: Location, algorithm: A, cost: u64 },
    Charge(MemoryCharge<A>),
}

impl<A: Algorithm> Reservable<A> {
    /// Returns the reservation of the call. The call must have been admitted.
    pub(super) fn reserve(self, context: &Arc<MemoryContext<A>>) -> Reservation {
        match self {
            Self::Permit { location, algorithm, cost } => permit_for(context, location, algorithm, cost),
            Self::Charge(charge) => charge.into(),
        }
    }

    /// Returns the reservation of a call that waited. The call must have been admitted, and was charged at
    /// `charged_at`.
    pub(super) fn reserve_at(self, context: &Arc<MemoryContext<A>>, charged_at: Nanos) -> Reservation {
        match self {
            Self::Charge(charge) => MemoryCharge { charged_at, ..charge }.into(),
            permit => permit.reserve(context),
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
        context.table().end(location, &algorithm, cost);
    })
}
