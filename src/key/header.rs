//! Keys from the values of header fields. The module `secret` has tokens and cookies, of which only a hash is kept.

use std::fmt;
use std::hash::Hash;

use http::header::InvalidHeaderName;
use http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::error::HeaderProblem;
use super::or::{OptionalExtractor, Or};
use super::{KeyError, KeyExtractor};
use crate::limiter::{KeyWriter, SharedKey};

/// The default maximum length of a value, in bytes.
pub(super) const DEFAULT_MAX_LEN: usize = 8_192;

/// The value of a header.
///
/// Callers without the header share one key, so a caller does not bypass the limit by omitting the header.
/// [`or`](Header::or) uses another extractor for such callers. Several headers of that name are an error of the client
/// (400), because the inner service might read any of them.
///
/// The value is compared byte by byte, without the white space around it. The value is not checked: a caller that
/// invents values gets a new budget for each value. Limit by address as well. Or, where an outer layer checks the
/// value, let that layer insert the user as an extension, and limit by that [`Extension`](crate::key::Extension). A
/// value longer than [`max_len`](Header::max_len), 8,192 bytes by default, is an error of the client (400). Such a
/// value is not truncated, because long values with the same beginning would then share a budget.
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
    max_len: usize,
}

impl Header {
    /// Creates an extractor for the header `name`, which is case-insensitive.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a header name.
    pub fn new(name: &str) -> Result<Self, InvalidHeaderName> {
        HeaderName::from_bytes(name.as_bytes()).map(|name| Self { name, max_len: DEFAULT_MAX_LEN })
    }

    /// Sets the maximum length of a value, in bytes. The default is 8,192. A longer value is an error of the client
    /// (400).
    #[must_use]
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.max_len = bytes;
        self
    }

    /// Returns the key of callers whose header has this `value`, to peek at, refund or reset their usage.
    ///
    /// If this extractor is a part of an [`Or`](super::Or), the layer has the key that
    /// [`first_key`](super::Or::first_key) or [`second_key`](super::Or::second_key) returns.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::Header;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let by_api_key = Header::new("x-api-key")?;
    /// let layer =
    ///     RateLimitLayer::new(by_api_key.clone(), TokenBucket::new(Quota::per_minute(100)));
    /// layer.limiter().reset(&by_api_key.key(&"4711".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(&self, value: &HeaderValue) -> HeaderKey {
        let bytes = trimmed(value.as_bytes());
        let is_trimmed = bytes.len() == value.len();
        let trimmed = if is_trimmed { None } else { HeaderValue::from_bytes(bytes).ok() };
        HeaderKey(Some(trimmed.unwrap_or_else(|| value.clone())))
    }

    /// Uses `other` for callers without the header.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or::new(self, other)
    }
}

/// The key of a [`Header`]: the value of the header, or its absence.
///
/// The `Debug` form does not show the value, which may be a secret.
///
/// ```
/// use tower_throttle::key::{Header, HeaderKey, KeyExtractor};
///
/// let request = http::Request::get("/").header("x-api-key", "4711").body(())?;
/// let key: Option<HeaderKey> = Header::new("x-api-key")?.extract(&request)?;
/// assert_eq!(key.as_ref().and_then(HeaderKey::value).unwrap(), "4711");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HeaderKey(Option<HeaderValue>);

impl HeaderKey {
    /// Returns the value of the header, or `None` for all callers without it.
    #[must_use]
    pub fn value(&self) -> Option<&HeaderValue> {
        self.0.as_ref()
    }
}

/// Writes the header's value itself, not a hash of the value. So anyone who can read the keys on another machine can
/// read the value.
impl SharedKey for HeaderKey {
    fn write_to(&self, text: &mut KeyWriter) {
        match &self.0 {
            Some(value) => text.variant("header", value),
            None => text.variant("header", &()),
        };
    }
}

/// The same text as that of the bytes. The impl is here because the limiter knows nothing of HTTP.
impl SharedKey for HeaderValue {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self.as_bytes());
    }
}

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "HeaderKey(..)" } else { "HeaderKey(absent)" })
    }
}

impl<B> OptionalExtractor<Request<B>> for Header {
    fn find(&self, request: &Request<B>) -> Result<Option<HeaderKey>, KeyError> {
        match single_value(&self.name, request.headers())? {
            Some(value) if trimmed(value.as_bytes()).len() > self.max_len => {
                Err(KeyError::header(HeaderProblem::TooLong, &self.name))
            }
            value => Ok(value.map(|value| self.key(value))),
        }
    }
}

impl<B> KeyExtractor<Request<B>> for Header {
    type Key = HeaderKey;

    fn extract(&self, request: &Request<B>) -> Result<Option<HeaderKey>, KeyError> {
        Ok(Some(self.find(request)?.unwrap_or(HeaderKey(None))))
    }
}

/// Returns the value of a header that may occur only once. Returns an error if the header occurs more than once,
/// because the inner service might read any of the values.
pub(super) fn single_value<'a>(
    name: &HeaderName,
    headers: &'a HeaderMap,
) -> Result<Option<&'a HeaderValue>, KeyError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(KeyError::header(HeaderProblem::Twice, name)),
    }
}

/// Removes spaces and tabs at both ends, which are no part of a value (RFC 9110, section 5.5). HTTP/2 passes them on.
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
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
    fn each_value_is_a_key_and_so_is_its_absence() {
        let header = Header::new("X-Api-Key").unwrap();
        let key = |lines: &[&str]| header.extract(&request(lines)).unwrap().unwrap();
        assert_eq!(key(&["a"]), key(&["a"]));
        assert_ne!(key(&["a"]), key(&["b"]));
        assert_ne!(key(&["a"]), key(&["A"]));
        assert_eq!(key(&[]), key(&[]));
        assert_ne!(key(&[]), key(&[""]));
    }

    /// RFC 9110, section 5.5: "A field value does not include leading or trailing whitespace." HTTP/2 passes it on.
    #[test]
    fn one_value_has_one_budget_whatever_white_space_a_caller_sends_around_it() {
        let header = Header::new("x-api-key").unwrap();
        let expected = Ok(Some(header.key(&HeaderValue::from_static("a b"))));
        for line in ["a b", " a b", "a b ", "\ta b \t"] {
            assert_eq!(header.extract(&request(&[line])), expected, "{line:?}");
            assert_eq!(Ok(Some(header.key(&line.parse().unwrap()))), expected, "{line:?}");
        }
        assert_ne!(header.extract(&request(&["a  b"])), expected);
        assert_eq!(header.extract(&request(&[" "])), header.extract(&request(&[""])));
    }

    #[test]
    fn two_lines_are_an_error_that_names_the_header_and_not_the_value() {
        let header = Header::new("x-api-key").unwrap();
        let error = header.extract(&request(&["secret", "secret"])).unwrap_err().to_string();
        assert!(error.contains("x-api-key") && !error.contains("secret"), "{error}");
        assert!(header.or(Global).extract(&request(&["a", "b"])).is_err());
    }

    #[test]
    fn a_value_that_is_too_long_is_an_error() {
        let header = Header::new("x-api-key").unwrap().max_len(4);
        assert_eq!(
            header.extract(&request(&["  abcd "])),
            Ok(Some(header.key(&HeaderValue::from_static("abcd"))))
        );
        let error = header.extract(&request(&["abcde"])).unwrap_err().to_string();
        assert!(error.contains("max_len") && !error.contains("abcde"), "{error}");
    }

    #[test]
    fn or_uses_another_extractor_for_callers_without_the_header() {
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
