//! The keys that are denied most often, in constant memory.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{AnyClock, Nanos};
use crate::sys::random::RandomState;

/// The number of slices of a window.
const SLICES: u64 = 60;

/// The maximum number of bytes of a label that are kept.
const MAX_LABEL: usize = 256;

/// The keys that are denied most often.
///
/// [`watch`](Self::watch) lists the keys that a layer denies, and [`record`](Self::record) counts a denial anywhere
/// else. Read the list at any time. Clones share the counts. The counts are those since the list was created or
/// [cleared](Self::clear), or those of a [window](Self::window), such as the last hour.
///
/// The list shows a label for each key, not the key itself. The label is a hash of the key with a random seed, so a key
/// has a different label in each list and after each restart. With [`record_as`](Self::record_as), the label is a
/// string of yours.
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
/// With a [window](Self::window), `n` is the number of denials in the window, and all of this holds as well: the slices
/// of the window have an error of at most `n / k` each, where `n` is the number of denials in the slice, and the errors
/// add up to at most `n / k` of the window.
///
/// # Memory
///
/// The list needs about 100 bytes for each of the `k` keys, and the bytes of the labels, at most 256 of each; with a
/// window, sixty times as much. Each denial, and each reading, locks the list for a time that is at worst linear in
/// `k`. A request that is admitted does no work for the list.
#[derive(Clone)]
pub struct TopKeys {
    record: Arc<Record>,
    seed: RandomState,
}

/// The part that all clones of a list share.
struct Record {
    capacity: usize,
    /// The length of a slice in nanoseconds. `None` if all denials are in one slice.
    slice: Option<u64>,
    clock: AnyClock,
    slices: Mutex<Slices>,
}

/// The slices with denials.
#[derive(Clone, Default)]
struct Slices {
    /// The number of the newest slice.
    number: u64,
    newest: Sketch,
    /// The slices before the newest one that are still in the window, each with its number, in order. They are shared
    /// with readers, so that no reader holds the lock for long.
    older: VecDeque<(u64, Arc<Sketch>)>,
}

/// One of the keys that are denied most often.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The label of the key, which stands for the key in the list. At most 256 bytes long.
    pub label: String,
    /// The number of denials of the key. This count may be too high, but is never too low.
    pub denied: u64,
    /// The maximum by which `denied` may be too high.
    pub error: u64,
}

