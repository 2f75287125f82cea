use http::header::{COOKIE, InvalidHeaderName};
use http::{HeaderName, Request};

use super::LONGEST;
use super::secret::Secret;
use crate::key::error::HeaderRule;
use crate::key::or::{Optional, Or};
use crate::key::{KeyError, KeyExtractor};

/// The value of a cookie, as a fingerprint.
///
/// Callers without it share one key, so leaving it out is no way round the limit; [`or`](Cookie::or) asks another
/// extractor instead. Twice the same cookie is an error, not a choice: the service behind might read the other one.
/// So is one longer than 8,192 bytes, unless [`max_len`](Cookie::max_len) says otherwise. All lines of the header
/// count: HTTP/2 may send each cookie in its own.
///
/// The value is compared byte by byte, quotes included, and not checked: whoever may invent sessions has a budget for
/// each. Put this layer inside the one that checks them, or limit by address as well.
///
/// ```
/// use tower_throttle::key::{Cookie, PeerIp};
///
/// let by_session = Cookie::new("session")?.or(PeerIp::new());
/// # Ok::<(), http::header::InvalidHeaderName>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cookie {
    name: Box<str>,
    longest: usize,
}

impl Cookie {
    /// The cookie of that name; cookies' names differ by case.
    ///
    /// # Errors
    ///
    /// If `name` is no cookie name: it may consist of the characters that a header's name may (RFC 6265, section
    /// 4.1.1).
    pub fn new(name: &str) -> Result<Self, InvalidHeaderName> {
        HeaderName::from_bytes(name.as_bytes())?;
        Ok(Self { name: name.into(), longest: LONGEST })
    }

    /// The longest value that is a key, in bytes; 8,192 unless set.
    #[must_use]
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Asks `other` for callers without the cookie.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }

    /// The key of callers with that value: to look at, refund or reset what they have used.
    #[must_use]
    pub fn key(value: &str) -> Option<Secret> {
        Some(Secret::of(value.as_bytes()))
    }
}

impl<B> Optional<Request<B>> for Cookie {
    type Found = Secret;

    fn find(&self, request: &Request<B>) -> Result<Option<Secret>, KeyError> {
        let lines = request.headers().get_all(COOKIE).iter();
        let mut values =
            lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).filter_map(|pair| {
                let equals = pair.iter().position(|byte| *byte == b'=')?;
                (pair[..equals].trim_ascii() == self.name.as_bytes()).then(|| pair[equals + 1..].trim_ascii())
            });
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(KeyError::header(HeaderRule::Ambiguous, &COOKIE)),
            (Some(value), _) if value.len() > self.longest => {
                Err(KeyError::header(HeaderRule::TooLong, &COOKIE))
            }
            (value, _) => Ok(value.map(Secret::of)),
        }
    }
}

impl<B> KeyExtractor<Request<B>> for Cookie {
    type Key = Option<Secret>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Option<Secret>>, KeyError> {
        self.find(request).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(lines: &[&str]) -> Result<Option<Secret>, KeyError> {
        let mut request = Request::new(());
        for line in lines {
            request.headers_mut().append(COOKIE, line.parse().unwrap());
        }
        Cookie::new("id").unwrap().max_len(8).extract(&request).map(Option::unwrap)
    }

    #[test]
    fn a_cookie_is_found_in_any_place() {
        for lines in
            [&["id=abc"][..], &["a=1; id=abc"], &["a=1;id=abc;b=2"], &["a=1", "id=abc"], &["  id = abc "]]
        {
            assert_eq!(key(lines), Ok(Cookie::key("abc")), "{lines:?}");
        }
        assert_eq!(key(&["id=a=b"]), Ok(Cookie::key("a=b")));
        assert_eq!(key(&["id="]), Ok(Cookie::key("")));
        for lines in [&[][..], &["ID=abc"], &["xid=abc"], &["id"], &["a=id=abc"], &[";;=;"]] {
            assert_eq!(key(lines), Ok(None), "{lines:?}");
        }
    }

    #[test]
    fn twice_or_too_long_is_an_error_that_does_not_repeat_it() {
        for lines in [&["id=abc; id=abc"][..], &["id=abc", "a=1; id=x"], &["id=abcabcabc"]] {
            let error = key(lines).unwrap_err().to_string();
            assert!(error.contains("cookie") && !error.contains("abc"), "{error}");
        }
        assert!(Cookie::new("no cookie").is_err());
        assert!(Cookie::new("").is_err());
    }
}
