use std::iter;

use http::header::COOKIE;
use http::{HeaderName, Request};
use smallvec::SmallVec;

use super::DEFAULT_MAX_LEN;
use super::secret_hash::{HashSecret, ProcessSeed};
use crate::error::ConfigError;
use crate::key::error::HeaderProblem;
use crate::key::or::{OptionalExtractor, Or};
use crate::key::{KeyError, KeyExtractor};
use crate::store::KeySecret;

/// The value of a cookie. The key is a hash of the value.
///
/// Callers without the cookie share one key, so a caller does not bypass the limit by omitting the cookie.
/// [`or`](Cookie::or) uses another extractor for such callers. A request with several cookies of that name is treated
/// as a request without the cookie, because the inner service might read any of them. Such a request is not an error of
/// the client, since a sibling subdomain can set one of the cookies. A value longer than [`max_len`](Cookie::max_len),
/// 8,192 bytes unless set, is an error of the client (400). All `Cookie` headers are read, because HTTP/2 may send each
/// cookie in a header of its own.
///
/// Names and values are percent-decoded, and a pair of quotes around a value is removed, because most frameworks do so
/// before they compare cookies. So one session has one budget, even if a caller encodes the value in different ways.
/// The value is not checked: a caller that invents sessions gets a new budget for each session. Where an outer layer
/// checks sessions, let that layer insert the user as an extension, and limit by that
/// [`Extension`](crate::key::Extension).
///
/// ```
/// use tower_throttle::key::{Cookie, PeerIp};
///
/// let by_session = Cookie::new("session")?.or(PeerIp::new());
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cookie<S = ProcessSeed> {
    name: Box<str>,
    max_len: usize,
    hash_key: S,
}

impl Cookie {
    /// Creates an extractor for the cookie `name`. Names of cookies are case-sensitive.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a cookie name. A name consists of the characters of a header name (RFC 6265,
    /// section 4.1.1). `%` is not allowed, because names are percent-decoded.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let is_name = HeaderName::from_bytes(name.as_bytes()).is_ok() && !name.contains('%');
        if !is_name {
            return Err(ConfigError::cookie_name(name));
        }
        Ok(Self { name: name.into(), max_len: DEFAULT_MAX_LEN, hash_key: ProcessSeed })
    }

    /// Hashes sessions with a secret that all processes know, so that the processes can share limits in a store on
    /// another machine.
    ///
    /// Without a secret, each process hashes sessions with a random number of its own. Code that uses such keys with a
    /// store on another machine does not compile.
    ///
    /// ```
    /// use tower_throttle::key::Cookie;
    /// use tower_throttle::store::{KeySecret, KeyText};
    ///
    /// # let from_environment = "3e5f0d6c9a1b48d7a2c4e6f801234567";
    /// let by_session = Cookie::new("session")?.keyed_by(KeySecret::new(from_environment)?);
    /// let text = KeyText::new("api").of(&by_session.key("s3ss10n"));
    /// assert!(text.starts_with("throttle:{some~hash~") && !text.contains("s3ss10n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keyed_by(self, secret: KeySecret) -> Cookie<KeySecret> {
        Cookie { name: self.name, max_len: self.max_len, hash_key: secret }
    }
}

impl<S> Cookie<S> {
    /// Sets the maximum length of a value, in bytes, as the client sent the value: with quotes and percent-encodings.
    /// The default is 8,192. A longer value is an error of the client (400).
    #[must_use]
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.max_len = bytes;
        self
    }

    /// Uses `other` for callers without the cookie.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }

    /// Returns the key of callers whose cookie has this `value`, to peek at, refund or reset their usage. The result is
    /// always `Some`: `None` is the key of callers without the cookie.
    #[must_use]
    pub fn key(&self, value: &str) -> Option<S::Hash>
    where
        S: HashSecret,
    {
        Some(secret(&self.hash_key, value.as_bytes()))
    }
}

impl<B, S: HashSecret> OptionalExtractor<Request<B>> for Cookie<S> {
    fn find(&self, request: &Request<B>) -> Result<Option<Option<S::Hash>>, KeyError> {
        let lines = request.headers().get_all(COOKIE).iter();
        let mut values =
            lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).filter_map(|pair| {
                let equals = pair.iter().position(|byte| *byte == b'=')?;
                let (name, value) = (trimmed(&pair[..equals]), trimmed(&pair[equals + 1..]));
                decoded(name).eq(self.name.bytes()).then_some(value)
            });
        match (values.next(), values.next()) {
            // A sibling subdomain can set the second cookie. If the key were made of both values, a caller would get a
            // new budget for each value of the second cookie.
            (None, _) | (_, Some(_)) => Ok(None),
            (Some(value), None) if value.len() > self.max_len => {
                Err(KeyError::header(HeaderProblem::TooLong, &COOKIE))
            }
            (Some(value), None) => Ok(Some(Some(secret(&self.hash_key, value)))),
        }
    }
}

