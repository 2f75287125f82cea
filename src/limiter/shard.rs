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
//! When the table is full, more keys are examined, and fresh keys are removed even if they have not been idle. If none
//! of the examined keys is fresh, [`OnFull`] defines what happens to the new key. Keys are distributed over the shards
//! by a keyed hash, so callers cannot choose which shard is examined, or which key is evicted.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::task::Waker;

use super::attempt::Attempt;
use super::entry::{KeyEntry, Queues};
use super::eviction::{LeastUsed, Turnover, one_unit};
use super::fingerprint::{Fingerprint, IdentityBuildHasher};
use super::latest_denial::LatestDenial;
use super::options::{OnFull, StoreConfig};
use super::slots::Slots;
use crate::algorithm::{Algorithm, Usage, holds_requests};
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::observe::Recurrence;
use crate::stats::StoreStats;
use crate::sys::lock::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sys::lock::{SpinGuard, SpinLock};

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
const SWEEP_PER_INSERT: usize = 4;
/// The number of slots that are examined for a new key when there is no room, before its call is denied. As many are
/// examined for a call of cost 0.
const SWEEP_WHEN_FULL: usize = 16;
/// The maximum number of slots that are examined for one sweep or one eviction. A new key causes at most one of each.
const MAX_LOOKS: usize = 64;

/// Ten seconds, in nanoseconds. A fresh key that has been idle for this time may be removed while there is room, even
/// if the window of the algorithm is longer.
const MAX_RETENTION: u64 = 10_000_000_000;

/// The number of keys of which a shard remembers that they were reset. Beyond it, all keys of the shard count as reset
/// when the key of these was that was reset first.
const MAX_RESETS: usize = 64;

#[derive(Debug)]
pub(super) struct Shards<A: Algorithm> {
    shards: Box<[LockedShard<A>]>,
}

/// A shard and its lock, on cache lines of their own, so that locking one shard does not slow down calls on its
/// neighbours.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct LockedShard<A: Algorithm> {
    shard: SpinLock<Shard<A>>,
    /// A recent denial. For up to 100 µs while the denial stands, most further calls of cost 1 for the denied key are
    /// denied without the lock. It is written while the shard is locked.
    denial: LatestDenial,
}

#[derive(Debug)]
pub(super) struct Shard<A: Algorithm> {
    /// All shards share this value until the algorithm is replaced or the limiter is closed.
    config: Arc<ShardConfig<A>>,
    slots: Slots<A::State>,
    queues: Queues<A>,
    /// The number of slots that are due to be examined.
    due: usize,
    /// The number of new keys that were not added to the [`Turnover`] yet.
    new_keys: u64,
    /// The latest resets. `None` before the first one.
    resets: Option<Box<Resets>>,
}

/// The latest resets of the keys of a shard, each as the number of the table's resets with this one. A settlement looks
/// here whether the call was charged before.
#[derive(Debug, Default)]
struct Resets {
    /// The latest reset of all keys, or replacement of the algorithm.
    all: u64,
    /// The keys that were reset, the latest at the end: at most [`MAX_RESETS`].
    keys: VecDeque<(Fingerprint, u64)>,
}

/// The settings that apply to all keys of a shard.
#[derive(Clone, Debug)]
struct ShardConfig<A: Algorithm> {
    algorithm: A,
    /// The usage up to which a key is evicted without a comparison with other keys.
    one_unit: Usage,
    /// The state with which a new key begins. It is a new state of the first algorithm that was converted at each
    /// replacement, as the states of known keys were. `None` until the algorithm is replaced.
    first: Option<A::State>,
    closed: bool,
}

/// The room for keys in all shards together, the keys that came and went, and what is counted of them.
#[derive(Debug)]
pub(super) struct Room {
    /// The number of keys.
    len: AtomicUsize,
    max_keys: usize,
    /// `true` if keys are evicted when there is no room.
    evicts: bool,
    turnover: Turnover,
    /// The latest clock reading at which a key was removed.
    removed_until: AtomicU64,
    /// The time for which an idle fresh key is kept while there is room, in nanoseconds.
    retention: AtomicU64,
    /// The time at which the limiter was created. A new key counts as idle since then.
    created_at: Nanos,
    evicted: AtomicU64,
    evicted_at_limit: AtomicU64,
    /// The number of times that there was no room for a new key.
    refused: AtomicU64,
    /// When the table was found full the last time, in nanoseconds after the clock's zero, plus 1. 0 if it never was.
    full_at: AtomicU64,
    full: Recurrence,
}

