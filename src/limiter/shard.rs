//! The shards of the key table, each with its own lock, and the room for keys that all shards have together.
//!
//! A shard contains everything that is needed to decide a call on one of its keys: the state, the queue, and the
//! algorithm itself. So a decision takes one lock. The algorithm is replaced in one shard at a time, while that shard
//! is locked. Several keys can be locked together, in the order of the addresses of their locks.
//!
//! For each new key, a few slots of its shard are examined, so that all slots are examined in turn. While there is
//! room, the slots for several new keys are examined together. A key is removed if it is fresh and has been idle for
//! the algorithm's longest window, or for ten seconds if that window is longer. So a busy key that is often fresh is
//! not removed and inserted again at each call. There is no thread and no timer. The work of a call is bounded, except
//! for a call that makes a shard grow. Such a call moves all keys of the shard: usually fewer than a thousand, if
//! `max_keys` is at most 1.5 million.
//!
//! No key is removed while it has a queue, while calls of it are in progress, or while a joint call that holds the lock
//! needs it. A reset removes a key without a queue, unless the algorithm needs releases, and a joint call a key that it
//! has inserted and not used.
//!
//! When the table is full, more keys are examined, and fresh keys are removed even if they have not been idle. If none
//! of the examined keys is fresh, [`OnFull`] defines what happens to the new key. Keys are distributed over the shards
//! by a keyed hash, so callers cannot choose which shard is examined, or which key is evicted.

use std::mem;
use std::sync::Arc;

use super::attempt::Attempt;
use super::eviction::{LeastUsed, one_unit};
use super::fingerprint::Fingerprint;
use super::latest_denial::LockedShard;
use super::queue::{Key, Rare};
use super::resets::Resets;
use super::room::{Place, Room};
use super::slots::Slots;
use super::{Access, ShardConfig, Shared};
use crate::algorithm::{Algorithm, Usage, limit_of_new_key};
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::sys::lock::SpinGuard;
use crate::sys::wakers::Wakers;

/// The approximate average number of keys in a shard of a full key table, for tables of 96,000 to 1.5 million keys. The
/// shards of a smaller table have fewer keys: see [`shard_count`]. A shard of about this size has 2,048 slots. So a
/// shard with more keys than the average still has vacant slots, and its last growth moved fewer than a thousand keys.
const FULL_SHARD: usize = 1_500;

/// The minimum average number of keys in a shard of a full key table, unless the whole table has room for fewer keys.
const SMALL_SHARD: usize = 64;

/// The maximum number of shards of a key table of fewer than 96,000 keys.
const SPREAD: usize = 64;

/// The maximum number of shards. If a key table would need more shards, its shards have more keys instead.
const MAX_SHARDS: usize = 1_024;

/// The number of slots that are examined for each new key. While there is room, the slots for several new keys are
/// examined together. This is cheaper, because most of the cost is to load slots from memory, and neighbouring slots
/// are loaded together.
///
/// All `n` slots are examined once in about `n / 4` new keys. If as many keys become removable in this time, each of
/// them waits for half of it on average. So about `n / 8` slots contain keys that may be removed, but have not been
/// examined yet.
const SWEEP_PER_INSERT: u32 = 4;
/// The number of slots that are examined for a new key when there is no room, before its call is denied. As many are
/// examined for a call of cost 0.
const SWEEP_WHEN_FULL: usize = 16;
/// The maximum number of slots that are examined for one sweep or one eviction. A new key causes at most one of each.
const MAX_LOOKS: usize = 64;

#[derive(Debug)]
pub(super) struct Shards<A: Algorithm> {
    shards: Box<[LockedShard<Shard<A>>]>,
}

#[derive(Debug)]
pub(super) struct Shard<A: Algorithm> {
    config: Arc<ShardConfig<A>>,
    slots: Slots<A::State>,
    /// `None` before the first call that waits, and the first reset.
    rare: Option<Box<Rare<A>>>,
    /// The number of slots that are due to be examined.
    due: u32,
    /// The number of new keys that were not added to the turnover of the table yet.
    new_keys: u32,
}

