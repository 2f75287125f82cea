//! Locking of the keys of a joint call, with room for those that are new.

use std::mem;
use std::ptr;

use super::few::Few;
use super::locked::ErasedLimiter;
use super::{JointRequest, LockedShards, Participant};
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::location::Location;
use crate::store::memory::placement::Settled;

/// The maximum number of attempts to give all keys a state, because other calls may use up the room in between.
const ATTEMPTS: usize = 3;

/// Room that is reserved for a key, and released when dropped.
struct Reserved<'a>(&'a dyn ErasedLimiter);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.unreserve();
    }
}

/// Locks the shard of each call, and gives its key a state. If there is no room for a key, its shared bucket is used
/// instead, if the table has shared buckets.
pub(super) fn lock_entries<'a>(calls: &mut [Participant<'_, 'a>], shards: &mut LockedShards<'a>) {
    for attempt in 1..=ATTEMPTS {
        let reserved: Few<Option<Reserved<'a>>> = (0..calls.len()).map(|at| prepare(calls, at)).collect();
        shards.hold(&mut calls.iter_mut().collect::<Few<_>>());
        let mut full = false;
        for (call, mut reserved) in calls.iter_mut().zip(reserved) {
            match shards.of(call).insert_if_absent(call.location, reserved.is_some()) {
                // If room was reserved, the new key uses it.
                Settled::New => mem::forget(reserved.take()),
                Settled::Known => {}
                Settled::NoRoom => {
                    call.overflowed = true;
                    full = true;
                }
            }
        }
        if !full {
            return;
        }
        if share(calls, shards) || attempt == ATTEMPTS {
            return;
        }
        mem::take(shards).release();
        for call in &mut *calls {
            (call.location, call.overflowed) = (Location::Own(call.part.key), false);
        }
    }
}

/// Reserves room for the key of a call, if the key is new.
fn prepare<'a>(calls: &[Participant<'_, 'a>], at: usize) -> Option<Reserved<'a>> {
    let JointRequest { limiter, key, .. } = *calls[at].part;
    let of_limiter = calls.iter().filter(|call| ptr::addr_eq(call.part.limiter.address(), limiter.address()));
    let keep: Few<Fingerprint> = of_limiter.map(|call| call.part.key).collect();
    limiter.ensure_space(key, &keep).then(|| Reserved(limiter))
}

/// Assigns shared buckets to the calls for whose keys there is no room. Returns whether each of these calls has
/// a bucket.
fn share<'a>(calls: &mut [Participant<'_, 'a>], shards: &mut LockedShards<'a>) -> bool {
    let mut sharing = Few::new();
    let mut all = true;
    for call in calls.iter_mut().filter(|call| call.overflowed) {
        match call.part.limiter.overflow_location(call.part.key) {
            Some(location) => {
                (call.location, call.overflowed) = (location, false);
                sharing.push(call);
            }
            None => all = false,
        }
    }
    shards.hold(&mut sharing);
    for call in sharing {
        let _ = shards.of(call).insert_if_absent(call.location, false);
    }
    all
}

/// Groups the calls that use the same state: either all calls of a group are admitted, each with its algorithm, or none
/// is.
pub(super) fn group_by_state(calls: &mut [Participant<'_, '_>]) {
    for at in 0..calls.len() {
        let alike = || calls.iter().enumerate().filter(|(_, other)| other.shares_state_with(&calls[at]));
        let total = alike().fold(0_u64, |total, (_, other)| total.saturating_add(other.part.cost));
        let leader = alike().map(|(leader, _)| leader).next().unwrap_or(at);
        (calls[at].total, calls[at].leader) = (total, leader);
    }
}
