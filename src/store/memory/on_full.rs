//! The behaviour for new keys when the table is full, and the choice of the key that is evicted.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Usage};

/// The behaviour for a new key when the table contains [`max_keys`](crate::limiter::Builder::max_keys) keys, and none
/// of the few keys that are then examined is fresh.
///
/// With every choice, memory stays bounded, and a key with calls in progress or queued calls is never evicted.
/// [`stats`](crate::limiter::RateLimiter::stats) counts the effects of a full table. When the table is full for the
/// first time, a warning is logged (feature `tracing`). [Floods of keys](crate::guide::floods) has the figures that the
/// default is based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Evicts the least used of eight sampled keys. Of equally used keys, evicts the key that has been idle longest. If
    /// the algorithm is a token bucket or a window alone, with a limit of eight or more, the first key that has used a
    /// single unit is evicted without a further comparison.
    ///
    /// A key at its limit is evicted only if none of the other sampled keys is used less. Of keys at their limits, idle
    /// keys are evicted first, then keys that are locked out, and keys with frequent calls last. At its next call, an
    /// evicted key has the state of a new key. If none of the examined keys (64 at most) may be evicted, the call is
    /// denied: see [`Decision::is_table_full`](crate::decision::Decision::is_table_full).
    ///
    /// If all sampled keys are at their limits, as with a limit of one per hour, one of these keys is evicted
    /// nevertheless. Otherwise new keys would be denied until keys in the table have available units again. So a key at
    /// its limit can get its whole quota once more if a flood of keys replaces the whole table between two calls of
    /// that key. During a flood of up to twice `max_keys` keys, this happens to a key at most twice. It does not happen
    /// while calls with the key are frequent. If it happens too often, choose [`Reject`](OnFull::Reject).
    #[default]
    EvictLeastUsed,
    /// Lets new keys share buckets. Each bucket has the quota of one key. The number of buckets is `max_keys`, rounded
    /// up to a power of two, but at least 256 and at most 65,536. No key is evicted.
    ///
    /// A key that shares a bucket can be denied because of units that other keys have used. Calls of such a key are not
    /// queued: a call that would have to wait is denied. A [`Lockout`](crate::algorithm::Lockout) never locks such a
    /// key out, and a [`reset`](crate::limiter::RateLimiter::reset) has no effect on the key. A key that later gets its
    /// own place in the table starts with a copy of the state of its shared bucket, so the key does not get a second
    /// quota. A bucket takes as much memory as a key.
    ShareBuckets,
    /// Denies new keys: see [`Decision::is_table_full`](crate::decision::Decision::is_table_full). HTTP callers
    /// get a 503.
    ///
    /// No key is evicted, and keys share nothing. But a flood of keys keeps new keys out until keys in the table are
    /// fresh again.
    Reject,
}

/// The number of keys that are sampled for an eviction.
pub(super) const SAMPLED: usize = 8;

/// One of the sampled keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled<K> {
    pub(super) key: K,
    pub(super) usage: Usage,
    /// The time since the key's last call, in nanoseconds.
    pub(super) idle: u64,
}

/// The choice of the key to evict, which is the least used of a few sampled keys. If all sampled keys are at their
/// limits, keys that were used recently are evicted last. Of equally used keys, it is the key that has been idle
/// longest. A key that has used at most `one_unit` is chosen without a comparison with keys that are offered later.
///
/// This type does not access the table. The caller offers only keys that may be evicted.
#[derive(Debug)]
pub(super) struct LeastUsed<K> {
    sampled: SmallVec<[Sampled<K>; SAMPLED]>,
    /// The number of keys that were offered.
    offered: usize,
    /// The usage up to which a key is chosen without a comparison with the keys that are offered later.
    one_unit: Usage,
    is_chosen: bool,
}

impl<K: Copy> LeastUsed<K> {
    pub(super) fn new(one_unit: Usage) -> Self {
        Self { sampled: SmallVec::new(), offered: 0, one_unit, is_chosen: false }
    }

    /// Returns whether enough keys were offered.
    pub(super) fn is_complete(&self) -> bool {
        self.offered >= SAMPLED
    }

    /// Offers a key. `sample` is called only if the choice is not made yet.
    #[inline]
    pub(super) fn offer(&mut self, sample: impl FnOnce() -> Sampled<K>) {
        self.offered += 1;
        if !self.is_chosen {
            let sampled = sample();
            self.is_chosen = self.one_unit > Usage::NONE && sampled.usage <= self.one_unit;
            self.sampled.push(sampled);
        }
    }

    /// Returns the key to evict, if a key was offered.
    ///
    /// If all sampled keys are at their limits, keys whose last calls are much more recent than those of most sampled
    /// keys are not evicted. Otherwise, a flood of keys that are locked out would evict such a key again and again,
    /// although calls with the key continue.
    pub(super) fn least_used(mut self) -> Option<Sampled<K>> {
        let least = *self.sampled.iter().min_by_key(|sampled| (sampled.usage, Reverse(sampled.idle)))?;
        if !least.usage.is_full() {
            return Some(least);
        }
        self.sampled.sort_by_key(|sampled| sampled.idle);
        let median = self.sampled[self.sampled.len() / 2].idle;
        let is_active = |sampled: &Sampled<K>| sampled.idle < median / 4;
        let order = |sampled: &Sampled<K>| (is_active(sampled), sampled.usage, Reverse(sampled.idle));
        self.sampled.into_iter().min_by_key(order)
    }
}

