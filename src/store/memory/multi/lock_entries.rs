//! Locking of the keys of a joint call, with room for the new keys.

use super::few::Few;
use super::{LockedShards, Participant};
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::placement::Settled;

/// Locks the shard of each call, and gives the key of the call a state. If there is no room for a key, and the key's
/// table has shared buckets, uses the shared bucket of the key instead.
pub(super) fn lock_entries<'a>(calls: &mut [Participant<'_, 'a>], shards: &mut LockedShards<'a>) {
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

/// Sets the leader and the total cost of each call. Calls that use the same state have the same leader, which charges
/// their total cost.
pub(super) fn group_by_state(calls: &mut [Participant<'_, '_>]) {
    for at in 0..calls.len() {
        let alike = || calls.iter().enumerate().filter(|(_, other)| other.shares_state_with(&calls[at]));
        let total = alike().fold(0_u64, |total, (_, other)| total.saturating_add(other.part.cost));
        let leader = alike().map(|(leader, _)| leader).next().unwrap_or(at);
        (calls[at].total, calls[at].leader) = (total, leader);
    }
}
