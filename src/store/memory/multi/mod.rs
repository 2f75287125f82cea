//! Calls on several keys, of several limiters, that are decided together: all of them are admitted, or none is.
//!
//! All keys are locked while the calls are decided. First the shards of keys are locked, and then the shards of shared
//! buckets. Within each group, the order is that of the addresses of the locks. A call on one key also locks the shared
//! bucket of the key last, so there is no deadlock. If no call is queued, all calls are decided immediately.
//!
//! A joint call that must wait in the queue of one key is charged to the other keys when it is queued, because the
//! limits of the other keys count arrivals. The call is charged to the key with the queue when that queue releases it.
//! If the call is cancelled while it waits, the charges to the other keys are undone.

mod at_once;
mod commit;
mod few;
mod lock_entries;
mod locked;
mod wait;

use std::ptr;
use std::sync::Arc;

use self::commit::Commit;
use self::lock_entries::{group_by_state, lock_entries};
use self::locked::{Ask, ErasedLimiter, ErasedShard};
use super::context::MemoryContext;
use super::fingerprint::Fingerprint;
use super::location::Location;
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::queue::Preview;
use crate::stats::{CallCounts, CallOutcome};
use crate::store;
use crate::sys::wakers::wake_all;

pub(crate) use at_once::decide_at_once;
pub use few::Few;
pub use locked::AnyAlgorithm;
pub use wait::{AllDecisions, Decided, JointWait};

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
    counts: &'a Arc<CallCounts>,
}

/// The outcome of a joint decision. In [`AllDecisions`], `None` stands for a call that is not limited.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the outcome is matched where it is returned, and a box would be an allocation"
)]
pub enum JointOutcome<W> {
    /// All calls are decided.
    Ready(AllDecisions),
    /// A call waits. This future has the decisions.
    Pending(W),
}

impl<'a> JointRequest<'a> {
    pub(super) fn new<A: Algorithm>(
        limiter: &'a Arc<MemoryContext<A>>,
        key: Fingerprint,
        call: store::Attempt<'_, A>,
        counts: &'a Arc<CallCounts>,
    ) -> Self {
        let store::Attempt { cost, algorithm, priority, max_wait, reserves, .. } = call;
        let algorithm = algorithm.map(|algorithm| Box::new(algorithm.clone()) as AnyAlgorithm);
        Self { limiter, key, cost, algorithm, priority, max_wait, reserves, counts }
    }
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
        }
    }

    fn ask(&self, cost: u64) -> Ask<'_> {
        let JointRequest { algorithm, priority, max_wait, .. } = self.part;
        Ask {
            location: self.location,
            cost,
            priority: *priority,
            max_wait: *max_wait,
            algorithm: algorithm.as_ref(),
        }
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

/// Decides all calls, or returns the future of their decision if a call must wait. `None` stands for a call that is not
/// limited.
pub fn decide(parts: Few<Option<JointRequest<'_>>>) -> JointOutcome<Box<JointWait>> {
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
            return wait::Member::default();
        };
        let JointRequest { limiter, key, cost, algorithm, priority, reserves, counts, .. } = part;
        let reserves = !denied && reserves && settles[charged];
        let reserve =
            reserves.then(|| (charged, limiter.try_reserve(key, cost, priority, algorithm.as_ref())));
        let counts = waits.then(|| Arc::clone(counts));
        let borrows = if priority { cost } else { 0 };
        wait::Member { decides: Some(decides), algorithm, reserve, borrows, counts }
    };
    wait.parts = parts.into_iter().map(of_part).collect();
    match wait.may_wait.is_empty() {
        true => JointOutcome::Ready(wait.decided()),
        false => JointOutcome::Pending(Box::new(wait)),
    }
}

/// Counts the calls. If the joint call waits, counts only the calls that wait in a queue, as queued. The outcomes of
/// all calls are then counted when the wait ends.
fn count(calls: &[Participant<'_, '_>], wait: &JointWait, denied: bool) {
    let outcome = |at: usize| match &wait.decisions[at] {
        Some(decision) if denied => match CallOutcome::of(decision, false) {
            CallOutcome::Admitted => Some(CallOutcome::DeniedByOthers),
            outcome => Some(outcome),
        },
        _ if wait.may_wait.iter().any(|(waiting, _)| *waiting == at) => Some(CallOutcome::Queued),
        _ => wait.may_wait.is_empty().then_some(CallOutcome::Admitted),
    };
    for (at, call) in calls.iter().enumerate() {
        if let Some(outcome) = outcome(at) {
            call.part.counts.add(outcome);
        }
    }
}
