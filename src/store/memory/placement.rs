//! The placement of keys, for calls that lock several keys together.

use std::mem;

use super::fingerprint::Fingerprint;
use super::location::Location;
use super::on_full::OnFull;
use super::shard::{LockedShard, Shard};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;

/// The result of [`Table::insert_if_absent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Known,
    /// The key has a new place, or its shared bucket has a new state.
    New,
    /// There is no room for the key.
    NoRoom,
}

impl<A: Algorithm> Table<A> {
    /// Returns the shard at a location: the shard of a key with its own place, or the shard of a shared bucket.
    pub(super) fn shard(&self, location: Location) -> &LockedShard<A> {
        match location {
            Location::Own(key) => self.keys.of(key),
            Location::Shared(bucket) => self.shared.of(bucket),
        }
    }

    /// Returns the shared bucket of a key that has no place of its own, and counts that the key shares the bucket.
    /// Returns `None` if the table has no shared buckets.
    pub(super) fn overflow_location(&self, key: Fingerprint) -> Option<Location> {
        if self.config.on_full != OnFull::ShareBuckets {
            return None;
        }
        self.counters.share();
        Some(Location::Shared(self.config.bucket(key)))
    }

    /// Gives the key or the shared bucket at `location` a state, unless it has one already. `shard` is the locked shard
    /// of `location`. `keep` contains the keys of the same joint call, which must not be evicted.
    pub(super) fn insert_if_absent(
        &self,
        shard: &mut Shard<A>,
        location: Location,
        keep: &[Fingerprint],
        now: Nanos,
    ) -> Settled {
        let (Location::Own(key) | Location::Shared(key)) = location;
        if shard.slots.contains(key) {
            return Settled::Known;
        }
        match location {
            Location::Own(_) => {
                self.clean_shared();
                let place = self.make_room(shard, keep, now).filter(|_| !self.must_use_shared(key));
                let Some(place) = place else { return Settled::NoRoom };
                let state = self.initial_state(key, &shard.config, &shard.config.algorithm, now);
                shard.slots.insert(key, state);
                self.turnover.count(&mut shard.new_keys, now);
                // The key occupies the place now.
                mem::forget(place);
            }
            Location::Shared(_) => self.open_bucket(shard, key, None, now),
        }
        Settled::New
    }

    /// Removes a new key from its locked shard if the state of the key is fresh and the key has no queue.
    pub(super) fn remove_unless_used(&self, shard: &mut Shard<A>, key: Fingerprint, now: Nanos) {
        let Shard { config, slots, queues, .. } = shard;
        let is_used = slots.get(key).is_some_and(|state| !config.algorithm.is_fresh(state, now));
        if !is_used && !queues.contains_key(&key) {
            slots.remove(key);
            self.record_removal(now);
        }
    }
}
