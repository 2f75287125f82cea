//! Calls on several keys, of several limiters, that are decided together: all are let pass, or none.
//!
//! All keys are held while they are decided: the shards in the order of the addresses of their locks, shared buckets
//! after all others. A key alone takes the same locks in the same order, so nobody waits in a circle. Where nobody
//! must wait in line, the whole is over at once.
//!
//! A call that has to wait in one line is charged by the others when it joins that line: their budgets are for
//! arrivals, the line's for departures. Given up while it waits, it gives back what it was charged.

mod few;
mod held;
mod wait;

use std::mem;
use std::ptr;
use std::sync::Arc;

use self::held::{Ask, Held, Limiter, Rule};
use super::Own;
use super::fingerprint::Fingerprint;
use super::home::Home;
use super::places::Settled;
use super::seat::Foretold;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::Entered;
use crate::store::{self, Permit};
use crate::sync::wake_all;

pub use few::Few;
pub(crate) use wait::AllDecided;
pub use wait::{Decided, TogetherWait};

/// One of several calls.
#[derive(Debug)]
pub struct Part<'a> {
    limiter: &'a dyn Limiter,
    key: Fingerprint,
    cost: u64,
    rule: Option<Rule>,
    priority: bool,
    patience: u64,
    /// Whether it is to be settled.
    reserves: bool,
}

/// What became of all of them. `None` stands for those that are not limited.
#[derive(Debug)]
pub(crate) enum Together {
    Admitted(AllDecided),
    Denied(Few<Option<Decided>>),
    Later(Box<TogetherWait>),
}

impl<'a> Part<'a> {
    pub(super) fn new<A: Algorithm>(
        limiter: &'a Arc<Own<A>>,
        key: Fingerprint,
        call: store::Call<'_, A>,
    ) -> Self {
        let store::Call { cost, rule, priority, patience, reserves, .. } = call;
        let rule = rule.map(|rule| Box::new(rule.clone()) as Rule);
        Self { limiter, key, cost, rule, priority, patience, reserves }
    }
}

/// One of the calls.
struct Call<'p, 'a> {
    part: &'p Part<'a>,
    home: Home,
    /// Whether there is no room for its key.
    homeless: bool,
    /// What all calls cost that draw on the same state.
    total: u64,
    /// The first of those.
    leader: usize,
    /// Where its shard is among those that are held.
    held: usize,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(part: &'p Part<'a>) -> Self {
        Self { part, home: Home::Own(part.key), homeless: false, total: part.cost, leader: 0, held: 0 }
    }

    fn ask(&self, cost: u64) -> Ask<'_> {
        let Part { rule, priority, patience, .. } = self.part;
        Ask { home: self.home, cost, priority: *priority, patience: *patience, rule: rule.as_ref() }
    }

    /// Whether it tells of itself, though it draws on the state of another call: by a rule of its own, or if nothing
    /// is charged.
    fn has_own_say(&self, at: usize, denied: bool) -> bool {
        self.leader == at || denied || self.part.rule.is_some()
    }

    fn draws_with(&self, other: &Call<'_, '_>) -> bool {
        ptr::addr_eq(self.part.limiter.address(), other.part.limiter.address()) && self.home == other.home
    }
}

/// The shards that are held, in the order in which they were locked.
#[derive(Default)]
struct Shelf<'a> {
    held: Few<(*const (), &'a dyn Limiter, Box<dyn Held + 'a>)>,
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

    fn foretell(&mut self, call: &Call<'_, '_>) -> Foretold {
        let ask = call.ask(call.total);
        if !call.homeless {
            return self.of(call).foretell(ask);
        }
        let denied = |quota| Foretold::Refused(call.part.limiter.reject(quota));
        self.of(call).foretell_homeless(ask).unwrap_or_else(denied)
    }

    /// Lets all go; then does what must not be done while anything is held.
    fn release(self) {
        let released: Few<_> =
            self.held.into_iter().map(|(_, limiter, held)| (limiter, held.release())).collect();
        let mut woken = Vec::new();
        for (limiter, (new, wake)) in released {
            new.into_iter().for_each(|key| limiter.add(key));
            woken.extend(wake);
        }
        wake_all(woken);
    }
}

