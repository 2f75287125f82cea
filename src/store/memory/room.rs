//! Room for new keys: fresh keys are removed and, if the table is full, other keys may be evicted.
//!
//! A call with a new key examines slots of the key's shard, which is locked. Keys are distributed over the shards by a
//! keyed hash, so callers cannot choose which shard is examined, or which key is evicted.

use std::mem;

use super::fingerprint::Fingerprint;
use super::on_full::{LeastUsed, OnFull};
use super::shard::Shard;
use super::table::Table;
use crate::algorithm::{Algorithm, QuotaUnit, Usage};
use crate::clock::Nanos;
use crate::sys::lock::atomic::{AtomicUsize, Ordering};

/// The number of slots that are examined for each new key. While there is room, the slots for several new keys are
/// examined together. This is cheaper, because most of the cost is to load slots from memory, and neighbouring slots
/// are loaded together.
///
/// All `n` slots are examined once in about `n / 4` new keys. If as many keys become removable in this time, each of
/// them waits for half of it on average. So about `n / 8` slots contain keys that may be removed, but have not been
/// examined yet.
const SWEEP_PER_INSERT: usize = 4;
/// The number of slots that are examined for a new key when there is no room, before its call is denied. As many are
/// examined for a call of cost 0.
const SWEEP_WHEN_FULL: usize = 16;
/// The maximum number of slots that are examined for one sweep or one eviction. A new key causes at most one of each.
const MAX_LOOKS: usize = 64;

/// Ten seconds, in nanoseconds. A fresh key that has been idle for this time may be removed while there is room, even
/// if the window of the algorithm is longer.
const MAX_RETENTION: u64 = 10_000_000_000;

/// Room for one key. It is released on drop.
pub(super) struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<A: Algorithm> Table<A> {
    /// Reserves room for a new key of a locked shard. If enough slots are due to be examined or there is no room,
    /// examines a few slots first, and removes fresh keys. If there is still no room, evicts one of the examined keys,
    /// if [`OnFull`] allows evictions. No key in `keep` is removed. Returns `None` if there is no room.
    pub(super) fn make_room(
        &self,
        shard: &mut Shard<A>,
        keep: &[Fingerprint],
        now: Nanos,
    ) -> Option<Place<'_>> {
        shard.due = (shard.due + SWEEP_PER_INSERT).min(MAX_LOOKS);
        if shard.due < MAX_LOOKS.min(shard.slots.slot_count())
            && let Some(place) = self.try_reserve()
        {
            return Some(place);
        }
        let evicts = self.config.on_full == OnFull::EvictLeastUsed;
        if !evicts || !self.is_full() {
            let freed = self.sweep(shard, keep, now, None);
            if let Some(place) = freed.or_else(|| self.try_reserve()) {
                return Some(place);
            }
        }
        let place = if evicts { self.evict(shard, keep, now).or_else(|| self.try_reserve()) } else { None };
        if place.is_none() {
            self.counters.record_full();
        }
        place
    }

    /// Examines a few slots. Removes the first fresh key, and other fresh keys if more slots are due. If no key is
    /// fresh, evicts one of the examined keys. Returns the place of the first key that was removed.
    fn evict(&self, shard: &mut Shard<A>, keep: &[Fingerprint], now: Nanos) -> Option<Place<'_>> {
        let Shard { config, slots, queues, .. } = &mut *shard;
        let algorithm = &config.algorithm;
        let recent = self.turnover.recent(now);
        let mut sample = LeastUsed::new(config.one_unit);
        for _ in 0..MAX_LOOKS.min(slots.slot_count()) {
            let Some((key, state)) = slots.examine_next() else { continue };
            if keep.contains(&key) || queues.contains_key(&key) {
                continue;
            }
            if algorithm.is_fresh(state, now) && self.may_forget(config, now) {
                slots.remove_examined();
                self.removed_at(now);
                return self.sweep(shard, keep, now, Some(Place(&self.len)));
            }
            if algorithm.in_flight(state) == 0 {
                let last = algorithm.last_update(state);
                let idle = now.saturating_since(last);
                sample.offer(key, recent.contains(last), idle, || algorithm.usage(state, now));
                if sample.is_complete() {
                    break;
                }
            }
        }
        let least = sample.least_used()?;
        // Another thread may have released a place meanwhile.
        if let Some(place) = self.try_reserve() {
            return Some(place);
        }
        let usage = least.usage.or_else(|| Some(algorithm.usage(slots.get(least.key)?, now)));
        slots.remove(least.key);
        self.removed_at(now);
        self.counters.record_full();
        self.counters.evict(usage.is_some_and(Usage::is_full));
        Some(Place(&self.len))
    }

    /// Examines a few slots if `key` is not in the table, and removes the keys that are fresh. So slots are also
    /// examined for a call of cost 0 with a new key, although that call inserts nothing. The caller must not hold a
    /// lock.
    pub(super) fn sweep_for_peek(&self, key: Fingerprint) {
        let mut shard = self.keys.lock(key);
        if !shard.slots.contains(key) {
            self.clean_shared();
            let now = self.clock.now();
            shard.due += SWEEP_PER_INSERT;
            let _freed = self.sweep(&mut shard, &[], now, None);
        }
    }

    /// Examines the slots that are due, and removes keys that are fresh. Examines a few more slots while there is no
    /// room. Returns `freed` or, if it is `None`, the place of the first key that was removed.
    fn sweep<'a>(
        &'a self,
        shard: &mut Shard<A>,
        keep: &[Fingerprint],
        now: Nanos,
        mut freed: Option<Place<'a>>,
    ) -> Option<Place<'a>> {
        let Shard { config, slots, queues, due, .. } = shard;
        let algorithm = &config.algorithm;
        let retention = self.retention.load(Ordering::Relaxed);
        let idle = |state: &A::State| now.saturating_since(algorithm.last_update(state));
        let most = slots.slot_count().min(MAX_LOOKS);
        let due = mem::take(due).min(most);
        let mut looks = 0;
        loop {
            let full = freed.is_none() && self.is_full();
            if !full {
                // Most keys were used recently, so they are skipped.
                looks += slots.skip_while(due.saturating_sub(looks), |state| idle(state) < retention);
            }
            if looks >= if full { SWEEP_WHEN_FULL.min(most) } else { due } {
                return freed;
            }
            looks += 1;
            let Some((key, state)) = slots.examine_next() else { continue };
            if !full && idle(state) < retention || queues.contains_key(&key) || keep.contains(&key) {
                continue;
            }
            if algorithm.is_fresh(state, now) && self.may_forget(config, now) {
                slots.remove_examined();
                self.removed_at(now);
                // All places but the first are released here.
                freed.get_or_insert(Place(&self.len));
            }
        }
    }

    fn is_full(&self) -> bool {
        self.len() >= self.max_keys
    }

    pub(super) fn try_reserve(&self) -> Option<Place<'_>> {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        let reserved = self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        // `then_some` would create a place even if no room was reserved, and dropping that place would release room.
        reserved.then(|| Place(&self.len))
    }
}

/// Returns the time for which a fresh key must be idle before it is removed while there is room, in nanoseconds: the
/// algorithm's longest window, but at most ten seconds. The result is ten seconds for an algorithm that limits calls in
/// progress.
pub(super) fn retention<A: Algorithm>(algorithm: &A) -> u64 {
    let mut longest = 0;
    algorithm.for_each_policy(&mut |policy| match policy.unit {
        QuotaUnit::ConcurrentRequests => longest = MAX_RETENTION,
        _ => longest = Nanos::from(policy.window).0.max(longest),
    });
    longest.min(MAX_RETENTION)
}
