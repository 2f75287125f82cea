//! The behaviour for new keys when the table is full, and the choice of the key that is evicted.

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
    /// Evicts the least used of eight sampled keys, but no key that was called while the latest quarter of the table
    /// was replaced. Of equally used keys, evicts the key that has been idle longest. If the algorithm is a token
    /// bucket or a window alone, with a limit of eight or more, the first key that has used a single unit is evicted
    /// without a further comparison.
    ///
    /// A key at its limit is evicted only if none of the other sampled keys that may be evicted is used less, and a
    /// key that is locked out after the keys at their limits. If more than half of the sampled keys have recent calls,
    /// up to 16 more keys are sampled. If all of them have recent calls, a key that has used a single unit is evicted,
    /// or else the key that has been idle longest. At its next call, an evicted key has the state of a new key. If
    /// none of the examined keys (64 at most) may be evicted, the call is denied: see
    /// [`Decision::is_table_full`](crate::decision::Decision::is_table_full).
    ///
    /// So a key that is called at least once while a quarter of the table is replaced gets what its limit allows, if
    /// the table has a thousand keys or more, and at most half of them are called as often. Because keys are sampled, a
    /// few such keys are evicted nevertheless. In tests, such keys together get at most 1.1 times what their limits
    /// allow. This is not promised if the clock stands still or was set back by more than a second. Until it has caught
    /// up, it does not tell which keys were called recently, so only the usage decides.
    ///
    /// If all sampled keys are at their limits, as with a limit of one per hour, one of these keys is evicted
    /// nevertheless. Otherwise new keys would be denied until keys in the table have available units again. So a key
    /// at its limit can get its whole quota once more if it is silent while a flood of keys replaces the whole table.
    /// During a flood of up to twice `max_keys` keys, this happens to a key at most twice. If it happens too often,
    /// choose [`Reject`](OnFull::Reject).
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
const SAMPLED: usize = 8;
/// The number of sampled keys without recent calls that are compared. If there are fewer, more keys are sampled.
const COMPARED: usize = 4;
/// The maximum number of keys that are sampled.
const SAMPLED_AT_MOST: usize = 24;

/// The choice of the key to evict, which is the least used of the sampled keys that have no recent call. Of equally
/// used keys, it is the key that has been idle longest. A key without a recent call that has used at most `one_unit` is
/// chosen without a comparison with keys that are offered later.
///
/// The usage of keys with recent calls does not count. Otherwise, a flood of keys that are used up would evict a partly
/// used key again and again before it reaches its limit, although calls with the key continue. If all sampled keys have
/// recent calls, the choice is a key that has used at most `one_unit`, or else the key that has been idle longest.
///
/// This type does not access the table. The caller offers only keys that may be evicted.
#[derive(Debug)]
pub(super) struct LeastUsed<K> {
    least: Option<Sampled<K>>,
    /// The number of keys that were offered.
    offered: usize,
    /// The number of those that have no recent call.
    compared: usize,
    /// The usage up to which a key is chosen without a comparison with the keys that are offered later.
    one_unit: Usage,
    is_chosen: bool,
}

/// One of the sampled keys. The key with the lowest rank is evicted.
#[derive(Debug)]
pub(super) struct Sampled<K> {
    pub(super) key: K,
    /// The usage, or `None` if it does not count.
    pub(super) usage: Option<Usage>,
    /// The usage in the upper half, and the idle time, inverted, in the lower half. A number is compared faster than a
    /// tuple.
    rank: u128,
}

impl<K> LeastUsed<K> {
    pub(super) fn new(one_unit: Usage) -> Self {
        Self { least: None, offered: 0, compared: 0, one_unit, is_chosen: false }
    }

    /// Returns whether enough keys were offered. If most of them have recent calls, more keys are needed.
    #[inline(always)]
    pub(super) fn is_complete(&self) -> bool {
        let is_enough = || self.is_chosen || self.compared >= COMPARED || self.offered >= SAMPLED_AT_MOST;
        self.offered >= SAMPLED && is_enough()
    }

    /// Offers a key with the time since its last call, in nanoseconds. `usage` is called only if the usage counts.
    #[inline(always)]
    pub(super) fn offer(&mut self, key: K, is_recent: bool, idle: u64, usage: impl FnOnce() -> Usage) {
        self.offered += 1;
        if self.is_chosen {
            return;
        }
        let one_unit = self.one_unit;
        let is_unit = |usage| one_unit > Usage::NONE && usage <= one_unit;
        let (upper, usage) = if is_recent {
            let is_unit = self.compared == 0 && one_unit > Usage::NONE && is_unit(usage());
            (u64::MAX - u64::from(is_unit), None)
        } else {
            self.compared += 1;
            let usage = usage();
            self.is_chosen = is_unit(usage);
            (if self.is_chosen { 0 } else { usage.to_bits() }, Some(usage))
        };
        let rank = (u128::from(upper) << 64) | u128::from(!idle);
        if self.least.as_ref().is_none_or(|least| rank < least.rank) {
            self.least = Some(Sampled { key, usage, rank });
        }
    }

