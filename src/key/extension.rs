use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use http::Request;

use super::or::{Optional, Or};
use super::{KeyError, KeyExtractor};

/// What an earlier layer put into the request's extensions, such as a signed-in user.
///
/// Callers without it share one key; [`or`](Extension::or) asks another extractor instead. Nothing a caller sends
/// ends up in the extensions by itself, so this key cannot be forged if the layer that fills it is not mistaken.
///
/// ```
/// use tower_throttle::key::{Extension, PeerIp};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = Extension::<User, _>::new(|user| user.id).or(PeerIp::new());
/// ```
pub struct Extension<T, F> {
    key: F,
    of: PhantomData<fn(&T)>,
}

impl<T, F> Extension<T, F> {
    /// The key that `key` makes of the extension of type `T`.
    pub fn new<Key>(key: F) -> Self
    where
        F: Fn(&T) -> Key,
    {
        Self { key, of: PhantomData }
    }

    /// Asks `other` for requests without the extension.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }
}

impl<B, T, F, Key> Optional<Request<B>> for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Key,
    Key: Hash,
{
    type Found = Key;

    fn find(&self, request: &Request<B>) -> Result<Option<Key>, KeyError> {
        Ok(request.extensions().get::<T>().map(&self.key))
    }
}

impl<B, T, F, Key> KeyExtractor<Request<B>> for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Key,
    Key: Hash,
{
    type Key = Option<Key>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Option<Key>>, KeyError> {
        self.find(request).map(Some)
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), of: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, OrKey};

    #[test]
    fn absent_is_one_key_or_another_extractors() {
        let by_user = Extension::<u64, _>::new(|user| *user);
        let mut request = Request::new(());
        assert_eq!(by_user.extract(&request), Ok(Some(None)));
        assert_eq!(by_user.clone().or(Global).extract(&request), Ok(Some(OrKey::Second(()))));
        request.extensions_mut().insert(42_u64);
        assert_eq!(by_user.extract(&request), Ok(Some(Some(42))));
        assert_eq!(by_user.or(Global).extract(&request), Ok(Some(OrKey::First(42))));
    }
}
