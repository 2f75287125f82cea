//! The units in the slices of a [`SlidingWindow`](super::SlidingWindow), in as little memory as they need.

use crate::clock::Nanos;

/// The maximum number of closed slices that are stored without an allocation.
const FEW: usize = 10;
/// The indexes of three words: the units in all slices, the units in the open slice, and the units in the first closed
/// slice of the ring.
const TOTAL: usize = 0;
const OPEN: usize = 1;
const CLOSED: usize = 2;

/// The state of a key for a [`SlidingWindow`](super::SlidingWindow).
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SlidingWindowState {
    pub(super) last: Nanos,
    /// The time from the beginning of the open slice to `last`, in nanoseconds. It is less than the length of a slice.
    pub(super) into: u64,
    units: Units,
}

/// The units in all slices, in the open slice, and in each closed slice. The closed slices are a ring.
///
/// `newest_index` is the index of the newest closed slice, and `oldest_age` is an age above which all slices are empty.
/// Both numbers are fields of each variant, because they then fit into the padding next to the discriminant.
#[derive(Clone, Debug)]
enum Units {
    /// At most ten closed slices. Neither the units in one slice nor those in all slices have ever exceeded 32 bits.
    Few {
        newest_index: u16,
        oldest_age: u16,
        words: [u32; CLOSED + FEW],
    },
    Many {
        newest_index: u16,
        oldest_age: u16,
        words: Box<[u64]>,
    },
}

impl SlidingWindowState {
    /// Creates the state of a key that has used nothing. The state has `slices` closed slices, at most 1,000.
    pub(super) fn new(now: Nanos, slices: u32) -> Self {
        let slices = slices as usize;
        let units = match slices <= FEW {
            true => Units::Few { newest_index: 0, oldest_age: 0, words: [0; CLOSED + FEW] },
            false => Units::Many { newest_index: 0, oldest_age: 0, words: vec![0; CLOSED + slices].into() },
        };
        Self { last: now, into: 0, units }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        match &self.units {
            Units::Few { words, .. } => words[index].into(),
            Units::Many { words, .. } => words[index],
        }
    }

    #[inline(always)]
    fn set_word(&mut self, index: usize, units: u64) {
        match &mut self.units {
            Units::Few { words, .. } => match u32::try_from(units) {
                Ok(units) => words[index] = units,
                Err(_) => self.widen()[index] = units,
            },
            Units::Many { words, .. } => words[index] = units,
        }
    }

    #[cold]
    fn widen(&mut self) -> &mut [u64] {
        if let Units::Few { newest_index, oldest_age, words } = self.units {
            let words = words.map(u64::from).into();
            self.units = Units::Many { newest_index, oldest_age, words };
        }
        match &mut self.units {
            Units::Many { words, .. } => words,
            Units::Few { .. } => unreachable!("it was replaced"),
        }
    }

    /// Returns the units in all slices.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.word(TOTAL)
    }

    #[inline]
    pub(super) fn set_total(&mut self, units: u64) {
        self.set_word(TOTAL, units);
    }

    /// Returns the units in the open slice.
    #[inline]
    pub(super) fn open(&self) -> u64 {
        self.word(OPEN)
    }

    #[inline]
    pub(super) fn set_open(&mut self, units: u64) {
        self.set_word(OPEN, units);
    }

    /// Returns the units in a closed slice.
    #[inline]
    pub(super) fn closed(&self, slot: usize) -> u64 {
        self.word(CLOSED + slot)
    }

    #[inline]
    pub(super) fn set_closed(&mut self, slot: usize, units: u64) {
        self.set_word(CLOSED + slot, units);
    }

    /// Removes up to `units` from a closed slice. Returns how many were removed.
    pub(super) fn take_closed(&mut self, slot: usize, units: u64) -> u64 {
        let given = units.min(self.closed(slot));
        self.set_closed(slot, self.closed(slot) - given);
        given
    }

    /// Returns the index of the newest closed slice.
    #[inline]
    pub(super) fn newest_index(&self) -> u32 {
        let (Units::Few { newest_index, .. } | Units::Many { newest_index, .. }) = &self.units;
        (*newest_index).into()
    }

    pub(super) fn set_newest_index(&mut self, index: u32) {
        let (Units::Few { newest_index, .. } | Units::Many { newest_index, .. }) = &mut self.units;
        // There are 1,000 slices at most.
        *newest_index = index as u16;
    }

    /// Returns an age, in slices. All slices that are older than this are empty.
    #[inline]
    pub(super) fn oldest_age(&self) -> u32 {
        let (Units::Few { oldest_age, .. } | Units::Many { oldest_age, .. }) = &self.units;
        (*oldest_age).into()
    }

    pub(super) fn set_oldest_age(&mut self, age: u32) {
        let (Units::Few { oldest_age, .. } | Units::Many { oldest_age, .. }) = &mut self.units;
        // There are 1,000 slices at most.
        *oldest_age = age as u16;
    }

    /// Removes the units of all slices.
    pub(super) fn clear(&mut self) {
        match &mut self.units {
            Units::Few { words, .. } => words.fill(0),
            Units::Many { words, .. } => words.fill(0),
        }
        self.set_oldest_age(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_slices_hold_any_number_of_units() {
        let mut state = SlidingWindowState::new(Nanos(7), 10);
        assert!(matches!(state.units, Units::Few { .. }));
        assert_eq!(size_of::<SlidingWindowState>(), 72);
        (0..10).for_each(|slot| state.set_closed(slot, slot as u64));
        state.set_newest_index(4);
        state.set_oldest_age(9);
        state.set_total(u64::MAX);
        assert!(matches!(state.units, Units::Many { .. }));
        assert_eq!(
            (state.total(), state.open(), state.newest_index(), state.oldest_age()),
            (u64::MAX, 0, 4, 9)
        );
        assert!((0..10).all(|slot| state.closed(slot) == slot as u64));
        assert_eq!((state.take_closed(9, 4), state.take_closed(9, 7), state.closed(9)), (4, 5, 0));
        state.clear();
        assert_eq!((state.total(), state.oldest_age(), state.closed(8), state.last), (0, 0, 0, Nanos(7)));
    }

    #[test]
    fn a_thousand_slices_are_allocated() {
        let mut state = SlidingWindowState::new(Nanos(7), 1_000);
        state.set_closed(999, 5);
        state.set_newest_index(999);
        state.set_oldest_age(1_000);
        assert_eq!((state.closed(999), state.newest_index(), state.oldest_age()), (5, 999, 1_000));
    }
}
