use super::{CallStats, StoreStats};

/// The counts of one policy of a layer, for all clones of the layer together.
/// [`RateLimitLayer::stats`](crate::middleware::RateLimitLayer::stats) returns them.
///
/// No field contains a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The name of the policy.
    pub name: String,
    /// The numbers of requests that were decided, by outcome. Requests that this policy does not limit are not counted.
    pub calls: CallStats,
    /// The requests without a valid key, and the requests of forbidden callers.
    pub keys: KeyStats,
    /// The number of requests that the store failed to decide.
    pub store_errors: u64,
    /// The events of the store. If other layers, or calls without a layer, use the same store, the events that these
    /// cause are included.
    pub store: StoreStats,
}

/// The counts of a policy's requests without a valid key, and of the requests of forbidden callers. This is the type of
/// [`PolicyStats::keys`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStats {
    /// The number of requests that were rejected because they had no key:
    /// [`MissingKey::Reject`](crate::key::MissingKey).
    pub rejected: u64,
    /// The number of requests without a key that were decided by the one budget that such requests share:
    /// [`MissingKey::Shared`](crate::key::MissingKey).
    pub shared: u64,
    /// The number of requests without a key that were not limited: [`MissingKey::Pass`](crate::key::MissingKey).
    pub unlimited: u64,
    /// The number of requests of forbidden callers: [`KeyError::forbidden`](crate::key::KeyError::forbidden).
    pub forbidden: u64,
    /// The number of requests that were rejected because the client made the key invalid:
    /// [`KeyError::invalid`](crate::key::KeyError::invalid).
    pub invalid: u64,
}
