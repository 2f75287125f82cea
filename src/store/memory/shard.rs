//! A map in parts, each under a lock of its own.
//!
//! A part has everything that is needed to decide a call on one of its keys: the state, the queue, and the algorithm
//! itself. So a decision takes one lock. An algorithm is replaced one part at a time, never during a decision. Several
//! keys can be locked together, in the order of the addresses of their locks.

use std::collections::HashMap;

use super::fingerprint::{Fingerprint, IdentityBuildHasher};
use crate::algorithm::Algorithm;
use crate::queue::Queue;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The queues of the keys that have waiters.
pub(super) type Queues<A> = HashMap<Fingerprint, Queue<A>, IdentityBuildHasher>;

#[derive(Debug)]
pub(super) struct Shard<A: Algorithm> {
    pub(super) shard_config: ShardConfig<A>,
    pub(super) states: HashMap<Fingerprint, A::State, IdentityBuildHasher>,
    pub(super) queues: Queues<A>,
    /// The number of states for which the map has room without growing, if no slot is occupied by a removed key.
    room: usize,
}

impl<A: Algorithm> Shard<A> {
    /// Makes a slot for one more state. A removed key may still occupy a slot. If no slot is left because of removed
    /// keys, the map is rebuilt at its current size, since the map would double otherwise.
    pub(super) fn make_slot(&mut self) {
        let Self { states, room, .. } = self;
        if states.len() == states.capacity() && states.len() < *room {
            let mut rebuilt = HashMap::with_capacity_and_hasher(*room, IdentityBuildHasher);
            rebuilt.extend(states.drain());
            *states = rebuilt;
        }
        states.reserve(1);
        *room = states.capacity().max(*room);
    }
}

/// The configuration of the states of a shard.
#[derive(Debug)]
pub(super) struct ShardConfig<A: Algorithm> {
    pub(super) algorithm: A,
    /// The number of times that the algorithm was replaced.
    pub(super) generation: u64,
    /// The state with which a new key begins: a fresh state of the first algorithm, converted at each replacement
    /// as the states of known keys were. `None` until the algorithm is replaced.
    pub(super) first: Option<A::State>,
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct Shards<A: Algorithm> {
    shards: Box<[CachePadded<Mutex<Shard<A>>>]>,
}

/// A value on cache lines of its own, so that locking one shard does not slow down the next.
#[derive(Debug)]
#[repr(align(128))]
struct CachePadded<T>(T);

impl<A: Algorithm> Shards<A> {
    /// Creates `count` shards, a power of two.
    pub(super) fn new(count: usize, algorithm: &A) -> Self {
        let shard = |_| {
            CachePadded(Mutex::new(Shard {
                shard_config: ShardConfig {
                    algorithm: algorithm.clone(),
                    generation: 0,
                    first: None,
                    closed: false,
                },
                states: HashMap::with_hasher(IdentityBuildHasher),
                queues: HashMap::with_hasher(IdentityBuildHasher),
                room: 0,
            }))
        };
        Self { shards: (0..count).map(shard).collect() }
    }

    /// Returns the lock of the key's shard.
    #[inline]
    pub(super) fn of(&self, key: &Fingerprint) -> &Mutex<Shard<A>> {
        &self.shards[key.shard(self.shards.len())].0
    }

    #[inline]
    pub(super) fn lock(&self, key: &Fingerprint) -> MutexGuard<'_, Shard<A>> {
        lock(self.of(key))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<A>>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }
}

/// Locks the mutex even if it is poisoned: an algorithm that panicked has changed at most one key, and other calls can
/// continue.
#[inline]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
