//! Denials that stand for a time, as four 64-bit words.

use super::{Decision, NEVER};

/// A denial with a known wait, made by one limit for a call of cost 1. The words are the limit, the wait and the reset
/// in grains, and the number of grains per nanosecond. Words of different denials, read together by mistake, cause no
/// panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StandingDenial(pub(crate) [u64; Self::WORDS]);

impl Decision {
    /// Returns the words of this denial. Returns `None` for an admission, and for a denial that the words cannot
    /// describe exactly, such as one by several limits or without a known wait.
    #[inline]
    pub(crate) fn standing(&self) -> Option<StandingDenial> {
        let Self { flags, index, limit, remaining, wait, reset, grains, delay } = *self;
        // The times near the end of the range may have been shortened.
        let is_exact = wait < NEVER - 1 && reset < u64::MAX;
        let is_plain = flags == 0 && index == 0 && remaining == 0 && delay == 0;
        (is_plain && is_exact).then_some(StandingDenial([limit, wait, reset, grains]))
    }
}

impl StandingDenial {
    pub(crate) const WORDS: usize = 4;

    /// Returns the denial as it would be made `elapsed` nanoseconds later. Returns `None` if the wait has passed by
    /// then.
    #[inline]
    pub(crate) fn after(self, elapsed: u64) -> Option<Decision> {
        let Self([limit, wait, reset, grains]) = self;
        let passed = elapsed.checked_mul(grains)?;
        let wait = wait.checked_sub(passed).filter(|wait| *wait > 0)?;
        Some(Decision::deny(limit, 0, Some(wait), reset.saturating_sub(passed)).in_grains(grains))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_do_not_belong_together_cause_no_panic() {
        for words in [[0; 4], [u64::MAX; 4], [7, 0, u64::MAX, 1], [7, u64::MAX, 0, 0]] {
            let _ = [0, 1, u64::MAX].map(|elapsed| StandingDenial(words).after(elapsed));
        }
    }
}