/// Decides all calls, or tells which one waits. `None` stands for one that is not limited.
pub(crate) fn decide(parts: Few<Option<Part<'_>>>) -> Together {
    // Should a rule panic, this goes last: what it holds is given back when nothing is held any more.
    let mut wait = TogetherWait::default();
    let mut calls: Few<Call<'_, '_>> = parts.iter().flatten().map(Call::new).collect();
    let mut shelf = Shelf::default();
    find_homes(&mut calls, &mut shelf);
    add_up(&mut calls);
    let foretold: Few<Foretold> = calls.iter().map(|call| shelf.foretell(call)).collect();
    let denied = foretold.iter().any(|foretold| matches!(foretold, Foretold::Refused(_)));
    let mut charge =
        Charge { calls: &calls, shelf: &mut shelf, foretold: &foretold, denied, wait: &mut wait };
    charge.all();
    let denied = charge.denied;
    if denied {
        for (decision, foretold) in wait.decisions.iter_mut().zip(&foretold) {
            decision.get_or_insert(foretold.decision());
        }
    }
    // Which call decides, and which is charged.
    let leaders: Few<(usize, usize)> = calls
        .iter()
        .enumerate()
        .map(|(at, call)| (if call.has_own_say(at, denied) { at } else { call.leader }, call.leader))
        .collect();
    drop(calls);
    shelf.release();
    if denied {
        // What was foretold and did not come true: places that all keys share were taken meanwhile. The others have charged nothing.
        wait.call_off();
    }

    let mut leaders = leaders.into_iter();
    let settles = &wait.settles;
    let of_part = |part: Option<Part<'_>>| {
        let Some((part, (decides, charged))) = part.and_then(|part| Some((part, leaders.next()?))) else {
            return wait::Member::default();
        };
        let Part { limiter, key, cost, rule, priority, reserves, .. } = part;
        let reserves = !denied && reserves && settles[charged];
        let reserve = reserves.then(|| (charged, limiter.reserve(key, cost, priority, rule.as_ref())));
        wait::Member { decides: Some(decides), rule, reserve }
    };
    wait.parts = parts.into_iter().map(of_part).collect();
    match (denied, wait.waits.is_empty()) {
        (true, _) => Together::Denied(wait.decided()),
        (false, true) => Together::Admitted((wait.decided(), wait.hold())),
        (false, false) => Together::Later(Box::new(wait)),
    }
}

/// Several calls that are charged, or told why not.
struct Charge<'c, 'p, 'a> {
    calls: &'c [Call<'p, 'a>],
    shelf: &'c mut Shelf<'a>,
    foretold: &'c [Foretold],
    denied: bool,
    wait: &'c mut TogetherWait,
}

impl Charge<'_, '_, '_> {
    fn all(&mut self) {
        let count = self.calls.len();
        self.wait.decisions = (0..count).map(|_| None).collect();
        self.wait.charged.resize_with(count, || None);
        self.wait.charged_at.resize(count, Nanos::ZERO);
        self.wait.settles.resize(count, false);
        self.wait.permits.resize_with(count, || None);
        // First those that may yet be refused, for they draw on what no shard holds.
        let is_sure = |at: &usize| matches!(self.foretold[*at], Foretold::Passes(_)) && !self.holds(*at);
        let (sure, unsure): (Few<usize>, Few<usize>) = (0..count).partition(is_sure);
        for at in unsure.into_iter().chain(sure) {
            self.one(at);
        }
    }

    fn one(&mut self, at: usize) {
        let call = &self.calls[at];
        let decision = match self.foretold[at] {
            // There is nothing to charge.
            foretold if call.homeless => Some(foretold.decision()),
            Foretold::Passes(decision) | Foretold::Waits(decision) if self.denied => Some(decision),
            // It is charged with its leader; by a rule of its own, it tells what that leaves.
            Foretold::Passes(_) | Foretold::Waits(_) if call.leader != at => {
                match call.has_own_say(at, self.denied) {
                    true => Some(self.shelf.of(call).foretell(call.ask(0)).decision()),
                    false => None,
                }
            }
            Foretold::Refused(decision) if self.is_counted(at) => Some(decision),
            // Those that refuse are asked as well, but once for each state: it may count it.
            Foretold::Refused(decision) => match self.enter(at) {
                // What all keys share was left meanwhile: too late, for this call.
                Some(entered) if entered.is_allowed() => {
                    let charged_at = self.wait.charged_at[at];
                    let regret = self.wait.charged[at].take().map(|give_back| (charged_at, give_back));
                    self.wait.regrets.extend(regret);
                    Some(decision)
                }
                entered => entered,
            },
            _ => self.enter(at),
        };
        self.wait.decisions[at] = decision;
    }

    /// Whether a call will hold something until it is over.
    fn holds(&self, at: usize) -> bool {
        let call = &self.calls[at];
        self.shelf.held[call.held].2.holds(call.ask(call.total))
    }

    /// Whether a refusal by the same state was counted.
    fn is_counted(&self, at: usize) -> bool {
        let leader = self.calls[at].leader;
        let refused = |other: usize| matches!(self.foretold[other], Foretold::Refused(_));
        (0..at).any(|other| self.calls[other].leader == leader && refused(other))
    }

    fn enter(&mut self, at: usize) -> Option<Decision> {
        let call = &self.calls[at];
        let Part { limiter, key, rule, .. } = call.part;
        let entered = self.shelf.of(call).enter(call.ask(call.total));
        let permit = self.shelf.of(call).permit(call.ask(call.total));
        self.wait.charged_at[at] = self.shelf.of(call).seen(call.ask(call.total));
        self.wait.settles[at] = self.shelf.of(call).settles(call.ask(call.total));
        let charged = || Some(limiter.give_back(*key, call.total, rule.as_ref()));
        match entered {
            Entered::Decided(decision) if decision.is_allowed() => {
                let waits = |foretold: &Foretold| matches!(foretold, Foretold::Waits(_));
                if permit.is_some() || self.foretold.iter().any(waits) {
                    self.wait.charged[at] = charged();
                }
                self.wait.permits[at] = permit;
                Some(decision)
            }
            Entered::Decided(decision) => {
                // It holds nothing; and may not be given back, for that takes a lock.
                let _ = permit.map(Permit::unarmed);
                self.denied = true;
                Some(decision)
            }
            Entered::Waits(ticket) => {
                self.wait.permits[at] = permit.map(Permit::unarmed);
                self.wait.charged[at] = charged();
                self.wait.waits.push((at, limiter.wait(*key, ticket)));
                None
            }
        }
    }
}

