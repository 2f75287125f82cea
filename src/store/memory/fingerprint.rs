//! Keys as 64-bit keyed fingerprints.
//!
//! Attackers can choose keys. So the hash is a keyed hash ([SipHash-1-3](super::siphash), as in std's `HashMap`),
//! seeded at random for each limiter. The key itself is not stored, so a key of a megabyte takes as much memory as an address.
//! One bit says whether there is a key at all. So the probability that two of `n` keys have the same fingerprint is
//! about `n² / 2^64`.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use super::siphash::SipHasher;
use crate::random::random_u64;

/// The identity of a key within one limiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

/// The bit that is set only for the missing key. Neither the index within a map nor the tag of a slot contains this
/// bit.
const KEYLESS: u64 = 1 << 56;

/// A key of the in-memory store: any type that is `Hash`, and a [`StoreKey`](crate::key::StoreKey), which may have no
/// key. Implemented by this crate only.
///
/// Two keys that write the same bytes to the hasher count as one key. So the `Hash` of a key must be prefix-free, as
/// that of derived and standard types is: parts of variable length must mark where they end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key: it is not `Hash`",
    note = "derive `Hash` for it"
)]
pub trait MemoryKey {
    /// Writes the key to `state`. Returns `false` if there is no key.
    #[doc(hidden)]
    fn hash_key<H: Hasher>(&self, state: &mut H) -> bool;
}

impl<K: Hash + ?Sized> MemoryKey for K {
    #[inline]
    fn hash_key<H: Hasher>(&self, state: &mut H) -> bool {
        self.hash(state);
        true
    }
}

impl Fingerprint {
    /// Returns the identity of the shared bucket of this key, which is one of `2^bits`.
    pub(super) fn to_bucket(self, bits: u32) -> Self {
        // The number is taken from the bits below the bit that is the same for all keys.
        Self::numbered(self.0.rotate_left(8) >> (u64::BITS - bits))
    }

    /// Returns the identity of the shared bucket with that number.
    pub(super) fn numbered(number: u64) -> Self {
        // The golden ratio spreads the number over the whole word, because hash tables use both ends of the word.
        Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the index of the key's shard among `count` shards. `count` is a power of two. The index comes from bits
    /// that the hash table of a shard does not use.
    #[inline]
    pub(super) fn shard(self, count: usize) -> usize {
        (self.0 >> 45) as usize & (count - 1)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// Hashes to the fingerprint itself: one hash serves for shard, slot and identity.
impl Hash for Fingerprint {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0);
    }
}

/// The hash seed of one limiter.
#[derive(Clone)]
pub(super) struct HashSeed([u64; 2]);

impl HashSeed {
    pub(super) fn random() -> Self {
        Self([random_u64(), random_u64()])
    }

    #[inline]
    pub(super) fn fingerprint<K: MemoryKey + ?Sized>(&self, key: &K) -> Fingerprint {
        let mut hasher = SipHasher::new(self.0);
        let has_key = key.hash_key(&mut hasher);
        let hash = hasher.finish();
        Fingerprint(if has_key { hash & !KEYLESS } else { hash | KEYLESS })
    }
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// A hasher that takes a fingerprint as its own hash.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityBuildHasher;

impl BuildHasher for IdentityBuildHasher {
    type Hasher = IdentityHasher;

    #[inline]
    fn build_hasher(&self) -> IdentityHasher {
        IdentityHasher(0)
    }
}

#[derive(Debug)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write(&mut self, bytes: &[u8]) {
        // Only fingerprints are hashed here, which are words. For other input, folding the bytes is correct but slow.
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
        let (one, other) = (HashSeed::random(), HashSeed::random());
        assert_eq!(one.fingerprint("a"), one.fingerprint("a"));
        assert_ne!(one.fingerprint("a"), one.fingerprint("b"));
        assert_ne!(one.fingerprint("a"), other.fingerprint("a"));
        assert_ne!(one.fingerprint(&("a", "bc")), one.fingerprint(&("ab", "c")));
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(one.fingerprint(&ip), one.fingerprint(&ip.clone()));
    }

    #[test]
    fn a_missing_key_has_an_identity_of_its_own() {
        struct Keyless;
        impl MemoryKey for Keyless {
            fn hash_key<H: Hasher>(&self, _: &mut H) -> bool {
                false
            }
        }
        /// Writes nothing, as the absence of a key does.
        struct Nothing;
        impl Hash for Nothing {
            fn hash<H: Hasher>(&self, _: &mut H) {}
        }
        for _ in 0..100 {
            let seed = HashSeed::random();
            let unknown = seed.fingerprint(&Keyless);
            assert_ne!(unknown, seed.fingerprint(&Nothing));
            assert_ne!(unknown, seed.fingerprint(&()));
            assert_eq!(unknown.0 & KEYLESS, KEYLESS);
            assert_eq!(seed.fingerprint("a").0 & KEYLESS, 0);
        }
    }

    #[test]
    fn nothing_of_a_key_or_a_seed_is_printed() {
        let seed = HashSeed::random();
        assert_eq!(format!("{seed:?} {:?}", seed.fingerprint("secret")), "Seed(..) Fingerprint(..)");
    }
}
