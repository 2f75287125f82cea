//! A bounded map that removes fresh keys.
//!
//! When a key is inserted, the two keys that were examined longest ago are examined. An examined key is removed if it
//! is fresh and has been idle for the algorithm's longest window, or for ten seconds if that window is longer. So a
//! busy key that is often fresh is not removed and inserted again at each call. There is no thread and no timer. Work
//! per call is constant, except for the growth of the map, which is amortised: the call that makes a shard grow moves
//! all its keys.
//!
//! When the table is full, more keys are examined, and fresh keys are removed even if they have not been idle. If no
//! key can be removed, [`OnFull`](super::OnFull) defines what happens to the new key.

use std::collections::hash_map::Entry;
use std::mem;
use std::task::Waker;

use super::config::StoreConfig;
use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::on_full::OnFull;
use super::shard::{Queues, Shard, ShardConfig, Shards, lock};
use super::stats::Counters;
use super::sweep::{SweepQueue, retention};
use super::wakers::Wakers;
use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};
use crate::decision::Decision;
use crate::stats::CELLS;
use crate::store::Attempt;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The number of shards, each of which has a cell in the counters.
pub(super) const SHARDS: usize = CELLS;
const SHARED_SHARDS: usize = 16;

/// The keys of a limiter. Locks are taken in this order: the sweep queue, a shard of keys, the shared buckets.
#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    pub(super) keys: Shards<A>,
    pub(super) shared: Shards<A>,
    /// The number of shared buckets in use. Changed while the bucket is locked.
    pub(super) buckets: AtomicUsize,
    /// The shared bucket that is examined next.
    pub(super) next_bucket: AtomicUsize,
    pub(super) sweep_queue: Mutex<SweepQueue>,
    pub(super) len: AtomicUsize,
    pub(super) max_keys: usize,
    /// The latest clock reading at which a key was removed.
    removed_until: AtomicU64,
    /// The time for which a fresh key must be idle before it is removed while there is room, in nanoseconds.
    pub(super) retention: AtomicU64,
    pub(super) clock: AnyClock,
    /// The time at which the limiter was created. A new key counts as idle since then.
    created_at: Nanos,
    pub(super) config: StoreConfig,
    pub(super) counters: Counters,
}

impl<A: Algorithm> Table<A> {
    /// Creates a table of at most `max_keys`.
    pub(super) fn new(max_keys: usize, algorithm: &A, clock: AnyClock, config: StoreConfig) -> Self {
        Self {
            created_at: clock.now(),
            clock,
            config,
            removed_until: AtomicU64::new(0),
            retention: AtomicU64::new(retention(algorithm)),
            keys: Shards::new(SHARDS, algorithm),
            shared: Shards::new(SHARED_SHARDS, algorithm),
            counters: Counters::new(),
            buckets: AtomicUsize::new(0),
            next_bucket: AtomicUsize::new(0),
            sweep_queue: Mutex::default(),
            len: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Locks a known key without a queue while `change` decides a call. This is the fast path for the common case.
    ///
    /// The clock is read before the lock is taken, which is faster. A thread that is delayed in between must not look
    /// like a clock that was set back. So if the key has observed a later reading, the clock is read again under the
    /// lock, where no other call can have a later reading.
    #[inline]
    pub(super) fn with_existing(
        &self,
        key: Fingerprint,
        call: &Attempt<'_, A>,
        change: impl FnOnce(&A, &mut A::State, Nanos) -> Option<Decision>,
    ) -> Option<Decision> {
        let now = self.clock.now();
        let mut shard = self.keys.lock(&key);
        let Shard { shard_config, states, queues, .. } = &mut *shard;
        let (algorithm, state) = (call.algorithm.unwrap_or(&shard_config.algorithm), states.get_mut(&key)?);
        if shard_config.closed || queues.contains_key(&key) {
            return None;
        }
        let late = now < algorithm.last_update(state);
        let now = if late { self.clock.now() } else { now };
        // The result is not taken apart, because that would copy the decision.
        let decision = change(algorithm, state, now);
        if let Some(decision) = &decision {
            self.count(key, call, decision);
        }
        decision
    }

    /// Locks the key while `change` runs. If the key is new, it is created first. The call uses `algorithm`, or the
    /// limiter's algorithm if `algorithm` is `None`. Returns `None` if there is no room for a new key.
    pub(super) fn with_entry<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let Shard { shard_config, states, queues, .. } = &mut *shard;
        match states.get_mut(&key) {
            Some(state) => {
                let now = self.clock.now();
                Some(change(self.entry(key, shard_config, algorithm, state, Some(queues), &mut wake), now))
            }
            None => {
                drop(shard);
                self.with_new_entry(key, algorithm, &mut wake, change)
            }
        }
    }

    /// Like [`with_entry`](Table::with_entry), for changes that affect only a key with charged units. Creates no key,
    /// unless the key may have been charged in a shared bucket.
    pub(super) fn with_used<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        if self.config.on_full == OnFull::ShareBuckets {
            return self.with_entry(key, algorithm, change);
        }
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let Shard { shard_config, states, queues, .. } = &mut *shard;
        let state = states.get_mut(&key)?;
        let now = self.clock.now();
        Some(change(self.entry(key, shard_config, algorithm, state, Some(queues), &mut wake), now))
    }

