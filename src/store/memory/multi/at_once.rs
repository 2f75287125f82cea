//! The fast path of joint calls, which almost all joint calls take. These joint calls cannot take it:
//!
//! - calls for which one of the limits queues requests, or holds units of calls in progress;
//! - calls with a new key, with a key that has queued calls, or with two keys in one shard;
//! - calls that ask for a reservation, or have their own algorithm;
//! - calls of a limiter that is closed, or whose algorithm was replaced.
//!
//! The functions here are recursive: each step locks the key of one call, and runs the next step while that key is
//! locked. The steps are in the order of the addresses of the locks. So all keys are locked when the last call is
//! decided. When the steps return, all calls are charged, or none is. For up to four limits, nothing is allocated.

use std::sync::Arc;

use super::JointRequest;
use super::few::Few;
use crate::algorithm::{Algorithm, holds_requests};
use crate::decision::Decision;
use crate::stats::CallOutcome;
use crate::store::Attempt;
use crate::store::memory::context::MemoryContext;
use crate::store::memory::location::Location;

/// The address of a call's lock, the index of the call, and the call.
type Call<'p, 'a> = (*const (), usize, &'p JointRequest<'a>);

/// Decides all calls. Calls `report` with the index and the decision of each call that is limited. Returns whether all
/// calls are admitted. If [`decide`](super::decide) must decide the calls instead, returns `None`, and charges, counts
/// and reports nothing.
pub(crate) fn decide_at_once(
    parts: &[Option<JointRequest<'_>>],
    report: &mut dyn FnMut(usize, Decision),
) -> Option<bool> {
    let mut calls: Few<Call<'_, '_>> = Few::new();
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
fn decide_from(
    calls: &[Call<'_, '_>],
    is_allowed: bool,
    report: &mut dyn FnMut(usize, Decision),
) -> Option<bool> {
    let Some(((_, at, part), rest)) = calls.split_first() else { return Some(is_allowed) };
    let others = &mut |is_own_allowed| decide_from(rest, is_allowed && is_own_allowed, report);
    let (decision, is_admitted) = part.limiter.decide_at_once(part, others)?;
    report(*at, decision);
    Some(is_admitted)
}

/// Locks the key of a call, and decides the call together with `others`. The argument of `others` says whether this
/// call is allowed. `others` returns whether all calls are admitted, or `None` if they cannot be decided at once.
pub(super) fn decide_with<A: Algorithm>(
    context: &Arc<MemoryContext<A>>,
    part: &JointRequest<'_>,
    others: &mut dyn FnMut(bool) -> Option<bool>,
) -> Option<(Decision, bool)> {
    let &JointRequest { key, cost, ref algorithm, reserves, counts, .. } = part;
    if A::NEEDS_RELEASE || reserves || algorithm.is_some() || context.is_replaced() {
        return None;
    }
    let table = &context.table;
    let mut shard = table.shard(Location::Own(key)).lock();
    let now = table.clock.now();
    let (algorithm, state, now) = table.existing(&mut shard, key, &Attempt::new(cost), now)?;
    if holds_requests(algorithm) {
        return None;
    }
    let preview = algorithm.peek(state, now, cost);
    let is_admitted = others(preview.is_allowed())?;
    // A call that its own limit denies is checked nevertheless, because the algorithm may count the denial.
    let (decision, outcome) = match preview.is_allowed() && !is_admitted {
        true => (preview, CallOutcome::DeniedByOthers),
        false => {
            let decision = algorithm.check(state, now, cost);
            (decision, CallOutcome::of(&decision, false))
        }
    };
    counts.add(outcome);
    Some((decision, is_admitted && decision.is_allowed()))
}
