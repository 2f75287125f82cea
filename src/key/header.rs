use std::fmt;
use std::hash::Hash;

use http::header::InvalidHeaderName;
use http::{HeaderName, HeaderValue, Request};

use super::or::{Optional, Or};
use super::{KeyError, KeyExtractor};

/// The value of a header.
///
/// Callers without it share one key, so leaving it out is no way round the limit; [`or`](Header::or) asks another
/// extractor instead. Two lines of it are an error, not a choice: the service behind might read the other one.
///
/// The value is compared byte by byte. It is what the caller says: whoever may invent values has a budget for each.
/// Limit by address as well, or check the value in a layer outside this one.
///
/// ```
/// use tower_throttle::key::{Header, PeerIp};
///
/// let by_api_key = Header::new("x-api-key")?.or(PeerIp::new());
/// # Ok::<(), http::header::InvalidHeaderName>(())
/// ```
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
}

impl Header {
    /// The header of that name, in any case.
    ///
    /// # Errors
    ///
    /// If `name` is no header name.
    pub fn new(name: &str) -> Result<Self, InvalidHeaderName> {
        HeaderName::from_bytes(name.as_bytes()).map(|name| Self { name })
    }

    /// Asks `other` for callers without the header.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }
}

/// The value of a header, or that there is none.
///
/// Its `Debug` form does not show the value, which may be a secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HeaderKey(Option<HeaderValue>);

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "HeaderKey(..)" } else { "HeaderKey(absent)" })
    }
}

impl<B> Optional<Request<B>> for Header {
    type Found = HeaderKey;

    fn find(&self, request: &Request<B>) -> Result<Option<HeaderKey>, KeyError> {
        let mut lines = request.headers().get_all(&self.name).iter();
        let first = lines.next();
        match lines.next() {
            None => Ok(first.map(|value| HeaderKey(Some(value.clone())))),
            Some(_) => {
                Err(KeyError::new(format!("the header `{}` stands in two lines, send one", self.name)))
            }
        }
    }
}

impl<B> KeyExtractor<Request<B>> for Header {
    type Key = HeaderKey;

    fn extract(&self, request: &Request<B>) -> Result<Option<HeaderKey>, KeyError> {
        Ok(Some(self.find(request)?.unwrap_or(HeaderKey(None))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, OrKey};

    fn request(lines: &[&str]) -> Request<()> {
        let mut request = Request::new(());
        for line in lines {
            request.headers_mut().append("x-api-key", HeaderValue::from_str(line).unwrap());
        }
        request
    }

    #[test]
    fn a_value_is_a_key_and_none_is_one_too() {
        let header = Header::new("X-Api-Key").unwrap();
        let key = |lines: &[&str]| header.extract(&request(lines)).unwrap().unwrap();
        assert_eq!(key(&["a"]), key(&["a"]));
        assert_ne!(key(&["a"]), key(&["b"]));
        assert_ne!(key(&["a"]), key(&["A"]));
        assert_eq!(key(&[]), key(&[]));
        assert_ne!(key(&[]), key(&[""]));
    }

    #[test]
    fn two_lines_are_an_error_that_names_the_header_and_not_the_value() {
        let header = Header::new("x-api-key").unwrap();
        let error = header.extract(&request(&["secret", "secret"])).unwrap_err().to_string();
        assert!(error.contains("x-api-key") && !error.contains("secret"), "{error}");
        assert!(header.or(Global).extract(&request(&["a", "b"])).is_err());
    }

    #[test]
    fn or_asks_another_for_those_without() {
        let header = Header::new("x-api-key").unwrap().or(Global);
        assert!(matches!(header.extract(&request(&["a"])), Ok(Some(OrKey::First(_)))));
        assert_eq!(header.extract(&request(&[])), Ok(Some(OrKey::Second(()))));
    }

    #[test]
    fn secrets_are_not_printed() {
        let header = Header::new("x-api-key").unwrap();
        let key = header.extract(&request(&["secret"])).unwrap().unwrap();
        assert_eq!(format!("{key:?}"), "HeaderKey(..)");
        assert!(Header::new("no header\n").is_err());
    }
}
