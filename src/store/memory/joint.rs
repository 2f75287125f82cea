//! Calls on several keys, of several limiters, that are decided together: all are let pass, or none.
//!
//! All keys are held while they are decided: the shards in the order of the addresses of their locks, shared buckets after all others. A key
//! alone takes the same locks in the same order, so nobody waits in a circle. Where nobody must wait in line, the whole is over at once.
//!
//! A call that has to wait in one line is charged by the others when it joins that line: their budgets are for arrivals, the
//! line's for departures. Given up while it waits, it gives back what it was charged.

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, MutexGuard};
use std::task::{Context as Task, Poll, Waker};

use super::fingerprint::Fingerprint;
use super::seat::{Foretold, Seat};
use super::shard::{Shard, lock};
use super::table::Home;
use super::{MemoryWait, Own};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Comer, Entered};

/// One of several calls.
#[derive(Debug)]
pub struct Part<'a> {
    limiter: &'a dyn Limiter,
    key: Fingerprint,
    cost: u64,
    rule: Option<Rule>,
    priority: bool,
}

/// A rule of a call's own.
pub(crate) type Rule = Box<dyn Any + Send + Sync>;

/// What became of one of several calls.
#[derive(Debug)]
pub struct Decided {
    pub(crate) decision: Decision,
    pub(crate) rule: Option<Rule>,
}

/// What became of all of them. `None` stands for those that are not limited.
#[derive(Debug)]
pub(crate) enum Together {
    Admitted(Vec<Option<Decided>>),
    Denied(Vec<Option<Decided>>),
    Later(TogetherWait),
}

impl<'a> Part<'a> {
    pub(super) fn new<A: Algorithm>(
        limiter: &'a Arc<Own<A>>,
        key: Fingerprint,
        cost: u64,
        rule: Option<A>,
        priority: bool,
    ) -> Self {
        Self { limiter, key, cost, rule: rule.map(|rule| Box::new(rule) as Rule), priority }
    }

    fn is_same_key(&self, other: &Part<'_>) -> bool {
        ptr::addr_eq(self.limiter.address(), other.limiter.address()) && self.key == other.key
    }
}

/// A limiter with state in memory, whatever its algorithm.
trait Limiter: fmt::Debug {
    fn address(&self) -> *const ();
    fn prepare(&self, key: Fingerprint);
    fn elsewhere(&self, key: Fingerprint) -> Home;
    fn lock(&self, home: Home) -> *const ();
    fn hold(&self, home: Home) -> Box<dyn Held + '_>;
    fn add(&self, key: Fingerprint);
    fn wait(&self, key: Fingerprint, ticket: u64) -> Waiting;
    fn give_back(&self, key: Fingerprint, cost: u64) -> GiveBack;
}

type Waiting = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// Gives back what a call was charged.
type GiveBack = Box<dyn FnOnce() + Send>;

/// A shard, held.
trait Held {
    /// Gives the key a state, unless there is no place for it.
    fn settle(&mut self, home: Home) -> bool;
    fn foretell(&mut self, call: &Call<'_, '_>) -> Foretold;
    fn enter(&mut self, call: &Call<'_, '_>) -> Entered;
    /// Lets go. Tells which keys are new and stay, and whom to wake.
    fn release(self: Box<Self>) -> (Vec<Fingerprint>, Vec<Waker>);
}

struct Holding<'a, A: Algorithm> {
    context: &'a Own<A>,
    shard: MutexGuard<'a, Shard<A>>,
    /// One reading for all that is asked of the shard.
    now: Nanos,
    new: Vec<Fingerprint>,
    wake: Vec<Waker>,
}

impl<A: Algorithm> Holding<'_, A> {
    fn with<R>(&mut self, call: &Call<'_, '_>, change: impl FnOnce(Seat<'_, A>, Comer) -> R) -> R {
        let (Home::Own(key) | Home::Shared(key)) = call.home;
        let Shard { law, states, lines } = &mut *self.shard;
        let rule = call.part.rule.as_ref().and_then(|rule| rule.downcast_ref()).unwrap_or(&law.rule);
        let Some(state) = states.get_mut(&key) else { unreachable!("it was settled") };
        let lines = matches!(call.home, Home::Own(_)).then_some(lines);
        let comer = Comer { now: self.now, cost: call.cost, priority: call.part.priority };
        change(Seat { key, rule, state, lines, wake: &mut self.wake }, comer)
    }
}