/// Room for one key. It is released on drop.
pub(super) struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The algorithm and the state that decide a call of a key that has a state and no queue.
pub(super) struct Existing<'a, A: Algorithm> {
    /// The algorithm of the call.
    pub(super) algorithm: &'a A,
    pub(super) state: &'a mut A::State,
    /// The clock reading for the decision.
    pub(super) now: Nanos,
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
            let queues = HashMap::with_hasher(IdentityBuildHasher);
            let (config, slots) = (Arc::clone(&config), Slots::new());
            let shard = Shard { config, slots, queues, due: 0, new_keys: 0, resets: None };
            LockedShard { shard: SpinLock::new(shard), denial: LatestDenial::default() }
        };
        Self { shards: (0..shard_count(max_keys)).map(shard).collect() }
    }

    /// Returns the key's shard.
    #[inline]
    pub(super) fn of(&self, key: Fingerprint) -> &LockedShard<A> {
        &self.shards[key.shard(self.shards.len())]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SpinGuard<'_, Shard<A>>> {
        self.shards.iter().map(LockedShard::lock)
    }
}

impl<A: Algorithm> LockedShard<A> {
    /// Locks the shard, and removes its latest denial, because any decision may change.
    #[inline]
    pub(super) fn lock(&self) -> SpinGuard<'_, Shard<A>> {
        let shard = self.shard.lock();
        self.denial.remove();
        shard
    }

    /// Locks the shard for a new call. If the limiter's own algorithm decides the call, the latest denial is not
    /// removed, because such a call cannot change it.
    #[inline]
    pub(super) fn lock_for(&self, call: &Attempt<'_, A>) -> SpinGuard<'_, Shard<A>> {
        match call.algorithm() {
            None => self.shard.lock(),
            Some(_) => self.lock(),
        }
    }

    /// Returns the decision on a call if the latest denial denies it. Takes no lock. Returns `None` if the call must be
    /// decided while the shard is locked.
    #[inline]
    pub(super) fn standing_denial(
        &self,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        now: Nanos,
    ) -> Option<Decision> {
        if !A::DENIALS_STAND {
            return None;
        }
        // Few calls have the key that was denied, so the denial is read before the call is examined.
        self.denial.standing(key, now).filter(|_| is_plain(call))
    }

    /// Keeps the decision on a call if it is a denial by which later calls can be denied. The shard is locked.
    /// `existing` is what has decided the call.
    #[inline]
    pub(super) fn keep_denial(
        &self,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        existing: &Existing<'_, A>,
        decision: &Decision,
        clock: &AnyClock,
    ) {
        // If the algorithm queues the requests of a layer, a denial by `check` must not deny a request that could wait.
        let is_kept = || is_plain(call) && clock.is_monotonic() && !holds_requests(existing.algorithm);
        if !decision.is_allowed() && is_kept() {
            self.denial.keep(key, existing.now, decision);
        }
    }

    /// Removes the latest denial. The shard is locked.
    #[inline]
    pub(super) fn remove_denial(&self) {
        self.denial.remove();
    }
}