/// The denials of one slice.
#[derive(Clone, Default)]
struct Sketch {
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
        Self::with(capacity.max(1), None, AnyClock::default())
    }

    fn with(capacity: usize, slice: Option<u64>, clock: AnyClock) -> Self {
        let record = Record { capacity, slice, clock, slices: Mutex::default() };
        Self { record: Arc::new(record), seed: RandomState::default() }
    }

    /// Returns a new list of the denials of the last `duration`, such as those of the last hour.
    ///
    /// It consists of 60 slices, the present one included, so it forgets denials in steps of a sixtieth: the last hour
    /// is the last 59 to 60 minutes. While its clock is set back, denials are counted in the newest slice. If it was
    /// set back by more than the window, the list begins anew.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::clock::ManualClock;
    /// use tower_throttle::stats::TopKeys;
    ///
    /// let clock = ManualClock::new();
    /// let last_hour = TopKeys::new().window(Duration::from_secs(3_600)).clock(clock.clone());
    /// last_hour.record_as("alice", || "alice".to_owned());
    /// clock.advance(Duration::from_secs(1_800));
    /// last_hour.record_as("bob", || "bob".to_owned());
    /// assert_eq!(last_hour.total(), 2);
    /// clock.advance(Duration::from_secs(1_800));
    /// assert_eq!(last_hour.top(1)[0].label, "bob");
    /// assert_eq!(last_hour.total(), 1);
    /// ```
    #[must_use]
    pub fn window(self, duration: Duration) -> Self {
        let slice = (Nanos::from(duration).0 / SLICES).max(1);
        Self::with(self.record.capacity, Some(slice), self.record.clock.clone())
    }

    /// Returns a new list with another clock, which only a [window](Self::window) reads. In tests, use the clock of the
    /// limiter.
    #[must_use]
    pub fn clock(self, clock: impl Into<AnyClock>) -> Self {
        Self::with(self.record.capacity, self.record.slice, clock.into())
    }

    /// Returns the listed keys, in descending order of [`denied`](TopKey::denied).
    #[must_use]
    pub fn list(&self) -> Vec<TopKey> {
        let slices = self.locked(|slices| slices.clone());
        self.merged(&slices)
    }

    /// Returns the first `n` of the listed keys.
    #[must_use]
    pub fn top(&self, n: usize) -> Vec<TopKey> {
        let mut keys = self.list();
        keys.truncate(n);
        keys
    }

    /// Returns the listed keys, and removes them, as [`list`](Self::list) and [`clear`](Self::clear) do. A denial that
    /// is recorded meanwhile is either returned or kept.
    #[must_use]
    pub fn take(&self) -> Vec<TopKey> {
        let slices = self.locked(mem::take);
        self.merged(&slices)
    }

    /// Returns the number of denials of all keys together, with a [window](Self::window) of those in it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.locked(|slices| slices.all().map(|sketch| sketch.total).sum())
    }

    /// Removes all keys, and sets all counts to 0.
    pub fn clear(&self) {
        self.locked(mem::take);
    }

    /// Counts a denial of a key. The label of the key is a hash of the key, with a random seed.
    pub fn record<K: Hash + ?Sized>(&self, key: &K) {
        let hash = self.hash(key);
        self.count(hash, || format!("{hash:016x}"));
    }

    /// Counts a denial of a key. The label of the key is the string that `label` returns. `label` is called only when
    /// the key enters the list, with a [window](Self::window) that of a slice. Of a label longer than 256 bytes, only
    /// the whole characters within the first 256 bytes are kept.
    ///
    /// The list shows the label as it is. So the label must not contain what readers of the list must not see, such as
    /// an API key.
    pub fn record_as<K: Hash + ?Sized>(&self, key: &K, label: impl FnOnce() -> String) {
        self.count(self.hash(key), label);
    }

    fn hash<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.seed.hash_one(key)
    }

    fn count(&self, hash: u64, label: impl FnOnce() -> String) {
        if !self.locked(|slices| slices.newest.count_known(hash)) {
            // No lock is held here, because `label` may call a slow function that a user of the crate wrote.
            let label = shortened(label());
            self.locked(|slices| slices.newest.count(hash, label, self.record.capacity));
        }
    }

    /// Passes the slices to `f` under their lock. The newest one is the present one, or a later one if the clock was
    /// set back by less than the window.
    #[inline]
    fn locked<T>(&self, f: impl FnOnce(&mut Slices) -> T) -> T {
        // The clock may be one that a user of the crate wrote, so it is read without the lock.
        let present = self.record.slice.map_or(0, |slice| self.record.clock.now().0 / slice);
        let mut slices = self.record.slices.lock().unwrap_or_else(PoisonError::into_inner);
        let is_present = (present..present.saturating_add(SLICES)).contains(&slices.number);
        let left = if is_present { Vec::new() } else { slices.turn_to(present) };
        let result = f(&mut slices);
        drop(slices);
        // Many labels take long to drop, and so they are dropped after the lock.
        drop(left);
        result
    }

    /// Returns the keys of all slices. A key that is missing in a full slice may have been denied there as often as the
    /// key with the lowest count, so it counts as denied that often.
    fn merged(&self, slices: &Slices) -> Vec<TopKey> {
        let least = |sketch: &Sketch| {
            let is_full = sketch.keys.len() == self.record.capacity;
            sketch.keys.iter().map(|(_, key)| key.denied).min().filter(|_| is_full).unwrap_or(0)
        };
        let all: u64 = slices.all().map(least).sum();
        let mut sums = HashMap::new();
        for sketch in slices.all() {
            let least = least(sketch);
            for (hash, TopKey { label, denied, error }) in &sketch.keys {
                let unknown = || TopKey { label: label.clone(), denied: all, error: all };
                let sum = sums.entry(*hash).or_insert_with(unknown);
                sum.denied = sum.denied + denied - least;
                sum.error = sum.error + error - least;
            }
        }
        let mut keys: Vec<_> = sums.into_values().collect();
        keys.sort_by(|first, second| second.denied.cmp(&first.denied).then(first.label.cmp(&second.label)));
        keys.truncate(self.record.capacity);
        keys
    }
}

