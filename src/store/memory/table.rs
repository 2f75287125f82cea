//! A bounded map that removes fresh keys.
//!
//! For each new key, a few slots of its shard are examined, so that all slots are examined in turn. While there is
//! room, the slots for several new keys are examined together. A key is removed if it is fresh and has been idle for
//! the algorithm's longest window, or for ten seconds if that window is longer. So a busy key that is often fresh is
//! not removed and inserted again at each call. There is no thread and no timer. The work of a call is bounded, except
//! for a call that makes a shard grow. Such a call moves all keys of the shard: usually fewer than a thousand, if
//! `max_keys` is at most 1.5 million.
//!
//! When the table is full, more keys are examined, and fresh keys are removed even if they have not been idle. If none
//! of the examined keys is fresh, [`OnFull`](super::OnFull) defines what happens to the new key.

use std::mem;
use std::task::Waker;

use super::config::StoreConfig;
use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::on_full::OnFull;
use super::room::retention;
use super::shard::{Queues, Shard, ShardConfig, Shards, shard_count};
use super::stats::Counters;
use super::turnover::Turnover;
use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};
use crate::store::Attempt;
use crate::sys::lock::SpinGuard;
use crate::sys::lock::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sys::wakers::Wakers;

const SHARED_SHARDS: usize = 16;

/// The keys of a limiter. Locks are taken in this order: first the shards of keys, then the shards of shared buckets.
#[derive(Debug)]
pub(super) struct Table<A: Algorithm> {
    pub(super) keys: Shards<A>,
    pub(super) shared: Shards<A>,
    /// The number of shared buckets that have a state. It changes only while the bucket in question is locked.
    pub(super) buckets: AtomicUsize,
    /// The lowest bits of this counter are the index of the shared bucket that is examined next.
    pub(super) next_bucket: AtomicUsize,
    pub(super) len: AtomicUsize,
    pub(super) max_keys: usize,
    pub(super) turnover: Turnover,
    /// The latest clock reading at which a key was removed.
    removed_until: AtomicU64,
    /// The time for which an idle fresh key is kept while there is room, in nanoseconds.
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
        let shards = shard_count(max_keys);
        Self {
            created_at: clock.now(),
            clock,
            config,
            removed_until: AtomicU64::new(0),
            retention: AtomicU64::new(retention(algorithm)),
            keys: Shards::new(shards, algorithm),
            shared: Shards::new(SHARED_SHARDS, algorithm),
            counters: Counters::default(),
            buckets: AtomicUsize::new(0),
            next_bucket: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
            turnover: Turnover::new(max_keys.max(1)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns the algorithm of a call, the state of its key, and the clock reading for the decision. Returns `None` if
    /// the key is not in the locked shard, if the key has a queue, or if the limiter is closed. This is the fast path
    /// for the common case. `now` is a clock reading from before the shard was locked.
    ///
    /// If another call of the key has made a later reading, `now` would look like a clock that was set back. So the
    /// clock is then read again. While the shard is locked, no other call of the key can have a later reading.
    #[inline(always)]
    pub(super) fn existing<'a>(
        &self,
        shard: &'a mut Shard<A>,
        key: Fingerprint,
        call: &Attempt<'a, A>,
        now: Nanos,
    ) -> Option<(&'a A, &'a mut A::State, Nanos)> {
        let Shard { config, slots, queues, .. } = shard;
        let (algorithm, state) = (call.algorithm.unwrap_or(&config.algorithm), slots.get_mut(key)?);
        if config.closed || queues.contains_key(&key) {
            return None;
        }
        let now = if now < algorithm.last_update(state) { self.clock.now() } else { now };
        Some((algorithm, state, now))
    }

    /// Locks the key while `change` runs. A new key gets a state first. The call uses `algorithm`, or the limiter's
    /// algorithm if `algorithm` is `None`. Returns `None` if a new key cannot get a state, because the table is full.
    pub(super) fn with_entry<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        self.with_locked_entry(self.keys.lock(key), key, algorithm, None, change)
    }

    /// Like [`with_entry`](Table::with_entry), but takes the locked shard of the key. `now` is a clock reading that was
    /// made before the shard was locked, or `None`. `now` is used only if the key is new, because a new key has
    /// observed no later reading.
    #[inline]
    pub(super) fn with_locked_entry<R>(
        &self,
        shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        algorithm: Option<&A>,
        now: Option<Nanos>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        let mut wake = Wakers::default();
        // This variable is dropped before `wake`. So the lock is released before the wakers are woken.
        let mut shard = shard;
        let Shard { config, slots, queues, .. } = &mut *shard;
        match slots.get_mut(key) {
            Some(state) => {
                let now = self.clock.now();
                Some(change(self.entry(key, config, algorithm, state, Some(queues), &mut wake), now))
            }
            None => {
                let now = now.unwrap_or_else(|| self.clock.now());
                let result = self.with_new_entry(shard, key, algorithm, now, &mut wake, change);
                self.counters.warn_if_full(self.max_keys);
                result
            }
        }
    }