impl<A: Algorithm> Shard<A> {
    /// Returns what decides a call. Returns `None` if the key is not in the shard, if the key has a queue, or if the
    /// limiter is closed. This is the fast path for the common case. `now` is a clock reading from before the shard was
    /// locked.
    ///
    /// If another call of the key has made a later reading, `now` would look like a clock that was set back. So the
    /// clock is then read again. While the shard is locked, no other call of the key can have a later reading.
    #[inline(always)]
    pub(super) fn existing<'a>(
        &'a mut self,
        key: Fingerprint,
        call: &Attempt<'a, A>,
        now: Nanos,
        clock: &AnyClock,
    ) -> Option<Existing<'a, A>> {
        let Self { config, slots, queues, .. } = self;
        let (algorithm, state) = (call.algorithm().unwrap_or(&config.algorithm), slots.get_mut(key)?);
        if config.closed || queues.contains_key(&key) {
            return None;
        }
        let now = if now < algorithm.last_update(state) { clock.now() } else { now };
        Some(Existing { algorithm, state, now })
    }

    /// Returns the entry of a key that has a place in the shard. Returns `None` if it has none. The call uses the
    /// algorithm `tier`, or the limiter's algorithm if `tier` is `None`.
    #[inline]
    pub(super) fn entry<'a>(
        &'a mut self,
        key: Fingerprint,
        tier: Option<&'a A>,
        config: &'a StoreConfig,
        wake: &'a mut Vec<Waker>,
    ) -> Option<KeyEntry<'a, A>> {
        let state = self.slots.get_mut(key)?;
        Some(self.config.entry(key, tier, (state, &mut self.queues), config, wake))
    }

    /// Returns the entry of a key that has no place in the shard. Its state is `state`.
    #[inline]
    pub(super) fn new_entry<'a>(
        &'a mut self,
        key: Fingerprint,
        tier: Option<&'a A>,
        state: &'a mut A::State,
        config: &'a StoreConfig,
        wake: &'a mut Vec<Waker>,
    ) -> KeyEntry<'a, A> {
        self.config.entry(key, tier, (state, &mut self.queues), config, wake)
    }

    /// Returns the algorithm of a call: `tier`, or the limiter's algorithm if `tier` is `None`.
    pub(super) fn algorithm<'a>(&'a self, tier: Option<&'a A>) -> &'a A {
        tier.unwrap_or(&self.config.algorithm)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.config.closed
    }

    pub(super) fn contains(&self, key: Fingerprint) -> bool {
        self.slots.contains(key)
    }

    /// Records the reset of a key, which is the one with this number.
    pub(super) fn record_reset(&mut self, key: Fingerprint, number: u64) {
        let Resets { all, keys } = self.resets.get_or_insert_default().as_mut();
        keys.retain(|(other, _)| *other != key);
        keys.push_back((key, number));
        if keys.len() > MAX_RESETS
            && let Some((_, oldest)) = keys.pop_front()
        {
            *all = oldest;
        }
    }

    /// Records the reset of all keys, or a replacement of the algorithm, which is the reset with this number.
    pub(super) fn record_reset_of_all(&mut self, number: u64) {
        self.resets = Some(Box::new(Resets { all: number, ..Resets::default() }));
    }

    /// Returns whether the key was reset after the first `resets` resets.
    pub(super) fn was_reset(&self, key: Fingerprint, resets: u64) -> bool {
        self.resets.as_ref().is_some_and(|latest| {
            let of_key = latest.keys.iter().find(|(other, _)| *other == key);
            resets < of_key.map_or(0, |(_, number)| *number).max(latest.all)
        })
    }

    /// Returns the state of a key that is new or was removed, and whose call uses `tier`, or the limiter's algorithm.
    #[inline]
    pub(super) fn new_state(&self, tier: Option<&A>, room: &Room, now: Nanos) -> A::State {
        self.config.new_state(self.algorithm(tier), room, now)
    }

    /// Returns whether the state of a new key is fresh. The new state of a bucket that starts empty is not fresh. In
    /// that case no key is removed, because a removed key would later get a new state with fewer units.
    pub(super) fn may_forget(&self, room: &Room, now: Nanos) -> bool {
        self.config.may_forget(room, now)
    }

    /// Gives a new key its place.
    #[inline]
    pub(super) fn insert(
        &mut self,
        key: Fingerprint,
        state: A::State,
        place: Place<'_>,
        room: &Room,
        now: Nanos,
    ) {
        self.slots.insert(key, state);
        room.turnover.count(&mut self.new_keys, now);
        // The key occupies the place now.
        mem::forget(place);
    }

    /// Gives a new key its place if it was used: if its state is not fresh, or if it has a queue. `tier` is the
    /// algorithm of its call, or `None`.
    #[inline]
    pub(super) fn insert_if_used(
        &mut self,
        key: Fingerprint,
        tier: Option<&A>,
        state: A::State,
        place: Place<'_>,
        room: &Room,
        now: Nanos,
    ) {
        let is_fresh = self.algorithm(tier).is_fresh(&state, now);
        if !is_fresh || self.queues.contains_key(&key) || !self.may_forget(room, now) {
            self.insert(key, state, place, room, now);
        } else {
            room.removed_at(now);
        }
    }

    /// Removes a key of the shard.
    pub(super) fn remove(&mut self, key: Fingerprint, room: &Room, now: Nanos) {
        self.slots.remove(key);
        room.record_removal(now);
    }

    /// Removes a new key if the state of the key is fresh and the key has no queue.
    pub(super) fn remove_unless_used(&mut self, key: Fingerprint, room: &Room, now: Nanos) {
        let is_used = self.slots.get(key).is_some_and(|state| !self.config.algorithm.is_fresh(state, now));
        if !is_used && !self.queues.contains_key(&key) {
            self.remove(key, room, now);
        }
    }

    /// Resets a key to the state of a new key, except that calls in progress stay counted. Does nothing if the key has
    /// no place in the shard. If the key may have waiters or calls in progress, it keeps its place. Returns whether the
    /// key was not fresh.
    pub(super) fn reset(
        &mut self,
        key: Fingerprint,
        room: &Room,
        config: &StoreConfig,
        now: Nanos,
        wake: &mut Vec<Waker>,
    ) -> bool {
        let Self { config: shard, slots, queues, .. } = &mut *self;
        let Some(state) = slots.get_mut(key) else { return false };
        let is_used = !shard.algorithm.is_fresh(state, now);
        if !queues.contains_key(&key) && !A::NEEDS_RELEASE {
            self.remove(key, room, now);
            return is_used;
        }
        if let Some(queue) = queues.get_mut(&key) {
            queue.reset_schedule(now);
        }
        let entry = shard.entry(key, None, (state, queues), config, wake);
        let algorithm = &shard.algorithm;
        entry.replace_state(now, |state| {
            reset(algorithm, state, shard.new_state(algorithm, room, now), now);
        });
        is_used
    }

    /// Resets all keys of the shard. See [`reset`](Shard::reset).
    pub(super) fn reset_all(&mut self, room: &Room, config: &StoreConfig, now: Nanos, wake: &mut Vec<Waker>) {
        let keys: Vec<_> = self.slots.iter_mut().map(|(key, _)| key).collect();
        for key in keys {
            self.reset(key, room, config, now, wake);
        }
    }

    /// Marks the shard as closed, releases due waiters, and denies all other waiters.
    pub(super) fn close(&mut self, config: &StoreConfig, now: Nanos, wake: &mut Vec<Waker>) {
        Arc::make_mut(&mut self.config).closed = true;
        let queued_keys: Vec<_> = self.queues.keys().copied().collect();
        for key in queued_keys {
            if let Some(entry) = self.entry(key, None, config, wake) {
                entry.close(now);
            }
        }
    }

    /// Replaces the algorithm of all keys by `new`. A key of `new` that has used one unit has the usage `one_unit`.
    pub(super) fn replace(
        &mut self,
        new: &A,
        one_unit: Usage,
        room: &Room,
        config: &StoreConfig,
        now: Nanos,
        wake: &mut Vec<Waker>,
    ) {
        let Self { config: shard, slots, queues, .. } = self;
        for (key, state) in slots.iter_mut() {
            shard.entry(key, None, (state, queues), config, wake).release(now);
            KeyEntry::new(key, new, None, shard.closed, (state, queues), config, wake)
                .replace_state(now, |state| new.migrate(state, &shard.algorithm, now));
        }
        let mut first = shard.new_state(&shard.algorithm, room, now);
        new.migrate(&mut first, &shard.algorithm, now);
        *shard = Arc::new(ShardConfig {
            algorithm: new.clone(),
            one_unit,
            first: Some(first),
            closed: shard.closed,
        });
    }
}

