//! A rate as a fraction in lowest terms, and the exact arithmetic on it.

use std::time::Duration;

use crate::decision::Decision;
use crate::quota::Quota;

/// A rate of `limit` units per `period` nanoseconds. The two numbers are those of a quota, divided by their greatest
/// common divisor.
///
/// Units and time are counted in *grains*: one unit is `period` grains, and `limit` grains arrive per nanosecond. Both
/// numbers are integers, and only the durations that are reported are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    limit: u64,
    period: u64,
}

impl Rate {
    pub(super) const fn of(quota: Quota) -> Self {
        let (mut a, mut b) = (quota.limit(), quota.period_nanos());
        while b > 0 {
            (a, b) = (b, a % b);
        }
        Self { limit: quota.limit() / a, period: quota.period_nanos() / a }
    }

    /// Returns a quota of this rate: per second, minute, hour or day, if units arrive in it in whole numbers.
    pub(super) fn quota(&self) -> Quota {
        let seconds = [1, 60, 3_600, 86_400].into_iter().map(Duration::from_secs);
        let whole = |period: Duration| {
            let grains = period.as_nanos() * u128::from(self.limit);
            let units = u64::try_from(grains / u128::from(self.period)).ok()?;
            (self.units(units) == grains).then(|| Quota::per(units, period).ok())?
        };
        let reduced = || Quota::per(self.limit, Duration::from_nanos(self.period)).ok();
        match seconds.filter_map(whole).next().or_else(reduced) {
            Some(quota) => quota,
            None => unreachable!("it is the rate of a quota"),
        }
    }

    /// Returns the grains that arrive in a nanosecond.
    #[inline(always)]
    pub(super) const fn grains_per_nano(&self) -> u64 {
        self.limit
    }

    /// Returns the grains of one unit.
    #[inline(always)]
    pub(super) const fn grains_per_unit(&self) -> u64 {
        self.period
    }

    /// Returns the grains that arrive in `nanos` nanoseconds.
    #[inline]
    pub(super) const fn grains(&self, nanos: u64) -> u128 {
        nanos as u128 * self.limit as u128
    }

    /// Returns the grains of `units`.
    #[inline]
    pub(super) const fn units(&self, units: u64) -> u128 {
        units as u128 * self.period as u128
    }

    /// Returns the whole units in `grains`, and the grains that remain.
    #[inline]
    pub(super) fn whole_units(&self, grains: u128) -> (u128, u64) {
        div_rem(grains, self.period)
    }

    /// Returns the time in which `units` arrive, in nanoseconds, rounded up. Returns `u64::MAX` for times beyond 584
    /// years.
    #[inline]
    pub(super) fn time(&self, units: u64) -> u64 {
        self.nanos_of(self.units(units))
    }

    /// Returns an admission. `reset` is the time until all units are available again. `next` is the time until the next
    /// unit is available, or 0 if a unit is available now. Both times are in grains.
    #[inline]
    pub(super) fn allow(&self, limit: u64, remaining: u64, reset: u128, next: u128) -> Decision {
        match (u64::try_from(reset), u64::try_from(next)) {
            (Ok(reset), Ok(next)) => {
                Decision::allow(limit, remaining, reset).with_next(next).in_grains(self.limit)
            }
            _ => Decision::allow(limit, remaining, self.nanos_of(reset)).with_next(self.nanos_of(next)),
        }
    }

    /// Returns a denial. `retry` is the time until the call fits, or `None` if the call never fits. `reset` is the time
    /// until all units are available again. Both times are in grains.
    #[inline]
    pub(super) fn deny(&self, limit: u64, remaining: u64, retry: Option<u128>, reset: u128) -> Decision {
        match (u64::try_from(retry.unwrap_or(0)), u64::try_from(reset)) {
            (Ok(wait), Ok(reset)) if wait < u64::MAX => {
                Decision::deny(limit, remaining, retry.map(|_| wait), reset).in_grains(self.limit)
            }
            _ => {
                Decision::deny(limit, remaining, retry.map(|wait| self.nanos_of(wait)), self.nanos_of(reset))
            }
        }
    }

    #[inline]
    pub(super) fn nanos_of(&self, grains: u128) -> u64 {
        if self.limit == 1 {
            return u64::try_from(grains).unwrap_or(u64::MAX);
        }
        let (nanos, rest) = div_rem(grains, self.limit);
        u64::try_from(nanos).map_or(u64::MAX, |nanos| nanos.saturating_add(u64::from(rest > 0)))
    }
}

/// Returns the quotient and the remainder. The division is cheap if the dividend fits into 64 bits, which is nearly
/// always the case.
#[inline]
pub(super) fn div_rem(dividend: u128, divisor: u64) -> (u128, u64) {
    if let Ok(dividend) = u64::try_from(dividend) {
        return (u128::from(dividend / divisor), dividend % divisor);
    }
    let quotient = dividend / u128::from(divisor);
    // The remainder is below the divisor, so it fits. It takes less time to multiply than to divide once more.
    (quotient, (dividend - quotient * u128::from(divisor)) as u64)
}

/// Returns `part * new / old`, rounded up. `part` is at most `old`.
pub(super) const fn rescale_ceil(part: u64, new: u64, old: u64) -> u64 {
    // The result is at most `new`, since `part` is at most `old`. So it fits.
    (part as u128 * new as u128).div_ceil(old as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn spans_are_rounded_up_and_saturate() {
        let seven = Rate::of(Quota::per_minute(7));
        assert_eq!((seven.limit, seven.period), (7, 60_000_000_000));
        assert_eq!(seven.time(1), 8_571_428_572);
        assert_eq!(seven.time(7), 60_000_000_000);
        assert_eq!(seven.nanos_of(1), 1);
        assert_eq!(seven.time(u64::MAX), u64::MAX);

        let hundred = Rate::of(Quota::per_second(100));
        assert_eq!((hundred.limit, hundred.period), (1, 10_000_000));
        assert_eq!(hundred.nanos_of(10_000_005), 10_000_005);

        let wide = Rate::of(Quota::per(u64::MAX, Duration::from_nanos(i64::MAX as u64)).unwrap());
        assert_eq!(wide.time(u64::MAX), i64::MAX as u64);
        assert_eq!(wide.grains(u64::MAX), u128::from(u64::MAX) * u128::from(wide.limit));
    }

    #[test]
    fn division_agrees_with_itself_on_both_paths() {
        for dividend in [0, 1, u128::from(u64::MAX), u128::from(u64::MAX) + 1, u128::MAX] {
            for divisor in [1, 2, 7, u64::MAX] {
                let (quotient, rest) = div_rem(dividend, divisor);
                assert_eq!(quotient * u128::from(divisor) + u128::from(rest), dividend);
                assert!(rest < divisor);
            }
        }
    }
}
