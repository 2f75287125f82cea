use num_bigint::BigInt;

use crate::oracle::config::{Rule, SECOND};

/// The number of binary places of numbers: enough that the cut-off part is never visible.
const PLACES: u32 = 192;

/// The worth of unused time. `slope`: warm-up and cold factor, in 1/1024.
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
                // A factor above 292 years counts as 292 years.
                let warm_up = warm_up.min(i64::MAX as u64);
                let above = nanos(warm_up) * 2 * 1024 / (rule.cold_factor + 1024);
                Self { most: nanos(warm_up) / 2 + above, slope: Some((warm_up, rule.cold_factor)) }
            }
        }
    }

    /// Returns the initial store. Bursty: empty. Warming up: cold.
    pub(super) fn at_first(&self) -> BigInt {
        if self.slope.is_some() { self.most.clone() } else { BigInt::ZERO }
    }

    /// Returns the growth for each unit of time, `1/2 + 2 / (1 + cf)`, as parts and whole.
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

    /// Returns how long `time` takes if that much is stored: what the store lacks, or the area under the
    /// line.
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

    /// Returns what it may be rounded up by: where a full store makes calls more expensive.
    pub(super) fn grain(&self) -> BigInt {
        if self.slope.is_some() { grain() } else { BigInt::ZERO }
    }

    /// Returns by how much every call may be late, so that none is early for what was rounded before.
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

/// Rounds up. What is beyond any clock need not be exact.
pub(super) fn whole_nanos(time: &BigInt) -> u128 {
    let up: BigInt = (time + (nanos(1) - 1)) >> PLACES;
    u128::try_from(up).unwrap_or(u128::MAX).min(1 << 100)
}

/// Returns the fraction of a nanosecond that times are kept in: 2^-48.
pub(super) fn grain() -> BigInt {
    nanos(1) >> 48_u32
}

/// Returns a tolerance below what is ever visible, above what is cut off here.
pub(super) fn hair() -> BigInt {
    nanos(1) >> 80_u32
}
