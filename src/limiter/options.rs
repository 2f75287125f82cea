//! The options of a limiter in memory.

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
/// first time, a warning is logged (feature `tracing`). [Design](crate::guide::design) has the figures that the default
/// is based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Evicts the key that has used least among a few that were not called lately. [Design](crate::guide::design) says
    /// which keys these are, and [floods of keys](crate::guide::floods) what a key that is called often can rely on. At
    /// its next call, an evicted key has the state of a new key.
    ///
    /// A key at its limit can get its whole quota once more, if it is silent while a flood of keys that are at their
    /// limits replaces the whole table. If this happens too often, choose [`Reject`](OnFull::Reject).
    #[default]
    EvictLeastUsed,
    /// Denies new keys: see [`Decision::is_table_full`](crate::decision::Decision::is_table_full). HTTP callers get a
    /// 503.
    ///
    /// No key is evicted, and keys share nothing. But a flood of keys keeps new keys out until keys in the table are
    /// fresh again.
    Reject,
}
