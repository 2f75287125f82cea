//! Random numbers from a seed, so that every failure can be reproduced.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ops::RangeInclusive;

/// The generator splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        match (range.end() - range.start()).checked_add(1) {
            Some(width) => range.start() + self.below(width),
            None => self.word(),
        }
    }

    /// Returns a number with a random number of bits, so that small numbers are as frequent as large ones.
    pub(crate) fn any_size(&mut self) -> u64 {
        let shift = self.below(64);
        (self.word() >> shift).max(1)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len() as u64) as usize]
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
