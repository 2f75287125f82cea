use super::fingerprint::Fingerprint;

/// The shared buckets, as a power of two.
const SHARED_BITS: u32 = 8;

/// Where a key is: in a place of its own, or in a bucket that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Own(Fingerprint),
    Shared(Fingerprint),
}

impl Home {
    /// The bucket that a key shares which has no place of its own.
    pub(super) fn shared(key: Fingerprint) -> Self {
        Self::Shared(bucket(key))
    }
}

/// The shared bucket of a key.
pub(super) fn bucket(key: Fingerprint) -> Fingerprint {
    key.coarse(SHARED_BITS)
}
