//! Keys from tokens and sessions, which are secrets: the key is a hash of the value.

use std::fmt;
use std::hash::Hash;
use std::iter;
use std::sync::OnceLock;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, Request};
use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use super::error::HeaderProblem;
use super::header::{DEFAULT_MAX_LEN, single_value};
use super::or::{OptionalExtractor, Or};
use super::{KeyError, KeyExtractor};
use crate::error::ConfigError;
use crate::limiter::{KeySecret, KeyedHash};
use crate::sys::random::random_u64;

/// The bearer token in the `Authorization` header (RFC 6750). The key is a hash of the token.
///
/// Callers without a token share one key, so a caller does not bypass the limit by omitting the token.
/// [`or`](Bearer::or) uses another extractor for such callers, and [`required`](Bearer::required) rejects them. It is
/// an error of the client (400) if there are several `Authorization` headers, if more than one word follows the scheme,
/// or if the token is longer than [`max_len`](Bearer::max_len), 8,192 bytes by default. So one token has one budget,
/// however a caller spells it. A token has visible ASCII characters only (RFC 6750, section 2.1), and any other
/// characters separate words.
///
/// The token is not checked: a caller that invents tokens gets a new budget for each token. Limit by address as well.
/// Or, where an outer layer checks tokens, let that layer insert the user as an extension, and limit by that
/// [`Extension`](crate::key::Extension).
///
/// ```
/// use tower_throttle::key::{Bearer, PeerIp};
///
/// let by_token = Bearer::new().or(PeerIp::new());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bearer<S = ProcessSeed> {
    max_len: usize,
    is_required: bool,
    hash_key: S,
}

impl Bearer {
    /// Creates an extractor for tokens of up to 8,192 bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_len: DEFAULT_MAX_LEN, is_required: false, hash_key: ProcessSeed }
    }

    /// Hashes tokens with a secret that all processes know, so that the processes can share limits whose state is on
    /// another machine, such as in Redis.
    ///
    /// Without a secret, each process hashes tokens with a random number of its own. Code that passes such keys to a
    /// limiter that keeps its state on another machine does not compile.
    ///
    /// ```
    /// use tower_throttle::key::Bearer;
    /// use tower_throttle::limiter::{KeySecret, KeyText};
    ///
    /// # let from_environment = "3e5f0d6c9a1b48d7a2c4e6f801234567";
    /// let by_token = Bearer::new().keyed_by(KeySecret::new(from_environment)?);
    /// let text = KeyText::new("api").of(&by_token.key("mF_9.B5f-4.1JqM"));
    /// assert!(text.starts_with("throttle:{some~hash~") && !text.contains("mF_9.B5f-4.1JqM"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn keyed_by(self, secret: KeySecret) -> Bearer<KeySecret> {
        Bearer { max_len: self.max_len, is_required: self.is_required, hash_key: secret }
    }
}

impl<S> Bearer<S> {
    /// Sets the maximum length of a token, in bytes. The default is 8,192. A longer token is an error of the client
    /// (400).
    #[must_use]
    pub const fn max_len(mut self, bytes: usize) -> Self
    where
        S: Copy,
    {
        self.max_len = bytes;
        self
    }

    /// Rejects callers without a token with 401 and `WWW-Authenticate: Bearer`, or the gRPC code `UNAUTHENTICATED`,
    /// instead of giving them one budget together. Credentials of another scheme are no token.
    ///
    /// The token is still not checked. Such requests are counted in
    /// [`KeyStats::unauthorized`](crate::stats::KeyStats::unauthorized), and charged to no key. With
    /// [`or`](Bearer::or), they are rejected as well, whatever the other extractor finds. As the last one of
    /// [`first_of`](super::first_of()), it rejects those for whom no extractor before it has found a key.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::Bearer;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let by_token = Bearer::new().required();
    /// let layer = RateLimitLayer::new(by_token, TokenBucket::new(Quota::per_minute(100)));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub const fn required(mut self) -> Self
    where
        S: Copy,
    {
        self.is_required = true;
        self
    }

    /// Uses `other` for callers without a token.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or::new(self, other)
    }

    /// Returns the key of callers with `token`, to peek at, refund or reset their usage. The result is always `Some`:
    /// `None` is the key of callers without a token.
    ///
    /// If this extractor is a part of an [`Or`](super::Or), the layer has the key that
    /// [`first_key`](super::Or::first_key) or [`second_key`](super::Or::second_key) returns.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::Bearer;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let by_token = Bearer::new();
    /// let layer = RateLimitLayer::new(by_token, TokenBucket::new(Quota::per_minute(100)));
    /// layer.limiter().reset(&by_token.key("mF_9.B5f-4.1JqM"));
    /// ```
    #[must_use]
    pub fn key(&self, token: &str) -> Option<S::Hash>
    where
        S: HashSecret,
    {
        Some(self.hash_key.hash_secret(token.as_bytes()))
    }
}

impl Default for Bearer {
    fn default() -> Self {
        Self::new()
    }
}

