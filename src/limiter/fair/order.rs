//! Who is next. It is pure: times are arguments, and what a call is told by when it is decided is a type parameter.
//!
//! The next call is the first one of the waiting caller with the smallest (units held, service received, turn). The
//! units that it holds now decide while no more callers wait than there are places. With more, most callers hold
//! nothing, and the [service](super::service) decides.
//!
//! Calls wait in lists, which are linked through the slots of the waiters. So a call that is cancelled or displaced
//! leaves in constant time, and the other work is logarithmic in the number of the callers that wait.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use super::service::Service;
use super::slab::{NONE, Slab};
use crate::algorithm::{QueueConfig, QueueOverflow};
use crate::clock::Nanos;
use crate::limiter::fingerprint::{Fingerprint, IdentityBuildHasher};

/// The number of callers, besides as many as wait, that are remembered for what they have received.
const REMEMBERED: usize = 16;

/// The maximum number of callers that a step forgets.
const FORGOTTEN: usize = 2;

/// The bounds of all callers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of units of all callers.
    pub(super) total: u64,
    /// The maximum number of units of one caller.
    pub(super) per_key: u64,
    /// The queue of one caller.
    pub(super) queue: QueueConfig,
    /// The maximum number of waiting calls of all callers.
    pub(super) max_queued: usize,
}

/// A call that arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) id: Fingerprint,
    /// The number of units, which is at least 1, and at most the [limit](Limits::limit) of the call.
    pub(super) cost: u64,
    /// The maximum number of units of its caller, by its tier. `None` if the call chose no tier.
    pub(super) per_key: Option<u64>,
    pub(super) may_wait: bool,
}

/// The units of a call in progress. They must be given to [`Order::end`].
#[derive(Debug)]
#[must_use = "the units must be given back"]
pub(super) struct Held {
    caller: usize,
    cost: u64,
    /// The time of the admission, or zero if nobody waited then.
    pub(super) since: Nanos,
}

/// The outcome of a call that has waited.
#[derive(Debug)]
pub(super) enum Outcome {
    Admitted(Held),
    /// A newer call has taken its place, at this time.
    Displaced(Nanos),
    /// The limiter was closed at this time.
    Closed(Nanos),
}

/// The order in which the waiting calls of all callers are admitted. `W` wakes a waiting call.
#[derive(Debug)]
pub(super) struct Order<W> {
    limits: Limits,
    callers: Slab<Caller>,
    waiters: Slab<Waiter<W>>,
    /// The slots of all callers that hold, wait or are remembered.
    known: HashMap<Fingerprint, usize, IdentityBuildHasher>,
    /// The units that calls in progress hold.
    used: u64,
    /// The number of waiting calls.
    waiting: usize,
    /// The number of callers with waiting calls.
    waiting_callers: usize,
    /// The waiting callers whose first calls have room below their own limits, in the order in which they are next.
    line: BTreeSet<Place>,
    /// The callers with at least two waiting calls, by the number of these calls.
    longest: BTreeSet<Length>,
    /// The callers that hold and wait for nothing, and are remembered for what they have received.
    debts: BTreeSet<Debt>,
    /// The latest turn.
    turn: u64,
    service: Service,
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    id: Fingerprint,
    /// The units of its calls in progress.
    held: u64,
    service: u128,
    /// The turn at which it began to wait or was last admitted.
    turn: u64,
    /// The turn at which it began to wait.
    began: u64,
    waiting: usize,
    /// The first and the last of its waiters.
    ends: [usize; 2],
}

#[derive(Debug)]
struct Waiter<W> {
    caller: usize,
    cost: u64,
    per_key: Option<u64>,
    state: State,
    wakes: Option<W>,
}

#[derive(Debug)]
enum State {
    /// With the waiters of the same caller before and after this one.
    Waits([usize; 2]),
    Decided(Outcome),
}

