//! The choice of the key that is evicted when the table is full: the least used of a few sampled keys, but no key that
//! was called while the latest quarter of the keys was replaced by new ones.

use crate::algorithm::{Algorithm, Usage};
use crate::clock::Nanos;
use crate::sys::lock::atomic::{AtomicU64, Ordering};

/// The number of keys that are sampled for an eviction.
const SAMPLED: usize = 8;
/// The number of sampled keys without recent calls that are compared. If there are fewer, more keys are sampled.
const COMPARED: usize = 4;
/// The maximum number of keys that are sampled.
const SAMPLED_AT_MOST: usize = 24;

/// The number of readings that are kept. They cover more than a quarter of the table.
const READINGS: usize = 32;

/// The maximum time by which a clock reading may be ahead of a later one, in nanoseconds, because it was made before
/// the shard was locked. If it is further ahead, the clock was set back.
const SLACK: u64 = 1_000_000_000;

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
struct Sampled<K> {
    key: K,
    /// The usage, or `None` if it does not count.
    usage: Option<Usage>,
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

    /// Returns the key to evict, if a key was offered, and its usage, or `None` for the usage if it does not count.
    pub(super) fn choice(self) -> Option<(K, Option<Usage>)> {
        self.least.map(|Sampled { key, usage, .. }| (key, usage))
    }
}

/// Returns the usage of a key that has used one unit. Returns [`Usage::NONE`] if the limit is less than eight units, or
/// if the usages of the algorithm do not tell how many units are used.
///
/// A key with at most this usage is evicted without a comparison with other keys. So the many keys of a flood that are
/// called once are evicted in little time, and such an eviction gives back at most one unit.
pub(super) fn one_unit<A: Algorithm>(algorithm: &A) -> Usage {
    let quota = algorithm.policy().quota;
    if quota >= 8 && A::USAGE_IS_OF_QUOTA { Usage::of(1, quota) } else { Usage::NONE }
}

/// Clock readings at regular numbers of new keys. They tell which keys were called while the latest quarter of the
/// table was replaced, whether new keys arrive steadily or in bursts.
#[derive(Debug)]
pub(super) struct Turnover {
    /// The number of keys that were put into the table. Each shard adds its new keys in batches.
    keys: AtomicU64,
    /// The number of new keys of a shard that are added together, so that threads seldom write to `keys`.
    batch: u32,
    /// The reading at index `i` was made when the number of keys had reached a multiple of the step, and this multiple
    /// was `i` modulo [`READINGS`]. Two threads may make readings in the wrong order, which only moves the boundary.
    readings: [AtomicU64; READINGS],
    /// The step is a power of two. This is its logarithm.
    step_bits: u32,
    /// The number of steps that are looked back.
    quarter: u64,
}

/// The time after which a call is recent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    since: u64,
    until: u64,
}

impl Turnover {
    /// Creates the readings of a table of at most `max_keys` keys. The step is between a 64th and a 32nd of the table.
    pub(super) fn new(max_keys: usize) -> Self {
        let max_keys = max_keys as u64;
        let step_bits = (max_keys / 32).max(1).ilog2();
        // The current step has only begun, so it does not count.
        let quarter = max_keys.div_ceil(4).div_ceil(1 << step_bits) + 1;
        Self {
            keys: AtomicU64::new(0),
            batch: (max_keys / 2_048).clamp(1, u64::from(u32::MAX)) as u32,
            readings: [const { AtomicU64::new(0) }; READINGS],
            step_bits,
            quarter,
        }
    }

    /// Counts a new key of a shard, and keeps the reading `now` if it is due. `new_keys` is the number of new keys of
    /// the shard that were not added yet. The shard is locked.
    #[inline]
    pub(super) fn count(&self, new_keys: &mut u32, now: Nanos) {
        *new_keys += 1;
        if *new_keys >= self.batch {
            let before = self.keys.fetch_add(u64::from(*new_keys), Ordering::Relaxed);
            let after = before.wrapping_add(u64::from(*new_keys));
            *new_keys = 0;
            // A batch is smaller than a step.
            if before >> self.step_bits != after >> self.step_bits {
                self.reading(after >> self.step_bits).store(now.0, Ordering::Relaxed);
            }
        }
    }