impl<B, S: HashSecret> OptionalExtractor<Request<B>> for Bearer<S> {
    fn find(&self, request: &Request<B>) -> Result<Option<Option<S::Hash>>, KeyError> {
        let header = single_value(&AUTHORIZATION, request.headers())?;
        match header.map_or(Ok(None), |header| token(header.as_bytes()))? {
            Some(token) if token.len() > self.max_len => {
                Err(KeyError::header(HeaderProblem::TooLong, &AUTHORIZATION))
            }
            Some(token) => Ok(Some(Some(self.hash_key.hash_secret(token)))),
            None if self.is_required => Err(KeyError::unauthorized("send a bearer token")),
            None => Ok(None),
        }
    }
}

/// Returns the token after the scheme `Bearer`. Returns `None` if the credentials have another scheme, or no token, and
/// an error if another word follows the token, because the inner service might ignore that word.
fn token(credentials: &[u8]) -> Result<Option<&[u8]>, KeyError> {
    let words = credentials.split(|byte| !byte.is_ascii_graphic());
    let mut words = words.filter(|word| !word.is_empty());
    let is_bearer = words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
    let Some(token) = words.next().filter(|_| is_bearer) else { return Ok(None) };
    match words.next() {
        None => Ok(Some(token)),
        Some(_) => Err(KeyError::header(HeaderProblem::TwoWords, &AUTHORIZATION)),
    }
}

impl<B, S: HashSecret> KeyExtractor<Request<B>> for Bearer<S> {
    type Key = Option<S::Hash>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Option<S::Hash>>, KeyError> {
        self.find(request).map(|found| Some(found.flatten()))
    }
}

/// The value of a cookie. The key is a hash of the value.
///
/// Callers without the cookie share one key, so a caller does not bypass the limit by omitting the cookie.
/// [`or`](Cookie::or) uses another extractor for such callers. A request with several cookies of that name is treated
/// as a request without the cookie, because the inner service might read any of them. Such a request is not an error of
/// the client, since a sibling subdomain can set one of the cookies. A value longer than [`max_len`](Cookie::max_len),
/// 8,192 bytes by default, is an error of the client (400). All `Cookie` headers are read, because HTTP/2 may send each
/// cookie in a header of its own.
///
/// Names and values are percent-decoded, and a pair of quotes around a value is removed, because most frameworks do so
/// before they compare cookies. Backslashes within these quotes are decoded, as Python's frameworks do. So one session
/// has one budget, even if a caller encodes the value in different ways. The value is not checked: a caller that
/// invents sessions gets a new budget for each session. Where an outer layer checks sessions, let that layer insert the
/// user as an extension, and limit by that [`Extension`](crate::key::Extension).
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
            return Err(ConfigError::of_input(name, "is no cookie name: give one such as \"session\""));
        }
        Ok(Self { name: name.into(), max_len: DEFAULT_MAX_LEN, hash_key: ProcessSeed })
    }

    /// Hashes sessions with a secret that all processes know, so that the processes can share limits whose state is on
    /// another machine, such as in Redis.
    ///
    /// Without a secret, each process hashes sessions with a random number of its own. Code that passes such keys to a
    /// limiter that keeps its state on another machine does not compile.
    ///
    /// ```
    /// use tower_throttle::key::Cookie;
    /// use tower_throttle::limiter::{KeySecret, KeyText};
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
        Or::new(self, other)
    }

    /// Returns the key of callers whose cookie has this `value`, to peek at, refund or reset their usage. The result is
    /// always `Some`: `None` is the key of callers without the cookie.
    ///
    /// If this extractor is a part of an [`Or`](super::Or), the layer has the key that
    /// [`first_key`](super::Or::first_key) or [`second_key`](super::Or::second_key) returns.
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
                decoded(name, b'+').eq(self.name.bytes()).then_some(value)
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
    let value: SmallVec<[u8; 64]> = decoded(value, b'+').collect();
    match value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) {
        Some(quoted) => hash_key.hash_secret(&unescaped(quoted).collect::<SmallVec<[u8; 64]>>()),
        None => hash_key.hash_secret(&value),
    }
}

/// Decodes backslashes, each of which is followed by three octal digits or by the character itself.
fn unescaped(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    iter::from_fn(move || {
        let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(8));
        let (byte, length) = match (rest, digit(1), digit(2), digit(3)) {
            ([b'\\', ..], Some(high @ 0..4), Some(middle), Some(low)) => {
                ((64 * high + 8 * middle + low) as u8, 4)
            }
            ([b'\\', byte, ..], ..) => (*byte, 2),
            ([byte, ..], ..) => (*byte, 1),
            ([], ..) => return None,
        };
        rest = &rest[length..];
        Some(byte)
    })
}

