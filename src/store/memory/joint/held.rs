//! Limiters and their shards, whatever the algorithm.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Comer, Entered};
use crate::store::memory::charge::MemoryCharge;
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::home::Home;
use crate::store::memory::places::Settled;
use crate::store::memory::seat::{Foretold, Seat};
use crate::store::memory::shard::{Shard, lock};
use crate::store::memory::{MemoryStore, MemoryWait, Own};
use crate::store::{Permit, Reservation};
use crate::sync::MutexGuard;

/// A rule of a call's own, of whatever kind.
pub(crate) type Rule = Box<dyn Any + Send + Sync>;

/// What is asked of a shard.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) home: Home,
    pub(super) cost: u64,
    pub(super) priority: bool,
    pub(super) patience: u64,
    pub(super) rule: Option<&'a Rule>,
}

/// A limiter with state in memory, whatever its algorithm.
pub(super) trait Limiter: fmt::Debug {
    fn address(&self) -> *const ();
    /// Reserves room for a key, if it is a new one and there is or can be room; evicts none of `keep`.
    fn prepare(&self, key: Fingerprint, keep: &[Fingerprint]) -> bool;
    /// Gives back room that was reserved, and is not needed.
    fn unreserve(&self);
    /// Where a key is that has no place; `None`: nowhere.
    fn elsewhere(&self, key: Fingerprint) -> Option<Home>;
    /// Counts a call for whose key there is no room.
    fn reject(&self, quota: u64) -> Decision;
    fn lock(&self, home: Home) -> *const ();
    fn hold(&self, home: Home) -> Box<dyn Held + '_>;
    fn add(&self, key: Fingerprint);
    fn wait(&self, key: Fingerprint, ticket: u64) -> Waiting;
    fn give_back(&self, key: Fingerprint, cost: u64, rule: Option<&Rule>) -> GiveBack;
    fn reserve(&self, key: Fingerprint, cost: u64, priority: bool, rule: Option<&Rule>) -> Reserve;
}

/// A wait in one queue: the decision, and when the call was charged.
pub(super) type Waiting = Pin<Box<dyn Future<Output = (Decision, Nanos)> + Send>>;

/// Gives back what a call was charged at that reading of the clock.
pub(super) type GiveBack = Box<dyn FnOnce(Nanos) + Send>;

/// The reservation of a call that was charged at that reading of the clock.
pub(super) type Reserve = Box<dyn FnOnce(Nanos) -> Reservation + Send>;