    /// Returns which calls are recent at `now`: those after a clock reading that was made before the latest quarter of
    /// the table was replaced, and after the latest third of the table was replaced. If the clock has stood still since
    /// then, or was set back, no call is recent.
    #[inline]
    pub(super) fn recent(&self, now: Nanos) -> Recent {
        let step = self.keys.load(Ordering::Relaxed) >> self.step_bits;
        let until = now.0.saturating_add(SLACK);
        let since = match self.reading(step).load(Ordering::Relaxed) {
            newest if newest > until => u64::MAX,
            _ => self.reading(step.wrapping_sub(self.quarter)).load(Ordering::Relaxed),
        };
        Recent { since, until }
    }

    fn reading(&self, step: u64) -> &AtomicU64 {
        &self.readings[step as usize % READINGS]
    }
}

impl Recent {
    /// Returns whether a call at `last` is recent. A key whose time is ahead of the clock, which was set back, may have
    /// no further call.
    #[inline]
    pub(super) fn contains(self, last: Nanos) -> bool {
        last.0 > self.since && last.0 <= self.until
    }
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
            let Some((least, _)) = sample.choice() else { return evicted };
            offers.retain(|(key, ..)| *key != least);
            evicted.push(least);
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
        assert_eq!(sample.choice().map(|(key, _)| key), Some('c'));
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
            sample.choice().map(|(key, _)| key)
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
            (keys.count(), sample.choice().map(|(key, _)| key))
        };
        assert_eq!(offered(|_| BEFORE), (8, Some(0)));
        assert_eq!(offered(|key| key < 4), (8, Some(4)));
        assert_eq!(offered(|key| key < 7), (11, Some(7)));
        assert_eq!(offered(|key| key < 23), (24, Some(23)));
        assert_eq!(offered(|_| RECENT), (24, Some(0)));
    }

    /// Returns the readings of a table with one shard, after `keys` new keys. The clock read the number of keys.
    fn after(max_keys: u64, keys: u64) -> Turnover {
        let (turnover, mut new_keys) = (Turnover::new(max_keys as usize), 0);
        (1..=keys).for_each(|key| turnover.count(&mut new_keys, Nanos(key)));
        turnover
    }

    #[test]
    fn what_is_recent_is_more_than_a_quarter_and_less_than_a_third_of_the_table() {
        for max_keys in [64, 100, 1_000, 1_023, 10_000, 100_000, 1_536_000] {
            let (turnover, mut new_keys) = (after(max_keys, max_keys), 0);
            for keys in max_keys + 1..3 * max_keys {
                turnover.count(&mut new_keys, Nanos(keys));
                let recent = turnover.recent(Nanos(keys));
                let (quarter, third) = (max_keys / 4, max_keys / 3);
                assert!(recent.contains(Nanos(keys - quarter + 1)), "{keys} of {max_keys}");
                assert!(!recent.contains(Nanos(keys - third - 1)), "{keys} of {max_keys}");
            }
        }
    }

    #[test]
    fn no_call_is_recent_while_the_clock_stands_still_or_after_it_was_set_back() {
        let (turnover, mut new_keys) = (after(1_000, 2_000), 0);
        (0..1_000).for_each(|_| turnover.count(&mut new_keys, Nanos(2_000)));
        assert!(!turnover.recent(Nanos(2_000)).contains(Nanos(2_000)));

        let (turnover, mut new_keys) = (Turnover::new(1_000), 0);
        let second = |second: u64| Nanos(second * 1_000_000_000);
        (100..1_100).for_each(|at| turnover.count(&mut new_keys, second(at)));
        assert!(turnover.recent(second(1_099)).contains(second(1_098)));
        let set_back = turnover.recent(second(1_000));
        assert!(!set_back.contains(second(999)) && !set_back.contains(second(1_099)));
        (1_000..1_500).for_each(|at| turnover.count(&mut new_keys, second(at)));
        let later = turnover.recent(second(1_499));
        assert!(
            later.contains(second(1_490)) && !later.contains(second(1_000)) && !later.contains(second(1_502))
        );
    }

    #[test]
    fn tables_of_all_sizes_have_enough_readings() {
        for max_keys in (0..1_000).chain([usize::MAX / 2 + 1, usize::MAX]) {
            let turnover = Turnover::new(max_keys);
            assert!(turnover.quarter < READINGS as u64, "{max_keys}");
            assert!(
                u128::from(turnover.quarter - 1) << turnover.step_bits >= max_keys as u128 / 4,
                "{max_keys}"
            );
            assert!(u64::from(turnover.batch) <= 1 << turnover.step_bits, "{max_keys}");
        }
    }
}
