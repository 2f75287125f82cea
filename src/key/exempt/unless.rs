use std::fmt;

use super::predicate::RequestPredicate;
use crate::key::{KeyError, KeyExtractor};

/// An extractor with exceptions: requests that match a predicate are not limited.
/// [`RateLimitLayer::unless`](crate::RateLimitLayer::unless) creates it.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Unless<K, C> {
    key: K,
    condition: C,
}

impl<K, C> Unless<K, C> {
    /// Creates an extractor with the keys of `key`. Requests that match `condition` are not limited, even if they have
    /// no key. `key` is called for such requests, too, so the [deny list](crate::key::PeerIp::deny) of `key` applies.
    pub fn new(key: K, condition: C) -> Self {
        Self { key, condition }
    }
}

impl<Req, K: KeyExtractor<Req>, C: RequestPredicate<Req>> KeyExtractor<Req> for Unless<K, C> {
    type Key = K::Key;

    fn extract(&self, request: &Req) -> Result<Option<K::Key>, KeyError> {
        match self.key.extract(request) {
            Err(error) if error.is_forbidden() => Err(error),
            _ if self.condition.matches(request) => Ok(None),
            key => key,
        }
    }

    fn on_denied(&self, key: &K::Key) {
        self.key.on_denied(key);
    }
}

impl<K: fmt::Debug, C> fmt::Debug for Unless<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unless").field("key", &self.key).finish_non_exhaustive()
    }
}
