//! Joint calls of limiters in memory.
//!
//! All keys are locked while the calls are decided. First the shards of keys are locked, and then the shards of shared
//! buckets. Within each group, the order is that of the addresses of the locks. A call on one key also locks the shared
//! bucket of the key last, so there is no deadlock. If no call is queued, all calls are decided immediately.
//!
//! A joint call that must wait in the queue of one key is charged to the other keys when it is queued, because the
//! limits of the other keys count arrivals. The call is charged to the key with the queue when that queue releases it.
//! If the call is cancelled while it waits, the charges to the other keys are undone.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::erased::{Ask, BoxWait, ErasedLimiter, ErasedShard, Reserve, Undo};
use super::{AllDecisions, AnyAlgorithm, Few, JointDecided, JointKind, JointOutcome, Report};
use crate::algorithm::{Algorithm, AlgorithmInfo};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::limiter::attempt::Attempt;
use crate::limiter::contract::Decided;
use crate::limiter::fingerprint::{Fingerprint, Location};
use crate::limiter::queue::{Enqueued, Preview};
use crate::limiter::reservation::Reservation;
use crate::limiter::table::{Settled, Table};
use crate::stats::{CallCounts, CallOutcome};
use crate::sys::wakers::wake_all;

/// A generation that no algorithm has.
const UNKNOWN: u64 = u64::MAX;

/// The kind of [`RateLimiter`](crate::RateLimiter).
#[derive(Debug)]
pub struct InMemory;

/// One of several calls that are decided together.
#[derive(Debug)]
pub struct JointRequest<'a> {
    limiter: &'a dyn ErasedLimiter,
    key: Fingerprint,
    cost: u64,
    algorithm: Option<AnyAlgorithm>,
    priority: bool,
    max_wait: u64,
    /// `true` if the call asks for a reservation, so that it can be settled.
    reserves: bool,
    /// The generation of the algorithm that the caller knows. 0 if the caller does not ask for the algorithm.
    known: u64,
}

/// A joint call that waits in one queue, or in several queues at the same time.
///
/// If this future is dropped before it is ready, the charges of its calls are undone, its calls leave their queues, and
/// the waiters behind these calls move up.
#[derive(Default)]
pub struct JointWait {
    may_wait: Vec<(usize, BoxWait)>,
    /// The decision of each call. `None` while the call waits.
    decisions: Few<Option<Decision>>,
    /// For each call, the function that undoes its charge, if the charge may have to be undone.
    charged: Few<Option<Undo>>,
    /// The clock reading at which each call was charged.
    charged_at: Few<Nanos>,
    /// For each call, `true` if it can be settled.
    settles: Few<bool>,
    /// For each call, the info of the algorithm at the time of the decision. `None` if the caller knows it.
    infos: Few<Option<Arc<AlgorithmInfo>>>,
    parts: Few<Member>,
    /// The charges that must be undone in any case, with the clock readings at which they were made.
    rollbacks: Vec<(Nanos, Undo)>,
    /// The permit of each call. Empty while the call waits, and for a call that needs no release.
    permits: Few<Reservation>,
}

impl JointKind for InMemory {
    type Part<'a> = JointRequest<'a>;
    type Error = Infallible;
    type Wait = Box<JointWait>;

    const DECIDES_SHADOWS: bool = false;

    #[inline]
    fn decide_at_once(parts: &[Option<JointRequest<'_>>], report: &mut Report<'_>) -> Option<bool> {
        decide_at_once(parts, report)
    }

    #[inline]
    fn decide(parts: Few<Option<JointRequest<'_>>>) -> JointOutcome<Box<JointWait>> {
        decide_in_memory(parts)
    }
}

impl<'a> JointRequest<'a> {
    pub(in crate::limiter) fn new<A: Algorithm>(
        limiter: &'a Arc<Table<A>>,
        key: Fingerprint,
        call: Attempt<'_, A>,
    ) -> Self {
        // A call with ignored priority borrows nothing.
        let priority = call.has_priority() && limiter.heeds_priority(call.algorithm());
        let algorithm = call.algorithm().map(|algorithm| Box::new(algorithm.clone()) as AnyAlgorithm);
        let (cost, max_wait) = (call.cost(), call.max_wait_nanos());
        let (reserves, known) = (call.wants_reservation(), call.known());
        Self { limiter, key, cost, algorithm, priority, max_wait, reserves, known }
    }

