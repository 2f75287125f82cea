use super::{KeyError, KeyExtractor};

/// Several parts, one key. A part that says `None` makes the whole `None`.
macro_rules! tuple {
    ($($part:ident)+) => {
        impl<Req, $($part: KeyExtractor<Req>),+> KeyExtractor<Req> for ($($part,)+) {
            type Key = ($($part::Key,)+);

            #[allow(non_snake_case, reason = "type parameters name the parts")]
            fn extract(&self, request: &Req) -> Result<Option<Self::Key>, KeyError> {
                let ($($part,)+) = self;
                Ok(Some(($(
                    match $part.extract(request)? {
                        Some(key) => key,
                        None => return Ok(None),
                    },
                )+)))
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
    }
}
