//! Room for new keys: fresh keys are removed, and the policy for a full table may evict others.

use std::collections::hash_map::Entry;

use super::fingerprint::Fingerprint;
use super::on_full::{LeastUsed, OnFull, Sampled};
use super::shard::{Shard, ShardConfig};
use super::sweep::SweepQueue;
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The number of keys that are examined for each new key.
const SWEEP_PER_INSERT: usize = 2;
/// The number of keys that are examined when there is no room, and the policy evicts no keys.
const SWEEP_WHEN_FULL: usize = 8;
/// The maximum number of keys that are examined before a new key is denied because none of them may be evicted.
const MAX_LOOKS: usize = 64;

/// Room for one key, released when dropped.
pub(super) struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of examining a key.
enum Look {
    /// The key was fresh and has been removed, or it was no longer in the table.
    Removed,
    Kept,
    Evictable(Sampled<Fingerprint>),
}

impl<A: Algorithm> Table<A> {
    /// Reserves room for a new key. Examines a few keys, and removes the examined keys that are fresh. If there is
    /// still no room, and the policy evicts keys, evicts an examined key that is not in `keep`. The caller must not
    /// hold a lock.
    pub(super) fn make_room(&self, keep: &[Fingerprint]) -> Option<Place<'_>> {
        let evicts = self.config.on_full == OnFull::EvictLeastUsed;
        let mut sweep_queue = self.sweep_queue();
        let sample = self.sweep(&mut sweep_queue, evicts, keep);
        if let Some(place) = self.try_reserve() {
            return Some(place);
        }
        let place = sample.in_order().find_map(|sampled| self.evict(&mut sweep_queue, sampled));
        drop(sweep_queue);
        self.counters.full(self.max_keys);
        place
    }

    /// Examines a few keys if `key` is not in the table, and removes the examined keys that are fresh. So even a call
    /// of cost 0 with a new key, which inserts nothing, sweeps. The caller must not hold a lock.
    pub(super) fn sweep_for_peek(&self, key: Fingerprint) {
        if !self.is_known(key) {
            self.clean_shared();
            self.sweep(&mut self.sweep_queue(), false, &[]);
        }
    }

    pub(super) fn is_known(&self, key: Fingerprint) -> bool {
        self.keys.lock(&key).states.contains_key(&key)
    }

    /// Examines a few keys, removes those that are fresh, and samples those that may be evicted.
    fn sweep(
        &self,
        sweep_queue: &mut SweepQueue,
        evicts: bool,
        keep: &[Fingerprint],
    ) -> LeastUsed<Fingerprint> {
        let mut sample = LeastUsed::new();
        let keys = sweep_queue.len();
        for look in 0..keys.min(MAX_LOOKS) {
            let full = self.len() >= self.max_keys;
            let enough = match (full, evicts) {
                (false, _) => look >= SWEEP_PER_INSERT,
                (true, false) => look >= SWEEP_WHEN_FULL,
                (true, true) => sample.is_complete(),
            };
            if enough {
                break;
            }
            // An examined key goes to the end, so the first `keys - look` keys were not examined yet. The first keys of
            // a sample are those that were examined longest ago. The others are random, so that keys that arrive
            // together cannot decide which of them is evicted.
            let next = if evicts && look >= SWEEP_PER_INSERT {
                sweep_queue.any_of(keys - look)
            } else {
                sweep_queue.next()
            };
            let Some(key) = next else { continue };
            match self.look_at(key, full) {
                Look::Removed => sweep_queue.forget_last(),
                Look::Evictable(sampled) if evicts && !keep.contains(&key) => sample.offer(sampled),
                Look::Evictable(_) | Look::Kept => {}
            }
        }
        sample
    }

    fn look_at(&self, key: Fingerprint, full: bool) -> Look {
        let retention = self.retention.load(Ordering::Relaxed);
        let mut shard = self.keys.lock(&key);
        let Shard { shard_config, states, queues, .. } = &mut *shard;
        let algorithm = &shard_config.algorithm;
        let Entry::Occupied(known) = states.entry(key) else { return Look::Removed };
        if queues.contains_key(&key) {
            return Look::Kept;
        }
        let now = self.clock.now();
        let idle = now.saturating_since(algorithm.last_update(known.get()));
        if (idle >= retention || full)
            && algorithm.is_fresh(known.get(), now)
            && self.may_forget(shard_config, now)
        {
            known.remove();
            self.record_removal(now);
            return Look::Removed;
        }
        match full && algorithm.in_flight(known.get()) == 0 {
            true => Look::Evictable(Sampled { key, usage: algorithm.usage(known.get(), now), idle }),
            false => Look::Kept,
        }
    }

    /// Evicts a key, unless it was used since it was sampled. Returns its place.
    fn evict(
        &self,
        sweep_queue: &mut SweepQueue,
        Sampled { key, usage, .. }: Sampled<Fingerprint>,
    ) -> Option<Place<'_>> {
        let mut shard = self.keys.lock(&key);
        let Shard { shard_config: ShardConfig { algorithm, .. }, states, queues, .. } = &mut *shard;
        let Entry::Occupied(known) = states.entry(key) else { return None };
        let now = self.clock.now();
        let state = known.get();
        if queues.contains_key(&key) || algorithm.in_flight(state) > 0 || algorithm.usage(state, now) > usage
        {
            return None;
        }
        known.remove();
        sweep_queue.forget_recent(key);
        self.removed_at(now);
        self.counters.evict(usage.is_full());
        Some(Place(&self.len))
    }

    /// Releases room that was reserved and is not needed.
    pub(super) fn unreserve(&self) {
        drop(Place(&self.len));
    }

    pub(super) fn try_reserve(&self) -> Option<Place<'_>> {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        let reserved = self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        // `then_some` would create a place even if no room was reserved, and dropping that place would release room.
        reserved.then(|| Place(&self.len))
    }
}