    /// Like [`with_entry`](Table::with_entry), for changes that affect only a key with charged units. If the table has
    /// no shared buckets and the key is not in the table, returns `None` and does not run `change`. With
    /// [`OnFull::ShareBuckets`], such a key may have been charged in its shared bucket, so this method then does the
    /// same as `with_entry`.
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
        let mut shard = self.keys.lock(key);
        let Shard { config, slots, queues, .. } = &mut *shard;
        let state = slots.get_mut(key)?;
        let now = self.clock.now();
        Some(change(self.entry(key, config, algorithm, state, Some(queues), &mut wake), now))
    }

    #[inline]
    fn with_new_entry<R>(
        &self,
        mut shard: SpinGuard<'_, Shard<A>>,
        key: Fingerprint,
        algorithm: Option<&A>,
        now: Nanos,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> Option<R> {
        self.clean_shared();
        // If the algorithm panics, the place is released.
        let place = self.make_room(&mut shard, &[], now).filter(|_| !self.must_use_shared(key));
        let Shard { config, slots, queues, new_keys, .. } = &mut *shard;
        let own = algorithm.unwrap_or(&config.algorithm);
        match place {
            Some(place) => {
                let mut state = self.initial_state(key, config, own, now);
                let result = change(self.entry(key, config, algorithm, &mut state, Some(queues), wake), now);
                let kept =
                    !own.is_fresh(&state, now) || queues.contains_key(&key) || !self.may_forget(config, now);
                if kept {
                    slots.insert(key, state);
                    self.turnover.count(new_keys, now);
                    mem::forget(place);
                } else {
                    self.removed_at(now);
                }
                Some(result)
            }
            // The shard of the key stays locked, so that the key cannot get its own place while its bucket is changed.
            None if self.config.on_full == OnFull::ShareBuckets => {
                Some(self.with_shared(key, algorithm, wake, change))
            }
            // Once the limiter is closed, nothing is charged, so the call needs no room.
            None if config.closed => {
                let mut state = self.new_state(config, own, now);
                Some(change(self.entry(key, config, algorithm, &mut state, None, wake), now))
            }
            None => None,
        }
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
        let mut shard = self.keys.lock(key);
        let now = self.clock.now();
        let Shard { config, slots, queues, .. } = &mut *shard;
        let mut unknown;
        let state = match slots.get_mut(key) {
            Some(known) => known,
            None => {
                unknown = self.initial_state(key, config, algorithm.unwrap_or(&config.algorithm), now);
                &mut unknown
            }
        };
        look(self.entry(key, config, algorithm, state, Some(queues), &mut wake), now)
    }

    /// Returns the entry of a locked key. The call uses `algorithm`, or the limiter's algorithm if `algorithm` is
    /// `None`.
    pub(super) fn entry<'a>(
        &'a self,
        key: Fingerprint,
        config: &'a ShardConfig<A>,
        algorithm: Option<&'a A>,
        state: &'a mut A::State,
        queues: Option<&'a mut Queues<A>>,
        wake: &'a mut Vec<Waker>,
    ) -> KeyEntry<'a, A> {
        let ShardConfig { algorithm: base, closed, .. } = config;
        KeyEntry { key, base, tier: algorithm, config: &self.config, closed: *closed, state, queues, wake }
    }

    /// Records that a key was removed at `now`, and releases the room of the key.
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
    #[inline]
    pub(super) fn new_state(&self, config: &ShardConfig<A>, algorithm: &A, now: Nanos) -> A::State {
        let now = now.max(Nanos(self.removed_until.load(Ordering::Relaxed)));
        let Some(mut first) = config.first.clone() else {
            return algorithm.new_state(self.created_at, now);
        };
        // This advances the state to `now`.
        let _ = config.algorithm.peek(&mut first, now, 0);
        first
    }

    /// Returns whether the state of a new key is fresh. The new state of a bucket that starts empty is not fresh. In
    /// that case no key is removed, because a removed key would later get a new state with fewer units.
    pub(super) fn may_forget(&self, config: &ShardConfig<A>, now: Nanos) -> bool {
        config.algorithm.is_fresh(&self.new_state(config, &config.algorithm, now), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, TokenBucket};

    #[test]
    fn a_key_costs_what_the_documentation_says() {
        assert_eq!(size_of::<Option<(Fingerprint, <TokenBucket as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <FixedWindow as Algorithm>::State)>>(), 32);
        assert_eq!(size_of::<Option<(Fingerprint, <LeakyBucket as Algorithm>::State)>>(), 32);
    }
}