    #[cold]
    fn with_new_entry<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        self.clean_shared();
        // If the algorithm panics, the place is released.
        let place = self.make_room(&[key]);
        let (result, kept) = {
            let mut shard = self.keys.lock(&key);
            shard.make_slot();
            let Shard { shard_config, states, queues, .. } = &mut *shard;
            let own = algorithm.unwrap_or(&shard_config.algorithm);
            let place = place.filter(|_| !self.must_use_shared(key));
            match (states.entry(key), place) {
                (Entry::Occupied(mut known), _) => {
                    let now = self.clock.now();
                    let state = known.get_mut();
                    (change(self.entry(key, shard_config, algorithm, state, Some(queues), wake), now), false)
                }
                (Entry::Vacant(vacant), Some(place)) => {
                    let now = self.clock.now();
                    let mut state = self.initial_state(key, shard_config, own, now);
                    let entry =
                        self.entry(key, shard_config, algorithm, &mut state, Some(&mut *queues), wake);
                    let result = change(entry, now);
                    let kept = !own.is_fresh(&state, now)
                        || queues.contains_key(&key)
                        || !self.may_forget(shard_config, now);
                    mem::forget(place);
                    if kept {
                        vacant.insert(state);
                    } else {
                        self.record_removal(now);
                    }
                    (result, kept)
                }
                // The shard of the key stays locked, so that the key cannot get its own place in between.
                (Entry::Vacant(_), None) if self.config.on_full == OnFull::ShareBuckets => {
                    (self.with_shared(key, algorithm, wake, change), false)
                }
                // Once the limiter is closed, nothing is charged, so the call needs no room.
                (Entry::Vacant(_), None) if shard_config.closed => {
                    let now = self.clock.now();
                    let mut state = self.new_state(shard_config, own, now);
                    (change(self.entry(key, shard_config, algorithm, &mut state, None, wake), now), false)
                }
                (Entry::Vacant(_), None) => return None,
            }
        };
        if kept {
            self.add(key);
        }
        Some(result)
    }

    /// Locks the key while `look` runs. A new key gets a temporary state, which is not kept, so `look` must not charge
    /// anything.
    pub(super) fn peek_entry<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        look: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> R {
        let mut wake = Wakers::default();
        let mut shard = self.keys.lock(&key);
        let now = self.clock.now();
        let Shard { shard_config, states, queues, .. } = &mut *shard;
        let mut unknown;
        let state = match states.get_mut(&key) {
            Some(known) => known,
            None => {
                unknown =
                    self.initial_state(key, shard_config, algorithm.unwrap_or(&shard_config.algorithm), now);
                &mut unknown
            }
        };
        look(self.entry(key, shard_config, algorithm, state, Some(queues), &mut wake), now)
    }

    /// Returns the entry of a locked key. The call uses `algorithm`, or the limiter's algorithm if `algorithm` is
    /// `None`.
    pub(super) fn entry<'a>(
        &'a self,
        key: Fingerprint,
        shard_config: &'a ShardConfig<A>,
        algorithm: Option<&'a A>,
        state: &'a mut A::State,
        queues: Option<&'a mut Queues<A>>,
        wake: &'a mut Vec<Waker>,
    ) -> KeyEntry<'a, A> {
        let ShardConfig { algorithm: base, closed, .. } = shard_config;
        KeyEntry { key, base, tier: algorithm, config: &self.config, closed: *closed, state, queues, wake }
    }

    /// Records the removal of a key that was fresh at `now`, and so had observed no later reading. Releases the key's
    /// room.
    pub(super) fn record_removal(&self, now: Nanos) {
        self.removed_at(now);
        self.len.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a key was removed at `now`, without releasing its room.
    pub(super) fn removed_at(&self, now: Nanos) {
        self.removed_until.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Returns the state of a key that is new or was removed. The time of the state is not before the latest reading at
    /// which any key was removed, because a removed key may have observed that reading.
    pub(super) fn new_state(&self, shard_config: &ShardConfig<A>, algorithm: &A, now: Nanos) -> A::State {
        let now = now.max(Nanos(self.removed_until.load(Ordering::Relaxed)));
        let Some(mut first) = shard_config.first.clone() else {
            return algorithm.new_state(self.created_at, now);
        };
        // This advances the state to `now`.
        let _ = shard_config.algorithm.peek(&mut first, now, 0);
        first
    }

    /// Returns whether the state of a new key is fresh. While it is not, as with a bucket that starts empty, no key is
    /// removed: a refund may have filled the bucket of that key already, and a new state would have less.
    pub(super) fn may_forget(&self, shard_config: &ShardConfig<A>, now: Nanos) -> bool {
        shard_config.algorithm.is_fresh(&self.new_state(shard_config, &shard_config.algorithm, now), now)
    }

    /// Adds a key that was inserted into the table to the sweep queue. The caller must not hold the lock of a shard.
    pub(super) fn add(&self, key: Fingerprint) {
        self.sweep_queue().push(key);
    }

    pub(super) fn sweep_queue(&self) -> MutexGuard<'_, SweepQueue> {
        lock(&self.sweep_queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<(Fingerprint, <TokenBucket as Algorithm>::State)>(), 32);
        assert_eq!(size_of::<(Fingerprint, <FixedWindow as Algorithm>::State)>(), 32);
        assert_eq!(size_of::<(Fingerprint, <LeakyBucket as Algorithm>::State)>(), 32);
        assert_eq!(size_of::<Fingerprint>(), 8);
    }
}
