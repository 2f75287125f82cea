use super::or::Or;

/// The first of several extractors that finds something in the request: signed-in users by id, others by address.
///
/// The last is asked in any case: whoever it does not [serve](super::PeerIp::deny) is not served, whatever was found. But
/// whom it [allows](super::PeerIp::allow) is limited by what was found.
///
/// All but the last must be able to say that they found nothing: [`Extension`](super::Extension),
/// [`Header`](super::Header), [`Bearer`](super::Bearer), [`Cookie`](super::Cookie), and
/// [`from_fn`](super::from_fn()), whose `None` here means "ask the next". Keys of different extractors never meet. Keys are
/// built by [`first_key`](Or::first_key) and [`second_key`](Or::second_key).
///
/// ```
/// use tower_throttle::key::{Bearer, Extension, PeerIp, first_of};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = first_of((Extension::<User, _>::new(|user| user.id), Bearer::new(), PeerIp::new()));
/// ```
pub fn first_of<E: ExtractorTuple>(extractors: E) -> E::First {
    extractors.nested()
}

/// Two to five extractors.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tuple of two to five extractors",
    note = "write `first_of((first, second))`; for more, nest: `first_of((first, first_of((second, third))))`"
)]
pub trait ExtractorTuple {
    /// They, nested: the first, or else what is left.
    type First;

    #[doc(hidden)]
    fn nested(self) -> Self::First;
}

impl<A, B> ExtractorTuple for (A, B) {
    type First = Or<A, B>;

    fn nested(self) -> Self::First {
        Or { first: self.0, second: self.1 }
    }
}

macro_rules! several {
    ($first:ident, $($rest:ident),+) => {
        impl<$first, $($rest),+> ExtractorTuple for ($first, $($rest),+) {
            type First = Or<$first, <($($rest,)+) as ExtractorTuple>::First>;

            #[allow(non_snake_case, reason = "type parameters name the parts")]
            fn nested(self) -> Self::First {
                let ($first, $($rest),+) = self;
                Or { first: $first, second: ($($rest,)+).nested() }
            }
        }
    };
}

several!(A, B, C);
several!(A, B, C, D);
several!(A, B, C, D, E);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, KeyExtractor, OrKey, from_fn};

    #[test]
    fn the_first_that_finds_something_is_taken() {
        let below = |limit: u32| from_fn(move |n: &u32| (*n < limit).then_some(*n));
        let key = first_of((below(10), below(20), below(30), Global));
        assert_eq!(key.extract(&5), Ok(Some(OrKey::First(5))));
        assert_eq!(key.extract(&15), Ok(Some(OrKey::Second(OrKey::First(15)))));
        assert_eq!(key.extract(&25), Ok(Some(OrKey::Second(OrKey::Second(OrKey::First(25))))));
        assert_eq!(key.extract(&35), Ok(Some(OrKey::Second(OrKey::Second(OrKey::Second(()))))));
    }

    #[test]
    fn the_last_may_say_that_a_request_is_not_limited() {
        let odd = from_fn(|n: &u32| (!n.is_multiple_of(2)).then_some(*n));
        assert_eq!(first_of((odd, odd)).extract(&4), Ok(None));
        assert_eq!(first_of((odd, Global)).extract(&4), Ok(Some(OrKey::Second(()))));
    }
}
