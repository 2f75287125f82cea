use super::{KeyError, KeyExtractor};

/// Several parts, one key. All are asked: a caller that one of them does not serve is not served; else a part that says
/// `None` makes the whole `None`; else one that fails fails the whole. Of several failures, the client's counts: what is
/// done about missing keys does not excuse it.
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
                        failed = match failed {
                            Some(other) if KeyError::is_invalid(&other) || !error.is_invalid() => Some(other),
                            _ => Some(error),
                        };
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
    fn a_part_that_is_not_limited_makes_the_whole_so() {
        let even = from_fn(|n: &u32| n.is_multiple_of(2).then_some(*n));
        assert_eq!((even, Global).extract(&4), Ok(Some((4, ()))));
        assert_eq!((Global, even).extract(&3), Ok(None));
    }

    #[test]
    fn a_part_that_fails_fails_the_whole() {
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
    fn a_caller_that_one_part_does_not_serve_is_not_served() {
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
