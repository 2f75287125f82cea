use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the Unix time of this machine. No decision depends on it: it is used only in values that are reported to
/// callers.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
