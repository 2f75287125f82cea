//! The charge of a call, and the settlement of that charge.

use std::sync::Arc;

use super::attempt::Attempt;
use super::fingerprint::Fingerprint;
use super::reservation::{Charge, Charger, Reservation};
use super::resets::ChargeTime;
use super::table::Table;
use crate::algorithm::{Algorithm, SharedPermit};
use crate::decision::Decision;

/// The charge of a call that is settled when the actual cost is known.
pub(super) struct MemoryCharge<A: Algorithm> {
    table: Arc<Table<A>>,
    id: Fingerprint,
    algorithm: Option<A>,
    cost: u64,
    priority: bool,
    charged_at: ChargeTime,
}

impl<A: Algorithm> MemoryCharge<A> {
    /// Creates the charge of a call that was charged at `charged_at`.
    pub(super) fn new(
        table: &Arc<Table<A>>,
        id: Fingerprint,
        call: Attempt<'_, A>,
        charged_at: ChargeTime,
    ) -> Self {
        Self {
            table: Arc::clone(table),
            id,
            algorithm: call.algorithm().cloned(),
            cost: call.cost(),
            priority: call.has_priority(),
            charged_at,
        }
    }

    /// Returns the charge of a call that waited, and was charged at `at`.
    pub(super) fn charged_at(self, at: ChargeTime) -> Self {
        Self { charged_at: at, ..self }
    }
}

impl<A: Algorithm> Charge for MemoryCharge<A> {
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        let call = Attempt::of(self.cost, self.algorithm.as_ref(), self.priority);
        self.table.settle(self.id, call, self.charged_at, actual)
    }

    fn release(self: Box<Self>) {}

    fn is_permit(&self) -> bool {
        false
    }

    fn charger(&self) -> Option<Charger> {
        let (table, id, algorithm) = (Arc::clone(&self.table), self.id, self.algorithm.clone());
        Some(Box::new(move |units| table.charge(id, algorithm.as_ref(), units)))
    }
}

/// The data from which the reservation of a call is made when the call is admitted.
pub(super) enum Reservable<A: Algorithm> {
    Permit { id: Fingerprint, algorithm: A, cost: u64 },
    Charge(MemoryCharge<A>),
}

impl<A: Algorithm> Reservable<A> {
    /// Returns the reservation of the call. The call must have been admitted.
    pub(super) fn reserve(self, table: &Arc<Table<A>>) -> Reservation {
        match self {
            Self::Permit { id, algorithm, cost } => {
                let table = Arc::clone(table);
                Reservation::on_release(move || {
                    drop(SharedPermit::of_admitted(&algorithm, cost));
                    table.end(id, &algorithm, cost);
                })
            }
            Self::Charge(charge) => Reservation::of(charge),
        }
    }

    /// Returns the reservation of a call that waited. The call must have been admitted, and was charged at
    /// `charged_at`.
    pub(super) fn reserve_at(self, table: &Arc<Table<A>>, charged_at: ChargeTime) -> Reservation {
        match self {
            Self::Charge(charge) => Reservation::of(charge.charged_at(charged_at)),
            permit => permit.reserve(table),
        }
    }
}
