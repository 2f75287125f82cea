use super::or::Or;

/// Creates an extractor from two to five others. The key of a request is that of the first extractor that finds a key:
/// for example, the id of a signed-in user or, for all other callers, the address.
///
/// If an earlier extractor found a key, the [deny list](super::PeerIp::deny) of the last extractor still applies:
/// callers on that list are denied service. The [allow list](super::PeerIp::allow) of the last extractor applies only
/// if no earlier extractor found a key.
///
/// Each extractor but the last must be one that can report that a request has no key: [`Extension`](super::Extension),
/// [`Header`](super::Header), [`Bearer`](super::Bearer), [`Cookie`](super::Cookie) or [`from_fn`](super::from_fn()). If
/// the function of a `from_fn` returns `None`, the next extractor is tried. Keys of different extractors are never
/// equal. [`first_key`](Or::first_key) and [`second_key`](Or::second_key) build keys by hand.
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
        Or { first: self.0, second: self.1 }
    }
}

macro_rules! extractor_tuple {
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

extractor_tuple!(A, B, C);
extractor_tuple!(A, B, C, D);
extractor_tuple!(A, B, C, D, E);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, KeyExtractor, OrKey, from_fn};

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
