/// When the next call may leave, in grains from the key's time on; before that, it might have left already. In words,
/// so that it takes no more room than it needs.
///
/// As a number, counted from [`EPOCH_OFFSET`] grains before the key's time: so what is to come may take nearly all of
/// it, for that can be as long as time is. What has gone by need not, for it is owed to those only who wait, and is
/// forgotten above that.
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

    /// So many grains before; or as many of them as can be counted, but a slot [beyond that](Slot::is_saturated) stays
    /// there.
    pub(super) const fn sooner(self, grains: u128) -> Self {
        if self.is_saturated() { self } else { Self::new(self.count().saturating_sub(grains)) }
    }

    pub(super) const fn is_due(self) -> bool {
        self.count() <= EPOCH_OFFSET
    }

    /// Whether it is further away than can be counted: beyond the end of time.
    pub(super) const fn is_saturated(self) -> bool {
        self.count() == u128::MAX
    }

    /// How far away it is; nothing, if it has come.
    pub(super) const fn until(self) -> u128 {
        self.count().saturating_sub(EPOCH_OFFSET)
    }

    /// How long ago it was; nothing, if it has not come.
    pub(super) const fn overdue(self) -> u128 {
        EPOCH_OFFSET.saturating_sub(self.count())
    }
}
