use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unix time, as this machine has it. For what callers are told, never for what is decided.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