/// A shard, held.
pub(super) trait Held {
    /// The latest reading of the clock that the key knows of: that at which a call was charged that was just let in.
    fn seen(&mut self, ask: Ask<'_>) -> Nanos;
    /// Whether a call that is let in can be settled.
    fn settles(&self, ask: Ask<'_>) -> bool;
    /// Whether a call will hold something until it is over.
    fn holds(&self, ask: Ask<'_>) -> bool;
    /// What a call holds that was let in; nothing, of most rules.
    fn permit(&self, ask: Ask<'_>) -> Option<Permit>;
    /// Gives the key a state, unless there is no room for it. A new one takes over the room that is `reserved`.
    fn settle(&mut self, home: Home, reserved: bool) -> Settled;
    /// What becomes of a call for whose key there is no room: it is denied, unless it needs none. `None`: denied.
    fn foretell_homeless(&mut self, ask: Ask<'_>) -> Result<Foretold, u64>;
    fn foretell(&mut self, ask: Ask<'_>) -> Foretold;
    fn enter(&mut self, ask: Ask<'_>) -> Entered;
    /// Lets go. Tells which keys are new and stay, and whom to wake.
    fn release(self: Box<Self>) -> (Vec<Fingerprint>, Vec<Waker>);
}

struct Holding<'a, A: Algorithm> {
    context: &'a Arc<Own<A>>,
    shard: MutexGuard<'a, Shard<A>>,
    now: Nanos,
    new: Vec<Fingerprint>,
    wake: Vec<Waker>,
}

/// A rule has panicked: its new keys are gone, and their places free again.
impl<A: Algorithm> Drop for Holding<'_, A> {
    fn drop(&mut self) {
        for key in mem::take(&mut self.new) {
            self.shard.states.remove(&key);
            self.context.store().table.forget(self.now);
        }
    }
}

impl<A: Algorithm> Holding<'_, A> {
    /// The rule that a call goes by.
    fn rule<'r>(&'r self, ask: Ask<'r>) -> &'r A {
        ask.rule.and_then(|rule| rule.downcast_ref()).unwrap_or(&self.shard.law.rule)
    }

    fn with<R>(&mut self, ask: Ask<'_>, change: impl FnOnce(Seat<'_, A>, Comer) -> R) -> R {
        let (Home::Own(key) | Home::Shared(key)) = ask.home;
        let Shard { law, states, lines, .. } = &mut *self.shard;
        let rule = ask.rule.and_then(|rule| rule.downcast_ref());
        let Some(state) = states.get_mut(&key) else { unreachable!("it was settled") };
        let lines = matches!(ask.home, Home::Own(_)).then_some(lines);
        let seat = self.context.store().table.seat(key, law, rule, state, lines, &mut self.wake);
        let Ask { cost, priority, patience, .. } = ask;
        let waits = seat.rule.queues();
        let comer = Comer { priority, waits, patience, ..Comer::new(self.now, cost) };
        change(seat, comer)
    }
}

impl<A: Algorithm> Held for Holding<'_, A> {
    fn seen(&mut self, ask: Ask<'_>) -> Nanos {
        self.with(ask, |seat, _| seat.rule.seen(seat.state))
    }

    /// Calls in progress are free when they end, and a closed limiter charges nothing.
    fn settles(&self, ask: Ask<'_>) -> bool {
        !self.rule(ask).holds() && !self.shard.law.closed
    }

    fn holds(&self, ask: Ask<'_>) -> bool {
        ask.cost > 0 && self.rule(ask).holds() && !self.shard.law.closed
    }

    fn permit(&self, ask: Ask<'_>) -> Option<Permit> {
        let permit = || MemoryStore::held(self.context, ask.home, self.rule(ask).clone(), ask.cost);
        self.holds(ask).then(permit)
    }

    fn settle(&mut self, home: Home, reserved: bool) -> Settled {
        let table = &self.context.store().table;
        let settled = table.settle(self.context, &mut self.shard, home, reserved, self.now);
        if let (Settled::New, Home::Own(key)) = (settled, home) {
            self.new.push(key);
        }
        settled
    }

    fn foretell_homeless(&mut self, ask: Ask<'_>) -> Result<Foretold, u64> {
        let (Home::Own(key) | Home::Shared(key)) = ask.home;
        let table = &self.context.store().table;
        let law = &self.shard.law;
        let rule = ask.rule.and_then(|rule| rule.downcast_ref()).unwrap_or(&law.rule);
        if ask.cost > 0 && !law.closed {
            return Err(rule.policy().quota);
        }
        let mut state = table.fresh(self.context, law, rule, self.now);
        let mut seat = table.seat(key, law, Some(rule), &mut state, None, &mut self.wake);
        Ok(seat.foretell(Comer::new(self.now, ask.cost)))
    }

    fn foretell(&mut self, ask: Ask<'_>) -> Foretold {
        self.with(ask, |mut seat, comer| seat.foretell(comer))
    }

    fn enter(&mut self, ask: Ask<'_>) -> Entered {
        self.with(ask, |mut seat, comer| seat.enter(comer))
    }

    fn release(mut self: Box<Self>) -> (Vec<Fingerprint>, Vec<Waker>) {
        let mut new = mem::take(&mut self.new);
        new.retain(|key| self.context.store().table.stays(&mut self.shard, *key, self.now));
        (new, mem::take(&mut self.wake))
    }
}

impl<A: Algorithm> Limiter for Arc<Own<A>> {
    fn address(&self) -> *const () {
        Arc::as_ptr(self).cast()
    }

    fn prepare(&self, key: Fingerprint, keep: &[Fingerprint]) -> bool {
        self.store().table.prepare(self, key, keep).map(mem::forget).is_some()
    }

    fn unreserve(&self) {
        self.store().table.unreserve();
    }

    fn reject(&self, quota: u64) -> Decision {
        self.store().table.reject(quota)
    }

    fn add(&self, key: Fingerprint) {
        self.store().table.add(key);
    }

    fn elsewhere(&self, key: Fingerprint) -> Option<Home> {
        self.store().table.elsewhere(key)
    }

    fn lock(&self, home: Home) -> *const () {
        ptr::from_ref(self.store().table.shard(home)).cast()
    }

    fn hold(&self, home: Home) -> Box<dyn Held + '_> {
        let shard = lock(self.store().table.shard(home));
        // Read while the shard is held: nobody has a later reading.
        let now = self.clock().now();
        Box::new(Holding { context: self, shard, now, new: Vec::new(), wake: Vec::new() })
    }

    fn wait(&self, key: Fingerprint, ticket: u64) -> Waiting {
        let wait = MemoryWait::new(Arc::clone(self), key, ticket, Permit::default(), None);
        Box::pin(async move {
            let mut wait = pin!(wait);
            match wait.as_mut().await {
                Ok(decision) => (decision, wait.charged_at()),
                Err(never) => match never {},
            }
        })
    }

    fn give_back(&self, key: Fingerprint, cost: u64, rule: Option<&Rule>) -> GiveBack {
        let limiter = Arc::clone(self);
        let rule = rule.and_then(|rule| rule.downcast_ref::<A>()).cloned();
        Box::new(move |charged_at| {
            limiter.store().give_back(&limiter, key, rule.as_ref(), cost, charged_at);
        })
    }

    fn reserve(&self, key: Fingerprint, cost: u64, priority: bool, rule: Option<&Rule>) -> Reserve {
        let context = Arc::clone(self);
        let rule = rule.and_then(|rule| rule.downcast_ref::<A>()).cloned();
        Box::new(move |charged_at| MemoryCharge { context, key, rule, cost, priority, charged_at }.into())
    }
}
