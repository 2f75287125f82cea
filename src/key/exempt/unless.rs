use std::fmt;

use super::predicate::RequestPredicate;
use crate::key::{KeyError, KeyExtractor};

/// Another extractor's key, but none for some requests, which are not limited. Made by
/// [`RateLimitLayer::unless`](crate::RateLimitLayer::unless).
#[derive(Clone, Copy)]
pub struct Unless<K, C> {
    key: K,
    condition: C,
}

impl<K, C> Unless<K, C> {
    /// The key of `key`; requests that are meant by `condition` are not limited, whether they have a key or not. Whoever
    /// is not [served](crate::key::PeerIp::deny) is not served for them, either.
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
}

impl<K: fmt::Debug, C> fmt::Debug for Unless<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unless").field("key", &self.key).finish_non_exhaustive()
    }
}
