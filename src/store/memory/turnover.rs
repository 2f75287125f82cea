//! The time in which the keys of a full table are replaced by new ones.

use crate::clock::Nanos;
use crate::sys::lock::atomic::{AtomicU64, Ordering};

/// The number of readings that are kept. They cover more than a quarter of the table.
const READINGS: usize = 32;

/// The maximum time by which a clock reading may be ahead of a later one, in nanoseconds, because it was made before
/// the shard was locked. If it is further ahead, the clock was set back.
const SLACK: u64 = 1_000_000_000;

/// Clock readings at regular numbers of new keys. They tell which keys were called while the latest quarter of the
/// table was replaced, whether new keys arrive steadily or in bursts.
#[derive(Debug)]
pub(super) struct Turnover {
    /// The number of keys that were put into the table. Each shard adds its new keys in batches.
    keys: AtomicU64,
    /// The number of new keys of a shard that are added together, so that threads seldom write to `keys`.
    batch: u64,
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
            batch: (max_keys / 2_048).max(1),
            readings: [const { AtomicU64::new(0) }; READINGS],
            step_bits,
            quarter,
        }
    }

    /// Counts a new key of a shard, and keeps the reading `now` if it is due. `new_keys` is the number of new keys of
    /// the shard that were not added yet. The shard is locked.
    #[inline]
    pub(super) fn count(&self, new_keys: &mut u64, now: Nanos) {
        *new_keys += 1;
        if *new_keys >= self.batch {
            let before = self.keys.fetch_add(*new_keys, Ordering::Relaxed);
            let after = before.wrapping_add(*new_keys);
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
    use super::*;

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
            assert!(turnover.batch <= 1 << turnover.step_bits, "{max_keys}");
        }
    }
}