/// The units that a caller holds, its service, its turn, and its slot.
type Place = (u64, u128, u64, usize);
/// The number of waiting calls of a caller, the turn at which it began to wait, and its slot.
type Length = (usize, u64, usize);
/// The service of a caller, its turn, and its slot.
type Debt = (u128, u64, usize);

impl Limits {
    /// Returns the maximum number of units that a caller may hold, by the tier of its call.
    pub(super) fn limit(&self, per_key: Option<u64>) -> u64 {
        per_key.unwrap_or(self.per_key).min(self.total)
    }
}

/// Questions, which change nothing.
impl<W> Order<W> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            callers: Slab::new(),
            waiters: Slab::new(),
            known: HashMap::default(),
            used: 0,
            waiting: 0,
            waiting_callers: 0,
            line: BTreeSet::new(),
            longest: BTreeSet::new(),
            debts: BTreeSet::new(),
            turn: 0,
            service: Service::default(),
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the number of waiting calls. Without any, no operation but [`join`](Self::join) needs the time.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of callers that hold, wait or are remembered.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns how many calls of cost 1 would pass now without waiting, one after another.
    pub(super) fn remaining(&self, id: Fingerprint, per_key: Option<u64>) -> u64 {
        self.left(&self.caller(id), per_key)
    }

    /// Like [`remaining`](Self::remaining), for the caller of a call in progress.
    pub(super) fn remaining_beside(&self, held: &Held, per_key: Option<u64>) -> u64 {
        self.left(self.callers.at(held.caller), per_key)
    }

    fn left(&self, caller: &Caller, per_key: Option<u64>) -> u64 {
        if caller.waiting > 0 {
            return 0;
        }
        let free = self.limits.total.saturating_sub(self.used);
        let room = self.limits.limit(per_key).saturating_sub(caller.held);
        let ahead = self.line.first().map_or(u64::MAX, |first| first.0.saturating_sub(caller.held));
        free.min(room).min(ahead)
    }

    /// Returns whether a call that may not wait would pass.
    pub(super) fn would_pass(&self, call: &Arrival) -> bool {
        let Caller { held, waiting, .. } = self.caller(call.id);
        let is_first = self.line.first().is_none_or(|first| held < first.0);
        waiting == 0 && is_first && self.fits_own(held, call.cost, call.per_key) && self.fits_total(call.cost)
    }

    /// Returns what is known of a caller.
    fn caller(&self, id: Fingerprint) -> Caller {
        self.known.get(&id).map_or_else(|| Caller::new(id), |at| *self.callers.at(*at))
    }

    /// Returns whether a caller that holds `held` has room for a call. A call above the limit, which was lowered while
    /// the call waited, has room once its caller holds nothing.
    fn fits_own(&self, held: u64, cost: u64, per_key: Option<u64>) -> bool {
        let left = self.limits.limit(per_key).checked_sub(held);
        held == 0 || left.is_some_and(|left| cost <= left)
    }

    /// Returns whether the total has room for a call. A call above the total, which was lowered while the call waited,
    /// has room once nothing is in progress.
    fn fits_total(&self, cost: u64) -> bool {
        self.used == 0 || cost <= self.limits.total.saturating_sub(self.used)
    }

    /// Returns the place of a waiting caller, if its first call has room below its own limit.
    fn place(&self, at: usize) -> Option<Place> {
        let caller = self.callers.at(at);
        if caller.waiting == 0 {
            return None;
        }
        let first = self.waiters.at(caller.ends[0]);
        let has_room = self.fits_own(caller.held, first.cost, first.per_key);
        has_room.then_some((caller.held, caller.service, caller.turn, at))
    }

    /// Returns the entry of a caller in the list of the longest queues. A caller with a single call is in none, because
    /// this call is never displaced by that of another caller.
    fn length(&self, at: usize) -> Option<Length> {
        let caller = self.callers.at(at);
        (caller.waiting > 1).then_some((caller.waiting, caller.began, at))
    }
}