/// A key whose shard is locked. Its three methods [`with`](Self::with), [`with_known`](Self::with_known) and
/// [`peek`](Self::peek) are the ways to a locked [`Key`]. They wake waiters after they have unlocked the shard.
pub(super) struct Locked<'a, A: Algorithm> {
    shared: &'a Shared,
    shard: SpinGuard<'a, Shard<A>>,
    id: Fingerprint,
    /// A clock reading, if it was made already. [`with`](Self::with) uses it only for a new key, because a known key
    /// may have observed a later one. `with_known` requires that the key has not.
    read: Option<Nanos>,
}

impl<A: Algorithm> Shards<A> {
    /// Creates the shards of a table of at most `max_keys` keys.
    pub(super) fn for_keys(max_keys: usize, algorithm: &A) -> Self {
        let config = Arc::new(ShardConfig {
            algorithm: algorithm.clone(),
            one_unit: one_unit(algorithm),
            first: None,
            closed: false,
        });
        let shard = |_| {
            let config = Arc::clone(&config);
            let shard = Shard { config, slots: Slots::new(), rare: None, due: 0, new_keys: 0 };
            LockedShard::new(shard)
        };
        Self { shards: (0..shard_count(max_keys)).map(shard).collect() }
    }

    /// Returns the key's shard.
    #[inline]
    pub(super) fn of(&self, id: Fingerprint) -> &LockedShard<Shard<A>> {
        &self.shards[id.shard(self.shards.len())]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SpinGuard<'_, Shard<A>>> {
        self.shards.iter().map(LockedShard::lock)
    }
}

/// A key that gets its place only after its first access. If the algorithm panics meanwhile, the key leaves no queue,
/// because a key with a queue must have a state.
struct NewKey<'s, A: Algorithm> {
    shard: &'s mut Shard<A>,
    id: Fingerprint,
}

impl<A: Algorithm> Drop for NewKey<'_, A> {
    fn drop(&mut self) {
        if let Some(rare) = &mut self.shard.rare {
            rare.remove_queue(self.id);
        }
    }
}

impl<'a, A: Algorithm> Locked<'a, A> {
    #[inline]
    pub(super) fn new(
        shared: &'a Shared,
        shard: SpinGuard<'a, Shard<A>>,
        id: Fingerprint,
        read: Option<Nanos>,
    ) -> Self {
        Self { shared, shard, id, read }
    }

