//! SipHash-1-3 with a result of 64 bits, for short inputs of a few machine words.
//!
//! The result is that of the reference implementation for the same bytes. An integer is added to the current block by a
//! shift, and is not written to memory first. Discriminants and lengths below 255 are hashed as one byte, so an IPv4
//! address is one block.
//!
//! The hash is defined in "SipHash: a fast short-input PRF" (2012) by Aumasson and Bernstein.

use std::hash::Hasher;

/// Discriminants and lengths below this value are hashed as one byte. Other values are hashed as nine bytes: this byte,
/// and the eight bytes of the value.
const WIDE: u64 = 0xff;

/// A hasher with a secret key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SipHasher {
    state: [u64; 4],
    /// The bytes that do not fill a block yet. The first of them is the lowest byte.
    tail: u64,
    /// The number of bytes in `tail`, below 8.
    tail_len: usize,
    /// The number of bytes that were added so far.
    len: u64,
}

impl SipHasher {
    /// Creates a hasher from a state that [`seeded`](SipHasher::seeded) has returned.
    #[inline(always)]
    pub(crate) fn new(state: [u64; 4]) -> Self {
        Self { state, tail: 0, tail_len: 0, len: 0 }
    }

    /// Returns the initial state of hashers with this key.
    pub(crate) fn seeded([low, high]: [u64; 2]) -> [u64; 4] {
        [
            low ^ 0x736f_6d65_7073_6575,
            high ^ 0x646f_7261_6e64_6f6d,
            low ^ 0x6c79_6765_6e65_7261,
            high ^ 0x7465_6462_7974_6573,
        ]
    }

    #[inline(always)]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32);
        a = a.wrapping_add(d);
        c = c.wrapping_add(b);
        d = d.rotate_left(21) ^ a;
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }

    #[inline(always)]
    fn block(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }

    /// Adds the lowest `size` bytes of `word`. All higher bytes of `word` are 0. `size` is at most 8.
    #[inline(always)]
    fn push(&mut self, word: u64, size: usize) {
        self.len = self.len.wrapping_add(size as u64);
        self.tail |= word << (8 * self.tail_len);
        let filled = self.tail_len + size;
        if filled < 8 {
            self.tail_len = filled;
            return;
        }
        self.block(self.tail);
        // The number of bytes of `word` that are in the block. If it is 8, a shift by 64 bits would be an overflow.
        let used = 8 - self.tail_len;
        self.tail = if used < 8 { word >> (8 * used) } else { 0 };
        self.tail_len = filled - 8;
    }

    /// Adds a discriminant or a length: as one byte if it is below [`WIDE`], otherwise as nine bytes. The first byte
    /// tells whether more bytes follow. So two different sequences of such values never add the same bytes.
    #[inline(always)]
    fn push_small(&mut self, number: u64) {
        if number < WIDE {
            self.push(number, 1);
        } else {
            self.push(WIDE, 1);
            self.push(number, 8);
        }
    }
}

impl Hasher for SipHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.push(u64::from_le_bytes(*word), 8);
        }
        for byte in rest {
            self.push(u64::from(*byte), 1);
        }
    }

    #[inline(always)]
    fn write_u8(&mut self, number: u8) {
        self.push(u64::from(number), 1);
    }

    #[inline(always)]
    fn write_u16(&mut self, number: u16) {
        self.push(u64::from(number), 2);
    }

    #[inline(always)]
    fn write_u32(&mut self, number: u32) {
        self.push(u64::from(number), 4);
    }

    #[inline(always)]
    fn write_u64(&mut self, number: u64) {
        self.push(number, 8);
    }

    #[inline(always)]
    fn write_u128(&mut self, number: u128) {
        self.push(number as u64, 8);
        self.push((number >> 64) as u64, 8);
    }

    #[inline(always)]
    fn write_usize(&mut self, number: usize) {
        self.push_small(number as u64);
    }

    #[inline(always)]
    fn write_isize(&mut self, number: isize) {
        self.push_small(number as u64);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        let mut last = *self;
        last.block(self.len << 56 | self.tail);
        last.state[2] ^= 0xff;
        last.round();
        last.round();
        last.round();
        let [a, b, c, d] = last.state;
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use siphasher::sip::SipHasher13;
    use std::hash::Hash;
    use std::net::IpAddr;

    /// The parts are bytes and integers of all sizes, at all offsets within a block.
    #[test]
    fn a_hash_is_that_of_the_reference() {
        for seed in 0..1_000 {
            let mut random = Rng::with_seed(seed);
            let key = [random.u64(..), random.u64(..)];
            let (mut ours, mut reference) =
                (SipHasher::new(SipHasher::seeded(key)), SipHasher13::new_with_keys(key[0], key[1]));
            for _ in 0..random.usize(..12) {
                let (number, kind) = (random.u128(..), random.u8(..7));
                let bytes: Vec<_> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
                let both: [&mut dyn Hasher; 2] = [&mut ours, &mut reference];
                for hasher in both {
                    match kind {
                        0 => hasher.write_u8(number as u8),
                        1 => hasher.write_u16(number as u16),
                        2 => hasher.write_u32(number as u32),
                        3 => hasher.write_u64(number as u64),
                        4 => hasher.write_u128(number),
                        5 => hasher.write_i64(number as i64),
                        _ => hasher.write(&bytes),
                    }
                }
            }
            assert_eq!(ours.finish(), reference.finish(), "seed {seed}");
        }
    }

    /// A `usize`, whose size differs between machines, is hashed as one byte, or as 0xff and eight bytes.
    #[test]
    fn discriminants_and_lengths_are_as_short_as_they_can_be() {
        for seed in 0..1_000 {
            let mut random = Rng::with_seed(seed);
            let (key, number) = ([random.u64(..), random.u64(..)], random.usize(..));
            let before = random.usize(..9);
            for number in [number, number % 255, 254, 255, 256, usize::MAX] {
                let (mut ours, mut reference) =
                    (SipHasher::new(SipHasher::seeded(key)), SipHasher13::new_with_keys(key[0], key[1]));
                ours.write(&[7; 8][..before]);
                reference.write(&[7; 8][..before]);
                ours.write_usize(number);
                match u8::try_from(number) {
                    Ok(small) if small < 255 => reference.write_u8(small),
                    _ => {
                        reference.write_u8(255);
                        reference.write_u64(number as u64);
                    }
                }
                assert_eq!(ours.finish(), reference.finish(), "seed {seed}");
            }
        }
    }

    #[test]
    fn an_ipv4_address_is_one_block() {
        let mut hasher = SipHasher::new(SipHasher::seeded([3, 5]));
        IpAddr::from([192, 0, 2, 7]).hash(&mut hasher);
        assert!(hasher.len < 8, "{} bytes", hasher.len);
    }
}
