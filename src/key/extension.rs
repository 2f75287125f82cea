use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use http::Request;

use super::or::{OptionalExtractor, Or};
use super::{Global, KeyError, KeyExtractor};

/// A key from an extension that an outer layer put into the request, such as a signed-in user.
///
/// A request without the extension has no key. Usually the reason is that the layers are in the wrong order. So by
/// default the response is 500, and the log says what to change; [`missing_key`](crate::RateLimitLayer::missing_key)
/// sets another treatment. If some callers have no such extension, for example callers who are not signed in, use
/// [`or`](Extension::or) to identify them by another extractor, or [`or_shared`](Extension::or_shared) to give all of
/// them one key.
///
/// Callers cannot forge this key if the layer that inserts the extension is correct, because callers cannot insert
/// extensions themselves.
///
/// ```
/// use tower_throttle::key::{self, PeerIp};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = key::Extension::<User, _>::new(|user| user.id).or(PeerIp::new());
/// ```
pub struct Extension<T, F> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

impl<T, F> Extension<T, F> {
    /// Creates an extractor whose key is the value that `key` returns for the extension of type `T`.
    pub fn new<Key>(key: F) -> Self
    where
        F: Fn(&T) -> Key,
    {
        Self { key, extension: PhantomData }
    }

    /// Returns the key of callers with `extension`, to peek at, refund or reset their usage.
    ///
    /// If this extractor is a part of an [`Or`](super::Or), the layer has the key that
    /// [`first_key`](super::Or::first_key) or [`second_key`](super::Or::second_key) returns.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: u64,
    /// }
    ///
    /// let by_user = key::Extension::<User, _>::new(|user| user.id);
    /// let layer = RateLimitLayer::new(by_user.clone(), TokenBucket::new(Quota::per_minute(100)));
    /// layer.limiter().reset(&by_user.key(&User { id: 42 }));
    /// // the key is what the function returns
    /// layer.limiter().reset(&42_u64);
    /// ```
    pub fn key<Key>(&self, extension: &T) -> Key
    where
        F: Fn(&T) -> Key,
    {
        (self.key)(extension)
    }

    /// Gives all requests without the extension one shared key: the same as `.or(`[`Global`]`)`. No request with the
    /// extension has that key.
    ///
    /// ```
    /// use tower_throttle::key;
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: u64,
    /// }
    ///
    /// // all requests of visitors who are not signed in have one budget together
    /// let by_user = key::Extension::<User, _>::new(|user| user.id).or_shared();
    /// ```
    #[must_use]
    pub fn or_shared(self) -> Or<Self, Global> {
        self.or(Global)
    }

    /// Uses `other` for requests without the extension.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or::new(self, other)
    }
}

impl<B, T, F, Key> OptionalExtractor<Request<B>> for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Key,
    Key: Hash,
{
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
    type Key = Key;

    fn extract(&self, request: &Request<B>) -> Result<Option<Key>, KeyError> {
        self.find(request)?.map(Some).ok_or_else(KeyError::extension::<T>)
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), extension: PhantomData }
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
    fn a_missing_extension_is_an_error_unless_another_extractor_follows() {
        let by_user = Extension::<u64, _>::new(|user| *user);
        let mut request = Request::new(());
        let error = by_user.extract(&request).unwrap_err();
        assert!(!error.is_invalid() && !error.is_forbidden());
        assert!(error.to_string().contains("`u64`"), "{error}");
        assert_eq!(by_user.clone().or_shared().extract(&request), Ok(Some(OrKey::Second(()))));
        assert_eq!(by_user.clone().or(Global).extract(&request), Ok(Some(OrKey::Second(()))));
        request.extensions_mut().insert(42_u64);
        assert_eq!(by_user.extract(&request), Ok(Some(42)));
        assert_eq!(by_user.clone().or_shared().extract(&request), Ok(Some(OrKey::First(42))));
        assert_eq!(by_user.or(Global).extract(&request), Ok(Some(OrKey::First(42))));
    }
}
