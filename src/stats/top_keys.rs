//! The keys that are denied most often, in constant memory.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::random::RandomState;

/// The keys that are denied most often.
///
/// [`watch`](Self::watch) lists the keys that a layer denies, and [`record`](Self::record) counts a denial anywhere else.
/// Read the list at any time. Clones share the counts.
///
/// The list shows a label for each key, not the key itself. The label is a hash of the key with a random seed, so a key has
/// a different label in each list and after each restart. With [`record_as`](Self::record_as), the label is a string of
/// yours.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::stats::TopKeys;
/// use tower_throttle::{Quota, RateLimiter};
///
/// let (limiter, top) =
///     (RateLimiter::new(TokenBucket::new(Quota::per_hour(1))), TopKeys::new());
/// for user in ["alice", "bob", "alice", "alice"] {
///     if !limiter.check(user).is_allowed() {
///         top.record_as(user, || user.to_owned());
///     }
/// }
/// for key in top.list() {
///     println!("{} was denied {} times, at most {} fewer", key.label, key.denied, key.error);
/// }
/// assert_eq!((top.list()[0].label.as_str(), top.total()), ("alice", 2));
/// ```
///
/// # Guarantees
///
/// The list uses the algorithm *Space-Saving* (Metwally, Agrawal, El Abbadi, 2005). With `n` denials in total and room
/// for `k` keys, each key that was denied more than `n / k` times is in the list. For a listed key, the count
/// [`denied`](TopKey::denied) is never too low. The count is too high by at most [`error`](TopKey::error), and `error`
/// is at most `n / k`.
///
/// # Memory
///
/// The list needs about 100 bytes for each of the `k` keys, and the bytes of the labels. Each denial locks the list for
/// a time that is at worst linear in `k`. A request that is admitted does no work for the list.
#[derive(Clone)]
pub struct TopKeys {
    sketch: Arc<Mutex<Sketch>>,
    seed: RandomState,
}

/// One of the keys that are denied most often.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The label of the key, which stands for the key in the list.
    pub label: String,
    /// The number of denials of the key. This count may be too high, but is never too low.
    pub denied: u64,
    /// The maximum by which `denied` may be too high.
    pub error: u64,
}

struct Sketch {
    capacity: usize,
    total: u64,
    /// The index in `keys` of each listed key, by the hash of the key.
    indices: HashMap<u64, usize>,
    keys: Vec<(u64, TopKey)>,
}