impl<A: Algorithm> Held for Holding<'_, A> {
    fn settle(&mut self, home: Home) -> bool {
        let (Home::Own(key) | Home::Shared(key)) = home;
        match self.context.store().table.settle(self.context, &mut self.shard, home, self.now) {
            None => false,
            Some(new) => {
                self.new.extend(new.then_some(key));
                true
            }
        }
    }

    fn foretell(&mut self, call: &Call<'_, '_>) -> Foretold {
        self.with(call, |mut seat, comer| seat.foretell(comer))
    }

    fn enter(&mut self, call: &Call<'_, '_>) -> Entered {
        self.with(call, |seat, comer| seat.enter(comer))
    }

    fn release(mut self: Box<Self>) -> (Vec<Fingerprint>, Vec<Waker>) {
        let mut new = mem::take(&mut self.new);
        new.retain(|key| self.context.store().table.stays(&mut self.shard, *key, self.now));
        (new, self.wake)
    }
}

impl<A: Algorithm> Limiter for Arc<Own<A>> {
    fn address(&self) -> *const () {
        Arc::as_ptr(self).cast()
    }

    fn prepare(&self, key: Fingerprint) {
        self.store().table.prepare(self, key);
    }

    fn add(&self, key: Fingerprint) {
        self.store().table.add(key);
    }

    fn elsewhere(&self, key: Fingerprint) -> Home {
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
        let wait = MemoryWait::new(Arc::clone(self), key, ticket);
        Box::pin(async move {
            match wait.await {
                Ok(decision) => decision,
                Err(never) => match never {},
            }
        })
    }

    fn give_back(&self, key: Fingerprint, cost: u64) -> GiveBack {
        let limiter = Arc::clone(self);
        Box::new(move || limiter.store().give_back(&limiter, key, cost))
    }
}

/// All calls on one key.
struct Call<'p, 'a> {
    part: &'p Part<'a>,
    cost: u64,
    home: Home,
    /// Where its shard is among those that are held.
    held: usize,
}

/// The shards that are held, in the order in which they were locked.
#[derive(Default)]
struct Shelf<'a> {
    held: Vec<(*const (), &'a dyn Limiter, Box<dyn Held + 'a>)>,
}

impl<'a> Shelf<'a> {
    /// Holds the shards of these calls, in the order of the addresses of their locks.
    fn hold(&mut self, calls: &mut [&mut Call<'_, 'a>]) {
        let lock = |call: &Call<'_, 'a>| call.part.limiter.lock(call.home);
        calls.sort_by_key(|call| lock(call));
        for call in calls {
            let lock = lock(call);
            if self.held.last().is_none_or(|(last, ..)| *last != lock) {
                self.held.push((lock, call.part.limiter, call.part.limiter.hold(call.home)));
            }
            call.held = self.held.len() - 1;
        }
    }

    fn of(&mut self, call: &Call<'_, '_>) -> &mut dyn Held {
        &mut *self.held[call.held].2
    }

    /// Lets all go; then does what must not be done while anything is held.
    fn release(self) {
        let released: Vec<_> =
            self.held.into_iter().map(|(_, limiter, held)| (limiter, held.release())).collect();
        for (limiter, (new, wake)) in released {
            new.into_iter().for_each(|key| limiter.add(key));
            wake.into_iter().for_each(Waker::wake);
        }
    }
}

