use super::fingerprint::Fingerprint;
use super::on_full::OnFull;
use crate::algorithm::Semaphore;

/// What holds for all keys of a limiter.
#[derive(Debug)]
pub(super) struct StoreConfig {
    /// Those who wait, for whatever key.
    pub(super) waiting: Semaphore,
    pub(super) on_close: OnClose,
    pub(super) on_full: OnFull,
    /// How many buckets keys share, as a power of two.
    pub(super) shared_bits: u32,
}

impl StoreConfig {
    /// The bucket that a key shares which has no place of its own.
    pub(super) fn bucket(&self, key: Fingerprint) -> Fingerprint {
        key.to_bucket(self.shared_bits)
    }
}

/// What becomes of new calls once a limiter is [closed](crate::limiter::RateLimiter::close).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnClose {
    /// They are refused: HTTP callers get a 503.
    #[default]
    Reject,
    /// They pass, and nothing is counted.
    Allow,
}
