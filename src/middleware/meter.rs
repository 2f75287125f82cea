//! Meters, which count what calls use, and settle the calls when they have ended.

use std::fmt;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::limiter::Reservation;
use crate::limiter::reservation::{Charge, Charger};
use crate::sys::lock::SpinLock;
use crate::sys::lock::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the units that a call uses, for the limits of [metered](crate::RateLimitLayer::metered) layers.
///
/// A metered layer puts a meter into the extensions of each request. Any task may count on a clone of the meter,
/// without a lock. When the response has ended, the layer charges what the meter says, instead of the estimate that the
/// call was charged when it was admitted. Units that are counted later are charged at once. So a handler of WebSockets,
/// whose response ends when the connection is upgraded, counts messages with the same meter.
///
/// An axum handler takes the meter as an argument (feature `axum`). All other code finds it by [`Meter::of`], such as a
/// gRPC handler. Without a metered layer, both give a meter by which nothing is charged, so the same handler works with
/// and without a limit.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, body::Body, routing::post};
/// use http::Request;
/// use tower_throttle::{Meter, Quota, RateLimitLayer};
///
/// async fn search(meter: Meter, pattern: String) -> String {
///     let rows = ["salt", "sugar"].into_iter().inspect(|_| meter.add(1));
///     rows.filter(|row| row.contains(&pattern)).collect()
/// }
///
/// // Each call is charged 100 rows when it begins,
/// // and the number of rows that it has read when it has ended.
/// let rows = RateLimitLayer::per_ip(Quota::per_minute(10_000))
///     .cost(|_: &Request<Body>| 100)
///     .metered();
/// let app: Router = Router::new().route("/", post(search)).layer(rows);
/// # }
/// ```
///
/// # Several limits
///
/// A layer that finds a meter in a request uses it. So nested layers and [joined](crate::RateLimitLayer::and) policies
/// have one meter for each request, and each of them charges what it says. [`for_policy`](Self::for_policy) returns a
/// meter that counts for one of them only. A caller of an HTTP client can insert `Meter::new()` into a request, and
/// keep a clone.
///
/// If a layer between two metered layers calls the inner one again, such as `tower::retry`, the outer layer charges all
/// attempts together. The inner one charges each attempt what was counted since the attempt before. The same is true of
/// calls that a client makes one after another with one meter. Calls that are made at the same time need a meter each:
/// with one meter, each call is charged all units that are counted until its end.
///
/// # What is not promised
///
/// A meter of a process that dies charges nothing more: the estimate stays charged. A meter says nothing of the units
/// that are available, and never stops a call.
#[derive(Clone, Default)]
pub struct Meter {
    call: Arc<MeteredCall>,
    /// The counter of one policy. `None` for the counter of all policies.
    policy: Option<Arc<Counter>>,
}

/// What happens to the estimate of a call whose meter was not used. The default is to keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unmetered {
    /// The call has cost its estimate.
    #[default]
    Keep,
    /// The call has cost nothing.
    Refund,
}

/// What the clones of a meter share.
struct MeteredCall {
    /// The units that count for all policies.
    all: Counter,
    /// The charges that are not settled, and the settled ones to which units are still added. A meter may count for any
    /// number of calls, one after another, so the charges of earlier attempts are removed.
    charges: SpinLock<Charges>,
    /// `true` if a charge was settled, so that units that are counted later may have to be charged. Before, counting
    /// takes no lock.
    is_settled: AtomicBool,
}

type Charges = SmallVec<[Arc<PolicyCharge>; 2]>;

/// The number of units that were counted: zero if no units were counted, and otherwise the number plus one. A count of
/// zero units is different from no count.
#[derive(Default)]
struct Counter(AtomicU64);

/// What one policy charges for the call.
struct PolicyCharge {
    policy: Box<str>,
    /// The units that count for this policy only. Policies of one name have one counter.
    own: Arc<Counter>,
    /// The number of counted units that earlier attempts of the call were charged.
    base: u64,
    /// The number of counted units that were charged, or `OPEN` before the call is settled.
    charged: AtomicU64,
    /// The function that charges units after the settlement. It is set before `charged`.
    charger: OnceLock<Charger>,
}

/// The value of [`PolicyCharge::charged`] before the settlement. No counter has this value.
const OPEN: u64 = u64::MAX;

