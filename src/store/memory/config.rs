use super::fingerprint::Fingerprint;
use super::on_full::OnFull;
use crate::algorithm::Semaphore;

/// The settings that apply to all keys of a limiter.
#[derive(Debug)]
pub(super) struct StoreConfig {
    /// The number of waiters of all keys, and the maximum of that number.
    pub(super) waiting: Semaphore,
    pub(super) on_close: OnClose,
    pub(super) on_full: OnFull,
    /// The base-2 logarithm of the number of shared buckets.
    pub(super) shared_bits: u32,
}

impl StoreConfig {
    /// Returns the shared bucket of a key that has no place of its own.
    pub(super) fn bucket(&self, key: Fingerprint) -> Fingerprint {
        key.to_bucket(self.shared_bits)
    }
}

/// The behaviour for new calls once a limiter is [closed](crate::limiter::RateLimiter::close). Calls with a cost of 0
/// are always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnClose {
    /// New calls are denied. HTTP callers get a 503.
    #[default]
    Reject,
    /// New calls are allowed, and are not charged.
    Allow,
}

/// The options of a limiter whose state is in memory, as set in a [`Builder`](crate::limiter::Builder).
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    pub(crate) max_keys: usize,
    pub(crate) max_queued: Option<usize>,
    pub(crate) on_close: OnClose,
    pub(crate) on_full: OnFull,
}
