use std::fmt;
use std::hash::{Hash, Hasher};

use crate::limiter::{KeyWriter, MemoryKey, SharedKey};

/// The treatment of requests that have no key because of a mistake in the configuration: the peer address, an extension
/// or a proxy's header is missing.
///
/// The setting affects no other requests: requests that are not limited are admitted, and requests whose key is
/// [forbidden](super::KeyError::forbidden) or [invalid](super::KeyError::invalid), or that do not say [who their caller
/// is](super::KeyError::unauthorized), are rejected. Each request without a key is
/// [counted](crate::RateLimitLayer::stats). For each kind of error, each layer logs at most once a minute
/// what to change (feature `tracing`). All errors made by [`KeyError::new`](super::KeyError::new) are one kind.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{ClientIp, MissingKey, TrustedProxies};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// // while the proxy is being set up: requests without its header have one budget together
/// let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(1)?);
/// let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_minute(100)))
///     .missing_key(MissingKey::Shared);
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request: HTTP 500, gRPC `INTERNAL`. The log says what to change, and the body of the response does
    /// not. This is the default, for two reasons: a mistake in the set-up shows at the first request, and callers
    /// cannot use the mistake to bypass the limit.
    #[default]
    Reject,
    /// Gives all such requests one shared budget, which no caller with a key uses. The limiter's own algorithm decides
    /// these requests: no [tier](crate::RateLimitLayer::tier) is chosen for them.
    Shared,
    /// Does not limit the request. Use this only if callers cannot cause the key to be missing. So do not use it with a
    /// proxy's header ([`ClientIp`](super::ClientIp)) if callers can reach the server without going through the proxy.
    Pass,
}

/// A key as a layer passes it to a limiter: the key of a caller, or the key that all requests without a key
/// [share](MissingKey::Shared).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKey<K> {
    /// The key of a caller. `Key(key)` identifies the same state as `key` does in a direct call of the limiter.
    Key(K),
    /// The key that all requests without a key share. No `Key` identifies the same state.
    Missing,
}

impl<K> StoreKey<K> {
    /// Returns the caller's key, if there is one.
    #[inline]
    pub(crate) fn key(&self) -> Option<&K> {
        match self {
            Self::Key(key) => Some(key),
            Self::Missing => None,
        }
    }
}

/// `Key(key)` is hashed as `key` itself. `StoreKey` does not implement `Hash`, because the bytes that a key writes
/// could equal the bytes written for `Missing`.
impl<K: Hash> MemoryKey for StoreKey<K> {
    #[inline]
    fn hash_key<H: Hasher>(&self, state: &mut H) -> bool {
        match self {
            Self::Key(key) => key.hash_key(state),
            Self::Missing => false,
        }
    }
}

/// `Missing` is written as a string that differs from the string of every `Key`.
impl<K: SharedKey> SharedKey for StoreKey<K> {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Self::Key(key) => key.write_to(text),
            // No `Key` is written with this beginning, because the names of variants are never empty.
            Self::Missing => text.marked("~", "missing"),
        }
    }
}

/// Displays the key itself. `Missing` is displayed as a NUL, because no header and no address contains a NUL.
impl<K: fmt::Display> fmt::Display for StoreKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Missing => f.write_str("\0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_key_is_displayed_as_its_key() {
        assert_eq!(StoreKey::Key("a").to_string(), "a");
        assert_eq!(StoreKey::<&str>::Missing.to_string(), "\0");
    }
}
