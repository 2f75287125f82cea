use super::{KeyError, KeyExtractor};

/// Implements `KeyExtractor` for a tuple of extractors, whose key is the tuple of their keys.
///
/// All parts are called. If any part returns a `forbidden` error, the tuple returns that error. Otherwise, if any part
/// returns `None`, the tuple returns `None`. Otherwise, if any part returns an error, the tuple returns an error. Of
/// several errors, the tuple returns the first mistake of a client or, if there is none, the first error. A request
/// with a mistake of the client is always rejected, whereas [`MissingKey`](super::MissingKey) may admit a request whose
/// key is missing.
macro_rules! tuple {
    ($($part:ident)+) => {
        impl<Req, $($part: KeyExtractor<Req>),+> KeyExtractor<Req> for ($($part,)+) {
            type Key = ($($part::Key,)+);

            #[allow(non_snake_case, reason = "type parameters name the parts")]
            fn extract(&self, request: &Req) -> Result<Option<Self::Key>, KeyError> {
                let ($($part,)+) = self;
                let ($($part,)+) = ($($part.extract(request),)+);
                let (mut none, mut failed) = (false, None);
                $(let $part = match $part {
                    Ok(key) => {
                        none |= key.is_none();
                        key
                    }
                    Err(error) if error.is_forbidden() => return Err(error),
                    Err(error) => {
                        failed = Some(match failed {
                            Some(other) => KeyError::or_graver(other, error),
                            None => error,
                        });
                        None
                    }
                };)+
                if let (false, Some(error)) = (none, failed) {
                    return Err(error);
                }
                let ($(Some($part),)+) = ($($part,)+) else { return Ok(None) };
                Ok(Some(($($part,)+)))
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, from_fn};

    #[test]
    fn a_part_without_a_limit_exempts_the_whole_tuple() {
        let even = from_fn(|n: &u32| n.is_multiple_of(2).then_some(*n));
        assert_eq!((even, Global).extract(&4), Ok(Some((4, ()))));
        assert_eq!((Global, even).extract(&3), Ok(None));
    }

    #[test]
    fn an_error_of_a_part_is_an_error_of_the_tuple() {
        struct Fails;
        impl<Req> KeyExtractor<Req> for Fails {
            type Key = ();
            fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
                Err(KeyError::new("no"))
            }
        }
        assert_eq!((Global, Fails, Global).extract(&3), Err(KeyError::new("no")));
        let none = from_fn(|_: &u32| None::<()>);
        assert_eq!((Fails, none).extract(&3), Ok(None));
        assert_eq!((none, Fails).extract(&3), Ok(None));
    }

    #[test]
    fn a_caller_that_one_part_denies_is_denied() {
        struct Forbids;
        impl<Req> KeyExtractor<Req> for Forbids {
            type Key = ();
            fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
                Err(KeyError::forbidden("no"))
            }
        }
        let none = from_fn(|_: &u32| None::<()>);
        assert_eq!((none, Forbids).extract(&3), Err(KeyError::forbidden("no")));
        assert_eq!((Forbids, none).extract(&3), Err(KeyError::forbidden("no")));
    }
}
