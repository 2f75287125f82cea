//! The shards of the key table, each with its own lock.
//!
//! A shard contains everything that is needed to decide a call on one of its keys: the state, the queue, and the
//! algorithm itself. So a decision takes one lock, except for keys that share a bucket. The algorithm is replaced in
//! one shard at a time, while that shard is locked. Several keys can be locked together, in the order of the addresses
//! of their locks.

use std::collections::HashMap;
use std::sync::Arc;

use super::fingerprint::{Fingerprint, IdentityBuildHasher};
use super::latest_denial::LatestDenial;
use super::on_full::one_unit;
use super::slots::Slots;
use crate::algorithm::{Algorithm, Usage};
use crate::queue::Queue;
use crate::sys::lock::{SpinGuard, SpinLock};

/// The queues of the keys that have waiters.
pub(super) type Queues<A> = HashMap<Fingerprint, Queue<A>, IdentityBuildHasher>;

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

/// Returns the number of shards of a table of at most `max_keys` keys.
pub(super) const fn shard_count(max_keys: usize) -> usize {
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

#[derive(Debug)]
pub(super) struct Shard<A: Algorithm> {
    /// All shards share this value until the algorithm is replaced or the limiter is closed.
    pub(super) config: Arc<ShardConfig<A>>,
    pub(super) slots: Slots<A::State>,
    pub(super) queues: Queues<A>,
    /// The number of slots that are due to be examined.
    pub(super) due: usize,
    /// The number of new keys that were not added to the [`Turnover`](super::turnover::Turnover) yet.
    pub(super) new_keys: u64,
}

/// The settings that apply to all keys of a shard.
#[derive(Clone, Debug)]
pub(super) struct ShardConfig<A: Algorithm> {
    pub(super) algorithm: A,
    /// The usage up to which a key is evicted without a comparison with other keys.
    pub(super) one_unit: Usage,
    /// The number of times that the algorithm was replaced.
    pub(super) generation: u64,
    /// The state with which a new key begins. It is a new state of the first algorithm that was converted at each
    /// replacement, as the states of known keys were. `None` until the algorithm is replaced.
    pub(super) first: Option<A::State>,
    pub(super) closed: bool,
}

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
    pub(super) denial: LatestDenial,
}

impl<A: Algorithm> LockedShard<A> {
    /// Locks the shard, and removes its latest denial, because any decision may change.
    #[inline]
    pub(super) fn lock(&self) -> SpinGuard<'_, Shard<A>> {
        let shard = self.shard.lock();
        self.denial.remove();
        shard
    }

    /// Locks the shard, and keeps its latest denial. This is for calls that cannot change that denial.
    #[inline]
    pub(super) fn lock_and_keep_denial(&self) -> SpinGuard<'_, Shard<A>> {
        self.shard.lock()
    }
}

impl<A: Algorithm> Shards<A> {
    pub(super) fn new(count: usize, algorithm: &A) -> Self {
        let config = Arc::new(ShardConfig {
            algorithm: algorithm.clone(),
            one_unit: one_unit(algorithm),
            generation: 0,
            first: None,
            closed: false,
        });
        let shard = |_| {
            let queues = HashMap::with_hasher(IdentityBuildHasher);
            let shard =
                Shard { config: Arc::clone(&config), slots: Slots::new(), queues, due: 0, new_keys: 0 };
            LockedShard { shard: SpinLock::new(shard), denial: LatestDenial::default() }
        };
        Self { shards: (0..count).map(shard).collect() }
    }

    /// Returns the key's shard.
    #[inline]
    pub(super) fn of(&self, key: Fingerprint) -> &LockedShard<A> {
        &self.shards[key.shard(self.shards.len())]
    }

    #[inline]
    pub(super) fn lock(&self, key: Fingerprint) -> SpinGuard<'_, Shard<A>> {
        self.of(key).lock()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SpinGuard<'_, Shard<A>>> {
        self.shards.iter().map(LockedShard::lock)
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
