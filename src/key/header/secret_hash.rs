use std::fmt;
use std::hash::Hash;
use std::sync::OnceLock;

use siphasher::sip128::SipHasher13;

use crate::store::{KeySecret, KeyedHash};
use crate::sys::random::random_u64;

/// A 128-bit hash of a token or a session, keyed with a random number that stays the same until the process ends. The
/// token or session cannot be recovered from the hash.
///
/// This type does not implement [`SharedKey`](crate::store::SharedKey), because a store on another machine needs tokens
/// and sessions that are hashed with a [configured secret](crate::store::KeySecret).
///
/// The `Debug` form shows nothing of the token or session.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(u128);

/// A random key for hashes, which stays the same until the process ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSeed;

/// Hashes the tokens and sessions that an extractor finds. Only this crate can implement this trait, since the trait's
/// module is private.
pub trait HashSecret {
    /// The hash of a token or a session.
    type Hash: Hash + Clone;

    #[doc(hidden)]
    fn hash_secret(&self, value: &[u8]) -> Self::Hash;
}

impl HashSecret for ProcessSeed {
    type Hash = SecretHash;

    fn hash_secret(&self, value: &[u8]) -> SecretHash {
        static SEED: OnceLock<(u64, u64)> = OnceLock::new();
        let (first, second) = *SEED.get_or_init(|| (random_u64(), random_u64()));
        SecretHash(SipHasher13::new_with_keys(first, second).hash(value).as_u128())
    }
}

impl HashSecret for KeySecret {
    type Hash = KeyedHash;

    fn hash_secret(&self, value: &[u8]) -> KeyedHash {
        self.hash(value)
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
