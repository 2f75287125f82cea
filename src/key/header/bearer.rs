use http::Request;
use http::header::AUTHORIZATION;

use super::DEFAULT_MAX_LEN;
use super::secret_hash::{HashSecret, ProcessSeed};
use crate::key::error::HeaderProblem;
use crate::key::or::{OptionalExtractor, Or};
use crate::key::single_header::single_value;
use crate::key::{KeyError, KeyExtractor};
use crate::store::KeySecret;

/// The bearer token in the `Authorization` header (RFC 6750). The key is a hash of the token.
///
/// Callers without a token share one key, so a caller does not bypass the limit by omitting the token.
/// [`or`](Bearer::or) uses another extractor for such callers. It is an error of the client (400) if there are several
/// `Authorization` headers, or if the token is longer than [`max_len`](Bearer::max_len), 8,192 bytes unless set.
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
    hash_key: S,
}

impl Bearer {
    /// Creates an extractor for tokens of up to 8,192 bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_len: DEFAULT_MAX_LEN, hash_key: ProcessSeed }
    }

    /// Hashes tokens with a secret that all processes know, so that the processes can share limits in a store on
    /// another machine.
    ///
    /// Without a secret, each process hashes tokens with a random number of its own. Code that uses such keys with a
    /// store on another machine does not compile.
    ///
    /// ```
    /// use tower_throttle::key::Bearer;
    /// use tower_throttle::store::{KeySecret, KeyText};
    ///
    /// # let from_environment = "3e5f0d6c9a1b48d7a2c4e6f801234567";
    /// let by_token = Bearer::new().keyed_by(KeySecret::new(from_environment)?);
    /// let text = KeyText::new("api").of(&by_token.key("mF_9.B5f-4.1JqM"));
    /// assert!(text.starts_with("throttle:{some~hash~") && !text.contains("mF_9.B5f-4.1JqM"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn keyed_by(self, secret: KeySecret) -> Bearer<KeySecret> {
        Bearer { max_len: self.max_len, hash_key: secret }
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

    /// Uses `other` for callers without a token.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }

    /// Returns the key of callers with `token`, to peek at, refund or reset their usage. The result is always `Some`:
    /// `None` is the key of callers without a token.
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
        let Some(token) = header.and_then(|value| token(value.as_bytes())) else { return Ok(None) };
        if token.len() > self.max_len {
            return Err(KeyError::header(HeaderProblem::TooLong, &AUTHORIZATION));
        }
        Ok(Some(Some(self.hash_key.hash_secret(token))))
    }
}

/// Returns the token after the scheme `Bearer`, without spaces at both ends. Returns `None` if the credentials have
/// another scheme, or if the token is empty.
fn token(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = credentials.split_at_checked(b"bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

impl<B, S: HashSecret> KeyExtractor<Request<B>> for Bearer<S> {
    type Key = Option<S::Hash>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Option<S::Hash>>, KeyError> {
        self.find(request).map(|found| Some(found.flatten()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SecretHash;

    fn key(lines: &[&str]) -> Result<Option<SecretHash>, KeyError> {
        let mut request = Request::new(());
        for line in lines {
            request.headers_mut().append(AUTHORIZATION, line.parse().unwrap());
        }
        Bearer::new().max_len(8).extract(&request).map(Option::unwrap)
    }

    #[test]
    fn a_token_is_a_key_that_shows_nothing() {
        assert_eq!(key(&["Bearer abc"]), Ok(Bearer::new().key("abc")));
        assert_eq!(key(&["bEARER   abc "]), Ok(Bearer::new().key("abc")));
        assert_ne!(key(&["Bearer abc"]), key(&["Bearer abd"]));
        assert_eq!(format!("{:?}", key(&["Bearer abc"])), "Ok(Some(Secret(..)))");
    }

    #[test]
    fn other_schemes_and_empty_tokens_are_none() {
        for lines in
            [&[][..], &["Basic abc"], &["Bearer"], &["Bearer "], &["Bearer    "], &["Bearerabc"], &[""]]
        {
            assert_eq!(key(lines), Ok(None), "{lines:?}");
        }
    }

    #[test]
    fn two_lines_and_long_tokens_are_errors_that_do_not_repeat_them() {
        for lines in [&["Bearer abc", "Bearer abc"][..], &["Bearer abc", "Basic x"], &["Bearer abcabcabc"]] {
            let error = key(lines).unwrap_err().to_string();
            assert!(error.contains("authorization") && !error.contains("abc"), "{error}");
        }
    }
}
