//! A little more than the exact wait, for those who are refused together.

use std::cell::Cell;
use std::time::Duration;

use crate::random::random_u64;

thread_local! {
    static STATE: Cell<u64> = Cell::new(random_u64() | 1);
}

/// A span from zero to `most`, each as likely.
pub(in crate::middleware) fn jitter(most: Duration) -> Duration {
    if most.is_zero() {
        return most;
    }
    let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    let spread = (u128::from(random()) * (u128::from(nanos) + 1)) >> 64;
    Duration::from_nanos(u64::try_from(spread).unwrap_or(nanos))
}

/// xorshift64* (Vigna, 2016): even enough, and no secret.
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
    fn it_is_between_nothing_and_the_most() {
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
        let most = Duration::from_nanos(9);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[jitter(most).as_nanos() as usize] += 1;
        }
        // Each a thousand times, give or take six standard deviations.
        assert!(seen.iter().all(|count| (820..1_180).contains(count)), "{seen:?}");
        assert!(jitter(Duration::MAX) > Duration::ZERO);
    }
}
