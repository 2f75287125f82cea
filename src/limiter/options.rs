//! The options of a limiter in memory, and the settings that follow from them for all keys.

use super::fingerprint::Fingerprint;
use crate::algorithm::Semaphore;

/// The minimum and the maximum number of shared buckets, as base-2 logarithms.
const SHARED_BITS: (u32, u32) = (8, 16);

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

/// The behaviour for a new key when the table contains [`max_keys`](crate::limiter::Builder::max_keys) keys, and none
/// of the few keys that are then examined is fresh.
///
/// With every choice, memory stays bounded, and a key with calls in progress or queued calls is never evicted.
/// [`stats`](crate::limiter::RateLimiter::stats) counts the effects of a full table. When the table is full for the
/// first time, a warning is logged (feature `tracing`). [Floods of keys](crate::guide::floods) has the figures that the
/// default is based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Evicts the least used of eight sampled keys, but no key that was called while the latest quarter of the table
    /// was replaced. Of equally used keys, evicts the key that has been idle longest. If the algorithm is a token
    /// bucket or a window alone, with a limit of eight or more, the first key that has used a single unit is evicted
    /// without a further comparison.
    ///
    /// A key at its limit is evicted only if none of the other sampled keys that may be evicted is used less, and a key
    /// that is locked out after the keys at their limits. If more than half of the sampled keys have recent calls, up
    /// to 16 more keys are sampled. If all of them have recent calls, a key that has used a single unit is evicted, or
    /// else the key that has been idle longest. At its next call, an evicted key has the state of a new key. If none of
    /// the examined keys (64 at most) may be evicted, the call is denied: see
    /// [`Decision::is_table_full`](crate::decision::Decision::is_table_full).
    ///
    /// So a key that is called at least once while a quarter of the table is replaced gets what its limit allows, if
    /// the table has a thousand keys or more, and at most half of them are called as often. Because keys are sampled, a
    /// few such keys are evicted nevertheless. In tests, such keys together get at most 1.1 times what their limits
    /// allow. This is not promised if the clock stands still or was set back by more than a second. Until it has caught
    /// up, it does not tell which keys were called recently, so only the usage decides.
    ///
    /// If all sampled keys are at their limits, as with a limit of one per hour, one of these keys is evicted
    /// nevertheless. Otherwise new keys would be denied until keys in the table have available units again. So a key at
    /// its limit can get its whole quota once more if it is silent while a flood of keys replaces the whole table.
    /// During a flood of up to twice `max_keys` keys, this happens to a key at most twice. If it happens too often,
    /// choose [`Reject`](OnFull::Reject).
    #[default]
    EvictLeastUsed,
    /// Lets new keys share buckets. Each bucket has the quota of one key. The number of buckets is `max_keys`, rounded
    /// up to a power of two, but at least 256 and at most 65,536. No key is evicted.
    ///
    /// A key that shares a bucket can be denied because of units that other keys have used. Calls of such a key are not
    /// queued: a call that would have to wait is denied. A [`Lockout`](crate::algorithm::Lockout) never locks such a
    /// key out, and a [`reset`](crate::limiter::RateLimiter::reset) has no effect on the key. A key that later gets its
    /// own place in the table starts with a copy of the state of its shared bucket, so the key does not get a second
    /// quota. A bucket takes as much memory as a key.
    ShareBuckets,
    /// Denies new keys: see [`Decision::is_table_full`](crate::decision::Decision::is_table_full). HTTP callers get a
    /// 503.
    ///
    /// No key is evicted, and keys share nothing. But a flood of keys keeps new keys out until keys in the table are
    /// fresh again.
    Reject,
}

/// The settings that apply to all keys of a limiter.
#[derive(Debug)]
pub(super) struct StoreConfig {
    /// The number of waiters of all keys, and the maximum of that number.
    waiting: Semaphore,
    /// The maximum debt of a key, in units.
    max_debt: u64,
    on_close: OnClose,
    on_full: OnFull,
    /// The base-2 logarithm of the number of shared buckets.
    shared_bits: u32,
}

impl StoreConfig {
    /// Creates the settings of a limiter of at most `max_keys` keys, in which `max_queued` calls may be queued, and each
    /// key may be in debt by `max_debt` units.
    pub(super) fn new(
        max_keys: usize,
        max_queued: u64,
        max_debt: u64,
        on_close: OnClose,
        on_full: OnFull,
    ) -> Self {
        let (waiting, shared_bits) = (Semaphore::new(max_queued), shared_bits(max_keys));
        Self { waiting, max_debt, on_close, on_full, shared_bits }
    }

    #[inline]
    pub(super) fn max_debt(&self) -> u64 {
        self.max_debt
    }

    /// Returns the count of the waiters of all keys, and its maximum.
    #[inline]
    pub(super) fn waiting(&self) -> &Semaphore {
        &self.waiting
    }

    #[inline]
    pub(super) fn on_close(&self) -> OnClose {
        self.on_close
    }

    #[inline]
    pub(super) fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// Returns the shared bucket of a key that has no place of its own.
    #[inline]
    pub(super) fn bucket(&self, key: Fingerprint) -> Fingerprint {
        key.to_bucket(self.shared_bits)
    }

    /// Returns a shared bucket by the lowest bits of `number`.
    #[inline]
    pub(super) fn numbered_bucket(&self, number: usize) -> Fingerprint {
        Fingerprint::numbered(number as u64 & ((1 << self.shared_bits) - 1))
    }
}

/// Returns the base-2 logarithm of the number of shared buckets of a table of `max_keys` keys. The number of buckets is
/// `max_keys` rounded up to a power of two, within the bounds of [`SHARED_BITS`].
fn shared_bits(max_keys: usize) -> u32 {
    let (min, max) = SHARED_BITS;
    max_keys.checked_next_power_of_two().map_or(max, usize::ilog2).clamp(min, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_about_as_many_buckets_as_keys() {
        let buckets = |max_keys| 1_u64 << shared_bits(max_keys);
        assert_eq!([1, 256, 257, 10_000].map(buckets), [256, 256, 512, 16_384]);
        assert_eq!([65_536, 100_000, usize::MAX].map(buckets), [65_536; 3]);
    }
}