    /// Returns the key to evict, if a key was offered.
    pub(super) fn least_used(self) -> Option<Sampled<K>> {
        self.least
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

    const BEFORE: bool = false;
    const RECENT: bool = true;

    /// Returns the keys in the order in which they are evicted, if the remaining keys are sampled again after each
    /// eviction. An offer is a key, whether it has a recent call, its usage, and its idle time.
    fn order(offers: &[(char, bool, Usage, u64)]) -> String {
        let (mut offers, mut evicted) = (offers.to_vec(), String::new());
        loop {
            let mut sample = LeastUsed::new(Usage::NONE);
            for &(key, is_recent, usage, idle) in &offers {
                sample.offer(key, is_recent, idle, || usage);
            }
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
        for (key, is_recent, used) in [('a', BEFORE, 2), ('b', RECENT, 1), ('c', BEFORE, 1)] {
            sample.offer(key, is_recent, 0, || Usage::of(used, 100));
        }
        sample.offer('d', BEFORE, 9, || unreachable!("the choice is made"));
        assert!(!sample.is_complete());
        assert_eq!(sample.least_used().map(|sampled| sampled.key), Some('c'));
    }

    #[test]
    fn the_least_used_goes_first() {
        let offers = [
            ('a', BEFORE, Usage::of(5, 10), 0),
            ('b', BEFORE, Usage::FULL, 1_000),
            ('c', BEFORE, Usage::of(1, 10), 0),
            ('d', BEFORE, Usage::of(3, 20), 7),
        ];
        assert_eq!(order(&offers), "cdab");
    }

    #[test]
    fn of_keys_used_alike_the_longest_idle_goes_first() {
        let full = [('a', 3), ('b', 9), ('c', 0)].map(|(key, idle)| (key, BEFORE, Usage::FULL, idle));
        assert_eq!(order(&full), "bac");
        let alike = [('a', BEFORE, Usage::of(1, 2), 3), ('b', BEFORE, Usage::of(50, 100), 9)];
        assert_eq!(order(&alike), "ba", "used alike, whatever the limits");
    }

    #[test]
    fn a_key_that_is_locked_out_outlasts_those_at_their_limits() {
        let offers = [
            ('a', BEFORE, Usage::LOCKED_OUT, 50),
            ('b', BEFORE, Usage::FULL, 4),
            ('c', BEFORE, Usage::FULL, 5),
        ];
        assert_eq!(order(&offers), "cba");
    }

    #[test]
    fn a_key_with_recent_calls_outlasts_those_without_whatever_they_have_used() {
        let offers = [
            ('a', RECENT, Usage::of(1, 2), 1),
            ('b', BEFORE, Usage::LOCKED_OUT, 90),
            ('c', BEFORE, Usage::FULL, 70),
            ('d', RECENT, Usage::FULL, 9),
            ('e', BEFORE, Usage::of(1, 100), 80),
        ];
        assert_eq!(order(&offers), "ecbda");
    }

    #[test]
    fn of_keys_that_do_not_differ_the_first_goes_first() {
        for is_recent in [BEFORE, RECENT] {
            assert_eq!(order(&[('a', is_recent, Usage::NONE, 1), ('b', is_recent, Usage::NONE, 1)]), "ab");
        }
    }

    #[test]
    fn without_a_key_that_may_be_evicted_there_is_none() {
        assert_eq!(order(&[]), "");
    }

    #[test]
    fn of_keys_with_recent_calls_one_that_has_used_one_unit_goes_first() {
        let offered = |keys: &[(char, bool, u64, u64)]| {
            let mut sample = LeastUsed::new(Usage::of(1, 100));
            for &(key, is_recent, used, idle) in keys {
                sample.offer(key, is_recent, idle, || Usage::of(used, 100));
            }
            sample.least_used().map(|sampled| sampled.key)
        };
        let recent = [('a', RECENT, 50, 9), ('b', RECENT, 1, 2), ('c', RECENT, 1, 3), ('d', RECENT, 2, 8)];
        assert_eq!(offered(&recent), Some('c'));
        assert_eq!(offered(&[recent[0], recent[3]]), Some('a'));
        assert_eq!(offered(&[recent[0], recent[1], ('e', BEFORE, 100, 1)]), Some('e'));
    }

    #[test]
    fn eight_keys_are_enough_unless_most_of_them_have_recent_calls() {
        let offered = |is_recent: fn(usize) -> bool| {
            let mut sample = LeastUsed::new(Usage::NONE);
            let keys = (0..100).take_while(|&key| {
                let is_complete = sample.is_complete();
                if !is_complete {
                    sample.offer(key, is_recent(key), 0, || Usage::FULL);
                }
                !is_complete
            });
            (keys.count(), sample.least_used().map(|sampled| sampled.key))
        };
        assert_eq!(offered(|_| BEFORE), (8, Some(0)));
        assert_eq!(offered(|key| key < 4), (8, Some(4)));
        assert_eq!(offered(|key| key < 7), (11, Some(7)));
        assert_eq!(offered(|key| key < 23), (24, Some(23)));
        assert_eq!(offered(|_| RECENT), (24, Some(0)));
    }
}