/// Decodes percent-encoded bytes. Leaves invalid encodings as they are. `plus` is what a `+` stands for.
pub(super) fn decoded(text: &[u8], plus: u8) -> impl Iterator<Item = u8> {
    let mut rest = text;
    iter::from_fn(move || {
        let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (byte, length) = match (rest.first()?, digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => ((16 * high + low) as u8, 3),
            (b'+', ..) => (plus, 1),
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

/// A 128-bit hash of a token or a session, keyed with a random number that stays the same until the process ends. The
/// token or session cannot be recovered from the hash.
///
/// This type does not implement [`SharedKey`](crate::limiter::SharedKey), because a limiter that keeps its state on
/// another machine needs tokens and sessions that are hashed with a [configured secret](crate::limiter::KeySecret).
///
/// The `Debug` form shows nothing of the token or session.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(u128);

/// A random key for hashes, which stays the same until the process ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSeed;

/// Hashes the tokens and sessions that an extractor finds. Only this crate can implement this trait, since the trait's
/// module is private.
pub trait HashSecret {
    /// The hash of a token or a session.
    type Hash: Hash + Clone;

    #[doc(hidden)]
    fn hash_secret(&self, value: &[u8]) -> Self::Hash;
}

impl HashSecret for ProcessSeed {
    type Hash = SecretHash;

    fn hash_secret(&self, value: &[u8]) -> SecretHash {
        static SEED: OnceLock<(u64, u64)> = OnceLock::new();
        let (first, second) = *SEED.get_or_init(|| (random_u64(), random_u64()));
        SecretHash(SipHasher13::new_with_keys(first, second).hash(value).as_u128())
    }
}

impl HashSecret for KeySecret {
    type Hash = KeyedHash;

    fn hash_secret(&self, value: &[u8]) -> KeyedHash {
        self.hash(value)
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod bearer {
        use super::*;
        use http::HeaderValue;

        fn key(lines: &[&str]) -> Result<Option<SecretHash>, KeyError> {
            let mut request = Request::new(());
            for line in lines {
                let line = HeaderValue::from_bytes(line.as_bytes()).unwrap();
                request.headers_mut().append(AUTHORIZATION, line);
            }
            Bearer::new().max_len(8).extract(&request).map(Option::unwrap)
        }

        #[test]
        fn a_token_is_a_key_that_shows_nothing() {
            assert_eq!(key(&["Bearer abc"]), Ok(Bearer::new().key("abc")));
            assert_ne!(key(&["Bearer abc"]), key(&["Bearer abd"]));
            assert_eq!(format!("{:?}", key(&["Bearer abc"])), "Ok(Some(Secret(..)))");
        }

        /// RFC 6750, section 2.1: the scheme, spaces, and a token without white space. RFC 9110, section 11.1: the
        /// scheme is case-insensitive.
        #[test]
        fn one_token_has_one_budget_however_a_caller_spells_it() {
            for line in [
                "bearer abc",
                "bEARER   abc ",
                "Bearer\tabc",
                "Bearer \t abc\t",
                " Bearer abc",
                "Bearer\u{a0}abc",
                "Bearer abc\u{2003}",
            ] {
                assert_eq!(key(&[line]), Ok(Bearer::new().key("abc")), "{line:?}");
            }
            for line in
                ["Bearer abc 0", "Bearer abc 1", "Bearer abc\td", "Bearer abc\u{a0}d", "Bearer Bearer abc"]
            {
                let error = key(&[line]).unwrap_err();
                assert!(error.is_invalid() && !error.to_string().contains("abc"), "{line:?}: {error}");
            }
        }

        #[test]
        fn other_schemes_and_empty_tokens_are_none() {
            for lines in [
                &[][..],
                &["Basic abc"],
                &["Digest abc d"],
                &["Bearer"],
                &["Bearer "],
                &["Bearer \t  "],
                &["Bearerabc"],
                &[""],
            ] {
                assert_eq!(key(lines), Ok(None), "{lines:?}");
            }
        }

        #[test]
        fn two_lines_and_long_tokens_are_errors_that_do_not_repeat_them() {
            for lines in
                [&["Bearer abc", "Bearer abc"][..], &["Bearer abc", "Basic x"], &["Bearer abcabcabc"]]
            {
                let error = key(lines).unwrap_err().to_string();
                assert!(error.contains("authorization") && !error.contains("abc"), "{error}");
            }
        }
    }

    mod cookie {
        use super::*;
        use http::HeaderValue;

        fn named(name: &str) -> Cookie {
            Cookie::new(name).unwrap()
        }

        fn key(lines: &[&str]) -> Result<Option<SecretHash>, KeyError> {
            let mut request = Request::new(());
            for line in lines {
                request.headers_mut().append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            Cookie::new("id").unwrap().max_len(14).extract(&request).map(Option::unwrap)
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
            // Python's frameworks also decode backslashes in quotes, as RFC 2109 has them.
            for line in [r#"id="a\142c""#, r#"id="\a\b\c""#, r#"id="\141\142\143""#] {
                assert_eq!(key(&[line]), Ok(named("id").key("abc")), "{line:?}");
            }
            for line in ["id=%22abc%22", "\u{a0}id=abc", "id=\u{2003}abc\u{a0}", "id\u{a0}= abc"] {
                assert_eq!(key(&[line]), Ok(named("id").key("abc")), "{line:?}");
            }
            for raw in ["100%", "%zz", "%6", "%%61", "\"a", "%ff", r"a\142c", r"\"] {
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
}