/// Decides all calls, or tells which one waits. `None` stands for one that is not limited.
pub(crate) fn decide(parts: Vec<Option<Part<'_>>>) -> Together {
    let mut calls: Vec<Call<'_, '_>> = Vec::with_capacity(parts.len());
    // Which call each part belongs to: those on the same key are one.
    let of_part: Vec<Option<usize>> =
        parts.iter().map(|part| Some(join(&mut calls, part.as_ref()?))).collect();
    let mut shelf = Shelf::default();
    for call in &calls {
        call.part.limiter.prepare(call.part.key);
    }
    shelf.hold(&mut calls.iter_mut().collect::<Vec<_>>());
    let mut homeless = Vec::new();
    for call in &mut calls {
        if !shelf.of(call).settle(call.home) {
            call.home = call.part.limiter.elsewhere(call.part.key);
            homeless.push(call);
        }
    }
    shelf.hold(&mut homeless);
    for call in homeless {
        shelf.of(call).settle(call.home);
    }
    let foretold: Vec<Foretold> = calls.iter().map(|call| shelf.of(call).foretell(call)).collect();
    let denied = foretold.iter().any(|foretold| matches!(foretold, Foretold::Refused));
    let entered: Vec<Entered> = calls
        .iter()
        .zip(foretold)
        .map(|(call, foretold)| match foretold {
            Foretold::Passes(decision) if denied => Entered::Decided(decision),
            // Those that refuse are asked as well: one of them may count it.
            _ => shelf.of(call).enter(call),
        })
        .collect();
    shelf.release();
    let mut wait = TogetherWait::default();
    for (call, entered) in calls.iter().zip(entered) {
        match entered {
            Entered::Decided(decision) => wait.decisions.push(Some(decision)),
            Entered::Waits(ticket) => {
                wait.waits.push((wait.decisions.len(), call.part.limiter.wait(call.part.key, ticket)));
                wait.decisions.push(None);
            }
        }
    }
    if !wait.waits.is_empty() {
        let give_back = |call: &Call<'_, '_>| Some(call.part.limiter.give_back(call.part.key, call.cost));
        wait.charged = calls.iter().map(give_back).collect();
    }
    drop(calls);
    let rules = parts.into_iter().map(|part| part.and_then(|part| part.rule));
    wait.parts = of_part.into_iter().zip(rules).collect();
    match (denied, wait.waits.is_empty()) {
        (true, _) => Together::Denied(wait.decided()),
        (false, true) => Together::Admitted(wait.decided()),
        (false, false) => Together::Later(wait),
    }
}

/// A call that waits in one line, or in several at once.
///
/// Dropped before it is ready, it gives back what it was charged, and those behind it move up.
#[derive(Default)]
pub struct TogetherWait {
    waits: Vec<(usize, Waiting)>,
    /// Of each call; `None` while it waits.
    decisions: Vec<Option<Decision>>,
    /// How to give back what each call was charged. One that still waits was not.
    charged: Vec<Option<GiveBack>>,
    /// To which call each part belongs, and its rule.
    parts: Vec<(Option<usize>, Option<Rule>)>,
}

impl TogetherWait {
    /// What became of each part, once none waits.
    fn decided(&mut self) -> Vec<Option<Decided>> {
        let decisions = &self.decisions;
        let decided = |(call, rule): (Option<usize>, Option<Rule>)| {
            let decision = decisions[call?]?;
            Some(Decided { decision, rule })
        };
        self.parts.drain(..).map(decided).collect()
    }
}

impl Future for TogetherWait {
    type Output = Result<Vec<Option<Decided>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.waits.retain_mut(|(call, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready(decision) => {
                this.decisions[*call] = Some(decision);
                false
            }
            Poll::Pending => true,
        });
        match this.waits.is_empty() {
            true => Poll::Ready(Ok(this.decided())),
            false => Poll::Pending,
        }
    }
}

impl Drop for TogetherWait {
    fn drop(&mut self) {
        if self.waits.is_empty() {
            return;
        }
        for (decision, charged) in self.decisions.iter().zip(&mut self.charged) {
            if let (Some(_), Some(give_back)) = (decision, charged.take()) {
                give_back();
            }
        }
    }
}

impl fmt::Debug for TogetherWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TogetherWait").field("waits", &self.waits.len()).finish_non_exhaustive()
    }
}

/// Adds the part to the calls; which of them it belongs to.
fn join<'p, 'a>(calls: &mut Vec<Call<'p, 'a>>, part: &'p Part<'a>) -> usize {
    if let Some(same) = calls.iter().position(|call| call.part.is_same_key(part)) {
        calls[same].cost = calls[same].cost.saturating_add(part.cost);
        return same;
    }
    calls.push(Call { part, cost: part.cost, home: Home::Own(part.key), held: 0 });
    calls.len() - 1
}