/// Steps. Each takes the time, which it needs only if calls wait, and pushes to `told` what wakes the waiting calls
/// that it has decided.
impl<W> Order<W> {
    /// Admits a call, if it is the next one and has room. Otherwise changes nothing.
    pub(super) fn pass(&mut self, call: &Arrival, now: Nanos) -> Option<Held> {
        let Arrival { id, cost, per_key, may_wait } = *call;
        if !self.fits_total(cost) {
            return None;
        }
        let at = if self.waiting == 0 {
            let at = self.open(id);
            if !self.fits_own(self.callers.at(at).held, cost, per_key) {
                return None;
            }
            at
        } else {
            self.pass_others(call, may_wait)?
        };
        let turn = self.next_turn();
        let caller = self.callers.at_mut(at);
        caller.held += cost;
        caller.turn = turn;
        self.used += cost;
        self.forget();
        let since = if self.waiting == 0 { Nanos::ZERO } else { now };
        Some(Held { caller: at, cost, since })
    }

    /// Returns the slot of the caller of a call, if the call comes before all that wait.
    fn pass_others(&mut self, call: &Arrival, may_wait: bool) -> Option<usize> {
        let Caller { held, service, waiting, .. } = self.caller(call.id);
        if waiting > 0 || !self.fits_own(held, call.cost, call.per_key) {
            return None;
        }
        let first = self.line.first().copied();
        let service = if first.is_none_or(|first| held < first.0) {
            self.service.pass(service)
        } else {
            // A call that may wait passes as one that has begun to wait and is the first.
            let service = self.service.first(held, service);
            if !may_wait || first.is_some_and(|first| (held, service) >= (first.0, first.1)) {
                return None;
            }
            self.service.admit(service);
            service
        };
        let at = self.open(call.id);
        self.raise(at, service);
        Some(at)
    }

    /// Lets a call wait that [does not pass](Self::pass). Returns its slot, which the caller must
    /// [take](Self::take) or [cancel](Self::cancel). Returns `None` if there is no place.
    pub(super) fn join(&mut self, call: &Arrival, now: Nanos, told: &mut Vec<W>) -> Option<usize> {
        let own = self.caller(call.id);
        let displaced = self.displaced_by(&own)?;
        if self.waiting == 0 {
            self.service.begin(now);
        }
        let at = self.open(call.id);
        let service = self.service.first(own.held, own.service);
        let Arrival { cost, per_key, .. } = *call;
        let state = State::Waits([NONE; 2]);
        let waiter = self.waiters.insert(Waiter { caller: at, cost, per_key, state, wakes: None });
        self.change(at, |order| {
            if own.waiting == 0 {
                order.raise(at, service);
                let turn = order.next_turn();
                let caller = order.callers.at_mut(at);
                (caller.turn, caller.began) = (turn, turn);
                order.waiting_callers += 1;
            }
            order.link(waiter);
        });
        if let Some(displaced) = displaced {
            self.deny(displaced, Outcome::Displaced(now), told);
            // The next call of the same caller may have room.
            self.admit(now, told);
        }
        self.forget();
        Some(waiter)
    }

    /// Returns the waiter that a new call displaces, or `Some(None)` if there is a place. Returns `None` if the new
    /// call must be denied.
    fn displaced_by(&self, own: &Caller) -> Option<Option<usize>> {
        let Limits { queue, max_queued, .. } = self.limits;
        let is_own_full = own.waiting as u64 >= queue.places();
        if !is_own_full && self.waiting < max_queued {
            return Some(None);
        }
        if queue.overflow() == QueueOverflow::DropOldest && own.waiting > 0 {
            return Some(Some(own.ends[0]));
        }
        // Of several that have most, the one that began to wait last.
        let (most, _, at) = self.longest.last().copied().filter(|_| !is_own_full)?;
        (most >= own.waiting + 2).then(|| Some(self.callers.at(at).ends[1]))
    }