/// A charge that is settled by a meter when it is dropped.
struct MeteredCharge {
    reservation: Reservation,
    unmetered: Unmetered,
    call: Arc<MeteredCall>,
    charge: Arc<PolicyCharge>,
}

impl Meter {
    /// Creates a meter. Nothing is charged by it until a metered layer finds it in the extensions of a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the meter in the extensions of a request. If there is none, returns a new one, by which nothing is
    /// charged.
    ///
    /// ```
    /// use tower_throttle::Meter;
    ///
    /// async fn count_rows(request: http::Request<String>) {
    ///     let meter = Meter::of(request.extensions());
    ///     meter.add(250);
    /// }
    /// ```
    #[must_use]
    pub fn of(extensions: &http::Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Counts `units` more. The units are those of the quota. The count ends at 2^64 - 2.
    ///
    /// If the call was already settled, the units are charged at once, unless a limiter of your own made the
    /// [reservation](Reservation::on_settle).
    pub fn add(&self, units: u64) {
        self.counter().add(units);
        self.call.charge_late();
    }

    /// Sets the count to `units`, for a total that is known, such as the one that another server reports.
    ///
    /// If the call was already settled, units above the largest count until now are charged at once. A lower count
    /// then refunds nothing.
    pub fn set(&self, units: u64) {
        self.counter().set(units);
        self.call.charge_late();
    }

    /// Returns the number of units that this meter has counted. For a meter [of one policy](Self::for_policy), these
    /// are not the units that were counted for all policies.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.counter().units().unwrap_or(0)
    }

    /// Returns a meter that counts only for the policies of this [name](crate::RateLimitLayer::name), for limits that
    /// count different things, such as tokens and seconds.
    ///
    /// Such a policy charges the units that were counted for it and those that were counted for all policies. If the
    /// call has no metered policy of this name until now, nothing is charged by the meter that is returned.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, body::Body, routing::get};
    /// use tower_throttle::{Meter, Quota, RateLimitLayer};
    ///
    /// async fn work(meter: Meter) {
    ///     meter.for_policy("tokens").add(1_200);
    ///     meter.for_policy("seconds").add(3);
    /// }
    ///
    /// let tokens = RateLimitLayer::per_ip(Quota::per_hour(1_000_000)).name("tokens").metered();
    /// let seconds = RateLimitLayer::per_ip(Quota::per_hour(600)).name("seconds").metered();
    /// let app: Router = Router::new().route("/", get(work)).layer(tokens.and(seconds));
    /// # }
    /// ```
    #[must_use]
    pub fn for_policy(&self, name: &str) -> Self {
        let counter = self.call.counter_of(name).unwrap_or_default();
        Self { call: Arc::clone(&self.call), policy: Some(counter) }
    }

    fn counter(&self) -> &Counter {
        self.policy.as_deref().unwrap_or(&self.call.all)
    }

    /// Returns a reservation that settles the charge of the policy `name` by this meter, when it is dropped.
    pub(super) fn settle_at_end(
        &self,
        reservation: Reservation,
        name: &str,
        unmetered: Unmetered,
    ) -> Reservation {
        let (call, charge) = (Arc::clone(&self.call), self.call.begin(name));
        Reservation::of(MeteredCharge { reservation, unmetered, call, charge })
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("units", &self.units()).finish_non_exhaustive()
    }
}

impl MeteredCall {
    /// Returns the counter of the policies of this name.
    fn counter_of(&self, name: &str) -> Option<Arc<Counter>> {
        let charges = self.charges.lock();
        charges.iter().find(|charge| &*charge.policy == name).map(|charge| Arc::clone(&charge.own))
    }

    /// Begins the charge of a policy of this name. If policies of this name have settled the call, because the call is
    /// made again, ends and removes their charges.
    fn begin(&self, name: &str) -> Arc<PolicyCharge> {
        // What a charge holds, such as a limiter, is not dropped under the lock.
        let (mut ended, mut own, mut base) = (Charges::new(), None, 0);
        let mut charges = self.charges.lock();
        charges.retain(|charge| {
            if &*charge.policy != name {
                return true;
            }
            own.get_or_insert_with(|| Arc::clone(&charge.own));
            let charged = charge.end();
            // An outer policy of this name has begun its charge already, and so it has ended those of this policy.
            base = base.max(charged.unwrap_or(charge.base));
            if charged.is_some() {
                ended.push(Arc::clone(charge));
            }
            charged.is_none()
        });
        let (own, charged, charger) = (own.unwrap_or_default(), AtomicU64::new(OPEN), OnceLock::new());
        let charge = Arc::new(PolicyCharge { policy: name.into(), own, base, charged, charger });
        charges.push(Arc::clone(&charge));
        drop(charges);
        charge
    }

