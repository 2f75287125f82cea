//! The size of long runs.

/// Returns a tenth of `n`, or `n` itself if the environment variable `FULL_SIZE` is set, as it is in `.ci/nightly`.
pub(crate) fn scaled(n: u64) -> u64 {
    match std::env::var_os("FULL_SIZE") {
        Some(_) => n,
        None => n / 10,
    }
}