impl TopKeys {
    /// Creates a list of the 100 keys that are denied most often.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(100)
    }

    /// Creates a list of at most `capacity` keys. A capacity of 0 is raised to 1.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let sketch = Sketch { capacity, total: 0, indices: HashMap::new(), keys: Vec::new() };
        Self { sketch: Arc::new(Mutex::new(sketch)), seed: RandomState::default() }
    }

    /// Returns the listed keys, in descending order of [`denied`](TopKey::denied).
    #[must_use]
    pub fn list(&self) -> Vec<TopKey> {
        let mut keys: Vec<_> = self.lock().keys.iter().map(|(_, key)| key.clone()).collect();
        keys.sort_by(|first, second| second.denied.cmp(&first.denied).then(first.label.cmp(&second.label)));
        keys
    }

    /// Returns the number of denials of all keys together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// Removes all keys, and sets all counts to 0.
    pub fn clear(&self) {
        let mut sketch = self.lock();
        sketch.total = 0;
        sketch.indices.clear();
        sketch.keys.clear();
    }

    /// Counts a denial of a key. The label of the key is a hash of the key, with a random seed.
    pub fn record<K: Hash + ?Sized>(&self, key: &K) {
        let hash = self.hash(key);
        self.count(hash, || format!("{hash:016x}"));
    }

    /// Counts a denial of a key. The label of the key is the string that `label` returns. `label` is called only when the
    /// key enters the list.
    ///
    /// The list shows the label as it is. So the label must not contain what readers of the list must not see, such as an
    /// API key.
    pub fn record_as<K: Hash + ?Sized>(&self, key: &K, label: impl FnOnce() -> String) {
        self.count(self.hash(key), label);
    }

    fn hash<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.seed.hash_one(key)
    }

    fn count(&self, hash: u64, label: impl FnOnce() -> String) {
        if !self.lock().count_known(hash) {
            // No lock is held here, because `label` may call a slow function that a user of the crate wrote.
            let label = label();
            self.lock().count(hash, label);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sketch> {
        self.sketch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sketch {
    /// Counts a denial of a key if the key is in the list. Returns whether the key is in the list.
    fn count_known(&mut self, hash: u64) -> bool {
        let Some(at) = self.indices.get(&hash) else { return false };
        self.keys[*at].1.denied += 1;
        self.total += 1;
        true
    }

    /// Counts a denial of a key. If the list is full, a new key replaces the listed key with the lowest count, and
    /// continues that count.
    fn count(&mut self, hash: u64, label: String) {
        if self.count_known(hash) {
            return;
        }
        self.total += 1;
        if self.keys.len() < self.capacity {
            self.indices.insert(hash, self.keys.len());
            self.keys.push((hash, TopKey { label, denied: 1, error: 0 }));
            return;
        }
        let least = self.keys.iter().enumerate().min_by_key(|(_, (_, key))| key.denied);
        if let Some((at, (old, key))) = least {
            let error = key.denied;
            self.indices.remove(old);
            self.indices.insert(hash, at);
            self.keys[at] = (hash, TopKey { label, denied: error + 1, error });
        }
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TopKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopKeys").field("total", &self.total()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws `draws` numbers below `keys`. The probability of a number is proportional to 1 / (1 + number).
    fn zipf(keys: u64, draws: usize) -> Vec<u64> {
        let weights = (1..=keys).scan(0, |sum, rank| {
            *sum += 1_000_000_000 / rank;
            Some(*sum)
        });
        let sums: Vec<u64> = weights.collect();
        let mut word = 1_u64;
        let mut draw = || {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let point = (mixed ^ (mixed >> 31)) % sums[sums.len() - 1];
            sums.partition_point(|sum| *sum <= point) as u64
        };
        (0..draws).map(|_| draw()).collect()
    }

    #[test]
    fn the_error_bound_holds_for_zipf_traffic() {
        for (capacity, keys) in [(100, 10_000), (10, 10_000), (100, 50)] {
            let (top, mut exact) = (TopKeys::with_capacity(capacity), HashMap::<String, u64>::new());
            for key in zipf(keys, 100_000) {
                top.record_as(&key, || key.to_string());
                *exact.entry(key.to_string()).or_default() += 1;
            }
            assert_eq!(top.total(), 100_000);
            let (list, bound) = (top.list(), 100_000 / capacity as u64);
            assert_eq!(list.len() as u64, keys.min(capacity as u64));
            for TopKey { label, denied, error } in &list {
                let exact = exact[label];
                assert!(*error <= bound && *denied - error <= exact && exact <= *denied, "{label}");
            }
            for (key, denied) in exact.iter().filter(|(_, denied)| **denied > bound) {
                assert!(list.iter().any(|listed| listed.label == *key), "{key} was denied {denied} times");
            }
            assert_eq!(list[0].label, "0");
        }
    }

    #[test]
    fn a_label_is_asked_for_when_a_key_enters_the_list() {
        let top = TopKeys::with_capacity(2);
        let mut labels = 0;
        for key in ["a", "a", "b", "a", "c", "c"] {
            top.record_as(key, || {
                labels += 1;
                key.to_owned()
            });
        }
        let list: Vec<_> = top.list().iter().map(|key| (key.label.clone(), key.denied, key.error)).collect();
        assert_eq!(list, [("a".to_owned(), 3, 0), ("c".to_owned(), 3, 1)]);
        assert_eq!((labels, top.total()), (3, 6));
        top.clear();
        assert_eq!((top.list(), top.total()), (Vec::new(), 0));
    }
}