    /// Locks the key, and decides the call together with `others`: see [`ErasedLimiter::decide_at_once`].
    fn decide_at_once(&self, others: &mut dyn FnMut(bool) -> Option<bool>) -> Option<(Decision, bool)> {
        match self.reserves || self.algorithm.is_some() {
            true => None,
            false => self.limiter.decide_at_once(self.key, self.cost, self.known, others),
        }
    }
}

/// One of the calls that are decided together.
#[derive(Default)]
struct Member {
    /// The index of the call whose decision is reported for this call: this call itself, or its leader. The leader is
    /// the first call that uses the same state, and charges the state for all of these calls. `None` if this call is
    /// not limited.
    decides: Option<usize>,
    algorithm: Option<AnyAlgorithm>,
    /// The index of the call that was charged for this call, and the function that creates the reservation of this
    /// call.
    reserve: Option<(usize, Reserve)>,
    /// The units that the call borrows if it waits.
    borrows: u64,
    /// The counters in which the outcome of the call is counted, if the joint call waits.
    counts: Option<Arc<CallCounts>>,
}

/// One of the calls of a joint call, while the joint call is decided.
struct Participant<'p, 'a> {
    part: &'p JointRequest<'a>,
    location: Location,
    /// `true` if there is no room for the key of the call, and the key has no shared bucket.
    overflowed: bool,
    /// The total cost of all calls that use the same state.
    total: u64,
    /// The index of the first call that uses the same state.
    leader: usize,
    /// The index of the call's shard among the locked shards.
    held: usize,
    /// The generation that the callers of all calls with the same state know. [`UNKNOWN`] if they know different ones.
    known: u64,
}

impl<'p, 'a> Participant<'p, 'a> {
    fn new(part: &'p JointRequest<'a>) -> Self {
        Self {
            part,
            location: Location::Own(part.key),
            overflowed: false,
            total: part.cost,
            leader: 0,
            held: 0,
            known: part.known,
        }
    }

    fn ask(&self, cost: u64) -> Ask<'_> {
        let JointRequest { algorithm, priority, max_wait, .. } = self.part;
        Ask::new(self.location, cost, *priority, *max_wait, algorithm.as_ref())
    }

    /// Returns whether the call at index `at` reports its own decision. Otherwise it reports the decision of its
    /// leader: the first call with the same state, which charges the state for all of these calls. A call reports its
    /// own decision if it is the leader itself, if it has its own algorithm, or if the joint call is denied, so that
    /// nothing is charged.
    fn reports_separately(&self, at: usize, denied: bool) -> bool {
        self.leader == at || denied || self.part.algorithm.is_some()
    }

    fn shares_state_with(&self, other: &Participant<'_, '_>) -> bool {
        ptr::addr_eq(self.part.limiter.address(), other.part.limiter.address())
            && self.location == other.location
    }
}

/// The locked shards, in the order in which they were locked.
#[derive(Default)]
struct LockedShards<'a> {
    held: Few<(*const (), &'a dyn ErasedLimiter, Box<dyn ErasedShard + 'a>)>,
}

impl<'a> LockedShards<'a> {
    /// Locks the shards of `calls`, in the order of the addresses of the locks. Each shard is locked only once.
    fn hold(&mut self, calls: &mut [&mut Participant<'_, 'a>]) {
        let lock = |call: &Participant<'_, 'a>| call.part.limiter.lock(call.location);
        calls.sort_by_key(|call| lock(call));
        for call in calls {
            let lock = lock(call);
            if self.held.last().is_none_or(|(last, ..)| *last != lock) {
                self.held.push((lock, call.part.limiter, call.part.limiter.hold(call.location)));
            }
            call.held = self.held.len() - 1;
        }
    }

    fn of(&mut self, call: &Participant<'_, '_>) -> &mut dyn ErasedShard {
        &mut *self.held[call.held].2
    }

    /// Returns the info of the algorithm of a call, unless the callers of all calls with the same state know it.
    fn info_for(&mut self, call: &Participant<'_, '_>) -> Option<Arc<AlgorithmInfo>> {
        let known = call.known;
        let info = self.of(call).info();
        (known != 0 && known != info.generation()).then(|| Arc::clone(info))
    }

