//! The buckets that are shared by keys without a place of their own: see [`OnFull::ShareBuckets`](super::OnFull).

use std::task::Waker;

use super::entry::KeyEntry;
use super::fingerprint::Fingerprint;
use super::options::StoreConfig;
use super::shard::{LockedShard, Room, Shard, Shards};
use crate::algorithm::Algorithm;
use crate::clock::{AnyClock, Nanos};
use crate::sys::lock::SpinGuard;
use crate::sys::lock::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// The number of shared buckets that are examined for each new key.
const SWEEP_PER_INSERT: usize = 2;

/// The shared buckets of a table.
#[derive(Debug)]
pub(super) struct SharedBuckets<A: Algorithm> {
    shards: Shards<A>,
    /// The number of shared buckets that have a state. It changes only while the bucket in question is locked.
    open: AtomicUsize,
    /// The lowest bits of this counter are the index of the shared bucket that is examined next.
    next: AtomicUsize,
    /// The number of calls whose keys shared a bucket.
    calls: AtomicU64,
}

impl<A: Algorithm> SharedBuckets<A> {
    pub(super) fn new(algorithm: &A) -> Self {
        Self {
            shards: Shards::new(SHARDS, algorithm),
            open: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// Returns the shard of a bucket.
    pub(super) fn of(&self, bucket: Fingerprint) -> &LockedShard<A> {
        self.shards.of(bucket)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SpinGuard<'_, Shard<A>>> {
        self.shards.iter()
    }

    /// Counts a call whose key shares a bucket.
    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls whose keys shared a bucket.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Locks the shared bucket of a key that has no place of its own, and runs `change` on the state of that bucket.
    /// The shard of the key is locked already.
    pub(super) fn with<R>(
        &self,
        key: Fingerprint,
        tier: Option<&A>,
        (room, config, clock): (&Room, &StoreConfig, &AnyClock),
        wake: &mut Vec<Waker>,
        change: impl FnOnce(KeyEntry<'_, A>, Nanos) -> R,
    ) -> R {
        self.count_call();
        let bucket = config.bucket(key);
        let mut shared = self.shards.lock(bucket);
        // The clock is read while the bucket is locked, because other keys use the bucket as well.
        let now = clock.now();
        self.open(&mut shared, bucket, tier, room, now);
        let Some(entry) = shared.bucket_entry(bucket, key, tier, config, wake) else {
            unreachable!("it was opened")
        };
        change(entry, now)
    }

    /// Gives a shared bucket a state, unless it has one. `shared` is the locked shard of the bucket.
    pub(super) fn open(
        &self,
        shared: &mut Shard<A>,
        bucket: Fingerprint,
        tier: Option<&A>,
        room: &Room,
        now: Nanos,
    ) {
        if shared.open_bucket(bucket, tier, room, now) {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Examines the next few shared buckets, and drops their states if they are fresh. The caller must not hold the
    /// lock of a shared bucket.
    #[inline]
    pub(super) fn clean(&self, room: &Room, config: &StoreConfig, clock: &AnyClock) {
        if self.has_open() {
            self.clean_next(room, config, clock);
        }
    }

    /// Returns whether any shared bucket has a state.
    #[inline]
    pub(super) fn has_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    #[cold]
    fn clean_next(&self, room: &Room, config: &StoreConfig, clock: &AnyClock) {
        let first = self.next.fetch_add(SWEEP_PER_INSERT, Ordering::Relaxed);
        for number in first..first.saturating_add(SWEEP_PER_INSERT) {
            let bucket = config.numbered_bucket(number);
            let mut shared = self.shards.lock(bucket);
            let now = clock.now();
            if shared.drop_fresh_bucket(bucket, room, now) {
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns a copy of the state of the key's shared bucket, for the key's locked shard `own`. Returns `None` if the
    /// bucket has no state.
    #[inline]
    pub(super) fn copy_for(
        &self,
        key: Fingerprint,
        own: &Shard<A>,
        config: &StoreConfig,
        now: Nanos,
    ) -> Option<A::State> {
        // No ordering is needed, because the key's own shard is locked here, and was locked whenever the key used the
        // bucket.
        if self.has_open() { self.copy_of(config.bucket(key), own, now) } else { None }
    }

    #[cold]
    fn copy_of(&self, bucket: Fingerprint, own: &Shard<A>, now: Nanos) -> Option<A::State> {
        self.shards.lock(bucket).copy_of_bucket(bucket, own, now)
    }

    /// Returns whether a key without a place of its own must use its shared bucket even if there is room. This is so
    /// while calls in progress hold units of the bucket, because some of them may be calls of this key.
    pub(super) fn must_be_used(&self, key: Fingerprint, config: &StoreConfig) -> bool {
        if !A::NEEDS_RELEASE || !self.has_open() {
            return false;
        }
        let bucket = config.bucket(key);
        self.shards.lock(bucket).is_bucket_held(bucket)
    }
}