/// The room for new keys.
impl<A: Algorithm> Shard<A> {
    /// Reserves room for a new key. If enough slots are due to be examined or there is no room, examines a few slots
    /// first, and removes fresh keys. If there is still no room, evicts one of the examined keys, if [`OnFull`] allows
    /// evictions. No key in `keep` is removed. Returns `None` if there is no room.
    pub(super) fn make_room<'r>(
        &mut self,
        room: &'r Room,
        keep: &[Fingerprint],
        now: Nanos,
    ) -> Option<Place<'r>> {
        self.due = (self.due + SWEEP_PER_INSERT).min(MAX_LOOKS);
        if self.due < MAX_LOOKS.min(self.slots.slot_count())
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
            room.record_refusal(now);
        }
        place
    }

    /// Examines a few slots. Removes the first fresh key, and other fresh keys if more slots are due. If no key is
    /// fresh, evicts one of the examined keys. Returns the place of the first key that was removed.
    fn evict<'r>(&mut self, room: &'r Room, keep: &[Fingerprint], now: Nanos) -> Option<Place<'r>> {
        let Self { config, slots, queues, .. } = &mut *self;
        let algorithm = &config.algorithm;
        let recent = room.turnover.recent(now);
        let mut sample = LeastUsed::new(config.one_unit);
        for _ in 0..MAX_LOOKS.min(slots.slot_count()) {
            let Some((key, state)) = slots.examine_next() else { continue };
            if keep.contains(&key) || queues.contains_key(&key) {
                continue;
            }
            if algorithm.is_fresh(state, now) && config.may_forget(room, now) {
                slots.remove_examined();
                room.removed_at(now);
                return self.sweep(room, keep, now, Some(Place(&room.len)));
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
        let (key, usage) = sample.choice()?;
        // Another thread may have released a place meanwhile.
        if let Some(place) = room.try_reserve() {
            return Some(place);
        }
        let usage = usage.or_else(|| Some(algorithm.usage(slots.get(key)?, now)));
        slots.remove(key);
        room.removed_at(now);
        room.record_eviction(usage.is_some_and(Usage::is_full), now);
        Some(Place(&room.len))
    }

    /// Examines a few slots, and removes the keys that are fresh.
    pub(super) fn sweep_for_peek(&mut self, room: &Room, now: Nanos) {
        self.due += SWEEP_PER_INSERT;
        let _freed = self.sweep(room, &[], now, None);
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
        let Self { config, slots, queues, due, .. } = self;
        let algorithm = &config.algorithm;
        let retention = room.retention.load(Ordering::Relaxed);
        let idle = |state: &A::State| now.saturating_since(algorithm.last_update(state));
        let most = slots.slot_count().min(MAX_LOOKS);
        let due = mem::take(due).min(most);
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
            let Some((key, state)) = slots.examine_next() else { continue };
            if !full && idle(state) < retention || queues.contains_key(&key) || keep.contains(&key) {
                continue;
            }
            if algorithm.is_fresh(state, now) && config.may_forget(room, now) {
                slots.remove_examined();
                room.removed_at(now);
                // All places but the first are released here.
                freed.get_or_insert(Place(&room.len));
            }
        }
    }
}