    /// Runs `change` on the key. A new key gets a state first. Returns `None` if there is no room for the key.
    #[inline]
    pub(super) fn with<R>(self, tier: Option<&A>, change: impl FnOnce(&mut Key<'_, A>) -> R) -> Option<R> {
        let mut wake = Wakers::default();
        // The guard is dropped before `wake`. So the shard is unlocked before the wakers are woken.
        let Self { shared, mut shard, id, read } = self;
        let clock = &shared.clock;
        let Shard { config, slots, rare, .. } = &mut *shard;
        if let Some(state) = slots.get_mut(id) {
            let access = &mut Access { shared, tier, now: clock.now(), wake: &mut wake };
            return Some(Key::visit(config, state, (id, rare), access, change));
        }
        let now = read.unwrap_or_else(|| clock.now());
        let result = shard.with_new(id, &mut Access { shared, tier, now, wake: &mut wake }, change);
        drop(shard);
        shared.warn_if_full();
        result
    }

    /// Runs `change` on the key, for changes that affect only a key with charged units. Returns `None`, and does not
    /// run `change`, if the key is not in the table.
    pub(super) fn with_known<R>(
        self,
        tier: Option<&A>,
        change: impl FnOnce(&mut Key<'_, A>) -> R,
    ) -> Option<R> {
        let mut wake = Wakers::default();
        // The guard is dropped before `wake`.
        let Self { shared, mut shard, id, read } = self;
        let now = read.unwrap_or_else(|| shared.clock.now());
        shard.with_known(id, &mut Access { shared, tier, now, wake: &mut wake }, change)
    }

    /// Runs `look` on the key. A new key gets a temporary state, which is not kept, so `look` must not charge anything.
    pub(super) fn peek<R>(self, tier: Option<&A>, look: impl FnOnce(&mut Key<'_, A>) -> R) -> R {
        let mut wake = Wakers::default();
        // The guard is dropped before `wake`.
        let Self { shared, mut shard, id, .. } = self;
        let now = shared.clock.now();
        shard.peek(id, &mut Access { shared, tier, now, wake: &mut wake }, look)
    }

    /// Runs `change` on the key of a call. A call of cost 0 needs no room. But slots are examined for it, too.
    #[inline]
    pub(super) fn call<R>(
        mut self,
        call: Attempt<'_, A>,
        change: impl FnOnce(&mut Key<'_, A>) -> R,
    ) -> Option<R> {
        if call.cost() > 0 {
            return self.with(call.algorithm(), change);
        }
        self.sweep_if_new();
        Some(self.peek(call.algorithm(), change))
    }

    #[cold]
    fn sweep_if_new(&mut self) {
        let Self { shared, shard, id, .. } = self;
        if !shard.slots.contains(*id) {
            shard.due += SWEEP_PER_INSERT;
            let _freed = shard.sweep(&shared.room, &[], shared.clock.now(), None);
        }
    }

    /// Returns whether the key is not in the table, and would be fresh.
    pub(super) fn is_new_and_fresh(&self) -> bool {
        let Self { shared, shard, id, .. } = self;
        !shard.slots.contains(*id) && shard.config.may_forget(&shared.room, shared.clock.now())
    }

    /// Returns whether the key was reset after the first `resets` resets.
    pub(super) fn was_reset(&self, resets: u64) -> bool {
        self.shard.rare.as_ref().is_some_and(|rare| rare.resets.contain(self.id, resets))
    }

    /// Resets the key to the state of a new key, except that calls in progress stay counted. Does nothing if the key
    /// has no place in the table. Returns whether the key was not fresh.
    pub(super) fn reset(self) -> bool {
        let mut wake = Wakers::default();
        // The guard is dropped before `wake`.
        let Self { shared, mut shard, id, .. } = self;
        let now = shared.clock.now();
        shard.rare.get_or_insert_default().resets.record(id, shared.count_reset());
        shard.reset(id, &mut Access { shared, tier: None, now, wake: &mut wake })
    }
}

impl<A: Algorithm> Shard<A> {
    /// Returns what decides a call: the algorithm, the state, and the clock reading. Returns `None` if the key is not
    /// in the shard, if the key has a queue, or if the limiter is closed. This is the fast path for the common case.
    /// `now` is a clock reading from before the shard was locked.
    ///
    /// If another call of the key has made a later reading, `now` would look like a clock that was set back. So the
    /// clock is then read again. While the shard is locked, no other call of the key can have a later reading.
    #[inline(always)]
    pub(super) fn open<'a>(
        &'a mut self,
        id: Fingerprint,
        tier: Option<&'a A>,
        now: Nanos,
        clock: &AnyClock,
    ) -> Option<(&'a A, &'a mut A::State, Nanos)> {
        let Self { config, slots, rare, .. } = self;
        let algorithm = config.algorithm_of(tier);
        let state = slots.get_mut(id)?;
        if config.closed || rare.as_ref().is_some_and(|rare| rare.queues.contains_key(&id)) {
            return None;
        }
        let now = if now < algorithm.last_update(state) { clock.now() } else { now };
        Some((algorithm, state, now))
    }

    /// Runs `change` on a key of the shard. Returns `None` if the key has no place in it.
    pub(super) fn with_known<R>(
        &mut self,
        id: Fingerprint,
        access: &mut Access<'_, A>,
        change: impl FnOnce(&mut Key<'_, A>) -> R,
    ) -> Option<R> {
        let Self { config, slots, rare, .. } = self;
        let state = slots.get_mut(id)?;
        Some(Key::visit(config, state, (id, rare), access, change))
    }

    /// Runs `look` on a key, which has a temporary state if it has no place in the shard.
    pub(super) fn peek<R>(
        &mut self,
        id: Fingerprint,
        access: &mut Access<'_, A>,
        look: impl FnOnce(&mut Key<'_, A>) -> R,
    ) -> R {
        let Self { config, slots, rare, .. } = self;
        let place = (id, rare);
        if let Some(state) = slots.get_mut(id) {
            return Key::visit(config, state, place, access, look);
        }
        let mut state = config.new_state(access.tier, &access.shared.room, access.now);
        Key::visit(config, &mut state, place, access, look)
    }

    /// Runs `change` on a new key, which gets a place if there is room and the key is then used.
    #[inline]
    fn with_new<R>(
        &mut self,
        id: Fingerprint,
        access: &mut Access<'_, A>,
        change: impl FnOnce(&mut Key<'_, A>) -> R,
    ) -> Option<R> {
        let room = &access.shared.room;
        // If the algorithm panics, the place is free again.
        let place = self.make_room(room, &[], access.now);
        // Once the limiter is closed, nothing is charged, so the call needs no room.
        if place.is_none() && !self.config.closed {
            return None;
        }
        let new = NewKey { shard: self, id };
        let Self { config, rare, .. } = &mut *new.shard;
        let mut state = config.new_state(access.tier, room, access.now);
        let result = Key::visit(config, &mut state, (id, rare), access, change);
        if let Some(place) = place {
            new.shard.insert_if_used(id, state, place, access);
        }
        mem::forget(new);
        Some(result)
    }

    /// Gives the key a state, unless it has one already. Returns whether the key is new, or `None` if there is no room
    /// for it. No key in `keep` is evicted.
    pub(super) fn insert_if_absent(
        &mut self,
        id: Fingerprint,
        keep: &[Fingerprint],
        access: &Access<'_, A>,
    ) -> Option<bool> {
        if self.slots.contains(id) {
            return Some(false);
        }
        let place = self.make_room(&access.shared.room, keep, access.now)?;
        let state = self.config.new_state(None, &access.shared.room, access.now);
        self.insert(id, state, place, access.now);
        Some(true)
    }

    /// Gives a new key its place.
    #[inline]
    fn insert(&mut self, id: Fingerprint, state: A::State, place: Place<'_>, now: Nanos) {
        self.slots.insert(id, state);
        place.occupy().turnover.count(&mut self.new_keys, now);
    }

    /// Gives a new key its place if it was used: if its state is not fresh, or if it has a queue.
    #[inline]
    fn insert_if_used(&mut self, id: Fingerprint, state: A::State, place: Place<'_>, access: &Access<'_, A>) {
        let now = access.now;
        let room = &access.shared.room;
        let algorithm = self.config.algorithm_of(access.tier);
        if self.has_queue(id) || !algorithm.is_fresh(&state, now) || !self.config.may_forget(room, now) {
            self.insert(id, state, place, now);
        } else {
            room.observe_removal(now);
        }
    }

    pub(super) fn has_queue(&self, id: Fingerprint) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.queues.contains_key(&id))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.config.closed
    }

    /// Returns the denial of a call of a new key for which there is no room.
    pub(super) fn deny_without_room(&self, tier: Option<&A>) -> Decision {
        Decision::table_full(limit_of_new_key(self.config.algorithm_of(tier)))
    }

    /// Removes a key of the shard.
    pub(super) fn remove(&mut self, id: Fingerprint, room: &Room, now: Nanos) {
        self.slots.remove(id);
        drop(room.vacate(now));
    }

    /// Removes a new key if the state of the key is fresh and the key has no queue.
    pub(super) fn remove_unless_used(&mut self, id: Fingerprint, room: &Room, now: Nanos) {
        let is_used = self.slots.get(id).is_some_and(|state| !self.config.algorithm.is_fresh(state, now));
        if !is_used && !self.has_queue(id) {
            self.remove(id, room, now);
        }
    }

    /// Resets a key to the state of a new key, except that calls in progress stay counted. Does nothing if the key has
    /// no place in the shard. If the key may have waiters or calls in progress, it keeps its place. Returns whether the
    /// key was not fresh.
    fn reset(&mut self, id: Fingerprint, access: &mut Access<'_, A>) -> bool {
        let is_paused = self.with_known(id, access, |key| key.is_paused()) == Some(true);
        let Some(state) = self.slots.get_mut(id) else { return false };
        let is_used = is_paused || !self.config.algorithm.is_fresh(state, access.now);
        let room = &access.shared.room;
        if A::NEEDS_RELEASE || self.has_queue(id) {
            let fresh = self.config.new_state(None, room, access.now);
            self.with_known(id, access, |key| key.reset(fresh));
        } else {
            self.remove(id, room, access.now);
        }
        is_used
    }

    /// Resets all keys of the shard, as [`reset`](Locked::reset) does for one key.
    pub(super) fn reset_all(&mut self, access: &mut Access<'_, A>) {
        self.rare.get_or_insert_default().resets = Resets::of_all(access.shared.count_reset());
        let ids: Vec<_> = self.slots.iter_mut().map(|(id, _)| id).collect();
        for id in ids {
            self.reset(id, access);
        }
    }

    /// Marks the shard as closed, admits due waiters, and denies all other waiters.
    pub(super) fn close(&mut self, access: &mut Access<'_, A>) {
        Arc::make_mut(&mut self.config).closed = true;
        self.for_each_queue(access, |key| key.close());
    }

    /// Ends the pauses that are over.
    pub(super) fn end_pauses(&mut self, access: &mut Access<'_, A>) {
        self.for_each_queue(access, |key| key.admit_due());
    }

    fn for_each_queue(&mut self, access: &mut Access<'_, A>, change: impl Fn(&mut Key<'_, A>)) {
        let queued: Vec<_> = self.rare.iter().flat_map(|rare| rare.queues.keys().copied()).collect();
        for id in queued {
            self.with_known(id, access, &change);
        }
    }

    /// Replaces the algorithm of all keys by `new`. A key of `new` that has used one unit has the usage `one_unit`.
    pub(super) fn replace(&mut self, new: &A, one_unit: Usage, access: &mut Access<'_, A>) {
        // The old algorithm charges the waiters that are due, so these charges are made before the reset.
        self.for_each_queue(access, |key| key.admit_due());
        self.rare.get_or_insert_default().resets = Resets::of_all(access.shared.count_reset());
        let Self { config: old, slots, rare, .. } = self;
        let mut first = old.new_state(None, &access.shared.room, access.now);
        new.migrate(&mut first, &old.algorithm, access.now);
        let (algorithm, first) = (new.clone(), Some(first));
        let config = Arc::new(ShardConfig { algorithm, one_unit, first, closed: old.closed });
        for (id, state) in slots.iter_mut() {
            Key::visit(&config, state, (id, rare), access, |key| key.migrate(&old.algorithm));
        }
        *old = config;
    }
}

/// The room for new keys.
impl<A: Algorithm> Shard<A> {
    /// Reserves room for a new key. If enough slots are due to be examined or there is no room, examines a few slots
    /// first, and removes fresh keys. If there is still no room, evicts one of the examined keys, if [`OnFull`] allows
    /// evictions. No key in `keep` is removed. Returns `None` if there is no room.
    fn make_room<'r>(&mut self, room: &'r Room, keep: &[Fingerprint], now: Nanos) -> Option<Place<'r>> {
        self.due = (self.due + SWEEP_PER_INSERT).min(MAX_LOOKS as u32);
        if (self.due as usize) < MAX_LOOKS.min(self.slots.slot_count())
            && let Some(place) = room.try_reserve()
        {
            return Some(place);
        }
        if !room.evicts || !room.has_max_keys() {
            let freed = self.sweep(room, keep, now, None);
            if let Some(place) = freed.or_else(|| room.try_reserve()) {
                return Some(place);
            }
        }
        let place =
            if room.evicts { self.evict(room, keep, now).or_else(|| room.try_reserve()) } else { None };
        if place.is_none() {
            room.record_denial(now);
        }
        place
    }

    /// Examines a few slots. Removes the first fresh key, and other fresh keys if more slots are due. If no key is
    /// fresh, evicts one of the examined keys. Returns the place of the first key that was removed.
    fn evict<'r>(&mut self, room: &'r Room, keep: &[Fingerprint], now: Nanos) -> Option<Place<'r>> {
        let Self { config, slots, rare, .. } = &mut *self;
        let mut has_queue = |id| rare.as_mut().is_some_and(|rare| rare.needs_queue(id, now));
        let algorithm = &config.algorithm;
        let recent = room.turnover.recent(now);
        let mut sample = LeastUsed::new(config.one_unit);
        for _ in 0..MAX_LOOKS.min(slots.slot_count()) {
            let Some((id, state)) = slots.examine_next() else { continue };
            if keep.contains(&id) || has_queue(id) {
                continue;
            }
            if algorithm.is_fresh(state, now) && config.may_forget(room, now) {
                slots.remove_examined();
                return self.sweep(room, keep, now, Some(room.vacate(now)));
            }
            if algorithm.in_flight(state) == 0 {
                let last = algorithm.last_update(state);
                let idle = now.saturating_since(last);
                sample.offer(id, recent.contains(last), idle, || algorithm.usage(state, now));
                if sample.is_complete() {
                    break;
                }
            }
        }
        let (id, usage) = sample.choice()?;
        // Another thread may have freed a place meanwhile.
        if let Some(place) = room.try_reserve() {
            return Some(place);
        }
        let usage = usage.or_else(|| Some(algorithm.usage(slots.get(id)?, now)));
        slots.remove(id);
        room.record_eviction(usage.is_some_and(Usage::is_full), now);
        Some(room.vacate(now))
    }

    /// Examines the slots that are due, and removes keys that are fresh. Examines a few more slots while there is no
    /// room. Returns `freed` or, if it is `None`, the place of the first key that was removed.
    fn sweep<'r>(
        &mut self,
        room: &'r Room,
        keep: &[Fingerprint],
        now: Nanos,
        mut freed: Option<Place<'r>>,
    ) -> Option<Place<'r>> {
        let Self { config, slots, rare, due, .. } = self;
        let mut has_queue = |id| rare.as_mut().is_some_and(|rare| rare.needs_queue(id, now));
        let algorithm = &config.algorithm;
        let retention = room.retention();
        let idle = |state: &A::State| now.saturating_since(algorithm.last_update(state));
        let most = slots.slot_count().min(MAX_LOOKS);
        let due = (mem::take(due) as usize).min(most);
        let mut looks = 0;
        loop {
            let full = freed.is_none() && room.has_max_keys();
            if !full {
                // Most keys were used recently, so they are skipped.
                looks += slots.skip_while(due.saturating_sub(looks), |state| idle(state) < retention);
            }
            if looks >= if full { SWEEP_WHEN_FULL.min(most) } else { due } {
                return freed;
            }
            looks += 1;
            let Some((id, state)) = slots.examine_next() else { continue };
            if !full && idle(state) < retention || has_queue(id) || keep.contains(&id) {
                continue;
            }
            if algorithm.is_fresh(state, now) && config.may_forget(room, now) {
                slots.remove_examined();
                // All places but the first are freed here.
                freed.get_or_insert(room.vacate(now));
            }
        }
    }
}

