//! A rate in whole microseconds, for stored states and scripts.

use crate::algorithm::rate::Rate;
use crate::error::ConfigError;

/// A rate for a server whose clock counts microseconds: the grains per microsecond and the grains per unit, in lowest
/// terms.
///
/// One grain of this rate is `factor` grains of the [`Rate`]. A microsecond is a whole number of grains of either rate.
/// So if a state was fresh at a whole microsecond, then at every later whole microsecond the state contains a whole
/// number of grains of this rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithm) struct MicroRate {
    /// The grains of a microsecond.
    micro: u128,
    /// The grains of a unit.
    unit: u128,
    /// The grains of the [`Rate`] in one grain of this rate.
    factor: u64,
}

impl MicroRate {
    pub(in crate::algorithm) const fn of(rate: Rate) -> Self {
        let (mut factor, mut b) = (1_000, rate.grains_per_unit());
        while b > 0 {
            (factor, b) = (b, factor % b);
        }
        Self {
            micro: rate.grains_per_nano() as u128 * (1_000 / factor) as u128,
            unit: (rate.grains_per_unit() / factor) as u128,
            factor,
        }
    }

    /// Returns the grains of a microsecond, and those of a unit.
    pub(in crate::algorithm) const fn grains(self) -> (u128, u128) {
        (self.micro, self.unit)
    }

    /// Converts grains of the [`Rate`] to grains of this rate, rounded up. If `is_exact`, returns them as they are: the
    /// grains of a state that was converted are not always a whole number of grains of this rate.
    pub(in crate::algorithm) const fn written(self, grains: u128, is_exact: bool) -> u128 {
        if is_exact { grains } else { grains.div_ceil(self.factor as u128) }
    }

    /// Converts what [`written`](Self::written) has returned to grains of the [`Rate`]. Returns `None` if the result is
    /// out of range.
    pub(in crate::algorithm) fn read(self, count: u128, is_exact: bool) -> Option<u128> {
        if is_exact { Some(count) } else { count.checked_mul(self.factor.into()) }
    }

    /// Returns an error if the rate is above 10^6 units per microsecond, the maximum that a stored state can represent.
    pub(in crate::algorithm) fn check_storable(self) -> Result<(), ConfigError> {
        if self.micro <= 1_000_000 * self.unit {
            Ok(())
        } else {
            Err(ConfigError::new(
                "a bucket in Redis refills by at most 10^12 units per second: give a lower rate",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    #[test]
    fn grains_of_a_microsecond_are_in_lowest_terms() {
        let of = |text: &str| MicroRate::of(Rate::of(text.parse::<Quota>().unwrap()));
        let table = [("10/s", 1, 100_000), ("7/min", 7, 60_000_000), ("1/ns", 1_000, 1), ("3/2ns", 1_500, 1)];
        for (text, micro, unit) in table {
            let rate = of(text);
            assert_eq!((rate.micro, rate.unit), (micro, unit), "{text}");
        }
        // At 3 per 7 ns, a unit is 7 grains, and a microsecond is 3,000 grains.
        assert_eq!((of("3/7ns").micro, of("3/7ns").unit), (3_000, 7));
    }

    #[test]
    fn a_rate_is_refused_only_above_a_million_units_per_microsecond() {
        let is_storable = |limit, period| {
            let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).unwrap();
            MicroRate::of(Rate::of(quota)).check_storable().is_ok()
        };
        const DAY: u64 = 86_400_000_000_000;
        for (limit, period) in [
            (1_000_003, DAY),
            (999_999_937, DAY),
            (1_000_000_000_000, 1_000_000_000),
            (1_000, 1),
            (86_400_000_000_000_000, DAY),
            (u64::MAX, i64::MAX as u64),
            (1, i64::MAX as u64),
        ] {
            assert!(is_storable(limit, period), "{limit} per {period} ns");
        }
        for (limit, period) in
            [(1_000_000_000_001, 1_000_000_000), (1_001, 1), (86_400_000_000_000_001, DAY), (u64::MAX, 1)]
        {
            assert!(!is_storable(limit, period), "{limit} per {period} ns");
        }
    }
}
