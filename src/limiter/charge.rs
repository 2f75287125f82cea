//! The charge of a call, and the settlement of that charge.

use std::sync::Arc;

use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::reservation::{Charge, Charger, Reservation};
use super::table::{ChargeTime, Table};
use crate::algorithm::{Algorithm, SharedPermit};
use crate::clock::Nanos;
use crate::decision::Decision;

/// The charge of a call that is settled when the actual cost is known.
pub(super) struct MemoryCharge<A: Algorithm> {
    table: Arc<Table<A>>,
    key: Fingerprint,
    algorithm: Option<A>,
    cost: u64,
    priority: bool,
    charged_at: ChargeTime,
}

impl<A: Algorithm> MemoryCharge<A> {
    /// Creates the charge of a call of `cost` units that was charged at `charged_at`. `algorithm` is the algorithm that
    /// the call chose.
    pub(super) fn new(
        table: Arc<Table<A>>,
        key: Fingerprint,
        algorithm: Option<A>,
        cost: u64,
        priority: bool,
        charged_at: ChargeTime,
    ) -> Self {
        Self { table, key, algorithm, cost, priority, charged_at }
    }
}

impl<A: Algorithm> Charge for MemoryCharge<A> {
    /// Settles the call. Returns a decision that describes the key right after the settlement. The key is locked until
    /// the decision is made.
    ///
    /// If `actual` is at most the charged cost, returns `None` if the key is no longer in the table. If `actual` is
    /// higher, a key that is no longer in the table is inserted again, and the result is `None` only if there is no
    /// room for the key.
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        let Self { table, key, algorithm, cost, priority, charged_at } = *self;
        let settle = |mut entry: KeyEntry<'_, A>, now, counts| {
            let refunded = if counts { cost.saturating_sub(actual) } else { 0 };
            let settled = if counts { actual } else { actual.max(cost) };
            let (decision, charged) = entry.settle(now, cost, charged_at.at, settled, priority);
            (decision, charged, refunded)
        };
        let settled = match actual > cost {
            true => table.with_entry(key, algorithm.as_ref(), |entry, now| settle(entry, now, true)),
            false => table.with_charge(key, algorithm.as_ref(), charged_at.resets, settle),
        };
        let (charged, refunded) =
            settled.as_ref().map_or((0, 0), |(_, charged, refunded)| (*charged, *refunded));
        table.units().add_charge(actual.saturating_sub(cost), charged);
        table.units().add_refund(refunded);
        settled.map(|(decision, ..)| decision)
    }

    fn release(self: Box<Self>) {}

    fn is_permit(&self) -> bool {
        false
    }

    fn charger(&self) -> Option<Charger> {
        let (table, key, algorithm) = (Arc::clone(&self.table), self.key, self.algorithm.clone());
        Some(Box::new(move |units| table.charge(key, algorithm.as_ref(), units)))
    }
}

impl<A: Algorithm> From<MemoryCharge<A>> for Reservation {
    fn from(charge: MemoryCharge<A>) -> Self {
        Self::of(charge)
    }
}

/// The data from which the reservation of a call is made when the call is admitted.
pub(super) enum Reservable<A: Algorithm> {
    Permit { key: Fingerprint, algorithm: A, cost: u64 },
    Charge(MemoryCharge<A>),
}

impl<A: Algorithm> Reservable<A> {
    /// Returns the reservation of the call. The call must have been admitted.
    pub(super) fn reserve(self, table: &Arc<Table<A>>) -> Reservation {
        match self {
            Self::Permit { key, algorithm, cost } => permit_for(table, key, algorithm, cost),
            Self::Charge(charge) => charge.into(),
        }
    }

    /// Returns the reservation of a call that waited. The call must have been admitted, and was charged at
    /// `charged_at`. If the key was reset while the call waited, nothing is given back, too.
    pub(super) fn reserve_at(self, table: &Arc<Table<A>>, charged_at: Nanos) -> Reservation {
        match self {
            Self::Charge(charge) => {
                let charged_at = ChargeTime { at: charged_at, ..charge.charged_at };
                MemoryCharge { charged_at, ..charge }.into()
            }
            permit => permit.reserve(table),
        }
    }
}

/// Returns the permit of a call of `key` that `algorithm` has admitted.
pub(super) fn permit_for<A: Algorithm>(
    table: &Arc<Table<A>>,
    key: Fingerprint,
    algorithm: A,
    cost: u64,
) -> Reservation {
    let table = Arc::clone(table);
    Reservation::on_release(move || {
        drop(SharedPermit::of_admitted(&algorithm, cost));
        table.end(key, &algorithm, cost);
    })
}
