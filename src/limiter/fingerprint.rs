//! Keys as 64-bit keyed fingerprints.
//!
//! Attackers can choose keys. So the hash is a keyed hash ([SipHash-1-3](crate::sys::hash), as in std's `HashMap`) with
//! a random seed for each limiter. The key itself is not stored, so a key of a megabyte takes as much memory as an IP
//! address. One bit of the fingerprint is set for every key. This bit is not set in the fingerprint of a missing key,
//! which all requests without a key share. The other 63 bits are the hash of the key. So the probability that two of
//! `n` keys have the same fingerprint is about `n² / 2^64`.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU64;

use crate::sys::hash::SipHasher;
use crate::sys::random::random_u64;

/// The identity of a key within one limiter. It is not 0, so that an optional slot takes no more memory than a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(NonZeroU64);

/// This bit is set in the fingerprint of every key, and is not set in the fingerprint of a missing key. It is the
/// lowest of the 32 bits that choose the shard, so it hardly affects which shard is chosen.
const HAS_KEY: NonZeroU64 = NonZeroU64::new(1 << 32).unwrap();

/// The fingerprint of a missing key.
const KEYLESS: NonZeroU64 = NonZeroU64::new(0x9e37_79b8_7f4a_7c15).unwrap();

/// A type of keys for a limiter in memory: any type that is `Hash`, or a [`StoreKey`](crate::key::StoreKey), which may
/// stand for a missing key.
///
/// A limiter of your own in memory implements [`LimiterFor<K>`](super::LimiterFor) for all `K: MemoryKey + ?Sized`, and
/// identifies the state of a key by the hash of the key and the result of [`hash_key`](Self::hash_key). The guide has
/// [such a limiter](crate::guide::engine#a-limiter-of-your-own).
///
/// Two keys that write the same bytes to the hasher share one state. So the `Hash` of a key must be prefix-free, as it
/// is for derived and standard types: parts of variable length must mark where they end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key: it is not `Hash`",
    note = "derive `Hash` for it"
)]
pub trait MemoryKey {
    /// Writes the key to `state`, as `Hash` does, and returns `true`. Returns `false` for the key that requests without
    /// a key [share](crate::key::MissingKey::Shared). No other key has its state, whatever the hashes are.
    ///
    /// ```
    /// use std::hash::{BuildHasher, Hasher, RandomState};
    /// use tower_throttle::key::StoreKey;
    /// use tower_throttle::limiter::MemoryKey;
    ///
    /// let seed = RandomState::new();
    /// let id = |key: &StoreKey<&str>| {
    ///     let mut hasher = seed.build_hasher();
    ///     (key.hash_key(&mut hasher), hasher.finish())
    /// };
    /// assert_eq!(id(&StoreKey::Key("a")), (true, seed.hash_one("a")));
    /// assert!(!id(&StoreKey::Missing).0);
    /// ```
    fn hash_key<H: Hasher>(&self, state: &mut H) -> bool;
}

impl<K: Hash + ?Sized> MemoryKey for K {
    #[inline(always)]
    fn hash_key<H: Hasher>(&self, state: &mut H) -> bool {
        self.hash(state);
        true
    }
}

impl Fingerprint {
    /// Returns the index of the key's shard among `count` shards. `count` is at most 2^32. The index depends on the
    /// upper half of the fingerprint.
    #[inline]
    pub(super) fn shard(self, count: usize) -> usize {
        ((self.0.get() >> 32).wrapping_mul(count as u64) >> 32) as usize
    }

    /// Returns a number whose lowest bits are the index of the key's slot.
    #[inline]
    pub(super) fn slot(self) -> usize {
        self.0.get() as usize
    }

    /// Returns the fingerprint with this [`word`](Self::word).
    #[inline]
    pub(super) fn of_word(word: u64) -> Self {
        Self(NonZeroU64::new(word).unwrap_or(KEYLESS))
    }

    /// Returns the fingerprint as a word, which is not 0.
    #[inline]
    pub(super) fn word(self) -> u64 {
        self.0.get()
    }

    #[cfg(test)]
    pub(super) fn of_slot(slot: u64, rest: u64) -> Self {
        Self(HAS_KEY | rest << 33 | slot)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// Writes the fingerprint as one word, which [`IdentityHasher`] returns as the hash. A fingerprint is a hash already.
impl Hash for Fingerprint {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0.get());
    }
}

/// The hash seed of one limiter, which is the initial state of the limiter's hashers.
#[derive(Clone)]
pub(super) struct HashSeed([u64; 4]);

impl HashSeed {
    pub(super) fn random() -> Self {
        Self(SipHasher::seeded([random_u64(), random_u64()]))
    }

    #[inline]
    pub(super) fn fingerprint<K: MemoryKey + ?Sized>(&self, key: &K) -> Fingerprint {
        let mut hasher = SipHasher::new(self.0);
        let has_key = key.hash_key(&mut hasher);
        let hash = hasher.finish();
        Fingerprint(if has_key { HAS_KEY | hash } else { KEYLESS })
    }
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// Builds hashers for which the hash of a fingerprint is the fingerprint itself.
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
        // Only fingerprints are hashed, and these are written by `write_u64`. For other input, this is correct but
        // slow.
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
        /// A key that writes nothing to the hasher. [`Keyless`] writes nothing either, but stands for a missing key.
        struct Nothing;
        impl Hash for Nothing {
            fn hash<H: Hasher>(&self, _: &mut H) {}
        }
        for _ in 0..100 {
            let seed = HashSeed::random();
            let unknown = seed.fingerprint(&Keyless);
            assert_ne!(unknown, seed.fingerprint(&Nothing));
            assert_ne!(unknown, seed.fingerprint(&()));
            assert_eq!(unknown.0.get() & HAS_KEY.get(), 0);
            assert_eq!(seed.fingerprint("a").0.get() & HAS_KEY.get(), HAS_KEY.get());
            for id in [unknown, seed.fingerprint("a")] {
                assert_eq!(Fingerprint::of_word(id.word()), id);
            }
        }
    }

    #[test]
    fn nothing_of_a_key_or_a_seed_is_printed() {
        let seed = HashSeed::random();
        assert_eq!(format!("{seed:?} {:?}", seed.fingerprint("secret")), "Seed(..) Fingerprint(..)");
    }
}