    fn preview(&mut self, call: &Participant<'_, '_>) -> Preview {
        let ask = call.ask(call.total);
        if !call.overflowed {
            return self.of(call).preview(ask);
        }
        let denied = |quota| Preview::Deny(Decision::table_full(quota));
        self.of(call).preview_without_room(ask).unwrap_or_else(denied)
    }

    /// Unlocks all shards. Then logs a warning if a table was found full, and wakes waiters. No lock may be held
    /// meanwhile.
    fn release(self) {
        let released: Few<_> =
            self.held.into_iter().map(|(_, limiter, held)| (limiter, held.release())).collect();
        let mut woken = Vec::new();
        for (limiter, wake) in released {
            limiter.warn_if_full();
            woken.extend(wake);
        }
        wake_all(woken);
    }
}

/// The address of a call's lock, the index of the call, and the call.
type ByLock<'p, 'a> = (*const (), usize, &'p JointRequest<'a>);

/// Decides all calls in the fast path, which almost all joint calls take. These joint calls cannot take it:
///
/// - calls for which one of the limits queues requests, or holds units of calls in progress;
/// - calls with a new key, with a key that has queued calls, or with two keys in one shard;
/// - calls that ask for a reservation, or have their own algorithm;
/// - calls of a limiter that is closed, or whose algorithm the caller does not know, because it was replaced.
///
/// It is recursive: each step locks the key of one call, and runs the next step while that key is locked. The steps are
/// in the order of the addresses of the locks. So all keys are locked when the last call is decided. When the steps
/// return, all calls are charged, or none is. For up to four limits, nothing is allocated.
///
/// Calls `report` with the index and the decision of each call that is limited. Returns whether all calls are admitted.
/// If [`decide_in_memory`] must decide the calls instead, returns `None`, and charges, counts and reports nothing.
fn decide_at_once(parts: &[Option<JointRequest<'_>>], report: &mut Report<'_>) -> Option<bool> {
    let mut calls: Few<ByLock<'_, '_>> = Few::new();
    for (at, part) in parts.iter().enumerate() {
        if let Some(part) = part {
            calls.push((part.limiter.lock(Location::Own(part.key)), at, part));
        }
    }
    calls.sort_unstable_by_key(|(lock, ..)| *lock);
    match calls.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        true => None,
        false => decide_from(&calls, true, report),
    }
}

/// Decides `calls`. `is_allowed` is `true` if all calls whose keys are locked already are allowed.
fn decide_from(calls: &[ByLock<'_, '_>], is_allowed: bool, report: &mut Report<'_>) -> Option<bool> {
    let Some(((_, at, part), rest)) = calls.split_first() else { return Some(is_allowed) };
    let others = &mut |is_own_allowed| decide_from(rest, is_allowed && is_own_allowed, report);
    let (decision, is_admitted) = part.decide_at_once(others)?;
    report(*at, decision);
    Some(is_admitted)
}

