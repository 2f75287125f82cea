//! Joint calls of limiters in memory, by one recursion.
//!
//! The calls are sorted by the addresses of their locks, and each step of the recursion decides the calls of one shard,
//! which belong to one limiter. So `a.and(b)` and `b.and(a)` take their locks in the same order, and a shard that
//! occurs twice is locked once. A step locks its shard, gives new keys a state and previews its calls. Then it runs the
//! next step. When the next step returns, this step charges its calls, or counts their denials, and unlocks the shard:
//!
//! ```text
//! down: lock, insert, preview ─► the next shard … ─► charge those that may fail: the verdict is final
//! up:   unlock ◄─ charge, count, or report what was previewed ◄─ … ◄─┘
//! ```
//!
//! The last step is run while all keys are locked. If no limit denies the joint call, the last step lets the steps
//! above charge or queue the calls that may still fail, in the order of the limits: calls that wait, because all keys
//! share the places of the queues, and calls in progress, because all keys may share a total. The locks of the shards
//! do not protect these. So:
//!
//! - The verdict does not change on the way up: either all calls are charged or queued, or none is. If one of the calls
//!   that may fail has failed, the others of them are undone once no lock is held.
//! - Calls of one key charge their total cost at once, and count at most one denial. Their leader does both: the first
//!   of them that must wait, or else the first.
//! - References into a shard are not kept: each operation looks its key up again, because a key that was inserted
//!   beside it may have moved it. Only a plain call keeps its state, because it is alone in its shard and inserts
//!   nothing.
//! - Wakers run, warnings are logged, and charges are undone only once no lock is held.
//!
//! Almost all calls are [plain](JointRequest::open). If all calls are plain, nothing is allocated for up to four
//! limits, and decisions are reported as they are made. Otherwise they are collected in a [`JointWait`].
//!
//! A joint call that must wait in the queue of one key is charged to the other keys when it is queued, because the
//! limits of the other keys count arrivals. The call is charged to the key with the queue when that queue admits it.
//! If the call is cancelled while it waits, the charges to the other keys are undone. When the wait ends, all decisions
//! are made to describe the keys as they are then.
//!
//! The recursion and the wait are one file, because both read and change what is known of the calls.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{AllDecisions, AnyAlgorithm, Few, JointDecided, JointKind, JointOutcome, Report};
use crate::algorithm::{Algorithm, holds_requests};
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::limiter::Access;
use crate::limiter::attempt::{Attempt, CallOptions};
use crate::limiter::charge::MemoryCharge;
use crate::limiter::contract::Decided;
use crate::limiter::fingerprint::Fingerprint;
use crate::limiter::queue::{Enqueued, Key, Preview};
use crate::limiter::reservation::Reservation;
use crate::limiter::resets::ChargeTime;
use crate::limiter::shard::Shard;
use crate::limiter::table::Table;
use crate::limiter::wait::QueuedAcquire;
use crate::stats::{CallCounts, CallOutcome};
use crate::sys::lock::SpinGuard;
use crate::sys::wakers::Wakers;

/// The kind of [`RateLimiter`](crate::RateLimiter).
#[derive(Debug)]
pub struct InMemory;

/// One of several calls that are decided together.
#[derive(Debug)]
pub struct JointRequest<'a> {
    limiter: &'a dyn ErasedLimiter,
    id: Fingerprint,
    /// The address of the lock of the key.
    lock: usize,
    algorithm: Option<AnyAlgorithm>,
    options: CallOptions,
}

/// The future of a call in one queue. Yields the decision with the permit of the call, and when the call was charged.
type BoxWait = Pin<Box<dyn Future<Output = (Decided, ChargeTime)> + Send>>;

/// A function that undoes the charge of a call. The argument is when the call was charged.
type Undo = Box<dyn FnOnce(ChargeTime) + Send>;

/// A function that looks at the key of a call: it returns the decision that a call of cost 0 would get now.
type Look = Box<dyn FnOnce() -> Decision + Send>;

/// A function that creates the reservation of a call. The argument is when the call was charged.
type Reserve = Box<dyn FnOnce(ChargeTime) -> Reservation + Send>;

/// The verdict on a joint call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Admitted,
    Denied,
    /// The joint call waits in at least one queue, and no limit denies it.
    Waits,
}

