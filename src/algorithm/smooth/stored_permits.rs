//! The stored permits: how idle time adds to them, and how much time they cost when they are taken.
//!
//! Times are in fine units of 2^-48 of a nanosecond, except where nanoseconds are named.

use super::wide_math::{mul_div_ceil, scale_ceil};

/// The number of bits of a fraction: a nanosecond has 2^48 fine units.
pub(super) const FRACTION_BITS: u32 = 48;
/// The number of bits of a cold factor's fraction: cold factors are multiples of 1/1024.
const COLD_FACTOR_BITS: u32 = 10;
const SECOND: u128 = 1_000_000_000 << FRACTION_BITS;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoredPermits {
    /// Unused time is stored, up to one second. Stored permits cost no time.
    Bursty,
    WarmingUp {
        /// The time of a warm-up, in nanoseconds.
        warm_up: u64,
        /// The cold factor, as a multiple of 1/1024.
        cold_factor: u64,
    },
}

impl StoredPermits {
    pub(super) const fn warming_up(warm_up: u64, cold_factor: u64) -> Self {
        Self::WarmingUp { warm_up, cold_factor: cold_factor << COLD_FACTOR_BITS }
    }

    /// Returns the same configuration with another cold factor, which is at least 1.
    pub(super) fn with_cold_factor(self, factor: f64) -> Self {
        match self {
            Self::Bursty => self,
            Self::WarmingUp { warm_up, .. } => {
                let cold_factor = (factor * f64::from(1 << COLD_FACTOR_BITS)).ceil() as u64;
                Self::WarmingUp { warm_up, cold_factor }
            }
        }
    }

    /// Returns the maximum of the stored time.
    pub(super) fn max_stored(self) -> u128 {
        match self {
            Self::Bursty => SECOND,
            Self::WarmingUp { warm_up, cold_factor } => {
                let above = (2 * u128::from(warm_up)) << (FRACTION_BITS + COLD_FACTOR_BITS);
                threshold(warm_up) + above.div_ceil(u128::from(cold_factor) + (1 << COLD_FACTOR_BITS))
            }
        }
    }

    /// Converts `stored`, a stored time of the configuration `old`, to this configuration. If both are bursty, the time
    /// stays the same. If both warm up, and `old` can store permits, the time stays the same fraction of the maximum,
    /// rounded up so that no call is admitted early. Otherwise returns the [initial](Self::initial) time.
    pub(super) fn refill(self, stored: u128, old: Self) -> u128 {
        match (self, old) {
            (Self::Bursty, Self::Bursty) => stored,
            (Self::WarmingUp { .. }, Self::WarmingUp { .. }) if old.max_stored() > 0 => {
                scale_ceil(self.max_stored(), stored, old.max_stored())
            }
            _ => self.initial(),
        }
    }

    /// Returns the stored time with which a limiter begins: zero if bursty, the maximum if warming up.
    pub(super) fn initial(self) -> u128 {
        match self {
            Self::Bursty => 0,
            Self::WarmingUp { .. } => self.max_stored(),
        }
    }

    /// Returns the stored time that the idle time `idle` adds.
    pub(super) fn accrued_in(self, idle: u128) -> u128 {
        match self {
            Self::Bursty => idle,
            Self::WarmingUp { cold_factor, .. } => {
                let (fills, over) = fill_rate(cold_factor);
                mul_div_ceil(idle, fills, 1, &[over], 0)
            }
        }
    }

    /// Returns the idle time that adds `missing` to the stored time.
    pub(super) fn until(self, missing: u128) -> u128 {
        match self {
            Self::Bursty => missing,
            Self::WarmingUp { cold_factor, .. } => {
                let (fills, over) = fill_rate(cold_factor);
                mul_div_ceil(missing, over.into(), 1, &[fills as u64], 0)
            }
        }
    }

    /// Takes an amount of permits, given as `time`: one interval for each permit. Takes stored permits first, and new
    /// permits once `stored` is used up. Returns the time by which these permits delay the next call.
    pub(super) fn withdraw(self, stored: &mut u128, time: u128) -> u128 {
        let before = *stored;
        *stored = before.saturating_sub(time);
        match self {
            Self::Bursty => time - (before - *stored),
            Self::WarmingUp { warm_up, cold_factor } => {
                let threshold = threshold(warm_up);
                let (from, to) = (before.saturating_sub(threshold), stored.saturating_sub(threshold));
                if from == to {
                    return time;
                }
                // The slope adds (cf^2 - 1) (from^2 - to^2) / (4 warm_up).
                let slope = cold_factor * cold_factor - (1 << (2 * COLD_FACTOR_BITS));
                time + mul_div_ceil(
                    from - to,
                    from + to,
                    slope,
                    &[warm_up],
                    2 + 2 * COLD_FACTOR_BITS + FRACTION_BITS,
                )
            }
        }
    }

    /// Returns how many stored permits can be taken without delaying the next call. `time` is the length of one
    /// interval. In `stored`, one permit is counted as this time.
    pub(super) fn free(self, stored: u128, time: u128) -> u64 {
        match self {
            Self::Bursty => u64::try_from(stored / time).unwrap_or(u64::MAX),
            Self::WarmingUp { .. } => 0,
        }
    }
}

fn threshold(warm_up: u64) -> u128 {
    u128::from(warm_up) << (FRACTION_BITS - 1)
}

/// Returns the numerator and the denominator of `1/2 + 2 / (1 + cf)`: the number of seconds by which the stored time
/// grows per second of idle time.
fn fill_rate(cold_factor: u64) -> (u128, u64) {
    const ONE: u64 = 1 << COLD_FACTOR_BITS;
    (u128::from(cold_factor + 5 * ONE), 2 * (cold_factor + ONE))
}