/// Returns the part of a label that is kept, without the memory of the rest.
fn shortened(mut label: String) -> String {
    let end = (0..=label.len().min(MAX_LABEL)).rfind(|end| label.is_char_boundary(*end)).unwrap_or(0);
    label.truncate(end);
    label.shrink_to(MAX_LABEL);
    label
}

impl Slices {
    /// Begins the slice with this number. Returns those that are no longer in the window.
    #[cold]
    fn turn_to(&mut self, number: u64) -> Vec<(u64, Arc<Sketch>)> {
        let newest = mem::take(&mut self.newest);
        if newest.total > 0 {
            self.older.push_back((self.number, Arc::new(newest)));
        }
        self.number = number;
        let is_in_window = |old: u64| old <= number && number < old.saturating_add(SLICES);
        let left = self.older.iter().take_while(|(old, _)| !is_in_window(*old)).count();
        self.older.drain(..left).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Sketch> {
        self.older.iter().map(|(_, sketch)| &**sketch).chain([&self.newest])
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

    /// Counts a denial of a key. If the list has `capacity` keys, a new key replaces the listed key with the lowest
    /// count, and continues that count.
    fn count(&mut self, hash: u64, label: String, capacity: usize) {
        if self.count_known(hash) {
            return;
        }
        self.total += 1;
        if self.keys.len() < capacity {
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
    use crate::clock::{Clock, ManualClock};
    use std::cmp::Reverse;

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
            assert_bounds(&top, &exact);
            let list = top.list();
            assert_eq!(list.len() as u64, keys.min(capacity as u64));
            assert_eq!(list[0].label, "0");
        }
    }

    /// Panics unless the list keeps its promises, given the exact number of denials of each key.
    fn assert_bounds(top: &TopKeys, exact: &HashMap<String, u64>) {
        let capacity = top.record.capacity as u64;
        let (list, total) = (top.list(), exact.values().sum::<u64>());
        let bound = total / capacity;
        assert_eq!(top.total(), total);
        assert!(list.len() as u64 <= capacity && list.is_sorted_by_key(|key| Reverse(key.denied)));
        for TopKey { label, denied, error } in &list {
            let exact = exact.get(label).copied().unwrap_or(0);
            assert!(*error <= bound && *denied - error <= exact && exact <= *denied, "{label}: {list:?}");
        }
        for (key, denied) in exact.iter().filter(|(_, denied)| **denied > bound) {
            assert!(list.iter().any(|listed| listed.label == *key), "{key} was denied {denied} times");
        }
    }

    /// A fiftieth of its full size, unless the environment variable `FULL_SIZE` is set.
    #[test]
    fn ten_million_denials_take_the_memory_of_a_hundred_keys() {
        let draws = if std::env::var_os("FULL_SIZE").is_some() { 10_000_000 } else { 200_000 };
        let (top, mut exact) = (TopKeys::new(), HashMap::<String, u64>::new());
        for key in zipf(1_000_000, draws) {
            top.record_as(&key, || key.to_string());
            *exact.entry(key.to_string()).or_default() += 1;
        }
        assert_bounds(&top, &exact);
        let slices = top.record.slices.lock().unwrap();
        assert!(slices.older.is_empty(), "there is one slice");
        assert!(slices.newest.keys.capacity() <= 128 && slices.newest.indices.capacity() <= 256);
    }

    #[test]
    fn a_window_counts_the_denials_of_its_slices_and_its_errors_add_up() {
        let (clock, mut random) = (ManualClock::new(), fastrand::Rng::with_seed(7));
        let top = TopKeys::with_capacity(20).window(Duration::from_secs(60)).clock(clock.clone());
        let mut denials = VecDeque::new();
        for (at, key) in zipf(500, 40_000).into_iter().enumerate() {
            top.record_as(&key, || key.to_string());
            let second = clock.now().0 / 1_000_000_000;
            denials.push_back((second, key));
            while denials.front().is_some_and(|(denied, _)| denied + 60 <= second) {
                denials.pop_front();
            }
            if at % 997 == 0 {
                let mut exact = HashMap::<String, u64>::new();
                denials.iter().for_each(|(_, key)| *exact.entry(key.to_string()).or_default() += 1);
                assert_bounds(&top, &exact);
            }
            // There are about 30 denials in a second, and none in some of them.
            clock.advance(Duration::from_millis(if random.u8(..) == 0 { 3_000 } else { random.u64(..50) }));
        }
        let older = || top.record.slices.lock().unwrap().older.len();
        assert!((30..60).contains(&older()));
        clock.advance(Duration::from_secs(60));
        assert_eq!((top.list(), top.total(), older()), (vec![], 0, 0));
    }

    #[test]
    fn a_clock_that_steps_back_loses_nothing() {
        let clock = ManualClock::new();
        let top = TopKeys::new().clock(clock.clone()).window(Duration::from_secs(60));
        clock.set(Duration::from_secs(100));
        top.record("a");
        clock.set(Duration::from_secs(41));
        top.record("a");
        assert_eq!((top.total(), top.top(1)[0].denied), (2, 2));
        clock.set(Duration::from_secs(159));
        assert_eq!(top.total(), 2);
        clock.set(Duration::from_secs(160));
        assert_eq!(top.total(), 0);
    }

    #[test]
    fn a_window_goes_on_after_its_clock_was_set_back_by_more_than_the_window() {
        let clock = ManualClock::new();
        let top = TopKeys::new().clock(clock.clone()).window(Duration::from_secs(60));
        for (second, expected) in [(990, 1), (1_000, 2), (941, 3), (940, 1), (999, 2), (1_000, 2)] {
            clock.set(Duration::from_secs(second));
            top.record("a");
            assert_eq!((top.total(), top.list()[0].denied), (expected, expected), "{second} s");
        }
    }

    #[test]
    fn what_is_taken_is_removed_and_nothing_is_lost_meanwhile() {
        let (top, mut taken) = (TopKeys::new(), 0);
        std::thread::scope(|scope| {
            let records: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| (0..10_000_u64).for_each(|key| top.record(&(key % 7)))))
                .collect();
            while !records.iter().all(|record| record.is_finished()) {
                taken += top.take().iter().map(|key| key.denied).sum::<u64>();
            }
        });
        taken += top.take().iter().map(|key| key.denied).sum::<u64>();
        assert_eq!((taken, top.total(), top.list()), (20_000, 0, vec![]));
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

    #[test]
    fn of_a_long_label_the_beginning_is_kept() {
        let top = TopKeys::new();
        let long = "€".repeat(1 << 20);
        for label in
            ["x".repeat(1 << 20), long.clone(), long, "y".repeat(256), String::with_capacity(1 << 20)]
        {
            top.record_as(&label.clone(), || label);
        }
        let list: Vec<_> = top.list().into_iter().map(|key| (key.label, key.denied)).collect();
        // Its first 256 bytes end within a character of three bytes.
        let beginning = "€".repeat(85);
        let [x, y] = ["x", "y"].map(|label| label.repeat(256));
        assert_eq!(list, [(beginning, 2), (String::new(), 1), (x, 1), (y, 1)]);
        let slices = top.record.slices.lock().unwrap();
        assert!(slices.newest.keys.iter().all(|(_, key)| key.label.capacity() <= 256));
    }
}