/// Returns the usage of a key that has used one unit. Returns [`Usage::NONE`] if the limit is less than eight units, or
/// if the usages of the algorithm do not tell how many units are used.
///
/// A key with at most this usage is evicted without a comparison with other keys. So the many keys of a flood that are
/// called once are evicted in little time, and such an eviction gives back at most one unit.
pub(super) fn one_unit<A: Algorithm>(algorithm: &A) -> Usage {
    let quota = algorithm.policy().quota;
    if A::USAGE_IS_OF_QUOTA && quota >= 8 { Usage::of(1, quota) } else { Usage::NONE }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::quota::Quota;

    /// Returns the keys in the order in which they are evicted, if the remaining keys are sampled again after each
    /// eviction.
    fn order(offers: &[(char, Usage, u64)]) -> String {
        let (mut offers, mut evicted) = (offers.to_vec(), String::new());
        loop {
            let mut sample = LeastUsed::new(Usage::NONE);
            offers.iter().for_each(|&(key, usage, idle)| sample.offer(|| Sampled { key, usage, idle }));
            let Some(least) = sample.least_used() else { return evicted };
            offers.retain(|(key, ..)| *key != least.key);
            evicted.push(least.key);
        }
    }

    #[test]
    fn keys_that_have_used_one_unit_of_a_large_limit_are_not_compared() {
        let of = |quota| one_unit(&FixedWindow::new(Quota::per_hour(quota)));
        assert_eq!([1, 7, 8, 100].map(of), [Usage::NONE, Usage::NONE, Usage::of(1, 8), Usage::of(1, 100)]);
        let window = FixedWindow::new(Quota::per_day(1_000));
        assert_eq!(one_unit(&(window.clone(), window.clone())), Usage::NONE, "one unit of which member?");
        assert_eq!(one_unit(&window.block_for(Duration::from_secs(1)).after(3)), Usage::NONE);

        let mut sample = LeastUsed::new(Usage::of(1, 100));
        for (key, used) in [('a', 2), ('b', 1)] {
            sample.offer(|| Sampled { key, usage: Usage::of(used, 100), idle: 0 });
        }
        sample.offer(|| unreachable!("the choice is made"));
        assert!(!sample.is_complete());
        assert_eq!(sample.least_used().map(|sampled| sampled.key), Some('b'));
    }

    #[test]
    fn the_least_used_goes_first() {
        let offers = [
            ('a', Usage::of(5, 10), 0),
            ('b', Usage::FULL, 1_000),
            ('c', Usage::of(1, 10), 0),
            ('d', Usage::of(3, 20), 7),
        ];
        assert_eq!(order(&offers), "cdab");
    }

    #[test]
    fn of_keys_used_alike_the_longest_idle_goes_first() {
        let full = [('a', Usage::FULL, 3), ('b', Usage::FULL, 9), ('c', Usage::FULL, 0)];
        assert_eq!(order(&full), "bac");
        let alike = [('a', Usage::of(1, 2), 3), ('b', Usage::of(50, 100), 9)];
        assert_eq!(order(&alike), "ba", "used alike, whatever the limits");
    }

    #[test]
    fn a_key_that_is_locked_out_outlasts_those_at_their_limits() {
        let offers = |idle| [('a', Usage::LOCKED_OUT, idle), ('b', Usage::FULL, 4), ('c', Usage::FULL, 5)];
        assert_eq!(order(&offers(9)), "cba");
        assert_eq!(order(&offers(50))[..1], *"c");
    }

    #[test]
    fn a_used_up_key_that_keeps_on_calling_outlasts_those_that_are_locked_out() {
        let offers = [
            ('a', Usage::FULL, 1),
            ('b', Usage::LOCKED_OUT, 90),
            ('c', Usage::LOCKED_OUT, 70),
            ('d', Usage::of(1, 2), 1),
        ];
        assert_eq!(order(&offers), "dbca");
    }

    #[test]
    fn of_keys_that_do_not_differ_the_first_goes_first() {
        assert_eq!(order(&[('a', Usage::NONE, 1), ('b', Usage::NONE, 1)]), "ab");
    }

    #[test]
    fn without_a_key_that_may_be_evicted_there_is_none() {
        assert_eq!(order(&[]), "");
    }

    #[test]
    fn eight_are_enough() {
        let mut sample = LeastUsed::new(Usage::NONE);
        for key in 0..SAMPLED {
            assert!(!sample.is_complete());
            sample.offer(|| Sampled { key, usage: Usage::FULL, idle: 0 });
        }
        assert!(sample.is_complete());
        assert_eq!(sample.sampled.len(), 8);
        assert_eq!(sample.least_used().map(|sampled| sampled.key), Some(0));
    }
}
