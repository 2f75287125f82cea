//! The model of the stored permits of smooth limiters.

use num_bigint::BigInt;

use crate::oracle::config::{Rule, SECOND};

/// The number of binary places of numbers. With this number, the cut-off part never changes a result.
const PLACES: u32 = 192;

/// The store of unused time. `slope` has the warm-up, and the cold factor in 1/1024. It is `None` for a bursty limiter.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) most: BigInt,
    pub(super) slope: Option<(u64, u64)>,
}

impl Store {
    pub(super) fn of(rule: &Rule) -> Self {
        match rule.warm_up {
            None => Self { most: nanos(SECOND), slope: None },
            Some(warm_up) => {
                // A warm-up above 292 years is treated as 292 years.
                let warm_up = warm_up.min(i64::MAX as u64);
                let above = nanos(warm_up) * 2 * 1024 / (rule.cold_factor + 1024);
                Self { most: nanos(warm_up) / 2 + above, slope: Some((warm_up, rule.cold_factor)) }
            }
        }
    }

    /// Returns the initial store. It is empty for a bursty limiter, and full for a limiter that warms up.
    pub(super) fn at_first(&self) -> BigInt {
        if self.slope.is_some() { self.most.clone() } else { BigInt::ZERO }
    }

    /// Returns the growth of the store per unit of idle time, `1/2 + 2 / (1 + cf)`, as numerator and denominator.
    pub(super) fn filling(&self) -> (u64, u64) {
        self.slope.map_or((1, 1), |(_, cold)| (cold + 5 * 1024, 2 * (cold + 1024)))
    }

    pub(super) fn filled_in(&self, time: &BigInt) -> BigInt {
        let (fills, of) = self.filling();
        time * fills / of
    }

    pub(super) fn time_to_fill(&self, stored: &BigInt) -> BigInt {
        let (fills, of) = self.filling();
        (&self.most - stored) * of / fills
    }

    /// Returns the wait that is caused by taking `time` from the store, if `stored` is stored. For a bursty limiter,
    /// this is the part that the store lacks. Otherwise, it is the area under the line.
    pub(super) fn price(&self, stored: &BigInt, time: &BigInt) -> BigInt {
        let left = positive(stored - time);
        let Some((warm_up, cold)) = self.slope else { return time - (stored - left) };
        if warm_up == 0 {
            return time.clone();
        }
        let bend = nanos(warm_up) / 2;
        let above = |stored: &BigInt| positive(stored - &bend);
        let (from, to) = (above(stored), above(&left));
        // (cf^2 - 1) (from^2 - to^2) / (4 warm_up)
        let steep = cold * cold - 1024 * 1024;
        let area = (&from * &from - &to * &to) * steep / (nanos(warm_up) * 4);
        time + (area >> 20_u32)
    }

    /// Returns by how much the store may be rounded up, if a fuller store makes calls more expensive.
    pub(super) fn grain(&self) -> BigInt {
        if self.slope.is_some() { grain() } else { BigInt::ZERO }
    }

    /// Returns by how much every call is late, so that no call is early because of rounding.
    pub(super) fn margin(&self) -> BigInt {
        if self.slope.is_some() { nanos(1) >> 8_u32 } else { BigInt::ZERO }
    }
}

pub(super) fn nanos(nanos: u64) -> BigInt {
    BigInt::from(nanos) << PLACES
}

pub(super) fn positive(time: BigInt) -> BigInt {
    time.max(BigInt::ZERO)
}

/// Rounds up to nanoseconds. A time beyond the range of the clock is limited to 2^100.
pub(super) fn whole_nanos(time: &BigInt) -> u128 {
    let up: BigInt = (time + (nanos(1) - 1)) >> PLACES;
    u128::try_from(up).unwrap_or(u128::MAX).min(1 << 100)
}

/// Returns the fraction of a nanosecond in which the crate keeps times: 2^-48 ns.
pub(super) fn grain() -> BigInt {
    nanos(1) >> 48_u32
}

/// Returns a tolerance that is smaller than any visible error, and larger than what this module cuts off.
pub(super) fn hair() -> BigInt {
    nanos(1) >> 80_u32
}