    /// Charges the units that were counted after a policy has settled the call.
    fn charge_late(&self) {
        if self.is_settled.load(Ordering::SeqCst) {
            // A charge locks the key, or begins a trip, so it is not made under the lock.
            let charges = self.charges.lock().clone();
            charges.iter().for_each(|charge| charge.charge_late(&self.all));
        }
    }
}

impl Default for MeteredCall {
    fn default() -> Self {
        let charges = SpinLock::new(Charges::new());
        Self { all: Counter::default(), charges, is_settled: AtomicBool::new(false) }
    }
}

impl PolicyCharge {
    /// Returns the number of units that were counted for this policy. `all` are the units that count for all policies.
    fn units(&self, all: &Counter) -> Option<u64> {
        match (all.units(), self.own.units()) {
            (None, None) => None,
            (all, own) => Some(all.unwrap_or(0).saturating_add(own.unwrap_or(0)).min(Counter::MAX)),
        }
    }

    /// Takes the units to charge at the settlement. Units that are counted later are charged by `charger`.
    fn take_units(&self, all: &Counter, charger: Option<Charger>) -> Option<u64> {
        if let Some(charger) = charger {
            let _ = self.charger.set(charger);
        }
        let units = self.units(all);
        self.charged.store(units.unwrap_or(0), Ordering::SeqCst);
        match self.base {
            0 => units,
            base => units?.checked_sub(base).filter(|units| *units > 0),
        }
    }

    /// If the call was settled, lets no later units be charged. Returns the number of units that were charged.
    fn end(&self) -> Option<u64> {
        let settled = |charged| (charged != OPEN).then_some(Counter::MAX);
        self.charged.fetch_update(Ordering::SeqCst, Ordering::SeqCst, settled).ok()
    }

    /// If the call was settled, charges the units that were counted since.
    // A count changes a counter first, and then reads `is_settled` and `charged`. A settlement sets `charged` and
    // `is_settled` first, and then calls this method, which reads the counters. So at least one of the two sees both,
    // and `fetch_max` lets only one of them charge.
    fn charge_late(&self, all: &Counter) {
        if self.charged.load(Ordering::SeqCst) == OPEN {
            return;
        }
        let units = self.units(all).unwrap_or(0);
        let charged = self.charged.fetch_max(units, Ordering::SeqCst);
        if let (Some(more @ 1..), Some(charger)) = (units.checked_sub(charged), self.charger.get()) {
            charger(more);
        }
    }
}

impl Counter {
    /// The largest number of units.
    const MAX: u64 = u64::MAX - 1;

    fn units(&self) -> Option<u64> {
        self.0.load(Ordering::SeqCst).checked_sub(1)
    }

    fn set(&self, units: u64) {
        self.0.store(units.min(Self::MAX) + 1, Ordering::SeqCst);
    }

    fn add(&self, units: u64) {
        let more = |count: u64| Some(count.max(1).saturating_add(units));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    }
}

impl MeteredCharge {
    /// Settles the call: by `actual`, if it is given, and otherwise by the meter.
    fn end(mut self, actual: Option<u64>) -> Option<Decision> {
        let reservation = std::mem::take(&mut self.reservation);
        let metered = self.charge.take_units(&self.call.all, reservation.charger());
        self.call.is_settled.store(true, Ordering::SeqCst);
        let decision = match (actual.or(metered), self.unmetered) {
            (Some(units), _) => reservation.settle(units),
            (None, Unmetered::Refund) => reservation.settle(0),
            (None, Unmetered::Keep) => None,
        };
        self.charge.charge_late(&self.call.all);
        decision
    }
}

impl Charge for MeteredCharge {
    fn settle(self: Box<Self>, actual: u64) -> Option<Decision> {
        self.end(Some(actual))
    }

    fn release(self: Box<Self>) {
        self.end(None);
    }

    // The end of the response settles the call, as it releases a permit.
    fn is_permit(&self) -> bool {
        true
    }

    fn is_charge(&self) -> bool {
        true
    }
}
