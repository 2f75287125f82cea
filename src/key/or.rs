use std::convert::Infallible;

use super::{KeyError, KeyExtractor};
use crate::store::{KeyWriter, SharedKey};

/// An extractor with a fallback: if the first extractor finds no key, the second extractor's key is used.
///
/// If the first extractor finds a key, the [deny list](super::PeerIp::deny) of the second extractor still applies.
///
/// [`first_of`](super::first_of()) creates this extractor. The method `or` of [`Extension`](super::Extension::or),
/// [`Header`](super::Header::or), [`Bearer`](super::Bearer::or), [`Cookie`](super::Cookie::or) and `Or` itself creates
/// it as well.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{Bearer, Extension, PeerIp, first_of};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = first_of((Extension::<User, _>::new(|user| user.id), Bearer::new(), PeerIp::new()));
/// let layer = RateLimitLayer::new(by_user.clone(), TokenBucket::new(Quota::per_minute(100)));
/// // keys that are built by hand equal those of requests
/// layer.limiter().reset(&by_user.first_key(|users| users.key(&User { id: 42 })));
/// layer.limiter().reset(&by_user.second_key(|others| others.first_key(|tokens| tokens.key("t0ken"))));
/// layer.limiter().reset(
///     &by_user.second_key(|others| others.second_key(|peers| peers.key([192, 0, 2, 1].into()))),
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Or<First, Second> {
    pub(super) first: First,
    pub(super) second: Second,
}

impl<First, Second> Or<First, Second> {
    /// Returns the key of callers for whom the first extractor finds a key. The function `key` builds this key with the
    /// first extractor.
    pub fn first_key<K>(&self, key: impl FnOnce(&First) -> K) -> OrKey<K, Infallible> {
        OrKey::First(key(&self.first))
    }

    /// Returns the key of callers for whom the first extractor finds no key. The function `key` builds this key with
    /// the second extractor.
    pub fn second_key<K>(&self, key: impl FnOnce(&Second) -> K) -> OrKey<Infallible, K> {
        OrKey::Second(key(&self.second))
    }

    /// Uses `other` for requests in which neither extractor finds a key.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }
}

/// A key of an [`Or`]: the key of its first or of its second extractor. Keys of different extractors are never equal.
///
/// [`Or::first_key`] and [`Or::second_key`] return this type with [`Infallible`] in place of the other extractor's key.
/// The type of the absent key does not affect the hash.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrKey<First, Second> {
    /// The key of the first extractor.
    First(First),
    /// The key of the second extractor.
    Second(Second),
}

impl<First: SharedKey, Second: SharedKey> SharedKey for OrKey<First, Second> {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Self::First(key) => text.variant("1", key),
            Self::Second(key) => text.variant("2", key),
        };
    }
}

/// An extractor that can report that a request has no key. Only this crate can implement this trait, since the trait's
/// module is private.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that it found nothing in a request of type `{Req}`, so no other can be asked instead",
    note = "`Extension`, `Header`, `Bearer`, `Cookie` and `from_fn` can; put others last"
)]
pub trait OptionalExtractor<Req>: KeyExtractor<Req> {
    /// Returns the key, or `None` if the request does not contain the value that the key is made of.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is present in a form that cannot be a key.
    fn find(&self, request: &Req) -> Result<Option<Self::Key>, KeyError>;
}

impl<Req, First: OptionalExtractor<Req>, Second: OptionalExtractor<Req>> OptionalExtractor<Req>
    for Or<First, Second>
{
    fn find(&self, request: &Req) -> Result<Option<Self::Key>, KeyError> {
        Ok(match self.first.find(request)? {
            Some(found) => Some(OrKey::First(found)),
            None => self.second.find(request)?.map(OrKey::Second),
        })
    }
}

impl<Req, First, Second> KeyExtractor<Req> for Or<First, Second>
where
    First: OptionalExtractor<Req>,
    Second: KeyExtractor<Req>,
{
    type Key = OrKey<First::Key, Second::Key>;

    fn extract(&self, request: &Req) -> Result<Option<Self::Key>, KeyError> {
        // The second extractor is always called, so that a caller on its deny list is not admitted with an invented
        // token.
        let second = match self.second.extract(request) {
            Err(error) if error.is_forbidden() => return Err(error),
            second => second,
        };
        match self.first.find(request)? {
            Some(found) => Ok(Some(OrKey::First(found))),
            None => Ok(second?.map(OrKey::Second)),
        }
    }
}