/// A joint call that waits in one queue, or in several queues at the same time.
///
/// If this future is dropped before it is ready, the charges of its calls are undone, its calls leave their queues, and
/// the waiters behind these calls move up.
pub struct JointWait {
    members: Few<Member>,
    /// The wakers to wake once no lock is held.
    wake: Wakers,
}

/// One of the calls of a joint call. Several calls may use one state. Then one of them is their leader, which charges
/// the state for all of them.
#[derive(Default)]
struct Member {
    /// The index of the leader, which may be this call itself.
    leader: usize,
    /// `None` while the call waits, if the call is not limited, and if the decision of the leader is reported.
    decision: Option<Decision>,
    /// The wait in a queue.
    wait: Option<BoxWait>,
    /// The function that undoes the charge of the call, if the charge may have to be undone. For a denied call, drops
    /// what was held for its charge.
    undo: Option<Undo>,
    /// The function that looks at the key when the joint call has waited.
    look: Option<Look>,
    /// When the call was charged.
    charged_at: ChargeTime,
    /// The permit of the call. Empty while the call waits, and for a call that needs no release.
    permit: Reservation,
    /// The function that creates the reservation of an admitted call that can be settled.
    reserve: Option<Reserve>,
    /// The counts in which the outcome of the call is counted when the wait of the joint call ends.
    counts: Option<Arc<CallCounts>>,
    /// The algorithm that the call chose.
    algorithm: Option<AnyAlgorithm>,
    /// The units that the call borrows if it waits.
    borrows: u64,
}

impl JointKind for InMemory {
    type Part<'a> = JointRequest<'a>;
    type Error = Infallible;
    type Wait = Box<JointWait>;

    const DECIDES_SHADOWS: bool = false;

    #[inline]
    fn decide(
        parts: &mut [Option<JointRequest<'_>>],
        report: &mut Report<'_>,
    ) -> JointOutcome<Box<JointWait>> {
        decide(parts, report)
    }
}

impl<'a> JointRequest<'a> {
    pub(in crate::limiter) fn new<A: Algorithm>(
        limiter: &'a Arc<Table<A>>,
        id: Fingerprint,
        call: Attempt<'_, A>,
    ) -> Self {
        let algorithm = call.algorithm().map(|algorithm| Arc::new(algorithm.clone()) as AnyAlgorithm);
        let mut options = call.options;
        // A joint call waits only if the algorithm queues the requests of layers. An attempt that waits anyway was made
        // for a limiter in Redis, whose algorithm queues requests, and whose fallback this limiter is.
        options.may_wait = false;
        // A call with ignored priority borrows nothing.
        options.priority = options.priority && limiter.heeds_priority(call.algorithm());
        Self { limiter, id, lock: ptr::from_ref(limiter.of(id)).addr(), algorithm, options }
    }

    /// Returns what decides the call if the call is plain. These calls are not plain: one whose limit queues requests
    /// or holds units of calls in progress; one with a new key, or with a key that has queued calls; one that asks for
    /// a reservation, or has its own algorithm; and one of a limiter that is closed.
    #[inline(always)]
    fn open<'s, A: Algorithm>(
        &self,
        shard: &'s mut Shard<A>,
        now: Nanos,
        clock: &AnyClock,
    ) -> Option<(&'s A, &'s mut A::State, Nanos)> {
        if A::NEEDS_RELEASE || self.options.reserves || self.algorithm.is_some() {
            return None;
        }
        let open = shard.open(self.id, None, now, clock)?;
        Some(open).filter(|(algorithm, ..)| !holds_requests(*algorithm))
    }

