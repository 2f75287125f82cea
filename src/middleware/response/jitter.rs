//! Random extra time for reported waits, so that clients that were rejected together do not retry together.

use std::cell::Cell;
use std::time::Duration;

use crate::sys::random::random_u64;

thread_local! {
    static STATE: Cell<u64> = Cell::new(random_u64() | 1);
}

/// Returns a uniformly random duration from zero to `max`, inclusive.
pub(in crate::middleware) fn jitter(max: Duration) -> Duration {
    if max.is_zero() {
        return max;
    }
    let nanos = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    let spread = (u128::from(random()) * (u128::from(nanos) + 1)) >> 64;
    Duration::from_nanos(u64::try_from(spread).unwrap_or(nanos))
}

/// Returns a random number, computed by xorshift64* (Vigna, 2016). The numbers are uniform, but they can be predicted,
/// so they must not be used for secrets.
fn random() -> u64 {
    STATE.with(|state| {
        let mut word = state.get();
        word ^= word >> 12;
        word ^= word << 25;
        word ^= word >> 27;
        state.set(word);
        word.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_uniform_between_zero_and_the_maximum() {
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
        let max = Duration::from_nanos(9);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[jitter(max).as_nanos() as usize] += 1;
        }
        // Each value is expected a thousand times; the bounds are six standard deviations.
        assert!(seen.iter().all(|count| (820..1_180).contains(count)), "{seen:?}");
        assert!(jitter(Duration::MAX) > Duration::ZERO);
    }
}
