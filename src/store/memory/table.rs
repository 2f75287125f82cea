//! A bounded map that cleans itself.
//!
//! Each new key pays for a little cleaning: the two keys looked at longest ago are looked at again, and forgotten if they
//! are as good as new and nobody has asked for them for a while (a window of the quota, at most ten seconds: a busy key that never uses much is not
//! made anew at each call). No thread, no timer, no pause; work per call is constant.
//!
//! When the table is full, more are looked at, and those go that are as good as new, asked for or not. If none can go, the newcomer shares a
//! bucket with others like it: one of 256, picked by its fingerprint. So nobody who has used anything is pushed out, a flood of
//! keys is limited as a whole, and memory stays what it was. A key that later gets a place of its own starts where its
//! shared bucket stands, so moving out is no way to a second budget.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dashmap::{DashMap, Entry};

use super::Own;
use super::fingerprint::{Direct, Fingerprint};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;

/// The longest that a key rests: ten seconds.
const LONGEST_REST: u64 = 10_000_000_000;
/// Keys looked at for each new one.
const LOOKS: usize = 2;
/// Keys looked at when there is no place.
const LOOKS_WHEN_FULL: usize = 8;
/// The shared buckets, as a power of two.
const SHARED_BITS: u32 = 8;
const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    keys: DashMap<Fingerprint, A::State, Direct>,
    shared: DashMap<Fingerprint, A::State, Direct>,
    /// Whether `shared` was ever used.
    crowded: AtomicBool,
    /// Locked before a key, never after.
    round: Mutex<Round>,
    len: AtomicUsize,
    max_keys: usize,
    /// The latest reading at which a key was forgotten.
    horizon: AtomicU64,
    /// For how long nobody has asked for a key that is forgotten though there is room, in nanoseconds.
    rest: u64,
}

/// The keys in the order in which they are looked at.
#[derive(Debug, Default)]
struct Round {
    /// Each key once, the one looked at longest ago first; and those that are gone.
    order: VecDeque<Fingerprint>,
    /// Those of the order that were reset, and are no more.
    gone: HashSet<Fingerprint, Direct>,
}

/// One key, held exclusively.
pub(super) struct Seat<'a, S> {
    pub(super) state: &'a mut S,
    /// Whether the key has the state for itself. In a shared bucket nobody waits.
    pub(super) own: bool,
}

