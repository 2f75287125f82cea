use super::{KeyError, KeyExtractor};

/// One extractor for requests that have what it looks for, another for those that have not. The other is
/// asked in any case: whoever it does not [serve](super::PeerIp::deny) is not served.
///
/// Made by [`first_of`](super::first_of), and by `or` on those that may find nothing, such as
/// [`Header::or`](super::Header::or).
#[derive(Clone, Copy, Debug)]
pub struct Or<First, Second> {
    pub(super) first: First,
    pub(super) second: Second,
}

impl<First, Second> Or<First, Second> {
    /// Asks `other` for requests that have neither.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }
}

/// The key of one extractor or of another. The two never meet.
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
pub trait Optional<Req> {
    /// What is looked for.
    type Found;

    /// Finds it, if it is there.
    ///
    /// # Errors
    ///
    /// If it is there in a form that cannot be a key.
    fn find(&self, request: &Req) -> Result<Option<Self::Found>, KeyError>;
}

impl<Req, First: Optional<Req>, Second: Optional<Req>> Optional<Req> for Or<First, Second> {
    type Found = OrKey<First::Found, Second::Found>;

    fn find(&self, request: &Req) -> Result<Option<Self::Found>, KeyError> {
        Ok(match self.first.find(request)? {
            Some(found) => Some(OrKey::First(found)),
            None => self.second.find(request)?.map(OrKey::Second),
        })
    }
}

impl<Req, First, Second> KeyExtractor<Req> for Or<First, Second>
where
    First: Optional<Req>,
    First::Found: std::hash::Hash,
    Second: KeyExtractor<Req>,
{
    type Key = OrKey<First::Found, Second::Key>;

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
