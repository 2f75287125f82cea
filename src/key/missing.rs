use std::fmt;
use std::hash::{Hash, Hasher};

/// What becomes of a request whose key cannot be had: it has no peer address, or a header that is broken.
///
/// Not of one that is not limited, nor of one that is [forbidden](super::KeyError::forbidden). Each is
/// [counted](crate::RateLimitLayer::key_counts), and the first of each kind is logged (feature `tracing`), with what to
/// change; those of [`KeyError::new`](super::KeyError::new) are all one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// Refused: HTTP 500, gRPC `INTERNAL`, with a body that says what to change. The default: a mistake in the set-up
    /// is seen at the first request, and nobody gets round the limit by it.
    #[default]
    Reject,
    /// All of them share one budget, which no caller with a key draws on, by the limiter's own rule: none is
    /// [chosen](crate::RateLimitLayer::choose) for them.
    Shared,
    /// Not limited. Only if callers cannot bring it about: not with [`Header`](super::Header), [`Bearer`](super::Bearer),
    /// [`Cookie`](super::Cookie) and [`Host`](super::Host), where two lines would get round the limit.
    Pass,
}

/// A caller as a store sees it: by its key, or one of those that have none and [share](MissingKey::Shared) a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller<K> {
    /// With a key. Hashed as that key: a limiter asked directly finds it.
    Known(K),
    /// Without one.
    Unknown,
}

impl<K: Hash> Hash for Caller<K> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Known(key) => key.hash(state),
            // Not as any text is, for those end in 0xff; nor as bytes, which begin with their number.
            Self::Unknown => state.write(b"tower-throttle: a caller without a key\0"),
        }
    }
}

/// The key's text; without one, a NUL, which no header and no address holds.
impl<K: fmt::Display> fmt::Display for Caller<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(key) => key.fmt(f),
            Self::Unknown => f.write_str("\0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    #[test]
    fn a_caller_is_its_key() {
        let hash = RandomState::new();
        assert_eq!(hash.hash_one(Caller::Known("a")), hash.hash_one("a"));
        assert_eq!(hash.hash_one(Caller::Known(&[1_u8, 2][..])), hash.hash_one(&[1_u8, 2][..]));
        let text = "tower-throttle: a caller without a key\0";
        assert_ne!(hash.hash_one(Caller::<&str>::Unknown), hash.hash_one(text));
        assert_ne!(hash.hash_one(Caller::<&str>::Unknown), hash.hash_one(text.as_bytes()));
        assert_eq!(Caller::Known("a").to_string(), "a");
    }
}
