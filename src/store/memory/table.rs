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

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
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
    keys: DashMap<Fingerprint, Key<A::State>, Direct>,
    shared: DashMap<Fingerprint, A::State, Direct>,
    /// Whether `shared` was ever used.
    crowded: AtomicBool,
    /// Every key, the one looked at longest ago first; and some that are gone.
    round: Mutex<VecDeque<(Fingerprint, u16)>>,
    marks: AtomicU16,
    len: AtomicUsize,
    max_keys: usize,
    /// The latest reading at which a key was forgotten.
    horizon: AtomicU64,
    /// A tick of the coarse time is `2^tick` nanoseconds.
    tick: u32,
    /// For how many ticks nobody has asked for a key that is forgotten though there is room.
    rest: u16,
}

#[derive(Debug)]
struct Key<S> {
    state: S,
    /// Tells this key from an earlier one of the same name in the round.
    mark: u16,
    /// When it was last asked for, in ticks.
    asked: u16,
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

impl<S> Key<S> {
    #[inline]
    fn seat(&mut self, asked: u16) -> Seat<'_, S> {
        self.asked = asked;
        Seat { state: &mut self.state, waiting: Some(&mut self.waiting) }
    }
}

impl<A: Algorithm> Table<A> {
    /// A table of at most `max_keys`; those that are as good as new rest for `rest` nanoseconds, at most [`LONGEST_REST`], before they are forgotten.
    pub(super) fn new(max_keys: usize, rest: u64) -> Self {
        let rest = rest.clamp(16, LONGEST_REST);
        let tick = rest.ilog2() - 4;
        Self {
            horizon: AtomicU64::new(0),
            tick,
            rest: (rest >> tick) as u16,
            keys: DashMap::with_hasher_and_shard_amount(Direct, SHARDS),
            shared: DashMap::with_hasher_and_shard_amount(Direct, 2),
            crowded: AtomicBool::new(false),
            round: Mutex::default(),
            marks: AtomicU16::new(0),
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
            let known = known.value_mut();
            let late = now < context.algorithm().seen(&known.state);
            let now = if late { context.clock().now() } else { now };
            return change(known.seat(self.ticks(now)), now);
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
        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
        let (result, kept) = match self.keys.entry(key) {
            Entry::Occupied(mut known) => {
                let now = context.clock().now();
                (change(known.get_mut().seat(self.ticks(now)), now), false)
            }
            Entry::Vacant(place) if self.reserve() => {
                let now = context.clock().now();
                let mut key =
                    Key { state: self.unknown(context, key, now), mark, asked: self.ticks(now), waiting: 0 };
                let result = change(key.seat(key.asked), now);
                let kept = key.waiting > 0 || !context.algorithm().is_fresh(&key.state, now);
                if kept {
                    place.insert(key);
                } else {
                    self.forget(now);
                }
                (result, kept)
            }
            // The vacant place stays locked meanwhile, so that the key does not get one of its own in between.
            Entry::Vacant(_place) => {
                let now = context.clock().now();
                self.crowded.store(true, Ordering::Relaxed);
                let mut shared =
                    self.shared.entry(key.coarse(SHARED_BITS)).or_insert_with(|| self.fresh(context, now));
                (change(Seat { state: shared.value_mut(), waiting: None }, now), false)
            }
        };
        if kept {
            self.round().push_back((key, mark));
        }
        result
    }

    /// A copy of the key's state, or what it would be; and the time. Makes no key.
    pub(super) fn look(&self, context: &Own<A>, key: Fingerprint) -> (A::State, Nanos) {
        let known = self.keys.get(&key);
        let now = context.clock().now();
        (known.map_or_else(|| self.unknown(context, key, now), |known| known.state.clone()), now)
    }

    /// Makes the key as good as new; whether anyone waits in its line.
    pub(super) fn reset(&self, context: &Own<A>, key: Fingerprint) -> bool {
        let Entry::Occupied(mut known) = self.keys.entry(key) else { return false };
        let now = context.clock().now();
        if known.get().waiting == 0 && !self.crowded.load(Ordering::Relaxed) {
            known.remove();
            self.forget(now);
            return false;
        }
        // It keeps its place: for those who wait, or since a key that comes to a crowded table starts with what others have used.
        known.get_mut().state = self.fresh(context, now);
        known.get().waiting > 0
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
        for look in 0..LOOKS_WHEN_FULL {
            let full = self.len() >= self.max_keys;
            if look >= LOOKS && !full {
                return;
            }
            let Some((key, mark)) = self.round().pop_front() else { return };
            if let Entry::Occupied(known) = self.keys.entry(key)
                && known.get().mark == mark
            {
                let now = context.clock().now();
                let key = known.get();
                let unasked = self.ticks(now).wrapping_sub(key.asked) >= self.rest;
                if key.waiting == 0 && (unasked || full) && context.algorithm().is_fresh(&key.state, now) {
                    known.remove();
                    self.forget(now);
                } else {
                    let name = *known.key();
                    drop(known);
                    self.round().push_back((name, mark));
                }
            }
        }
    }

    /// A coarse time, in which a rest is 16 to 31 ticks. Wraps; then a key is looked at once more.
    #[inline]
    fn ticks(&self, now: Nanos) -> u16 {
        (now.0 >> self.tick) as u16
    }

    fn round(&self) -> MutexGuard<'_, VecDeque<(Fingerprint, u16)>> {
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
        assert_eq!(size_of::<(Fingerprint, u16)>(), 24);
    }
}