/// Returns the number of shards of a table of at most `max_keys` keys.
const fn shard_count(max_keys: usize) -> usize {
    let mut full = FULL_SHARD;
    while max_keys / full >= MAX_SHARDS {
        full *= 2;
    }
    // A shard of a smaller table has fewer keys, so that threads seldom wait for the same lock. It has room for at
    // least 64 keys, unless the whole table has room for fewer, so that a sample for an eviction finds enough keys.
    let (few, many) = (max_keys / full + 1, max_keys / SMALL_SHARD);
    let many = if many < SPREAD { many } else { SPREAD };
    if few > many { few } else { many }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::quota::Quota;

    #[test]
    fn all_that_most_calls_touch_of_a_shard_is_on_one_line() {
        let shards = Shards::for_keys(1, &TokenBucket::new(Quota::per_second(1)));
        let locked = &shards.shards[0];
        let start = ptr::from_ref(locked).addr();
        // The word of the denied key, the word of the lock, and the shard.
        assert_eq!(
            (ptr::from_ref(&*locked.lock()).addr() - start, size_of::<Shard<TokenBucket>>()),
            (16, 48)
        );
        assert_eq!((start % 128, size_of_val(locked)), (0, 128));
    }

    #[test]
    fn a_full_shard_has_about_a_thousand_keys() {
        assert_eq!([0, 1, 1_000, 10_000, 100_000, 1_000_000].map(shard_count), [1, 1, 15, 64, 67, 667]);
        for max_keys in [100_000, 1_000_000, 1_535_999, 1_536_000, 10_000_000, 1 << 40, usize::MAX] {
            let shards = shard_count(max_keys);
            let (keys, slots) = (max_keys / shards, (max_keys / shards).next_power_of_two());
            assert!(shards <= MAX_SHARDS && keys <= slots / 8 * 6, "{max_keys}: {shards} of {keys}");
        }
    }
}