/// Decides all calls, or returns the future of their decision if a call must wait. `None` stands for a call that is not
/// limited.
pub fn decide_in_memory(parts: Few<Option<JointRequest<'_>>>) -> JointOutcome<Box<JointWait>> {
    // `wait` is declared before the locks. So if an algorithm panics, `wait` is dropped after them. Its drop takes
    // locks to cancel waits, undo charges and release permits.
    let mut wait = JointWait::default();
    let mut calls: Few<Participant<'_, '_>> = parts.iter().flatten().map(Participant::new).collect();
    let mut shards = LockedShards::default();
    lock_entries(&mut calls, &mut shards);
    group_by_state(&mut calls);
    let preview: Few<Preview> = calls.iter().map(|call| shards.preview(call)).collect();
    let denied = preview.iter().any(|preview| matches!(preview, Preview::Deny(_)));
    let mut charge =
        Commit { calls: &calls, shards: &mut shards, preview: &preview, denied, wait: &mut wait };
    charge.all();
    let denied = charge.denied;
    if denied {
        for (decision, preview) in wait.decisions.iter_mut().zip(&preview) {
            decision.get_or_insert(preview.decision());
        }
    }
    count(&calls, &wait, denied);
    wait.infos = calls.iter().map(|call| shards.info_for(call)).collect();
    // For each call, the index of the call whose decision it reports, and the index of the call that is charged for it.
    let leaders: Few<(usize, usize)> = calls
        .iter()
        .enumerate()
        .map(|(at, call)| (if call.reports_separately(at, denied) { at } else { call.leader }, call.leader))
        .collect();
    drop(calls);
    shards.release();
    if denied {
        // Undoes the calls that were charged although the joint call is denied. There are such calls if a total of all
        // keys has changed since the preview.
        wait.roll_back();
    }

    let mut leaders = leaders.into_iter();
    let (settles, waits) = (&wait.settles, !denied && !wait.may_wait.is_empty());
    let of_part = |part: Option<JointRequest<'_>>| {
        let Some((part, (decides, charged))) = part.and_then(|part| Some((part, leaders.next()?))) else {
            return Member::default();
        };
        let JointRequest { limiter, key, cost, algorithm, priority, reserves, .. } = part;
        let reserves = !denied && reserves && settles[charged];
        let reserve =
            reserves.then(|| (charged, limiter.try_reserve(key, cost, priority, algorithm.as_ref())));
        let counts = waits.then(|| Arc::clone(limiter.calls()));
        let borrows = if priority { cost } else { 0 };
        Member { decides: Some(decides), algorithm, reserve, borrows, counts }
    };
    wait.parts = parts.into_iter().map(of_part).collect();
    match wait.may_wait.is_empty() {
        true => JointOutcome::Ready(wait.decided()),
        false => {
            let queued = wait.queued();
            JointOutcome::Pending(Box::new(wait), queued)
        }
    }
}

/// Counts the calls. If the joint call waits, counts only the calls that wait in a queue, as queued. The outcomes of
/// all calls are then counted when the wait ends.
fn count(calls: &[Participant<'_, '_>], wait: &JointWait, denied: bool) {
    let outcome = |at: usize| match &wait.decisions[at] {
        Some(decision) if denied => Some(CallOutcome::of_joint(decision, false)),
        _ if wait.may_wait.iter().any(|(waiting, _)| *waiting == at) => Some(CallOutcome::Queued),
        _ => wait.may_wait.is_empty().then_some(CallOutcome::Admitted),
    };
    for (at, call) in calls.iter().enumerate() {
        if let Some(outcome) = outcome(at) {
            call.part.limiter.calls().add(outcome);
        }
    }
}

/// Locks the shard of each call, and gives the key of the call a state. If there is no room for a key, and the key's
/// table has shared buckets, uses the shared bucket of the key instead.
fn lock_entries<'a>(calls: &mut [Participant<'_, 'a>], shards: &mut LockedShards<'a>) {
    // `keep` also contains the keys of other limiters, which does no harm.
    let keep: Few<Fingerprint> = calls.iter().map(|call| call.part.key).collect();
    shards.hold(&mut calls.iter_mut().collect::<Few<_>>());
    for call in &mut *calls {
        call.overflowed = shards.of(call).insert_if_absent(call.location, &keep) == Settled::NoRoom;
    }
    share(calls, shards);
}

/// Assigns shared buckets to the calls for whose keys there is no room, if their tables have shared buckets.
fn share<'a>(calls: &mut [Participant<'_, 'a>], shards: &mut LockedShards<'a>) {
    let mut sharing = Few::new();
    for call in calls.iter_mut().filter(|call| call.overflowed) {
        if let Some(location) = call.part.limiter.overflow_location(call.part.key) {
            (call.location, call.overflowed) = (location, false);
            sharing.push(call);
        }
    }
    shards.hold(&mut sharing);
    for call in sharing {
        let _ = shards.of(call).insert_if_absent(call.location, &[]);
    }
}

/// Sets the leader, the total cost and the known generation of each call. Calls that use the same state have the same
/// leader, which charges their total cost, and whose decision most of them report.
fn group_by_state(calls: &mut [Participant<'_, '_>]) {
    for at in 0..calls.len() {
        let alike = || calls.iter().enumerate().filter(|(_, other)| other.shares_state_with(&calls[at]));
        let total = alike().fold(0_u64, |total, (_, other)| total.saturating_add(other.part.cost));
        let leader = alike().map(|(leader, _)| leader).next().unwrap_or(at);
        let own = calls[at].part.known;
        let known = if alike().all(|(_, other)| other.part.known == own) { own } else { UNKNOWN };
        (calls[at].total, calls[at].leader, calls[at].known) = (total, leader, known);
    }
}