/// Trims all white space of Unicode at both ends, as some frameworks do.
fn trimmed(text: &[u8]) -> &[u8] {
    str::from_utf8(text).map_or_else(|_| text.trim_ascii(), |text| text.trim().as_bytes())
}

fn secret<S: HashSecret>(hash_key: &S, value: &[u8]) -> S::Hash {
    let value: SmallVec<[u8; 64]> = decoded(value).collect();
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    hash_key.hash_secret(unquoted.unwrap_or(&value))
}

/// Decodes percent-encoded bytes. Leaves invalid encodings as they are.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    iter::from_fn(move || {
        let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (byte, length) = match (rest.first()?, digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => ((16 * high + low) as u8, 3),
            (byte, ..) => (*byte, 1),
        };
        rest = &rest[length..];
        Some(byte)
    })
}

impl<B, S: HashSecret> KeyExtractor<Request<B>> for Cookie<S> {
    type Key = Option<S::Hash>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Option<S::Hash>>, KeyError> {
        self.find(request).map(|found| Some(found.flatten()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SecretHash;
    use http::HeaderValue;

    fn named(name: &str) -> Cookie {
        Cookie::new(name).unwrap()
    }

    fn key(lines: &[&str]) -> Result<Option<SecretHash>, KeyError> {
        let mut request = Request::new(());
        for line in lines {
            request.headers_mut().append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        Cookie::new("id").unwrap().max_len(12).extract(&request).map(Option::unwrap)
    }

    #[test]
    fn a_cookie_is_found_in_any_place() {
        for lines in
            [&["id=abc"][..], &["a=1; id=abc"], &["a=1;id=abc;b=2"], &["a=1", "id=abc"], &["  id = abc "]]
        {
            assert_eq!(key(lines), Ok(named("id").key("abc")), "{lines:?}");
        }
        assert_eq!(key(&["id=a=b"]), Ok(named("id").key("a=b")));
        assert_eq!(key(&["id="]), Ok(named("id").key("")));
        // Frameworks decode all of these to the same name and value.
        for lines in
            [["%69d=abc"], ["%69%64=abc"], ["id=%61bc"], ["id=a%62%63"], ["id=\"abc\""], ["id=\"a%62c\""]]
        {
            assert_eq!(key(&lines), Ok(named("id").key("abc")), "{lines:?}");
        }
        for line in ["id=%22abc%22", "\u{a0}id=abc", "id=\u{2003}abc\u{a0}", "id\u{a0}= abc"] {
            assert_eq!(key(&[line]), Ok(named("id").key("abc")), "{line:?}");
        }
        for raw in ["100%", "%zz", "%6", "%%61", "\"a", "%ff"] {
            assert_eq!(key(&[&format!("id={raw}")]), Ok(named("id").key(raw)), "{raw}");
        }
        assert_eq!(named("id").key("%%61"), named("id").key("%a"));
        for lines in [&[][..], &["ID=abc"], &["xid=abc"], &["id"], &["a=id=abc"], &[";;=;"]] {
            assert_eq!(key(lines), Ok(None), "{lines:?}");
        }
    }

    #[test]
    fn two_cookies_of_one_name_count_as_none() {
        for lines in [
            &["id=abc; id=abc"][..],
            &["id=x; %69d=abc"],
            &["%69d=abc; i%64=abc"],
            &["id=abc", "a=1; id=x"],
            &["id=abcabcabcabcabc; id=x"],
            &["id=a; id=b; id=c"],
        ] {
            assert_eq!(key(lines), Ok(None), "{lines:?}");
        }
    }

    #[test]
    fn too_long_is_an_error_that_does_not_repeat_it() {
        let error = key(&["id=abcabcabcabcabc"]).unwrap_err();
        assert!(error.is_invalid());
        assert!(error.to_string().contains("cookie") && !error.to_string().contains("abc"), "{error}");
        assert!(Cookie::new("no cookie").is_err());
        assert!(Cookie::new("").is_err());
        assert!(Cookie::new("a%62").is_err());
    }
}
