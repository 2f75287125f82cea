use super::fingerprint::Fingerprint;

/// The minimum and the maximum number of shared buckets, as base-2 logarithms.
const SHARED_BITS: (u32, u32) = (8, 16);

/// The location of a key: the key's own place in the table, or a shared bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Own(Fingerprint),
    Shared(Fingerprint),
}

/// Returns the base-2 logarithm of the number of shared buckets of a table of `max_keys` keys. The number of buckets is
/// `max_keys` rounded up to a power of two, within the bounds of [`SHARED_BITS`].
pub(super) fn shared_bits(max_keys: usize) -> u32 {
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