/// The second phase of a joint decision: charges the calls, or counts their denials.
struct Commit<'c, 'p, 'a> {
    calls: &'c [Participant<'p, 'a>],
    shards: &'c mut LockedShards<'a>,
    preview: &'c [Preview],
    denied: bool,
    wait: &'c mut JointWait,
}

impl Commit<'_, '_, '_> {
    fn all(&mut self) {
        let count = self.calls.len();
        self.wait.decisions = (0..count).map(|_| None).collect();
        self.wait.charged.resize_with(count, || None);
        self.wait.charged_at.resize(count, Nanos::ZERO);
        self.wait.settles.resize(count, false);
        self.wait.permits.resize_with(count, Reservation::default);
        // The calls that their limits will certainly admit are made last. A call that holds units until it is released
        // is not one of them, because it may use totals of all keys, which the locks of the shards do not protect.
        let is_sure = |at: &usize| matches!(self.preview[*at], Preview::Admit(_)) && !self.needs_release(*at);
        let (sure, unsure): (Few<usize>, Few<usize>) = (0..count).partition(is_sure);
        for at in unsure.into_iter().chain(sure) {
            self.one(at);
        }
    }

    fn one(&mut self, at: usize) {
        let call = &self.calls[at];
        let decision = match self.preview[at] {
            // The key has no state, so there is nothing to charge.
            preview if call.overflowed => Some(preview.decision()),
            Preview::Admit(decision) | Preview::Queue(decision) if self.denied => Some(decision),
            // The leader also charges the cost of this call. If this call has its own algorithm, its decision describes
            // the state after that charge.
            Preview::Admit(_) | Preview::Queue(_) if call.leader != at => {
                match call.reports_separately(at, self.denied) {
                    true => Some(self.shards.of(call).preview(call.ask(0)).decision()),
                    false => None,
                }
            }
            Preview::Deny(decision) if self.is_denial_counted(at) => Some(decision),
            // A call that would be denied is made nevertheless, because the algorithm may count the denial. Each state
            // counts at most one denial per joint call.
            Preview::Deny(decision) => match self.enter(at) {
                // Units of a total became available after the preview, too late for this call. The charge of the call
                // is undone.
                Some(outcome) if outcome.is_allowed() => {
                    let charged_at = self.wait.charged_at[at];
                    let rollback = self.wait.charged[at].take().map(|undo| (charged_at, undo));
                    self.wait.rollbacks.extend(rollback);
                    Some(decision)
                }
                outcome => outcome,
            },
            _ => self.enter(at),
        };
        self.wait.decisions[at] = decision;
    }

    /// Returns whether an admitted call holds units until it is released.
    fn needs_release(&self, at: usize) -> bool {
        let call = &self.calls[at];
        self.shards.held[call.held].2.needs_release(call.ask(call.total))
    }

    /// Returns whether the state of the call at index `at` has already counted a denial, because an earlier call with
    /// the same state is denied as well.
    fn is_denial_counted(&self, at: usize) -> bool {
        let leader = self.calls[at].leader;
        let is_denied = |other: usize| matches!(self.preview[other], Preview::Deny(_));
        (0..at).any(|other| self.calls[other].leader == leader && is_denied(other))
    }

    fn enter(&mut self, at: usize) -> Option<Decision> {
        let call = &self.calls[at];
        let JointRequest { limiter, key, algorithm, .. } = call.part;
        let outcome = self.shards.of(call).enter(call.ask(call.total));
        self.wait.charged_at[at] = self.shards.of(call).last_update(call.ask(call.total));
        self.wait.settles[at] = self.shards.of(call).settles();
        let charged = || Some(limiter.undo(*key, call.total, algorithm.as_ref()));
        match outcome {
            Enqueued::Decided(decision) if decision.is_allowed() => {
                let permit = self.shards.of(call).permit(call.ask(call.total));
                let may_wait = |preview: &Preview| matches!(preview, Preview::Queue(_));
                if !permit.is_empty() || self.preview.iter().any(may_wait) {
                    self.wait.charged[at] = charged();
                }
                self.wait.permits[at] = permit;
                Some(decision)
            }
            Enqueued::Decided(decision) => {
                self.denied = true;
                Some(decision)
            }
            Enqueued::Queued(ticket) => {
                self.wait.charged[at] = charged();
                let wait = self.shards.of(call).wait(call.ask(call.total), *key, ticket, call.known);
                self.wait.may_wait.push((at, wait));
                None
            }
        }
    }
}