    /// Returns the outcome of a call that has waited, and removes the call. Returns `None` if it still waits.
    pub(super) fn take(&mut self, waiter: usize) -> Option<Outcome> {
        if let State::Waits(_) = self.waiters.at(waiter).state {
            return None;
        }
        let State::Decided(outcome) = self.waiters.remove(waiter).state else {
            unreachable!("the call has been decided")
        };
        Some(outcome)
    }

    /// Returns what wakes a waiting call.
    pub(super) fn wakes(&mut self, waiter: usize) -> &mut Option<W> {
        &mut self.waiters.at_mut(waiter).wakes
    }

    /// Removes a call that waits, or that was decided and not taken. Returns what would have woken it.
    pub(super) fn cancel(&mut self, waiter: usize, now: Nanos, told: &mut Vec<W>) -> Option<W> {
        if let Some(outcome) = self.take(waiter) {
            if let Outcome::Admitted(held) = outcome {
                self.end(held, now, told);
            }
            return None;
        }
        let at = self.waiters.at(waiter).caller;
        self.change(at, |order| order.unlink(waiter));
        let Waiter { wakes, .. } = self.waiters.remove(waiter);
        self.admit(now, told);
        self.rest(at);
        self.forget();
        wakes
    }

    /// Ends a call in progress, and admits those that now fit.
    pub(super) fn end(&mut self, held: Held, now: Nanos, told: &mut Vec<W>) {
        let Held { caller: at, cost, since } = held;
        self.used -= cost;
        if self.waiting == 0 {
            self.callers.at_mut(at).held -= cost;
        } else {
            self.change(at, |order| {
                let service = order.callers.at(at).service;
                let service = order.service.charge(service, cost, since, now);
                order.raise(at, service);
                order.callers.at_mut(at).held -= cost;
            });
            self.admit(now, told);
        }
        self.rest(at);
        self.forget();
    }

    /// Denies all calls that wait.
    pub(super) fn close(&mut self, now: Nanos, told: &mut Vec<W>) {
        for at in self.callers.occupied() {
            while self.callers.at(at).waiting > 0 {
                self.deny(self.callers.at(at).ends[0], Outcome::Closed(now), told);
            }
        }
        // Nobody waits, so nothing that was received counts.
        self.debts.clear();
        for at in self.callers.occupied() {
            self.rest(at);
        }
    }

    /// Replaces the bounds, and admits the calls that now fit. `max_queued` stays.
    pub(super) fn replace(&mut self, limits: Limits, now: Nanos, told: &mut Vec<W>) {
        self.limits = Limits { max_queued: self.limits.max_queued, ..limits };
        self.line = self.callers.occupied().into_iter().filter_map(|at| self.place(at)).collect();
        self.admit(now, told);
    }
}

/// The parts of steps.
impl<W> Order<W> {
    /// Admits calls in their order, until the first one does not fit the total.
    fn admit(&mut self, now: Nanos, told: &mut Vec<W>) {
        while let Some(&(_, service, _, at)) = self.line.first() {
            let waiter = self.callers.at(at).ends[0];
            let cost = self.waiters.at(waiter).cost;
            if !self.fits_total(cost) {
                return;
            }
            self.service.admit(service);
            self.used += cost;
            self.change(at, |order| {
                order.unlink(waiter);
                let turn = order.next_turn();
                let caller = order.callers.at_mut(at);
                caller.held += cost;
                caller.turn = turn;
            });
            self.tell(waiter, Outcome::Admitted(Held { caller: at, cost, since: now }), told);
        }
    }

    /// Denies a waiting call.
    fn deny(&mut self, waiter: usize, denial: Outcome, told: &mut Vec<W>) {
        let at = self.waiters.at(waiter).caller;
        self.change(at, |order| order.unlink(waiter));
        self.tell(waiter, denial, told);
    }

    fn tell(&mut self, waiter: usize, outcome: Outcome, told: &mut Vec<W>) {
        let waiter = self.waiters.at_mut(waiter);
        waiter.state = State::Decided(outcome);
        told.extend(waiter.wakes.take());
    }