impl<A: Algorithm> ShardConfig<A> {
    /// Returns the entry of a key with this state, in a shard with these queues.
    #[inline]
    fn entry<'a>(
        &'a self,
        key: Fingerprint,
        tier: Option<&'a A>,
        state_and_queues: (&'a mut A::State, &'a mut Queues<A>),
        config: &'a StoreConfig,
        wake: &'a mut Vec<Waker>,
    ) -> KeyEntry<'a, A> {
        KeyEntry::new(key, &self.algorithm, tier, self.closed, state_and_queues, config, wake)
    }

    /// Returns the state of a key that is new or was removed. The time of the state is not before the latest reading at
    /// which any key was removed, because a removed key may have observed that reading.
    #[inline]
    fn new_state(&self, algorithm: &A, room: &Room, now: Nanos) -> A::State {
        let now = now.max(Nanos(room.removed_until.load(Ordering::Relaxed)));
        let Some(mut first) = self.first.clone() else {
            return algorithm.new_state(room.created_at, now);
        };
        // This advances the state to `now`.
        let _ = self.algorithm.peek(&mut first, now, 0);
        first
    }

    /// See [`Shard::may_forget`].
    fn may_forget(&self, room: &Room, now: Nanos) -> bool {
        self.algorithm.is_fresh(&self.new_state(&self.algorithm, room, now), now)
    }
}

