//! The time in which the keys of a full table are replaced by new ones.

use crate::clock::Nanos;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of readings that are kept. They cover more than a quarter of the table.
const READINGS: usize = 32;

/// Clock readings at regular numbers of new keys. They tell which keys were called while the latest quarter of the
/// table was replaced, whether new keys arrive steadily or in bursts.
#[derive(Debug)]
pub(super) struct Turnover {
    /// The reading at index `i` was made when the number of keys had reached a multiple of the step, and this multiple
    /// was `i` modulo [`READINGS`]. Two threads may make readings in the wrong order, which only moves the boundary.
    readings: [AtomicU64; READINGS],
    /// The step is a power of two. This is its logarithm.
    step_bits: u32,
    /// The number of steps that are looked back.
    quarter: u64,
}

impl Turnover {
    /// Creates the readings of a table of at most `max_keys` keys. The step is between a 64th and a 32nd of the table.
    pub(super) fn new(max_keys: usize) -> Self {
        let max_keys = max_keys as u64;
        let step_bits = (max_keys / 32).max(1).ilog2();
        // The current step has only begun, so it does not count.
        let quarter = max_keys.div_ceil(4).div_ceil(1 << step_bits) + 1;
        Self { readings: [const { AtomicU64::new(0) }; READINGS], step_bits, quarter }
    }

    /// Keeps the reading `now` if it is due. `keys` is the number of keys that were put into the table so far: those
    /// that have filled it, and those that have replaced others.
    #[inline]
    pub(super) fn record(&self, keys: u64, now: Nanos) {
        if keys.trailing_zeros() >= self.step_bits {
            self.reading(keys >> self.step_bits).store(now.0, Ordering::Relaxed);
        }
    }

    /// Returns a clock reading from before the latest quarter of the table was replaced, and after the latest third of
    /// the table was replaced. A key with a later call is in use. If the clock has stood still since then, no key has
    /// a later call.
    #[inline]
    pub(super) fn recent_since(&self, keys: u64) -> Nanos {
        let step = (keys >> self.step_bits).wrapping_sub(self.quarter);
        Nanos(self.reading(step).load(Ordering::Relaxed))
    }

    fn reading(&self, step: u64) -> &AtomicU64 {
        &self.readings[step as usize % READINGS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recent_is_more_than_a_quarter_and_less_than_a_third_of_the_table() {
        for max_keys in [64, 100, 1_000, 1_023, 10_000, 100_000, 1_536_000] {
            let turnover = Turnover::new(max_keys as usize);
            for keys in 1..3 * max_keys {
                // The clock reads the number of keys.
                turnover.record(keys, Nanos(keys));
                let recent = keys - turnover.recent_since(keys).0;
                assert!(
                    keys < max_keys || 4 * recent >= max_keys && 3 * recent <= max_keys,
                    "{keys} of {max_keys}"
                );
            }
        }
    }

    #[test]
    fn tables_of_all_sizes_have_enough_readings() {
        for max_keys in (0..1_000).chain([usize::MAX / 2 + 1, usize::MAX]) {
            let turnover = Turnover::new(max_keys);
            assert!(turnover.quarter < READINGS as u64, "{max_keys}");
            assert!(
                turnover.quarter << turnover.step_bits.min(50) >= max_keys as u64 / 4 || max_keys > 1_000
            );
            turnover.record(max_keys as u64, Nanos(1));
            let _ = turnover.recent_since(max_keys as u64);
        }
    }
}
