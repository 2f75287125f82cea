//! Calls on several keys, of several limiters, that are decided together: all are let pass, or none.
//!
//! All keys are held while they are decided: the shards in the order of the addresses of their locks, shared buckets after all others. A key
//! alone takes the same locks in the same order, so nobody waits in a circle. Where nobody must wait in line, the whole is over at once.
//!
//! A call that has to wait in one line is charged by the others when it joins that line: their budgets are for arrivals, the
//! line's for departures. Given up while it waits, it gives back what it was charged.

mod few;
mod held;
mod wait;

use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use self::held::{Ask, Held, Limiter, Rule};
use super::Own;
use super::fingerprint::Fingerprint;
use super::home::Home;
use super::seat::Foretold;
use crate::algorithm::Algorithm;
use crate::queue::Entered;

pub use few::Few;
pub use wait::{Decided, TogetherWait};

/// One of several calls.
#[derive(Debug)]
pub struct Part<'a> {
    limiter: &'a dyn Limiter,
    key: Fingerprint,
    cost: u64,
    rule: Option<Rule>,
    priority: bool,
}

/// What became of all of them. `None` stands for those that are not limited.
#[derive(Debug)]
pub(crate) enum Together {
    Admitted(Few<Option<Decided>>),
    Denied(Few<Option<Decided>>),
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
}

/// One of the calls.
struct Call<'p, 'a> {
    part: &'p Part<'a>,
    home: Home,
    /// What all calls cost that draw on the same state.
    total: u64,
    /// The first of those.
    leader: usize,
    /// Where its shard is among those that are held.
    held: usize,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(part: &'p Part<'a>) -> Self {
        Self { part, home: Home::Own(part.key), total: part.cost, leader: 0, held: 0 }
    }

    fn ask(&self, cost: u64) -> Ask<'_> {
        let Part { rule, priority, .. } = self.part;
        Ask { home: self.home, cost, priority: *priority, rule: rule.as_ref() }
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

    /// Lets all go; then does what must not be done while anything is held.
    fn release(self) {
        let released: Few<_> =
            self.held.into_iter().map(|(_, limiter, held)| (limiter, held.release())).collect();
        for (limiter, (new, wake)) in released {
            new.into_iter().for_each(|key| limiter.add(key));
            wake.into_iter().for_each(Waker::wake);
        }
    }
}

/// Decides all calls, or tells which one waits. `None` stands for one that is not limited.
pub(crate) fn decide(parts: Few<Option<Part<'_>>>) -> Together {
    let mut calls: Few<Call<'_, '_>> = parts.iter().flatten().map(Call::new).collect();
    let mut shelf = Shelf::default();
    find_homes(&mut calls, &mut shelf);
    add_up(&mut calls);
    let foretold: Few<Foretold> =
        calls.iter().map(|call| shelf.of(call).foretell(call.ask(call.total))).collect();
    let denied = foretold.iter().any(|foretold| matches!(foretold, Foretold::Refused(_)));

    let mut wait = TogetherWait::default();
    let mut leaders = Few::new();
    let mut counted = Few::new();
    for (at, (call, foretold)) in calls.iter().zip(foretold).enumerate() {
        let mut leader = at;
        let decision = match foretold {
            Foretold::Passes(decision) if denied => Some(decision),
            // It is charged with its leader; by a rule of its own, it tells what that leaves.
            Foretold::Passes(_) if call.leader != at => match &call.part.rule {
                Some(_) => Some(shelf.of(call).foretell(call.ask(0)).decision()),
                None => {
                    leader = call.leader;
                    None
                }
            },
            Foretold::Refused(decision) if counted.contains(&call.leader) => Some(decision),
            // Those that refuse are asked as well, but once for each state: it may count it.
            _ => match shelf.of(call).enter(call.ask(call.total)) {
                Entered::Decided(decision) => Some(decision),
                Entered::Waits(ticket) => {
                    wait.waits.push((at, call.part.limiter.wait(call.part.key, ticket)));
                    None
                }
            },
        };
        if matches!(foretold, Foretold::Refused(_)) {
            counted.push(call.leader);
        }
        wait.decisions.push(decision);
        leaders.push(leader);
    }
    if !wait.waits.is_empty() {
        wait.charged = calls
            .iter()
            .enumerate()
            .map(|(at, call)| {
                let taken = shelf.of(call).now();
                (call.leader == at).then(|| {
                    let Part { limiter, key, rule, .. } = call.part;
                    limiter.give_back(*key, call.total, taken, rule.as_ref())
                })
            })
            .collect();
    }
    drop(calls);
    shelf.release();

    let mut leaders = leaders.into_iter();
    let of_part = |part: Option<Part<'_>>| part.map_or((None, None), |part| (leaders.next(), part.rule));
    wait.parts = parts.into_iter().map(of_part).collect();
    match (denied, wait.waits.is_empty()) {
        (true, _) => Together::Denied(wait.decided()),
        (false, true) => Together::Admitted(wait.decided()),
        (false, false) => Together::Later(wait),
    }
}

/// Holds the shard of each call, and gives its key a state; where there is no place for it, the shared bucket.
fn find_homes<'a>(calls: &mut [Call<'_, 'a>], shelf: &mut Shelf<'a>) {
    for call in &*calls {
        call.part.limiter.prepare(call.part.key);
    }
    shelf.hold(&mut calls.iter_mut().collect::<Few<_>>());
    let mut homeless = Few::new();
    for call in calls {
        if !shelf.of(call).settle(call.home) {
            call.home = call.part.limiter.elsewhere(call.part.key);
            homeless.push(call);
        }
    }
    shelf.hold(&mut homeless);
    for call in homeless {
        shelf.of(call).settle(call.home);
    }
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