impl Room {
    /// Creates the room of a table of at most `max_keys` keys, which is created at `created_at`.
    pub(super) fn new<A: Algorithm>(
        max_keys: usize,
        on_full: OnFull,
        algorithm: &A,
        created_at: Nanos,
    ) -> Self {
        let max_keys = max_keys.max(1);
        Self {
            len: AtomicUsize::new(0),
            max_keys,
            evicts: on_full == OnFull::EvictLeastUsed,
            turnover: Turnover::new(max_keys),
            removed_until: AtomicU64::new(0),
            retention: AtomicU64::new(retention(algorithm)),
            created_at,
            evicted: AtomicU64::new(0),
            evicted_at_limit: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
            full: Recurrence::new(),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Records that the algorithm was replaced by `new`.
    pub(super) fn replace<A: Algorithm>(&self, new: &A) {
        self.retention.store(retention(new), Ordering::Relaxed);
    }

    /// Logs a warning if the table was found full, and a warning is due. `limiter` is the name of the limiter. The caller
    /// must hold no lock.
    #[inline]
    pub(super) fn warn_if_full(&self, limiter: Option<&str>) {
        let full_at = self.full_at.load(Ordering::Relaxed);
        if cfg!(feature = "tracing") && full_at > 0 && self.full.is_due_at(full_at) {
            let total = self.evicted.load(Ordering::Relaxed) + self.refused.load(Ordering::Relaxed);
            self.full.table_full(full_at, total, limiter, self.max_keys);
        }
    }

    /// Returns the number of keys, and the number of those that were evicted.
    pub(super) fn stats(&self) -> StoreStats {
        StoreStats {
            keys: self.len() as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            evicted_at_limit: self.evicted_at_limit.load(Ordering::Relaxed),
            ..StoreStats::default()
        }
    }

    #[inline]
    fn has_max_keys(&self) -> bool {
        self.len() >= self.max_keys
    }

    #[inline]
    fn try_reserve(&self) -> Option<Place<'_>> {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        let reserved = self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        // `then_some` would create a place even if no room was reserved, and dropping that place would release room.
        reserved.then(|| Place(&self.len))
    }

    /// Records that a key was removed at `now`, and releases the room of the key.
    #[inline]
    fn record_removal(&self, now: Nanos) {
        self.removed_at(now);
        self.len.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a key was removed at `now`, without releasing its room.
    #[inline]
    fn removed_at(&self, now: Nanos) {
        self.removed_until.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Records that there was no room for a new key.
    fn record_refusal(&self, now: Nanos) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.full_at.store(now.0.saturating_add(1), Ordering::Relaxed);
    }

    #[inline]
    fn record_eviction(&self, at_limit: bool, now: Nanos) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if at_limit {
            self.evicted_at_limit.fetch_add(1, Ordering::Relaxed);
        }
        self.full_at.store(now.0.saturating_add(1), Ordering::Relaxed);
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

/// Returns whether a call can be denied by an earlier denial. This requires that the call has cost 1 and no priority,
/// may not wait, and is decided by the limiter's own algorithm, whose denials must stand.
#[inline]
fn is_plain<A: Algorithm>(call: &Attempt<'_, A>) -> bool {
    A::DENIALS_STAND
        && call.cost() == 1
        && call.algorithm().is_none()
        && !call.may_wait()
        && !call.has_priority()
}

/// Returns the time for which a fresh key must be idle before it is removed while there is room, in nanoseconds: the
/// algorithm's longest window, but at most ten seconds. The result is ten seconds for an algorithm that limits calls in
/// progress.
fn retention<A: Algorithm>(algorithm: &A) -> u64 {
    let mut longest = 0;
    algorithm.for_each_policy(&mut |policy| match policy.is_concurrent() {
        true => longest = MAX_RETENTION,
        false => longest = Nanos::from(policy.window).0.max(longest),
    });
    longest.min(MAX_RETENTION)
}

/// Resets `state` to `fresh`, the state of a new key at `now`, except that calls in progress stay counted.
fn reset<A: Algorithm>(algorithm: &A, state: &mut A::State, fresh: A::State, now: Nanos) {
    let held = algorithm.in_flight(state);
    *state = fresh;
    if held > 0 {
        let fresh = state.clone();
        let _ = algorithm.charge(state, now, held, 0);
        // Only the units of calls in progress stay charged.
        algorithm.restore(state, fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