/// How often room is made for keys that others have evicted since they were looked at.
const ATTEMPTS: usize = 3;

/// Room that is reserved for a key, and given back when dropped.
struct Reserved<'a>(&'a dyn Limiter);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.unreserve();
    }
}

/// Holds the shard of each call, and gives its key a state; where there is no room for it, the shared bucket, if the
/// table has some.
fn find_homes<'a>(calls: &mut [Call<'_, 'a>], shelf: &mut Shelf<'a>) {
    for attempt in 1..=ATTEMPTS {
        let reserved: Few<Option<Reserved<'a>>> = (0..calls.len()).map(|at| prepare(calls, at)).collect();
        shelf.hold(&mut calls.iter_mut().collect::<Few<_>>());
        let mut full = false;
        for (call, mut reserved) in calls.iter_mut().zip(reserved) {
            match shelf.of(call).settle(call.home, reserved.is_some()) {
                // It has taken over what was reserved, if anything was.
                Settled::New => mem::forget(reserved.take()),
                Settled::Known => {}
                Settled::Homeless => {
                    call.homeless = true;
                    full = true;
                }
            }
        }
        if !full {
            return;
        }
        if share(calls, shelf) || attempt == ATTEMPTS {
            return;
        }
        mem::take(shelf).release();
        for call in &mut *calls {
            (call.home, call.homeless) = (Home::Own(call.part.key), false);
        }
    }
}

/// Reserves room for the key of a call, if it is a new one.
fn prepare<'a>(calls: &[Call<'_, 'a>], at: usize) -> Option<Reserved<'a>> {
    let Part { limiter, key, .. } = *calls[at].part;
    let of_limiter = calls.iter().filter(|call| ptr::addr_eq(call.part.limiter.address(), limiter.address()));
    let keep: Few<Fingerprint> = of_limiter.map(|call| call.part.key).collect();
    limiter.prepare(key, &keep).then(|| Reserved(limiter))
}

/// Gives the calls for whose keys there is no room the buckets that they share. Returns whether all have one.
fn share<'a>(calls: &mut [Call<'_, 'a>], shelf: &mut Shelf<'a>) -> bool {
    let mut sharing = Few::new();
    let mut all = true;
    for call in calls.iter_mut().filter(|call| call.homeless) {
        match call.part.limiter.elsewhere(call.part.key) {
            Some(home) => {
                (call.home, call.homeless) = (home, false);
                sharing.push(call);
            }
            None => all = false,
        }
    }
    shelf.hold(&mut sharing);
    for call in sharing {
        let _ = shelf.of(call).settle(call.home, false);
    }
    all
}

/// Calls that draw on one state pass together or not at all: by each of their rules.
fn add_up(calls: &mut [Call<'_, '_>]) {
    for at in 0..calls.len() {
        let alike = || calls.iter().enumerate().filter(|(_, other)| other.draws_with(&calls[at]));
        let total = alike().fold(0_u64, |total, (_, other)| total.saturating_add(other.part.cost));
        let leader = alike().map(|(leader, _)| leader).next().unwrap_or(at);
        (calls[at].total, calls[at].leader) = (total, leader);
    }
}
