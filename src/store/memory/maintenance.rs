//! Changes of keys that are not caused by new calls: the end of calls, refunds, resets, replacements of the algorithm,
//! and closing.

use std::sync::Arc;

use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::location::Location;
use super::on_full::{OnFull, one_unit};
use super::room::retention;
use super::shard::{Shard, ShardConfig};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::sys::lock::atomic::Ordering;
use crate::sys::wakers::Wakers;

impl<A: Algorithm> Table<A> {
    /// Ends a call that holds a permit. `location` is the location of the key when the call was admitted.
    pub(super) fn end(&self, location: Location, algorithm: &A, cost: u64) {
        let mut wake = Wakers::default();
        {
            let (Location::Own(key) | Location::Shared(key)) = location;
            let mut shard = self.shard(location).lock();
            let now = self.clock.now();
            let Shard { config, slots, queues, .. } = &mut *shard;
            // A key with calls in progress is not evicted. The key can be missing only after a panic of the algorithm.
            if let Some(state) = slots.get_mut(key) {
                // The algorithm that admitted the call releases its units. The current algorithm releases waiters.
                algorithm.release(state, now, cost);
                self.entry(key, config, None, state, Some(queues), &mut wake).on_released(now);
            }
        }
    }

    /// Marks all shards as closed, releases due waiters, and denies all other waiters. Returns the wakers to wake once
    /// no lock is held.
    pub(super) fn close(&self) -> Wakers {
        let mut wake = Wakers::default();
        for mut shard in self.keys.iter().chain(self.shared.iter()) {
            let now = self.clock.now();
            let Shard { config, slots, queues, .. } = &mut *shard;
            Arc::make_mut(config).closed = true;
            let queued_keys: Vec<_> = queues.keys().copied().collect();
            for key in queued_keys {
                if let Some(state) = slots.get_mut(key) {
                    self.entry(key, config, None, state, Some(&mut *queues), &mut wake).close(now);
                }
            }
        }
        wake
    }

    /// Refunds `cost` units of the key. If the key has no place in the table, this has no effect, unless the state of a
    /// new key is not fresh, as with a bucket that starts empty. The key then gets a place, so that the refund does the
    /// same as after a denied call.
    pub(super) fn refund(&self, key: Fingerprint, cost: u64) {
        let shard = self.keys.lock(key);
        // With shared buckets, a key without a place may have been charged in its bucket.
        let is_fresh = self.config.on_full != OnFull::ShareBuckets
            && !shard.slots.contains(key)
            && self.may_forget(&shard.config, self.clock.now());
        if cost > 0 && !is_fresh {
            let _ = self.with_locked_entry(shard, key, None, None, |entry, now| entry.refund(now, cost));
        }
    }

    /// Resets the key to the state of a new key, except that calls in progress stay counted. Does nothing if the key
    /// has no place in the table.
    pub(super) fn reset(&self, key: Fingerprint) {
        let mut wake = Wakers::default();
        {
            let mut shard = self.keys.lock(key);
            let now = self.clock.now();
            let Shard { config, slots, queues, .. } = &mut *shard;
            let Some(state) = slots.get_mut(key) else { return };
            if queues.contains_key(&key) || A::NEEDS_RELEASE || self.buckets.load(Ordering::Relaxed) > 0 {
                // The key keeps its place, because it may have waiters or calls in progress, or because a new key may
                // start with the state of a shared bucket.
                if let Some(queue) = queues.get_mut(&key) {
                    queue.reset_schedule(now);
                }
                let algorithm = &config.algorithm;
                let entry = self.entry(key, config, None, state, Some(queues), &mut wake);
                entry.replace_state(now, |state| {
                    algorithm.reset_state(state, self.new_state(config, algorithm, now));
                });
            } else {
                slots.remove(key);
                self.record_removal(now);
            }
        }
    }

    /// Replaces the algorithm of all keys, one shard at a time. Returns the wakers to wake once no lock is held.
    pub(super) fn replace(&self, new: &A) -> Wakers {
        let (mut wake, one_unit) = (Wakers::default(), one_unit(new));
        for mut shard in self.keys.iter().chain(self.shared.iter()) {
            let now = self.clock.now();
            let Shard { config, slots, queues, .. } = &mut *shard;
            for (key, state) in slots.iter_mut() {
                let wake = &mut wake;
                self.entry(key, config, None, state, Some(&mut *queues), &mut *wake).release(now);
                let entry = self.entry(key, config, None, state, Some(queues), wake);
                KeyEntry { base: new, ..entry }
                    .replace_state(now, |state| new.migrate(state, &config.algorithm, now));
            }
            let mut first = self.new_state(config, &config.algorithm, now);
            new.migrate(&mut first, &config.algorithm, now);
            let (generation, closed) = (config.generation + 1, config.closed);
            let algorithm = new.clone();
            *config = Arc::new(ShardConfig { algorithm, one_unit, generation, first: Some(first), closed });
        }
        self.retention.store(retention(new), Ordering::Relaxed);
        wake
    }
}