impl JointWait {
    /// Undoes the charges of the calls that were admitted.
    fn undo(&mut self) {
        let charged = self.charged.iter_mut().zip(&self.charged_at);
        for (decision, (charged, charged_at)) in self.decisions.iter().zip(charged) {
            if let (Some(decision), Some(undo)) = (decision, charged.take())
                && decision.is_allowed()
            {
                undo(*charged_at);
            }
        }
    }

    /// Returns the index of each limiter in whose queue the joint call is.
    fn queued(&self) -> Few<usize> {
        let is_queued = |call: usize| self.may_wait.iter().any(|(waiting, _)| *waiting == call);
        let parts = self.parts.iter().enumerate();
        parts.filter(|(_, member)| member.decides.is_some_and(is_queued)).map(|(at, _)| at).collect()
    }

    /// Cancels all waits, undoes all charges, and releases all permits.
    fn roll_back(&mut self) {
        self.may_wait.clear();
        self.undo();
        self.rollbacks.drain(..).for_each(|(charged_at, undo)| undo(charged_at));
        self.permits.fill_with(Reservation::default);
    }

    /// Counts the outcomes of the calls. The caller ensures that no call is waiting.
    fn count(&self) {
        let is_denied = self.decisions.iter().flatten().any(|decision| !decision.is_allowed());
        for member in &self.parts {
            let Some((counts, decides)) = member.counts.as_ref().zip(member.decides) else { continue };
            counts.add(match &self.decisions[decides] {
                Some(decision) => CallOutcome::of_joint(decision, !is_denied),
                None if is_denied => CallOutcome::DeniedByOthers,
                None => CallOutcome::Admitted,
            });
        }
    }

    /// Returns the outcome of each call. The caller ensures that no call is waiting.
    fn decided(&mut self) -> AllDecisions {
        let (decisions, charged_at, permits) = (&self.decisions, &self.charged_at, &mut self.permits);
        let infos = &self.infos;
        let decided = |Member { decides, algorithm, reserve, borrows, .. }: Member| {
            let decision = decisions[decides?]?;
            let reserve = reserve.filter(|_| decision.is_allowed());
            let reservation = match reserve {
                Some((charged, reserve)) => reserve(charged_at[charged]),
                // If several calls use one state, the first of them gets the permit.
                None => mem::take(&mut permits[decides?]),
            };
            let borrowed = if decision.is_delayed() { borrows } else { 0 };
            let mut decided = Decided::new(decision, reservation);
            if let Some(info) = &infos[decides?] {
                decided = decided.with_info(Arc::clone(info));
            }
            Some(JointDecided { decided, algorithm, borrowed, is_shadow: false })
        };
        self.parts.drain(..).map(decided).collect()
    }
}

impl Future for JointWait {
    type Output = Result<AllDecisions, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut denied = false;
        this.may_wait.retain_mut(|(call, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready((decided, charged_at)) => {
                let (decision, reservation, info) = decided.into_parts();
                this.charged_at[*call] = charged_at;
                denied |= !decision.is_allowed();
                this.decisions[*call] = Some(decision);
                this.permits[*call] = reservation;
                this.infos[*call] = info;
                false
            }
            Poll::Pending => true,
        });
        if denied {
            // The charges of the other calls are undone.
            this.roll_back();
        }
        match this.may_wait.is_empty() {
            true => {
                this.count();
                Poll::Ready(Ok(this.decided()))
            }
            false => Poll::Pending,
        }
    }
}

impl Drop for JointWait {
    fn drop(&mut self) {
        if self.may_wait.is_empty() {
            return;
        }
        self.undo();
        let counts = self.parts.iter().filter_map(|member| member.counts.as_ref());
        counts.for_each(|counts| counts.add(CallOutcome::Cancelled));
    }
}

impl fmt::Debug for JointWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointWait").field("waits", &self.may_wait.len()).finish_non_exhaustive()
    }
}
