use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the Unix time of this machine. The result is used only in values that are reported to callers, never for a
/// decision.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
