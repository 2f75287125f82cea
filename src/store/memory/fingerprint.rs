//! Keys as 128-bit keyed fingerprints.
//!
//! An attacker picks the keys. So the hash is a keyed one with a security claim (SipHash-1-3, 128 bits), seeded at
//! random for each limiter; and a key of a megabyte takes as much memory as an address, and is kept nowhere.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::random::word;

/// A key's identity within one limiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    high: u64,
    low: u64,
}

impl Fingerprint {
    /// One of `2^bits` identities that many keys share.
    pub(super) fn coarse(self, bits: u32) -> Self {
        Self::numbered(self.low >> (u64::BITS - bits))
    }

    /// The identity with that number of those that many keys share.
    pub(super) fn numbered(number: u64) -> Self {
        // Spread over the whole word again, by the golden ratio: tables look at either end of it.
        Self { high: 0, low: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    #[inline]
    fn word(self) -> u64 {
        self.high ^ self.low
    }

    /// Its shard, of `count`, which is a power of two. By bits at which the shard's own table does not look.
    #[inline]
    pub(super) fn shard(self, count: usize) -> usize {
        (self.word() >> 45) as usize & (count - 1)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// One hash serves for shard, slot and identity.
impl Hash for Fingerprint {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.word());
    }
}

/// The seed of one limiter.
#[derive(Clone)]
pub(super) struct Seed(u64, u64);

impl Seed {
    pub(super) fn random() -> Self {
        Self(word(), word())
    }

    #[inline]
    pub(super) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        key.hash(&mut hasher);
        let hash = hasher.finish128();
        Fingerprint { high: hash.h1, low: hash.h2 }
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// Takes a fingerprint as its own hash.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Direct;

impl BuildHasher for Direct {
    type Hasher = Word;

    #[inline]
    fn build_hasher(&self) -> Word {
        Word(0)
    }
}

#[derive(Debug)]
pub(super) struct Word(u64);

impl Hasher for Word {
    fn write(&mut self, bytes: &[u8]) {
        // Only fingerprints are hashed here, and they are words; folding keeps it right for anything.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn keys_differ_and_seeds_differ() {
        let (one, other) = (Seed::random(), Seed::random());
        assert_eq!(one.fingerprint("a"), one.fingerprint("a"));
        assert_ne!(one.fingerprint("a"), one.fingerprint("b"));
        assert_ne!(one.fingerprint("a"), other.fingerprint("a"));
        assert_ne!(one.fingerprint(&("a", "bc")), one.fingerprint(&("ab", "c")));
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(one.fingerprint(&ip), one.fingerprint(&ip.clone()));
    }

    #[test]
    fn nothing_of_a_key_or_a_seed_is_printed() {
        let seed = Seed::random();
        assert_eq!(format!("{seed:?} {:?}", seed.fingerprint("secret")), "Seed(..) Fingerprint(..)");
    }
}