impl<A: Algorithm> Table<A> {
    /// A table of at most `max_keys`; those that are as good as new rest for `rest` nanoseconds, at most [`LONGEST_REST`], before they are forgotten.
    pub(super) fn new(max_keys: usize, rest: u64) -> Self {
        Self {
            horizon: AtomicU64::new(0),
            rest: rest.min(LONGEST_REST),
            keys: DashMap::with_hasher_and_shard_amount(Direct, SHARDS),
            shared: DashMap::with_hasher_and_shard_amount(Direct, 2),
            crowded: AtomicBool::new(false),
            round: Mutex::default(),
            len: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Holds the key while `change` runs, making it first if need be.
    ///
    /// The clock is read before, while the processor has nothing else to wait for. A thread that was held up since must not look like a clock
    /// that was set back: where the key knows of a later reading, the clock is read again, now that nobody else can have a later one.
    #[inline]
    pub(super) fn with<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        change: impl FnOnce(Seat<'_, A::State>, Nanos) -> R,
    ) -> R {
        let now = context.clock().now();
        if let Some(mut known) = self.keys.get_mut(&key) {
            let state = known.value_mut();
            let late = now < context.algorithm().seen(state);
            let now = if late { context.clock().now() } else { now };
            return change(Seat { state, own: true }, now);
        }
        self.with_new(context, key, change)
    }

    #[cold]
    fn with_new<R>(
        &self,
        context: &Own<A>,
        key: Fingerprint,
        change: impl FnOnce(Seat<'_, A::State>, Nanos) -> R,
    ) -> R {
        self.clean(context);
        let (result, kept) = match self.keys.entry(key) {
            Entry::Occupied(mut known) => {
                let now = context.clock().now();
                (change(Seat { state: known.get_mut(), own: true }, now), false)
            }
            Entry::Vacant(place) if self.reserve() => {
                let now = context.clock().now();
                let mut state = self.unknown(context, key, now);
                let result = change(Seat { state: &mut state, own: true }, now);
                let kept = !context.algorithm().is_fresh(&state, now);
                if kept {
                    place.insert(state);
                } else {
                    self.forget(now);
                }
                (result, kept)
            }
            // The vacant place stays locked meanwhile, so that the key does not get one of its own in between.
            Entry::Vacant(_place) => {
                self.crowded.store(true, Ordering::Relaxed);
                let fresh = || self.fresh(context, context.clock().now());
                let mut shared = self.shared.entry(key.coarse(SHARED_BITS)).or_insert_with(fresh);
                // Read while the bucket is held, too: other keys draw on it.
                let now = context.clock().now();
                (change(Seat { state: shared.value_mut(), own: false }, now), false)
            }
        };
        if kept {
            self.round().add(key);
        }
        result
    }

    /// A copy of the key's state, or what it would be; and the time. Makes no key.
    pub(super) fn look(&self, context: &Own<A>, key: Fingerprint) -> (A::State, Nanos) {
        let known = self.keys.get(&key);
        let now = context.clock().now();
        (known.map_or_else(|| self.unknown(context, key, now), |known| known.clone()), now)
    }

    /// Makes the key as good as new.
    pub(super) fn reset(&self, context: &Own<A>, key: Fingerprint, waits: bool) {
        let mut round = self.round();
        let Entry::Occupied(mut known) = self.keys.entry(key) else { return };
        let now = context.clock().now();
        if waits || self.crowded.load(Ordering::Relaxed) {
            // It keeps its place: for those who wait, or since a key that comes to a crowded table starts with what others have used.
            *known.get_mut() = self.fresh(context, now);
            return;
        }
        known.remove();
        round.gone.insert(key);
        self.forget(now);
    }

    fn reserve(&self) -> bool {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// A key is gone that was as good as new at `now`; it knew of no later reading, else it would not have been.
    fn forget(&self, now: Nanos) {
        self.horizon.fetch_max(now.0, Ordering::Relaxed);
        self.len.fetch_sub(1, Ordering::Relaxed);
    }

    /// The state of a key never seen, or forgotten: it may have seen the latest reading at which one was forgotten.
    fn fresh(&self, context: &Own<A>, now: Nanos) -> A::State {
        context.fresh(now.max(Nanos(self.horizon.load(Ordering::Relaxed))))
    }

    /// Where a key starts that has no place: where its shared bucket stands, if it has one.
    fn unknown(&self, context: &Own<A>, key: Fingerprint, now: Nanos) -> A::State {
        // No ordering is needed: the key's own shard is locked here and was locked when the flag was set.
        let shared = self.crowded.load(Ordering::Relaxed).then(|| self.shared.get(&key.coarse(SHARED_BITS)));
        match shared.flatten() {
            Some(shared) => shared.clone(),
            None => self.fresh(context, now),
        }
    }

    /// Looks at a few keys, and forgets those that are as good as new.
    fn clean(&self, context: &Own<A>) {
        let mut round = self.round();
        for look in 0..LOOKS_WHEN_FULL {
            let full = self.len() >= self.max_keys;
            if look >= LOOKS && !full {
                return;
            }
            let Some(key) = round.order.pop_front() else { return };
            if round.gone.remove(&key) {
                continue;
            }
            if let Entry::Occupied(known) = self.keys.entry(key) {
                let now = context.clock().now();
                let unasked = now.since(context.algorithm().seen(known.get())) >= self.rest;
                let idle = (unasked || full) && context.algorithm().is_fresh(known.get(), now);
                if idle && !context.store().has_line(&key) {
                    known.remove();
                    self.forget(now);
                } else {
                    round.order.push_back(key);
                }
            }
        }
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round {
    /// A key has come into the table.
    fn add(&mut self, key: Fingerprint) {
        if !self.gone.remove(&key) {
            self.order.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<(Fingerprint, <TokenBucket as Algorithm>::State)>(), 40);
        assert_eq!(size_of::<(Fingerprint, <FixedWindow as Algorithm>::State)>(), 40);
        assert_eq!(size_of::<(Fingerprint, <LeakyBucket as Algorithm>::State)>(), 40);
        assert_eq!(size_of::<Fingerprint>(), 16);
    }
}
