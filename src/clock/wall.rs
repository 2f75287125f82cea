use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the Unix time of this machine. This time is used in values that are reported to callers, and for the zero of
/// a `TscClock`.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
