use std::fmt;
use std::hash::Hash;
use std::sync::OnceLock;

use siphasher::sip128::SipHasher13;

use crate::random::random_u64;

/// A 128-bit keyed fingerprint of a token or a session, from which the value cannot be recovered. The hash key is
/// random and lasts as long as the process.
///
/// Its `Debug` form shows nothing of the value.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(u128);

impl SecretHash {
    pub(super) fn of(value: &[u8]) -> Self {
        static SEED: OnceLock<(u64, u64)> = OnceLock::new();
        let (first, second) = *SEED.get_or_init(|| (random_u64(), random_u64()));
        Self(SipHasher13::new_with_keys(first, second).hash(value).as_u128())
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