    /// Returns the call as one of `cost` units without a reservation, whose algorithm is of the limiter's type.
    fn attempt<A: Algorithm>(&self, cost: u64) -> Attempt<'_, A> {
        let mut call = Attempt { algorithm: tier(self.algorithm.as_ref()), options: self.options };
        call.options.cost = cost;
        call.options.reserves = false;
        call
    }

    /// Returns the function that undoes the charge of the call.
    fn undo<A: Algorithm>(&self, table: &Arc<Table<A>>, cost: u64) -> Undo {
        let (table, id, chosen) = (Arc::clone(table), self.id, self.algorithm.clone());
        Box::new(move |charged_at| table.undo(id, tier(chosen.as_ref()), cost, charged_at))
    }

    /// Returns the function that looks at the key of the call.
    fn look<A: Algorithm>(&self, table: &Arc<Table<A>>) -> Look {
        let (table, id, chosen) = (Arc::clone(table), self.id, self.algorithm.clone());
        Box::new(move || table.peek(id, Attempt::of(0, tier(chosen.as_ref()), false)))
    }

    /// Returns the function that creates the reservation of the call.
    fn reserve<A: Algorithm>(&self, table: &Arc<Table<A>>) -> Reserve {
        let call = Attempt { algorithm: tier(self.algorithm.as_ref()), options: self.options };
        let charge = MemoryCharge::new(table, self.id, call, ChargeTime::default());
        Box::new(move |charged_at| Reservation::of(charge.charged_at(charged_at)))
    }
}

/// Returns the algorithm that a call chose, of the type of its limiter's.
fn tier<A: Algorithm>(chosen: Option<&AnyAlgorithm>) -> Option<&A> {
    chosen?.downcast_ref()
}

/// One of the calls, with the lock that it takes.
#[derive(Clone, Copy)]
struct Call<'c> {
    /// The address of the lock of the key.
    lock: usize,
    /// The index of the call in the joint call.
    at: usize,
    request: &'c JointRequest<'c>,
}

/// A joint call while it is decided.
struct Joint<'c> {
    parts: &'c [Option<JointRequest<'c>>],
    /// Takes the decisions if all calls are plain.
    report: &'c mut Report<'c>,
    /// The data of the calls, as soon as one of them is not plain.
    all: &'c mut Option<Box<JointWait>>,
    /// Charges or queues the call with this index if the call may fail. A step above has locked its shard.
    charge: &'c mut dyn FnMut(usize, &mut JointWait),
}

impl Joint<'_> {
    /// Decides `calls`, which are sorted by the addresses of their locks. `is_allowed` is `true` if all calls whose
    /// shards are locked already are allowed.
    #[inline]
    fn decide(&mut self, calls: &[Call<'_>], is_allowed: bool) -> Verdict {
        match calls.first() {
            Some(call) => call.request.limiter.decide(calls, self, is_allowed),
            None if self.all.is_some() => self.decide_last(is_allowed),
            None if is_allowed => Verdict::Admitted,
            None => Verdict::Denied,
        }
    }

    /// Decides the first of `calls`, which is plain and alone in its shard, and the others after it. `open` is what
    /// decides it.
    #[inline(always)]
    fn decide_plain<A: Algorithm>(
        &mut self,
        table: &Arc<Table<A>>,
        (algorithm, state, now): (&A, &mut A::State, Nanos),
        calls: &[Call<'_>],
        is_allowed: bool,
    ) -> Verdict {
        let [Call { at, request, .. }, others @ ..] = calls else { unreachable!("the call is one of them") };
        let cost = request.options.cost;
        let preview = algorithm.peek(state, now, cost);
        let verdict = self.decide(others, is_allowed && preview.is_allowed());
        // A call that its own limit denies is checked nevertheless, because the algorithm may count the denial.
        let decision = if preview.is_allowed() && verdict == Verdict::Denied {
            preview
        } else {
            algorithm.check(state, now, cost)
        };
        let verdict = if decision.is_allowed() { verdict } else { Verdict::Denied };
        let calls = &table.shared.calls;
        let Some(all) = self.all else {
            calls.add(CallOutcome::of_joint(&decision, verdict == Verdict::Admitted));
            (self.report)(*at, decision);
            return verdict;
        };
        let member = &mut all.members[*at];
        member.decision = Some(decision);
        if verdict == Verdict::Waits {
            member.charged_at = table.shared.charge_time(algorithm.last_update(state));
            member.undo = Some(request.undo(table, cost));
            member.look = Some(request.look(table));
        }
        member.count(calls, verdict);
        verdict
    }

    /// Returns the verdict, while the shards of all keys are locked.
    #[cold]
    fn decide_last(&mut self, is_allowed: bool) -> Verdict {
        let Self { all, charge, .. } = self;
        let Some(known) = all else { unreachable!("not all calls are plain") };
        let mut verdict = if is_allowed { Verdict::Admitted } else { Verdict::Denied };
        for at in 0..known.members.len() {
            if verdict != Verdict::Denied {
                charge(at, known);
                let member = &known.members[at];
                match member.decision {
                    Some(decision) if !decision.is_allowed() => verdict = Verdict::Denied,
                    _ if member.wait.is_some() => verdict = Verdict::Waits,
                    _ => {}
                }
            }
        }
        verdict
    }
}

/// Inserts a call by the address of its lock. Calls with the same lock stay in the order of the limits.
#[inline(always)]
fn insert<'c>(calls: &mut Few<Call<'c>>, call: Call<'c>) {
    let mut at = calls.len();
    calls.push(call);
    while at > 0 && calls[at - 1].lock > calls[at].lock {
        calls.swap(at - 1, at);
        at -= 1;
    }
}

