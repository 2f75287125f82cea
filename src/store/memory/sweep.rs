use std::collections::{HashSet, VecDeque};

use super::fingerprint::{Fingerprint, IdentityBuildHasher};
use crate::algorithm::{Algorithm, QuotaUnit};
use crate::clock::Nanos;
use crate::random::random_u64;

/// The maximum time for which a fresh key must be idle before it is removed while there is room: ten seconds, in
/// nanoseconds.
const MAX_RETENTION: u64 = 10_000_000_000;

/// The list of keys to sweep, in the order in which they will be examined.
#[derive(Debug)]
pub(super) struct SweepQueue {
    /// The list has each key once. The key that was examined longest ago is the first. Keys that were removed may still
    /// be in the list.
    order: VecDeque<Fingerprint>,
    /// The keys in `order` that were reset and removed from the table.
    gone: HashSet<Fingerprint, IdentityBuildHasher>,
    random: u64,
}

impl Default for SweepQueue {
    fn default() -> Self {
        Self { order: VecDeque::new(), gone: HashSet::default(), random: random_u64() }
    }
}

impl SweepQueue {
    /// Adds a key that was inserted into the table.
    pub(super) fn push(&mut self, key: Fingerprint) {
        if !self.gone.remove(&key) {
            self.order.push_back(key);
        }
    }

    /// Marks a key that was removed from the table before it was examined.
    pub(super) fn mark_removed(&mut self, key: Fingerprint) {
        self.gone.insert(key);
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the next key, and moves it to the end. Returns `None` if that key was removed from the table. The caller
    /// counts a removed key as examined, so that the work per examined key is constant.
    pub(super) fn next(&mut self) -> Option<Fingerprint> {
        let key = self.order.pop_front()?;
        if self.gone.remove(&key) {
            return None;
        }
        self.order.push_back(key);
        Some(key)
    }

    /// Returns a random key of the first `count` keys, and moves it to the end. Returns `None` if that key was removed
    /// from the table.
    pub(super) fn any_of(&mut self, count: usize) -> Option<Fingerprint> {
        // xorshift64*, whose state is never 0.
        self.random |= u64::from(self.random == 0);
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let random = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let count = count.min(self.order.len());
        // The index is below `count`, so it fits.
        let at = ((u128::from(random) * count as u128) >> 64) as usize;
        if at > 0 {
            self.order.swap(0, at);
        }
        self.next()
    }

    /// Removes the key that was moved to the end last.
    pub(super) fn forget_last(&mut self) {
        self.order.pop_back();
    }

    /// Removes a key that was moved to the end recently.
    pub(super) fn forget_recent(&mut self, key: Fingerprint) {
        if let Some(back) = self.order.iter().rev().position(|other| *other == key) {
            self.order.swap_remove_back(self.order.len() - 1 - back);
        }
    }
}

/// Returns the time for which a fresh key must be idle before it is removed while there is room, in nanoseconds: the
/// algorithm's longest window, but at most ten seconds.
pub(super) fn retention<A: Algorithm>(algorithm: &A) -> u64 {
    let mut longest = 0;
    algorithm.for_each_policy(&mut |policy| match policy.unit {
        QuotaUnit::ConcurrentRequests => longest = MAX_RETENTION,
        _ => longest = Nanos::from(policy.window).0.max(longest),
    });
    longest.min(MAX_RETENTION)
}
