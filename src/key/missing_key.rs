use std::fmt;
use std::hash::{Hash, Hasher};

use crate::store::MemoryKey;

/// What becomes of a request whose key cannot be had by a mistake of the configuration: it has no peer address, or an
/// extension or a proxy's header is missing.
///
/// Not of one that is not limited, nor of one that is [forbidden](super::KeyError::forbidden) or
/// [invalid](super::KeyError::invalid): what a client gets wrong is refused whatever is chosen here. Each is
/// [counted](crate::RateLimitLayer::key_stats), and the first of each kind is logged (feature `tracing`), with what to
/// change; those of [`KeyError::new`](super::KeyError::new) are all one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// Refused: HTTP 500, gRPC `INTERNAL`; the log says what to change, and the body does not. The default: a mistake in
    /// the set-up is seen at the first request, and nobody gets round the limit by it.
    #[default]
    Reject,
    /// All of them share one budget, which no caller with a key draws on, by the limiter's own rule: none is
    /// [chosen](crate::RateLimitLayer::tier) for them.
    Shared,
    /// Not limited. Only if callers cannot bring it about: not with a proxy's header ([`ClientIp`](super::ClientIp)) where
    /// the server can be reached past the proxy.
    Pass,
}

/// A caller as a store sees it: by its key, or one of those that have none and [share](MissingKey::Shared) a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKey<K> {
    /// With a key. Identified as that key: a limiter asked directly finds it.
    Key(K),
    /// Without one. No key is identified so.
    Missing,
}

/// No `Hash`: a key's own might write the same bytes as whatever stood for the absence of one.
impl<K: Hash> MemoryKey for StoreKey<K> {
    #[inline]
    fn hash_key<H: Hasher>(&self, state: &mut H) -> bool {
        match self {
            Self::Key(key) => key.hash_key(state),
            Self::Missing => false,
        }
    }
}

/// The key's text; without one, a NUL, which no header and no address holds.
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
    fn a_caller_is_shown_as_its_key() {
        assert_eq!(StoreKey::Key("a").to_string(), "a");
        assert_eq!(StoreKey::<&str>::Missing.to_string(), "\0");
    }
}
