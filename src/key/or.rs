use std::convert::Infallible;

use super::{KeyError, KeyExtractor};

/// One extractor for requests that have what it looks for, another for those that have not. The other is
/// asked in any case: whoever it does not [serve](super::PeerIp::deny) is not served.
///
/// Made by [`first_of`](super::first_of()), and by `or` on those that may find nothing, such as
/// [`Header::or`](super::Header::or).
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
/// // the keys that are built by hand are those of requests
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
    /// Returns the key of callers for whom the first extractor finds something; `key` builds its part of it.
    pub fn first_key<K>(&self, key: impl FnOnce(&First) -> K) -> OrKey<K, Infallible> {
        OrKey::First(key(&self.first))
    }

    /// Returns the key of callers for whom the first extractor finds nothing; `key` builds the second one's part of it.
    pub fn second_key<K>(&self, key: impl FnOnce(&Second) -> K) -> OrKey<Infallible, K> {
        OrKey::Second(key(&self.second))
    }

    /// Asks `other` for requests that have neither.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }
}

/// The key of one extractor or of another. The two never meet. Built by [`Or::first_key`] and [`Or::second_key`]: the
/// type of the part that is absent makes no difference to the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrKey<First, Second> {
    /// Of the first.
    First(First),
    /// Of the second.
    Second(Second),
}

/// Looks for something that a request may lack. Implemented by this crate only: its module is private.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that it found nothing in a request of type `{Req}`, so no other can be asked instead",
    note = "`Extension`, `Header`, `Bearer`, `Cookie` and `from_fn` can; put others last"
)]
pub trait OptionalExtractor<Req>: KeyExtractor<Req> {
    /// Returns the key, if what it is made of is there.
    ///
    /// # Errors
    ///
    /// If it is there in a form that cannot be a key.
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
        // Asked in any case: whoever is not served does not get in by a token of their own making.
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
