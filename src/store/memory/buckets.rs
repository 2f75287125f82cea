//! The buckets that are shared by keys without a place of their own: see [`OnFull::ShareBuckets`](super::OnFull).

use std::task::Waker;

use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::shard::{Shard, ShardConfig};
use super::table::Table;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::sys::lock::atomic::Ordering;

/// The number of shared buckets that are examined for each new key.
const SWEEP_PER_INSERT: usize = 2;

impl<A: Algorithm> Table<A> {
    /// Locks the shared bucket of a key that has no place of its own, and runs `change` on the state of that bucket.
    /// The shard of the key is locked already.
    pub(super) fn with_shared<R>(
        &self,
        key: Fingerprint,
        algorithm: Option<&A>,
        wake: &mut Vec<Waker>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> R {
        self.counters.share();
        let bucket = self.config.bucket(key);
        let mut shared = self.shared.lock(bucket);
        // The clock is read while the bucket is locked, because other keys use the bucket as well.
        let now = self.clock.now();
        self.open_bucket(&mut shared, bucket, algorithm, now);
        let Shard { config, slots, .. } = &mut *shared;
        let Some(state) = slots.get_mut(bucket) else { unreachable!("it was opened") };
        change(self.entry(key, config, algorithm, state, None, wake), now)
    }

    /// Gives a shared bucket a state, unless it has one. `shared` is the locked shard of the bucket.
    pub(super) fn open_bucket(
        &self,
        shared: &mut Shard<A>,
        bucket: Fingerprint,
        algorithm: Option<&A>,
        now: Nanos,
    ) {
        let Shard { config, slots, .. } = shared;
        if !slots.contains(bucket) {
            let mut state = self.new_state(config, algorithm.unwrap_or(&config.algorithm), now);
            config.algorithm.set_shared(&mut state, true);
            slots.insert(bucket, state);
            self.buckets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Examines the next few shared buckets, and drops their states if they are fresh. The caller must not hold the
    /// lock of a shared bucket.
    #[inline]
    pub(super) fn clean_shared(&self) {
        if self.has_shared() {
            self.clean_next_shared();
        }
    }

    /// Returns whether any shared bucket has a state.
    #[inline]
    fn has_shared(&self) -> bool {
        self.buckets.load(Ordering::Relaxed) > 0
    }

    #[cold]
    fn clean_next_shared(&self) {
        let first = self.next_bucket.fetch_add(SWEEP_PER_INSERT, Ordering::Relaxed);
        for number in first..first.saturating_add(SWEEP_PER_INSERT) {
            let number = number as u64 & ((1 << self.config.shared_bits) - 1);
            let bucket = Fingerprint::numbered(number);
            let mut shared = self.shared.lock(bucket);
            let now = self.clock.now();
            let Shard { config, slots, .. } = &mut *shared;
            if slots.get(bucket).is_some_and(|state| config.algorithm.is_fresh(state, now)) {
                slots.remove(bucket);
                self.removed_at(now);
                self.buckets.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the initial state of a new key: a copy of the state of its shared bucket, or a new state if that bucket
    /// has no state.
    #[inline]
    pub(super) fn initial_state(
        &self,
        key: Fingerprint,
        config: &ShardConfig<A>,
        algorithm: &A,
        now: Nanos,
    ) -> A::State {
        // No ordering is needed, because the key's own shard is locked here, and was locked whenever the key used the
        // bucket.
        let shared = if self.has_shared() { self.copy_shared(key, config, now) } else { None };
        shared.unwrap_or_else(|| self.new_state(config, algorithm, now))
    }

    /// Returns a copy of the state of the key's shared bucket, if the bucket has one.
    #[cold]
    fn copy_shared(&self, key: Fingerprint, config: &ShardConfig<A>, now: Nanos) -> Option<A::State> {
        let bucket = self.config.bucket(key);
        let shared = self.shared.lock(bucket);
        let mut state = shared.slots.get(bucket)?.clone();
        shared.config.algorithm.set_shared(&mut state, false);
        if shared.config.generation != config.generation {
            // The algorithm is being replaced, and only one of the two shards has the new algorithm so far.
            config.algorithm.migrate(&mut state, &shared.config.algorithm, now);
        }
        Some(state)
    }

    /// Returns whether a key without a place of its own must use its shared bucket even if there is room. This is so
    /// while calls in progress hold units of the bucket, because some of them may be calls of this key.
    pub(super) fn must_use_shared(&self, key: Fingerprint) -> bool {
        if !A::NEEDS_RELEASE || !self.has_shared() {
            return false;
        }
        let bucket = self.config.bucket(key);
        let shared = self.shared.lock(bucket);
        shared.slots.get(bucket).is_some_and(|state| shared.config.algorithm.in_flight(state) > 0)
    }
}
