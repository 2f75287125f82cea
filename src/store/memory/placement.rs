//! The placement of keys, for calls that lock several keys together.

use std::mem;

use super::fingerprint::Fingerprint;
use super::location::Location;
use super::on_full::OnFull;
use super::room::Place;
use super::shard::{Shard, ShardConfig};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::sync::Mutex;

/// The result of giving a key a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Known,
    /// The key has a new place, or its shared bucket has a new state.
    New,
    /// There is no room for the key.
    NoRoom,
}

impl<A: Algorithm> Table<A> {
    /// Returns the shard of a key, or that of the bucket that it shares.
    pub(super) fn shard(&self, location: Location) -> &Mutex<Shard<A>> {
        match location {
            Location::Own(key) => self.keys.of(&key),
            Location::Shared(bucket) => self.shared.of(&bucket),
        }
    }

    /// Returns the location of a key that has no place of its own, if the table has shared buckets.
    pub(super) fn overflow_location(&self, key: Fingerprint) -> Option<Location> {
        if self.config.on_full != OnFull::ShareBuckets {
            return None;
        }
        self.counters.share();
        Some(Location::Shared(self.config.bucket(key)))
    }

    /// Reserves room for a key, if the key is new. `keep` has the other keys of the same joint call, which must not be
    /// evicted.
    pub(super) fn ensure_space(&self, key: Fingerprint, keep: &[Fingerprint]) -> Option<Place<'_>> {
        if self.is_known(key) {
            return None;
        }
        self.clean_shared();
        self.make_room(keep)
    }

    /// Gives a key a state in its locked shard. If `reserved` is true, room is reserved for the key, and a new key uses
    /// it.
    pub(super) fn insert_if_absent(
        &self,
        shard: &mut Shard<A>,
        location: Location,
        reserved: bool,
        now: Nanos,
    ) -> Settled {
        let (Location::Own(key) | Location::Shared(key)) = location;
        if shard.states.contains_key(&key) {
            return Settled::Known;
        }
        match location {
            Location::Own(_) if self.must_use_shared(key) => return Settled::NoRoom,
            Location::Own(_) => {
                let place = if reserved { None } else { self.try_reserve() };
                if !reserved && place.is_none() {
                    return Settled::NoRoom;
                }
                let state = self.initial_state(key, &shard.shard_config, &shard.shard_config.algorithm, now);
                shard.make_slot();
                shard.states.insert(key, state);
                // The key occupies the place now.
                mem::forget(place);
            }
            Location::Shared(_) => self.open_bucket(shard, key, None, now),
        }
        Settled::New
    }

    /// Removes a new key from its locked shard, if the key was not used. Returns whether the key stays.
    pub(super) fn retain_if_used(&self, shard: &mut Shard<A>, key: Fingerprint, now: Nanos) -> bool {
        let Shard { shard_config: ShardConfig { algorithm, .. }, states, queues, .. } = shard;
        let stays = states.get(&key).is_some_and(|state| !algorithm.is_fresh(state, now))
            || queues.contains_key(&key);
        if !stays {
            states.remove(&key);
            self.record_removal(now);
        }
        stays
    }
}
