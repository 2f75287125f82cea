use std::fmt;
use std::hash::Hash;

use siphasher::sip128::SipHasher24;

use super::{KeyWriter, SharedKey};
use crate::error::ConfigError;

/// A secret in the configuration of all processes that share limits.
///
/// The secret is part of the configuration, because a random secret would differ in each process. Keys that must not be
/// readable, and keys that are too long to be stored, are hashed with the secret and
/// [SipHash-2-4](https://www.aumasson.jp/siphash/siphash.pdf), to 128 bits. Someone who can read the store but does not
/// know the secret can neither recover such a key nor verify a guess of the key. A caller who does not know the secret
/// cannot find two keys with the same hash. If the secret changes, the limits of all hashed keys start anew.
///
/// The `Debug` form of a secret shows nothing.
///
/// ```
/// use tower_throttle::key::{Bearer, PeerIp};
/// use tower_throttle::store::KeySecret;
///
/// # let from_environment = "3e5f0d6c9a1b48d7a2c4e6f801234567";
/// let secret = KeySecret::new(from_environment)?;
/// let by_token = Bearer::new().keyed_by(secret).or(PeerIp::new());
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
#[derive(Clone, Copy)]
pub struct KeySecret {
    of_values: HashKey,
    of_texts: HashKey,
}

type HashKey = (u64, u64);

impl KeySecret {
    /// The minimum length of a secret, in bytes.
    pub const MIN_LEN: usize = 16;

    /// Creates a secret from bytes that are hard to guess, such as the output of `openssl rand -hex 16`.
    ///
    /// # Errors
    ///
    /// Returns an error if `secret` has fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let secret = secret.as_ref();
        if secret.len() < Self::MIN_LEN {
            return Err(ConfigError::short_secret(secret.len()));
        }
        // Each purpose has its own hash key, so that the hash of a value differs from the hash of a key's text with the
        // same bytes.
        let derive = |purpose| {
            let hash = SipHasher24::new_with_keys(u64::from_be_bytes(*b"throttle"), purpose).hash(secret);
            (hash.h1, hash.h2)
        };
        Ok(Self { of_values: derive(1), of_texts: derive(2) })
    }

    /// Returns the 128-bit hash of a value that must not be readable, such as a token. The hash is a key that implements
    /// [`SharedKey`], and is the same in all processes with the same secret. Its `Debug` form shows nothing of the value.
    #[must_use]
    pub fn hash(&self, value: &[u8]) -> KeyedHash {
        KeyedHash(hash(self.of_values, value))
    }

    /// Returns the hash of the text of a key.
    pub(super) fn hash_text(&self, text: &str) -> u128 {
        hash(self.of_texts, text.as_bytes())
    }
}

fn hash((first, second): HashKey, bytes: &[u8]) -> u128 {
    SipHasher24::new_with_keys(first, second).hash(bytes).as_u128()
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

/// The 128-bit hash of a value, keyed with a [`KeySecret`]. Without the secret, the value cannot be recovered from the
/// hash. The hash is the same in all processes with the same secret.
///
/// The `Debug` form of a hash shows nothing of the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyedHash(u128);

impl SharedKey for KeyedHash {
    fn write_to(&self, text: &mut KeyWriter) {
        text.marked("hash~", format_args!("{:032x}", self.0));
    }
}

impl fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedHash(..)")
    }
}