/// A limiter with state in memory and with any algorithm.
trait ErasedLimiter: fmt::Debug {
    /// Decides the first of `calls` and the others with the same lock, together with the rest of `calls`. `is_allowed`
    /// is `true` if all calls whose shards are locked already are allowed.
    fn decide(&self, calls: &[Call<'_>], joint: &mut Joint<'_>, is_allowed: bool) -> Verdict;
    /// Logs a warning if the table was found full, and a warning is due. The caller must hold no lock.
    fn warn_if_full(&self);
}

/// Decides all calls, or returns the future of their decision if a call must wait. `None` stands for a call that is not
/// limited.
pub fn decide_in_memory(mut parts: Few<Option<JointRequest<'_>>>) -> JointOutcome<Box<JointWait>> {
    let mut all: Few<Option<JointDecided>> = parts.iter().map(|_| None).collect();
    let outcome = decide(&mut parts, &mut |at, decision| {
        let decided = Decided::new(decision, Reservation::default());
        all[at] = Some(JointDecided { decided, algorithm: None, borrowed: 0, is_shadow: false });
    });
    match outcome {
        JointOutcome::Reported(_) => JointOutcome::Ready(all),
        other => other,
    }
}

/// Decides all calls. If all of them are plain, reports the decisions.
fn decide(parts: &mut [Option<JointRequest<'_>>], report: &mut Report<'_>) -> JointOutcome<Box<JointWait>> {
    // This is declared before the locks. So if an algorithm panics, it is dropped after them. Its drop takes locks to
    // cancel waits, undo charges and release permits.
    let mut all = None;
    let verdict = {
        let mut calls = Few::new();
        for (at, part) in parts.iter().enumerate() {
            if let Some(request) = part {
                insert(&mut calls, Call { lock: request.lock, at, request });
            }
        }
        let charge = &mut |_: usize, _: &mut JointWait| {};
        Joint { parts, report, all: &mut all, charge }.decide(&calls, true)
    };
    match all {
        None => JointOutcome::Reported(verdict == Verdict::Admitted),
        Some(all) => complete(parts, all, verdict),
    }
}

/// Returns the outcome of a joint call that is not plain. No lock is held.
#[cold]
fn complete(
    parts: &mut [Option<JointRequest<'_>>],
    mut all: Box<JointWait>,
    verdict: Verdict,
) -> JointOutcome<Box<JointWait>> {
    parts.iter().flatten().for_each(|request| request.limiter.warn_if_full());
    // If a waker panics, the charges that a denial undoes are already undone, or are undone when `all` is dropped.
    let wake = mem::take(&mut all.wake);
    if verdict == Verdict::Denied {
        all.roll_back();
    }
    drop(wake);
    for (member, request) in all.members.iter_mut().zip(parts) {
        if let Some(JointRequest { algorithm, options, .. }) = request {
            member.algorithm = algorithm.take();
            member.borrows = if options.priority { options.cost } else { 0 };
        }
    }
    match verdict {
        Verdict::Waits => {
            let queued = all.queued();
            JointOutcome::Pending(all, queued)
        }
        Verdict::Admitted | Verdict::Denied => JointOutcome::Ready(all.decided()),
    }
}

impl<A: Algorithm> ErasedLimiter for Arc<Table<A>> {
    fn decide(&self, calls: &[Call<'_>], joint: &mut Joint<'_>, is_allowed: bool) -> Verdict {
        let [call, others @ ..] = calls else { return joint.decide(calls, is_allowed) };
        let request = call.request;
        let mut shard = self.of(request.id).lock();
        let clock = &self.shared.clock;
        // The clock is read while the shard is locked, so that no other call on the shard has a later reading.
        let now = clock.now();
        if others.first().is_none_or(|other| other.lock != call.lock)
            && let Some(open) = request.open(&mut shard, now, clock)
        {
            return joint.decide_plain(self, open, calls, is_allowed);
        }
        let (turns, new) = (Few::new(), Few::new());
        LockedCalls { table: self, shard, now, turns, new }.decide(calls, joint, is_allowed)
    }

    fn warn_if_full(&self) {
        self.shared.warn_if_full();
    }
}

/// A locked shard, and its calls, which are not plain.
struct LockedCalls<'a, 'c, A: Algorithm> {
    table: &'a Arc<Table<A>>,
    shard: SpinGuard<'a, Shard<A>>,
    now: Nanos,
    turns: Few<Turn<'c>>,
    /// The keys that were inserted for these calls.
    new: Few<Fingerprint>,
}

/// A call between the way down and the way up.
#[derive(Clone, Copy)]
struct Turn<'c> {
    call: Call<'c>,
    /// `false` if there is no room for the key.
    has_room: bool,
    /// The index of the call that charges the same state for all calls that use it.
    leader: usize,
    /// The outcome that a call of the total cost of all calls with the same state would have.
    preview: Option<Preview>,
    /// `true` once the call was charged, queued or denied.
    is_entered: bool,
}

/// Removes the new keys if an algorithm panicked, so that their places are free again. A call that is queued already
/// leaves its queue later, and needs its key then.
impl<A: Algorithm> Drop for LockedCalls<'_, '_, A> {
    fn drop(&mut self) {
        for id in mem::take(&mut self.new) {
            if !self.shard.has_queue(id) {
                self.shard.remove(id, &self.table.shared.room, self.now);
            }
        }
    }
}

impl<'c, A: Algorithm> LockedCalls<'_, 'c, A> {
    #[cold]
    fn decide(mut self, calls: &[Call<'c>], joint: &mut Joint<'_>, is_allowed: bool) -> Verdict {
        let count = calls.iter().take_while(|call| call.lock == calls[0].lock).count();
        let (own, others) = calls.split_at(count);
        let Joint { parts, report, all, charge } = joint;
        let known = all.get_or_insert_with(|| Box::new(JointWait::new(parts.len())));
        self.prepare(own, known);
        let is_allowed = is_allowed && self.turns.iter().all(|turn| !turn.is_denied());
        let charge =
            &mut |at: usize, all: &mut JointWait| match self.turns.iter().position(|turn| turn.call.at == at)
            {
                Some(turn) if self.turns[turn].may_fail::<A>() => self.enter(turn, true, all),
                Some(_) => {}
                None => charge(at, all),
            };
        let mut rest = Joint { parts, report: &mut **report, all, charge };
        let verdict = rest.decide(others, is_allowed);
        match all {
            Some(all) => self.conclude(all, verdict),
            None => verdict,
        }
    }

    /// Gives the keys of the calls a state, and previews the calls.
    fn prepare(&mut self, calls: &[Call<'c>], all: &mut JointWait) {
        let shared = &self.table.shared;
        let keep: Few<_> = calls.iter().map(|call| call.request.id).collect();
        for call in calls.iter().copied() {
            let id = call.request.id;
            let access = Access { shared, tier: None, now: self.now, wake: &mut all.wake };
            let is_new = self.shard.insert_if_absent(id, &keep, &access);
            if is_new == Some(true) {
                self.new.push(id);
            }
            let has_room = is_new.is_some();
            let first = self.turns.iter().find(|first| first.call.request.id == id);
            let leader = first.map_or(call.at, |first| first.leader);
            all.members[call.at].leader = leader;
            self.turns.push(Turn { call, has_room, leader, preview: None, is_entered: false });
        }
        for index in 0..self.turns.len() {
            self.turns[index].preview = Some(self.preview(index, self.total(index), all));
        }
        for index in (0..self.turns.len()).rev() {
            self.lead(index, all);
        }
    }

    /// Makes the call of the turn at `index` the leader of those with the same state, if it must wait. Otherwise they
    /// would not wait for its tier.
    fn lead(&mut self, index: usize, all: &mut JointWait) {
        let Turn { call, leader, preview, .. } = self.turns[index];
        if matches!(preview, Some(Preview::Queue(_))) {
            for turn in self.turns.iter_mut().filter(|turn| turn.leader == leader) {
                turn.leader = call.at;
                all.members[turn.call.at].leader = call.at;
            }
        }
    }

    /// Returns the total cost of the calls that use the same state as the call of the turn at `index`.
    fn total(&self, index: usize) -> u64 {
        let leader = self.turns[index].leader;
        let alike = self.turns.iter().filter(|other| other.leader == leader);
        alike.fold(0, |total, other| total.saturating_add(other.call.request.options.cost))
    }

    /// Runs `change` on the key of the turn at `index`, with the call as it arrives there.
    fn with<R>(
        &mut self,
        index: usize,
        cost: u64,
        wake: &mut Wakers,
        change: impl FnOnce(&mut Key<'_, A>, Attempt<'_, A>) -> R,
    ) -> R {
        let request = self.turns[index].call.request;
        let call = request.attempt(cost);
        let shared = &self.table.shared;
        let access = &mut Access { shared, tier: call.algorithm(), now: self.now, wake };
        let Some(result) = self.shard.with_known(request.id, access, |key| change(key, call)) else {
            unreachable!("it was given a state")
        };
        result
    }

    fn preview(&mut self, index: usize, cost: u64, all: &mut JointWait) -> Preview {
        let Turn { call: Call { request, .. }, has_room, .. } = self.turns[index];
        if has_room {
            return self.with(index, cost, &mut all.wake, |key, call| key.preview(call));
        }
        let call = request.attempt(cost);
        if cost > 0 && !self.shard.is_closed() {
            return Preview::Deny(self.shard.deny_without_room(call.algorithm()));
        }
        let shared = &self.table.shared;
        let access = &mut Access { shared, tier: call.algorithm(), now: self.now, wake: &mut all.wake };
        self.shard.peek(request.id, access, |key| key.preview(call))
    }

    /// Charges the call of the turn at `index`, queues it, or lets the algorithm deny it. If `undoes`, the charge may
    /// have to be undone.
    fn enter(&mut self, index: usize, undoes: bool, all: &mut JointWait) {
        self.turns[index].is_entered = true;
        let Turn { call: Call { at, request, .. }, .. } = self.turns[index];
        let total = self.total(index);
        let table = self.table;
        let JointWait { members, wake } = all;
        let member = &mut members[at];
        self.with(index, total, wake, |key, call| {
            let held = table.reservable(key, request.id, call);
            match key.acquire(call, None) {
                Enqueued::Decided(decision) => {
                    member.decision = Some(decision);
                    if decision.is_allowed() {
                        member.permit = held.map(|held| held.reserve(table)).unwrap_or_default();
                        // A closed limiter charges nothing, so there is nothing to undo.
                        member.undo = (undoes && !key.is_closed()).then(|| request.undo(table, total));
                    } else if held.is_some() {
                        // It is dropped once no lock is held, because the algorithm in it may run any code when it is
                        // dropped.
                        member.undo = Some(Box::new(move |_| drop(held)));
                    }
                }
                Enqueued::Queued(ticket) => {
                    // The wait comes first, so that the call leaves its queue if the algorithm panics.
                    let mut wait = QueuedAcquire::new(Arc::clone(table), request.id, ticket, false);
                    wait.hold(held);
                    member.wait = Some(boxed(wait));
                    member.undo = Some(request.undo(table, total));
                }
            }
            member.charged_at = table.shared.charge_time(key.last_update());
        });
    }

    /// Charges the calls that are not charged yet, or counts their denials. Then removes the new keys that are not
    /// used, and unlocks the shard.
    fn conclude(mut self, all: &mut JointWait, mut verdict: Verdict) -> Verdict {
        for index in 0..self.turns.len() {
            let turn @ Turn { call, has_room, leader, .. } = self.turns[index];
            let is_denied = verdict == Verdict::Denied;
            if turn.is_entered {
                continue;
            }
            if turn.is_denied() && has_room && !self.has_counted(index) {
                // The call is made nevertheless, because the algorithm may count the denial. Each state counts at most
                // one denial per joint call. If units of a total became available after the preview, too late for this
                // call, its charge is undone.
                self.enter(index, true, all);
                let decision = &mut all.members[call.at].decision;
                *decision = decision.filter(|decision| !decision.is_allowed());
            } else if is_denied || !has_room {
                all.members[call.at].decision = turn.previewed();
            } else if leader == call.at {
                self.enter(index, verdict == Verdict::Waits, all);
                if all.members[call.at].decision.is_some_and(|decision| !decision.is_allowed()) {
                    verdict = Verdict::Denied;
                }
            } else if call.request.algorithm.is_some() && all.members[leader].wait.is_none() {
                // The leader has charged the cost of this call. The decision describes the state after that charge.
                all.members[call.at].decision = Some(self.preview(index, 0, all).decision());
            }
        }
        for turn in &self.turns {
            let Turn { call: Call { at, request, .. }, .. } = *turn;
            let member = &mut all.members[at];
            // A call in progress gives back its units when it ends, and a closed limiter charges nothing.
            let settles = !A::NEEDS_RELEASE && !self.shard.is_closed();
            if verdict == Verdict::Denied {
                member.decision = member.decision.or(turn.previewed());
            } else if request.options.reserves && settles {
                member.reserve = Some(request.reserve(self.table));
            }
            if verdict == Verdict::Waits {
                member.look = Some(request.look(self.table));
            }
            member.count(&self.table.shared.calls, verdict);
        }
        for id in mem::take(&mut self.new) {
            self.shard.remove_unless_used(id, &self.table.shared.room, self.now);
        }
        verdict
    }

    /// Returns whether the state of the call of the turn at `index` has already counted a denial, because an earlier
    /// call with the same state is denied as well.
    fn has_counted(&self, index: usize) -> bool {
        let leader = self.turns[index].leader;
        self.turns[..index].iter().any(|other| other.leader == leader && other.is_denied())
    }
}

impl Turn<'_> {
    fn is_denied(&self) -> bool {
        matches!(self.preview, Some(Preview::Deny(_)))
    }

    fn previewed(&self) -> Option<Decision> {
        self.preview.map(Preview::decision)
    }

    /// Returns whether the call may fail although its preview did not deny it.
    fn may_fail<A: Algorithm>(&self) -> bool {
        let may_fail = match self.preview {
            Some(Preview::Admit(_)) => A::NEEDS_RELEASE,
            Some(Preview::Queue(_)) => true,
            Some(Preview::Deny(_)) | None => false,
        };
        may_fail && self.has_room && self.leader == self.call.at
    }
}

fn boxed<A: Algorithm>(wait: QueuedAcquire<A>) -> BoxWait {
    Box::pin(async move {
        let mut wait = pin!(wait);
        match wait.as_mut().await {
            Ok(decided) => (decided, wait.charged_at()),
            Err(never) => match never {},
        }
    })
}

impl Member {
    /// Counts the call, which has been decided or queued. If the joint call waits, counts only a call that is in a
    /// queue itself, as queued. The outcomes of all calls are then counted when the wait ends.
    fn count(&mut self, counts: &Arc<CallCounts>, verdict: Verdict) {
        if verdict == Verdict::Waits {
            self.counts = Some(Arc::clone(counts));
            if self.wait.is_some() {
                counts.add(CallOutcome::Queued);
            }
        } else {
            counts.add(outcome(self.decision, verdict == Verdict::Admitted));
        }
    }
}

/// Returns the outcome of a call. `decision` is `None` if the decision of its leader is reported.
fn outcome(decision: Option<Decision>, all_admitted: bool) -> CallOutcome {
    match decision {
        Some(decision) => CallOutcome::of_joint(&decision, all_admitted),
        None if all_admitted => CallOutcome::Admitted,
        None => CallOutcome::DeniedByOthers,
    }
}

impl JointWait {
    /// Creates a joint call of `count` calls, of which nothing is known.
    fn new(count: usize) -> Self {
        let members = (0..count).map(|leader| Member { leader, ..Member::default() }).collect();
        Self { members, wake: Wakers::default() }
    }

    /// Returns the decision that is reported for a call.
    fn decision(&self, at: usize) -> Option<Decision> {
        let member = &self.members[at];
        member.decision.or(self.members[member.leader].decision)
    }

    /// Returns the indices of the calls with a place in a queue. Of calls that share a state, that is the leader.
    fn queued(&self) -> Few<usize> {
        (0..self.members.len()).filter(|at| self.members[*at].wait.is_some()).collect()
    }

    /// Cancels all waits, undoes all charges, and releases all permits.
    fn roll_back(&mut self) {
        for member in &mut self.members {
            // A call that is still in its queue has no charge.
            if member.wait.take().is_some() {
                member.undo = None;
            }
        }
        for member in &mut self.members {
            if let Some(undo) = member.undo.take() {
                undo(member.charged_at);
            }
            member.permit = Reservation::default();
        }
    }

    /// Lets each decision that allows a call describe the key as it is now. The caller ensures that no call is waiting.
    fn look_again(&mut self) {
        let decisions: Few<_> = (0..self.members.len()).map(|at| self.decision(at)).collect();
        for (member, decision) in self.members.iter_mut().zip(decisions) {
            if let Some(decision) = decision.filter(Decision::is_allowed)
                && let Some(look) = member.look.take()
            {
                member.decision = Some(look().with_delay(Nanos::from(decision.delay()).0));
            }
        }
    }

    /// Counts the outcomes of the calls. The caller ensures that no call is waiting.
    fn count(&self, is_denied: bool) {
        for (at, member) in self.members.iter().enumerate() {
            if let Some(counts) = &member.counts {
                counts.add(outcome(self.decision(at), !is_denied));
            }
        }
    }

    /// Returns the outcome of each call. The caller ensures that no call is waiting.
    fn decided(&mut self) -> AllDecisions {
        let count = self.members.len();
        let decided = |at: usize| {
            let decision = self.decision(at)?;
            let charged_at = self.members[self.members[at].leader].charged_at;
            let member = &mut self.members[at];
            // The charge is final.
            member.undo = None;
            let reserve = member.reserve.take().filter(|_| decision.is_allowed());
            let permit = mem::take(&mut member.permit);
            let reservation = reserve.map_or(permit, |reserve| reserve(charged_at));
            let borrowed = if decision.is_delayed() { member.borrows } else { 0 };
            let decided = Decided::new(decision, reservation);
            Some(JointDecided { decided, algorithm: member.algorithm.take(), borrowed, is_shadow: false })
        };
        (0..count).map(decided).collect()
    }

    fn is_waiting(&self) -> bool {
        self.members.iter().any(|member| member.wait.is_some())
    }
}

impl Future for JointWait {
    type Output = Result<AllDecisions, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut is_denied = false;
        for member in &mut this.members {
            let Some(wait) = &mut member.wait else { continue };
            if let Poll::Ready((decided, charged_at)) = wait.as_mut().poll(cx) {
                let (decision, permit) = decided.into_parts();
                (member.wait, member.charged_at) = (None, charged_at);
                (member.decision, member.permit) = (Some(decision), permit);
                if !decision.is_allowed() {
                    (member.undo, is_denied) = (None, true);
                }
            }
        }
        if is_denied {
            // The charges of the other calls are undone.
            this.roll_back();
        }
        if this.is_waiting() {
            return Poll::Pending;
        }
        this.look_again();
        this.count(is_denied);
        Poll::Ready(Ok(this.decided()))
    }
}

impl Drop for JointWait {
    fn drop(&mut self) {
        let was_waiting = self.is_waiting();
        // Something is left to undo only if the call waits, or if an algorithm or a waker has panicked.
        self.roll_back();
        if was_waiting {
            let counts = self.members.iter().filter_map(|member| member.counts.as_ref());
            counts.for_each(|counts| counts.add(CallOutcome::Cancelled));
        }
    }
}

impl fmt::Debug for JointWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.members.iter().filter(|member| member.wait.is_some()).count();
        f.debug_struct("JointWait").field("waits", &waits).finish_non_exhaustive()
    }
}
