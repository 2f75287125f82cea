//! A bounded map that cleans itself.
//!
//! Each new key pays for a little cleaning: the two keys looked at longest ago are looked at again, and forgotten if they
//! are as good as new. No thread, no timer, no pause; work per call is constant.
//!
//! When the table is full of keys that are *not* as good as new, more are looked at; if none can go, the newcomer shares a
//! bucket with others like it: one of 256, picked by its fingerprint. So nobody who has used anything is pushed out, a flood of
//! keys is limited as a whole, and memory stays what it was. A key that later gets a place of its own starts where its
//! shared bucket stands, so moving out is no way to a second budget.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dashmap::{DashMap, Entry};

use super::fingerprint::{Direct, Fingerprint};
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::store::context::Context;

/// Keys looked at for each new one.
const LOOKS: usize = 2;
/// Keys looked at when there is no place.
const LOOKS_WHEN_FULL: usize = 8;
/// The shared buckets, as a power of two.
const SHARED_BITS: u32 = 8;
const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    keys: DashMap<Fingerprint, Key<A::State>, Direct>,
    shared: DashMap<Fingerprint, A::State, Direct>,
    /// Whether `shared` was ever used.
    crowded: AtomicBool,
    /// Every key, the one looked at longest ago first; and some that are gone.
    round: Mutex<VecDeque<(Fingerprint, u32)>>,
    marks: AtomicU32,
    len: AtomicUsize,
    max_keys: usize,
}

#[derive(Debug)]
struct Key<S> {
    state: S,
    /// Tells this key from an earlier one of the same name in the round.
    mark: u32,
    /// How many calls the key's line has to do with. Such a key is not forgotten.
    waiting: u32,
}

/// One key, held exclusively.
pub(super) struct Seat<'a, S> {
    pub(super) state: &'a mut S,
    /// How many calls its line has to do with; `None` in a shared bucket, where nobody waits.
    pub(super) waiting: Option<&'a mut u32>,
}

impl<S> Seat<'_, S> {
    #[inline]
    pub(super) fn in_line(&self) -> bool {
        matches!(self.waiting, Some(1..))
    }
}

impl<A: Algorithm> Table<A> {
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            keys: DashMap::with_hasher_and_shard_amount(Direct, SHARDS),
            shared: DashMap::with_hasher_and_shard_amount(Direct, 2),
            crowded: AtomicBool::new(false),
            round: Mutex::default(),
            marks: AtomicU32::new(0),
            len: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Holds the key while `change` runs, making it first if need be.
    #[inline]
    pub(super) fn with<R>(
        &self,
        context: &Context<A, super::MemoryStore<A>>,
        key: Fingerprint,
        now: Nanos,
        change: impl FnOnce(Seat<'_, A::State>) -> R,
    ) -> R {
        if let Some(mut known) = self.keys.get_mut(&key) {
            let known = known.value_mut();
            return change(Seat { state: &mut known.state, waiting: Some(&mut known.waiting) });
        }
        self.with_new(context, key, now, change)
    }

    #[cold]
    fn with_new<R>(
        &self,
        context: &Context<A, super::MemoryStore<A>>,
        key: Fingerprint,
        now: Nanos,
        change: impl FnOnce(Seat<'_, A::State>) -> R,
    ) -> R {
        self.clean(context.algorithm(), now);
        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
        let (result, kept) = match self.keys.entry(key) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                (change(Seat { state: &mut known.state, waiting: Some(&mut known.waiting) }), false)
            }
            Entry::Vacant(place) if self.reserve() => {
                let mut state = self.inherited(key).unwrap_or_else(|| context.fresh(now));
                let mut waiting = 0;
                let result = change(Seat { state: &mut state, waiting: Some(&mut waiting) });
                let kept = waiting > 0 || !context.algorithm().is_fresh(&state, now);
                if kept {
                    place.insert(Key { state, mark, waiting });
                } else {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                }
                (result, kept)
            }
            // The vacant place stays locked meanwhile, so that the key does not get one of its own in between.
            Entry::Vacant(_place) => {
                self.crowded.store(true, Ordering::Relaxed);
                let mut shared =
                    self.shared.entry(key.coarse(SHARED_BITS)).or_insert_with(|| context.fresh(now));
                (change(Seat { state: shared.value_mut(), waiting: None }), false)
            }
        };
        if kept {
            self.round().push_back((key, mark));
        }
        result
    }

    /// A copy of the key's state, or what it would be. Makes no key.
    pub(super) fn look(
        &self,
        context: &Context<A, super::MemoryStore<A>>,
        key: Fingerprint,
        now: Nanos,
    ) -> A::State {
        match self.keys.get(&key) {
            Some(known) => known.state.clone(),
            None => self.inherited(key).unwrap_or_else(|| context.fresh(now)),
        }
    }

    /// Makes the key as good as new; whether anyone waits in its line.
    pub(super) fn reset(&self, key: Fingerprint, fresh: impl FnOnce() -> A::State) -> bool {
        let Entry::Occupied(mut known) = self.keys.entry(key) else { return false };
        if known.get().waiting > 0 {
            known.get_mut().state = fresh();
            return true;
        }
        known.remove();
        self.len.fetch_sub(1, Ordering::Relaxed);
        false
    }

    fn reserve(&self) -> bool {
        let room = |len| (len < self.max_keys).then_some(len + 1);
        self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// Where a key starts whose bucket is shared.
    fn inherited(&self, key: Fingerprint) -> Option<A::State> {
        // No ordering is needed: the key's own shard is locked here and was locked when the flag was set.
        if !self.crowded.load(Ordering::Relaxed) {
            return None;
        }
        self.shared.get(&key.coarse(SHARED_BITS)).map(|shared| shared.clone())
    }

    /// Looks at a few keys, and forgets those that are as good as new.
    fn clean(&self, algorithm: &A, now: Nanos) {
        for look in 0..LOOKS_WHEN_FULL {
            if look >= LOOKS && self.len() < self.max_keys {
                return;
            }
            let Some((key, mark)) = self.round().pop_front() else { return };
            if let Entry::Occupied(known) = self.keys.entry(key)
                && known.get().mark == mark
            {
                if known.get().waiting == 0 && algorithm.is_fresh(&known.get().state, now) {
                    known.remove();
                    self.len.fetch_sub(1, Ordering::Relaxed);
                } else {
                    drop(known);
                    self.round().push_back((key, mark));
                }
            }
        }
    }

    fn round(&self) -> MutexGuard<'_, VecDeque<(Fingerprint, u32)>> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<(Fingerprint, Key<<TokenBucket as Algorithm>::State>)>(), 48);
        assert_eq!(size_of::<(Fingerprint, Key<<FixedWindow as Algorithm>::State>)>(), 48);
        assert_eq!(size_of::<(Fingerprint, Key<<LeakyBucket as Algorithm>::State>)>(), 48);
        assert_eq!(size_of::<(Fingerprint, u32)>(), 24);
    }
}
