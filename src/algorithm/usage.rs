use crate::decision::Decision;

/// The used fraction of a key's limit. A store that has no room for a new key compares usages to choose the key to
/// evict.
///
/// Usages are ordered by the used fraction of the limit, from [`NONE`](Usage::NONE) to [`FULL`](Usage::FULL).
/// [`LOCKED_OUT`](Usage::LOCKED_OUT) is above `FULL`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usage(u64);

impl Usage {
    /// Nothing is used.
    pub const NONE: Self = Self(0);
    /// The limit is reached: nothing remains.
    pub const FULL: Self = Self(1 << 32);
    /// The key is locked out, even if units remain.
    pub const LOCKED_OUT: Self = Self(Self::FULL.0 + 1);

    /// Returns the usage of a key that has used `used` of `limit` units. The result is [`FULL`](Usage::FULL) if `used`
    /// is at least `limit`, and less otherwise.
    #[must_use]
    pub const fn of(used: u64, limit: u64) -> Self {
        if used >= limit {
            return Self::FULL;
        }
        // The result is less than 2^32, since `used` is less than `limit`. If possible, the division is in 64 bits,
        // because it then takes less time.
        match used >> 32 {
            0 => Self((used << 32) / limit),
            _ => Self((((used as u128) << 32) / limit as u128) as u64),
        }
    }

    /// Returns the usage that follows from the decision on a peek of cost 0.
    pub(super) const fn reported_by(decision: &Decision) -> Self {
        Self::of(decision.limit().saturating_sub(decision.remaining()), decision.limit())
    }

    /// Returns a number that is ordered as usages are. The number is less than 2^33.
    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns whether the limit is reached or the key is locked out.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.0 >= Self::FULL.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usages_are_ordered_across_limits() {
        assert_eq!(Usage::of(0, 5), Usage::NONE);
        assert!(Usage::of(1, 1_000) < Usage::of(1, 20));
        assert!(Usage::of(u64::MAX - 1, u64::MAX) < Usage::FULL);
        assert_eq!(Usage::of(1, 1), Usage::FULL);
        assert_eq!(Usage::of(7, 5), Usage::FULL);
        assert_eq!(Usage::of(0, 0), Usage::FULL);
        assert!(Usage::FULL < Usage::LOCKED_OUT && Usage::FULL.is_full() && !Usage::of(4, 5).is_full());
    }

    #[test]
    fn a_decision_reports_what_is_used() {
        assert_eq!(Usage::reported_by(&Decision::allow(4, 3, 9)), Usage::of(1, 4));
        assert_eq!(Usage::reported_by(&Decision::deny(4, 0, Some(1), 9)), Usage::FULL);
        // A cost above the limit is denied, and uses nothing.
        assert_eq!(Usage::reported_by(&Decision::deny(4, 4, None, 0)), Usage::NONE);
    }
}
