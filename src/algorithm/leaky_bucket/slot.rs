/// The time of the next admission, in grains relative to the key's time. A slot before the key's time is overdue. The
/// number is stored as two 64-bit words, so that the state needs no padding for its alignment.
///
/// The number is counted from [`EPOCH_OFFSET`] grains before the key's time. So nearly all 128-bit numbers are slots in
/// the future, and the range of slots reaches beyond the end of the clock's range. Few numbers are needed for overdue
/// slots, because only queued calls use them, and a call uses at most the last 5 ms. A slot that would be overdue by
/// more than the offset is stored as the earliest slot that can be represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    high: u64,
    low: u64,
}

const EPOCH_OFFSET: u128 = 1 << 96;

impl Slot {
    pub(super) const NOW: Self = Self::new(EPOCH_OFFSET);

    const fn new(count: u128) -> Self {
        Self { high: (count >> 64) as u64, low: count as u64 }
    }

    const fn count(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    pub(super) const fn later(self, grains: u128) -> Self {
        Self::new(self.count().saturating_add(grains))
    }

    /// Returns the slot that is `grains` earlier, or the earliest slot that can be represented. A
    /// [saturated](Slot::is_saturated) slot stays the same.
    pub(super) const fn sooner(self, grains: u128) -> Self {
        if self.is_saturated() { self } else { Self::new(self.count().saturating_sub(grains)) }
    }

    pub(super) const fn is_due(self) -> bool {
        self.count() <= EPOCH_OFFSET
    }

    /// Returns whether the slot is too far in the future to be represented, and so beyond the range of the clock.
    pub(super) const fn is_saturated(self) -> bool {
        self.count() == u128::MAX
    }

    /// Returns the grains until the slot, or 0 if the slot is due.
    pub(super) const fn until(self) -> u128 {
        self.count().saturating_sub(EPOCH_OFFSET)
    }

    /// Returns the grains since the slot, or 0 if the slot is not due.
    pub(super) const fn overdue(self) -> u128 {
        EPOCH_OFFSET.saturating_sub(self.count())
    }
}
