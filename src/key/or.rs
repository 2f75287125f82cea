//! Extractors with a fallback: the first extractor that finds a key is used.

use std::convert::Infallible;

use super::{KeyError, KeyExtractor};
use crate::limiter::{KeyWriter, SharedKey};

/// Creates an extractor from two to five others. The key of a request is that of the first extractor that finds a key:
/// for example, the id of a signed-in user or, for all other callers, the address.
///
/// If an earlier extractor found a key, the [deny list](super::PeerIp::deny) of the last extractor still applies:
/// callers on that list are denied service. The [allow list](super::PeerIp::allow) of the last extractor applies only
/// if no earlier extractor found a key.
///
/// Each extractor but the last must be one that can report that a request has no key: [`Extension`](super::Extension),
/// [`Header`](super::Header), [`Bearer`](super::Bearer), [`Cookie`](super::Cookie), [`Query`](super::Query) or
/// [`from_fn`](super::from_fn()). If the function of a `from_fn` returns `None`, the next extractor is tried. Keys of
/// different extractors are never equal. [`first_key`](Or::first_key) and [`second_key`](Or::second_key) build keys by
/// hand.
///
/// ```
/// use tower_throttle::key::{self, Bearer, PeerIp, first_of};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = first_of((
///     key::Extension::<User, _>::new(|user| user.id),
///     Bearer::new(),
///     PeerIp::new(),
/// ));
/// ```
pub fn first_of<E: ExtractorTuple>(extractors: E) -> E::First {
    extractors.nested()
}

/// An extractor with a fallback: if the first extractor finds no key, the second extractor's key is used.
///
/// If the first extractor finds a key, the [deny list](super::PeerIp::deny) of the second extractor still applies.
///
/// [`first_of`](super::first_of()) creates this extractor. The method `or` of [`Extension`](super::Extension::or),
/// [`Header`](super::Header::or), [`Bearer`](super::Bearer::or), [`Cookie`](super::Cookie::or),
/// [`Query`](super::Query::or) and `Or` itself creates it as well.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{self, Bearer, PeerIp, first_of};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = first_of((
///     key::Extension::<User, _>::new(|user| user.id),
///     Bearer::new(),
///     PeerIp::new(),
/// ));
/// let layer = RateLimitLayer::new(by_user.clone(), TokenBucket::new(Quota::per_minute(100)));
/// // keys that are built by hand equal those of requests
/// layer.limiter().reset(&by_user.first_key(|users| users.key(&User { id: 42 })));
/// let token = by_user.second_key(|others| others.first_key(|tokens| tokens.key("t0ken")));
/// layer.limiter().reset(&token);
/// let address = by_user
///     .second_key(|others| others.second_key(|peers| peers.key([192, 0, 2, 1].into())));
/// layer.limiter().reset(&address);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Or<First, Second> {
    first: First,
    second: Second,
}

impl<First, Second> Or<First, Second> {
    pub(super) fn new(first: First, second: Second) -> Self {
        Self { first, second }
    }

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
        Or::new(self, other)
    }
}

/// A key of an [`Or`]: the key of its first or of its second extractor. Keys of different extractors are never equal.
///
/// [`Or::first_key`] and [`Or::second_key`] return this type with [`Infallible`] in place of the other extractor's key.
/// The type of the absent key does not affect the hash.
///
/// ```
/// use std::net::IpAddr;
/// use tower_throttle::key::{self, KeyExtractor, OrKey, PeerIp, first_of};
///
/// #[derive(Clone)]
/// struct User(u64);
///
/// let by_user = first_of((key::Extension::<User, _>::new(|user| user.0), PeerIp::new()));
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(User(42));
/// let key: Option<OrKey<u64, IpAddr>> = by_user.extract(&request)?;
/// let label = match key {
///     Some(OrKey::First(user)) => format!("user {user}"),
///     Some(OrKey::Second(address)) => address.to_string(),
///     None => "not limited".to_owned(),
/// };
/// assert_eq!(label, "user 42");
/// # Ok::<(), tower_throttle::key::KeyError>(())
/// ```
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
    message = "`{Self}` cannot say that it found nothing in a request of type `{Req}`, so no other can be \
               asked instead",
    note = "`Extension`, `Header`, `Bearer`, `Cookie`, `Query` and `from_fn` can; put others last"
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

/// A tuple of two to five extractors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tuple of two to five extractors",
    note = "write `first_of((first, second))`; for more, nest: `first_of((first, first_of((second, third))))`"
)]
#[doc(hidden)]
pub trait ExtractorTuple {
    /// The nested extractor: an [`Or`] of the first extractor of the tuple and of the rest.
    type First;

    #[doc(hidden)]
    fn nested(self) -> Self::First;
}

impl<A, B> ExtractorTuple for (A, B) {
    type First = Or<A, B>;

    fn nested(self) -> Self::First {
        Or::new(self.0, self.1)
    }
}

macro_rules! extractor_tuple {
    ($first:ident, $($rest:ident),+) => {
        impl<$first, $($rest),+> ExtractorTuple for ($first, $($rest),+) {
            type First = Or<$first, <($($rest,)+) as ExtractorTuple>::First>;

            #[allow(non_snake_case, reason = "type parameters name the parts")]
            fn nested(self) -> Self::First {
                let ($first, $($rest),+) = self;
                Or::new($first, ($($rest,)+).nested())
            }
        }
    };
}

extractor_tuple!(A, B, C);
extractor_tuple!(A, B, C, D);
extractor_tuple!(A, B, C, D, E);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, from_fn};

    #[test]
    fn the_first_extractor_that_finds_a_key_is_used() {
        let below = |limit: u32| from_fn(move |n: &u32| (*n < limit).then_some(*n));
        let key = first_of((below(10), below(20), below(30), Global));
        assert_eq!(key.extract(&5), Ok(Some(OrKey::First(5))));
        assert_eq!(key.extract(&15), Ok(Some(OrKey::Second(OrKey::First(15)))));
        assert_eq!(key.extract(&25), Ok(Some(OrKey::Second(OrKey::Second(OrKey::First(25))))));
        assert_eq!(key.extract(&35), Ok(Some(OrKey::Second(OrKey::Second(OrKey::Second(()))))));
    }

    #[test]
    fn the_last_extractor_may_exempt_a_request() {
        let odd = from_fn(|n: &u32| (!n.is_multiple_of(2)).then_some(*n));
        assert_eq!(first_of((odd, odd)).extract(&4), Ok(None));
        assert_eq!(first_of((odd, Global)).extract(&4), Ok(Some(OrKey::Second(()))));
    }
}