    /// Changes a caller, and then its places in the sets.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Self)) {
        let before = (self.place(at), self.length(at));
        change(self);
        let after = (self.place(at), self.length(at));
        moved(&mut self.line, before.0, after.0);
        moved(&mut self.longest, before.1, after.1);
    }

    /// Adds a waiter behind the others of its caller.
    fn link(&mut self, waiter: usize) {
        let at = self.waiters.at(waiter).caller;
        let last = self.callers.at(at).ends[1];
        self.waiters.at_mut(waiter).state = State::Waits([last, NONE]);
        self.connect(at, last, 1, waiter);
        self.connect(at, NONE, 0, waiter);
        self.callers.at_mut(at).waiting += 1;
        self.waiting += 1;
    }

    /// Takes a waiter out of those of its caller.
    fn unlink(&mut self, waiter: usize) {
        let Waiter { caller: at, state: State::Waits([before, after]), .. } = *self.waiters.at(waiter) else {
            unreachable!("the call waits")
        };
        self.connect(at, before, 1, after);
        self.connect(at, after, 0, before);
        self.waiting -= 1;
        let caller = self.callers.at_mut(at);
        caller.waiting -= 1;
        if caller.waiting == 0 {
            self.waiting_callers -= 1;
        }
    }

    /// Sets what is before a waiter (side 0), or after it (side 1). After no waiter is the first one of the caller, and
    /// before no waiter is the last one.
    fn connect(&mut self, at: usize, waiter: usize, side: usize, other: usize) {
        if waiter == NONE {
            self.callers.at_mut(at).ends[1 - side] = other;
        } else if let State::Waits(sides) = &mut self.waiters.at_mut(waiter).state {
            sides[side] = other;
        }
    }

    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn raise(&mut self, at: usize, service: u128) {
        self.callers.at_mut(at).service = service;
        self.service.record(service);
    }

    /// Returns the slot of a caller that is about to hold or wait, and takes it out of the list of those that do
    /// neither.
    fn open(&mut self, id: Fingerprint) -> usize {
        let callers = &mut self.callers;
        let at = *self.known.entry(id).or_insert_with(|| callers.insert(Caller::new(id)));
        if !self.debts.is_empty()
            && let Some(debt) = self.debt(at)
        {
            self.debts.remove(&debt);
        }
        at
    }

    fn debt(&self, at: usize) -> Option<Debt> {
        let caller = self.callers.at(at);
        (caller.held == 0 && caller.waiting == 0).then_some((caller.service, caller.turn, at))
    }

    /// Forgets a caller that holds and waits for nothing, or remembers what it has received.
    fn rest(&mut self, at: usize) {
        let Some(debt) = self.debt(at) else { return };
        if self.waiting == 0 || self.service.is_paid(debt.0) {
            self.remove(at);
        } else {
            self.debts.insert(debt);
        }
    }

    /// Forgets a few callers that hold and wait for nothing: those that have received no more than the others, and the
    /// smallest debts if too many are remembered.
    fn forget(&mut self) {
        for _ in 0..FORGOTTEN {
            let Some(&(service, _, at)) = self.debts.first() else { return };
            let is_paid = self.waiting == 0 || self.service.is_paid(service);
            if !is_paid && self.debts.len() <= self.waiting_callers + REMEMBERED {
                return;
            }
            self.debts.pop_first();
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) {
        let Caller { id, .. } = self.callers.remove(at);
        self.known.remove(&id);
    }
}

impl Caller {
    const fn new(id: Fingerprint) -> Self {
        Self { id, held: 0, service: 0, turn: 0, began: 0, waiting: 0, ends: [NONE; 2] }
    }
}

/// Moves an entry of a set.
fn moved<T: Ord>(set: &mut BTreeSet<T>, before: Option<T>, after: Option<T>) {
    if before == after {
        return;
    }
    if let Some(before) = before {
        set.remove(&before);
    }
    set.extend(after);
}
