//! Room for new keys: fresh keys are removed and, if the table is full, other keys may be evicted.
//!
//! A call with a new key examines slots of the key's shard, which is locked. Keys are distributed over the shards and
//! their slots by a keyed hash, so callers cannot choose which slots are examined, or which key is evicted.

use std::mem;

use super::fingerprint::Fingerprint;
use super::on_full::{LeastUsed, OnFull, Sampled};
use super::shard::{Shard, ShardConfig};
use super::slots::Slots;
use super::table::Table;
use crate::algorithm::{Algorithm, QuotaUnit, Usage};
use crate::clock::Nanos;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The number of slots that are examined for each new key. While there is room, the slots for several new keys are
/// examined together. This is cheaper, because most of the cost is to load slots from memory, and neighbouring slots
/// are loaded together.
///
/// If keys come and go, each slot is examined once per `n / 4` new keys, where `n` is the number of slots. Meanwhile,
/// about `n / 4` keys become removable, and such a key is found after half a round on average. So about an eighth of
/// the slots contain keys that may be removed, but have not been examined yet.
const SWEEP_PER_INSERT: usize = 4;
/// The minimum number of slots that are examined together when there is no room.
const SWEEP_WHEN_FULL: usize = 16;
/// The maximum number of slots that are examined together.
const MAX_LOOKS: usize = 64;

/// The maximum time for which a fresh key must be idle before it is removed while there is room: ten seconds, in
/// nanoseconds.
const MAX_RETENTION: u64 = 10_000_000_000;

/// Room for one key. It is released on drop.
pub(super) struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The room for a new key. If it is dropped, the table stays as it is.
pub(super) enum Room<'a> {
    Vacant(Place<'a>),
    /// A slot whose key is removed when the new key is inserted.
    Occupied {
        /// The position of the slot in the search order of the new key.
        position: usize,
        /// The usage of the removed key, or `None` if that key is fresh.
        usage: Option<Usage>,
    },
}

impl<A: Algorithm> Table<A> {
    /// Makes room for a new key of a locked shard. If enough slots are due to be examined, or if there is no room and
    /// [`OnFull`] does not allow evictions, examines a few slots first, and removes fresh keys. If there is no room and
    /// [`OnFull`] allows evictions, the new key gets the room of another key. No key in `keep` is removed. Returns
    /// `None` if there is no room.
    pub(super) fn make_room(
        &self,
        shard: &mut Shard<A>,
        key: Fingerprint,
        keep: &[Fingerprint],
        now: Nanos,
    ) -> Option<Room<'_>> {
        let evicts = self.config.on_full == OnFull::EvictLeastUsed;
        shard.due += SWEEP_PER_INSERT;
        let is_due = shard.due >= MAX_LOOKS.min(shard.slots.slot_count());
        let freed = match is_due || !evicts && self.is_full() {
            true => self.sweep(shard, keep, now),
            false => None,
        };
        if let Some(place) = freed.or_else(|| self.try_reserve()) {
            return Some(Room::Vacant(place));
        }
        if !evicts {
            self.counters.record_full();
            return None;
        }
        self.replaceable(shard, key, keep, now).or_else(|| {
            // All keys near the first slot of the new key are in use.
            shard.due = MAX_LOOKS;
            self.sweep(shard, keep, now).map(Room::Vacant)
        })
    }

    /// Inserts a new key into its room.
    pub(super) fn insert(
        &self,
        room: Room<'_>,
        slots: &mut Slots<A::State>,
        key: Fingerprint,
        state: A::State,
        now: Nanos,
    ) {
        match room {
            Room::Vacant(place) => {
                slots.insert(key, state);
                // The key occupies the place now.
                mem::forget(place);
            }
            Room::Occupied { position, usage } => {
                self.record_replaced(usage, now);
                slots.replace(position, key, state);
            }
        }
    }

    /// Chooses the key that is removed for the new key `key`. Examines the slots that a search for the new key examines,
    /// and then the slots behind them, until a key has used at most one unit or enough keys are sampled. The search has
    /// loaded these slots from memory already. The new key usually gets the slot of the chosen key, so that no other
    /// key moves.
    fn replaceable(
        &self,
        shard: &mut Shard<A>,
        key: Fingerprint,
        keep: &[Fingerprint],
        now: Nanos,
    ) -> Option<Room<'_>> {
        let Shard { config, slots, queues, .. } = shard;
        let ShardConfig { algorithm, one_unit, .. } = &**config;
        let (mut sample, mut vacant, mut chosen) = (LeastUsed::new(), None, None);
        for (position, slot) in slots.in_search_order(key).take(MAX_LOOKS).enumerate() {
            let Some((key, state)) = slot else {
                vacant.get_or_insert(position);
                continue;
            };
            if algorithm.in_flight(state) > 0 || queues.contains_key(&key) || keep.contains(&key) {
                continue;
            }
            let usage = algorithm.usage(state, now);
            if usage <= *one_unit {
                let is_fresh = algorithm.is_fresh(state, now) && self.may_forget(config, now);
                chosen = Some((position, (!is_fresh).then_some(usage)));
                break;
            }
            let idle = now.saturating_since(algorithm.last_update(state));
            sample.offer(Sampled { key: position, usage, idle });
            if sample.is_complete() {
                break;
            }
        }
        let sampled = || sample.least_used().map(|sampled| (sampled.key, Some(sampled.usage)));
        let chosen = chosen.or_else(sampled);
        if !matches!(chosen, Some((_, None))) {
            self.counters.record_full();
        }
        let (position, usage) = chosen?;
        if vacant.is_none_or(|vacant| position < vacant) {
            return Some(Room::Occupied { position, usage });
        }
        let (removed, _) = slots.in_search_order(key).nth(position)??;
        slots.remove(removed);
        self.record_replaced(usage, now);
        Some(Room::Vacant(Place(&self.len)))
    }

    /// Records that a key was removed for a new key. `usage` is `None` if the removed key was fresh.
    fn record_replaced(&self, usage: Option<Usage>, now: Nanos) {
        self.removed_at(now);
        if let Some(usage) = usage {
            self.counters.evict(usage.is_full());
        }
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
            let _freed = self.sweep(&mut shard, &[], now);
        }
    }

    /// Examines a few slots, and removes keys that are fresh. Returns the place of the first key that was removed.
    fn sweep(&self, shard: &mut Shard<A>, keep: &[Fingerprint], now: Nanos) -> Option<Place<'_>> {
        let Shard { config, slots, queues, due } = shard;
        let algorithm = &config.algorithm;
        let retention = self.retention.load(Ordering::Relaxed);
        let idle = |state: &A::State| now.saturating_since(algorithm.last_update(state));
        let most = slots.slot_count().min(MAX_LOOKS);
        let due = mem::take(due).min(most);
        let (mut looks, mut freed) = (0, None);
        loop {
            let full = freed.is_none() && self.is_full();
            if !full {
                // Most keys were used recently, so they are skipped.
                looks += slots.skip_while(due.saturating_sub(looks), |state| idle(state) < retention);
            }
            if looks >= if full { due.max(SWEEP_WHEN_FULL).min(most) } else { due } {
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
