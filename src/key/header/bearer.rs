use http::Request;
use http::header::AUTHORIZATION;

use super::DEFAULT_MAX_LEN;
use super::secret_hash::SecretHash;
use crate::key::error::HeaderProblem;
use crate::key::or::{OptionalExtractor, Or};
use crate::key::single_header::single_value;
use crate::key::{KeyError, KeyExtractor};

/// The bearer token in the `Authorization` header (RFC 6750), as a fingerprint.
///
/// Callers without one share one key, so leaving it out is no way round the limit; [`or`](Bearer::or) asks another
/// extractor instead. Two lines of `Authorization` are an error of the client (400), and so is a token longer than 8,192
/// bytes, unless [`max_len`](Bearer::max_len) says otherwise.
///
/// The token is not checked: whoever may invent tokens has a budget for each. Limit by address as well, or where a layer
/// outside checks tokens, let it tell the user in an [`Extension`](crate::key::Extension), and take that.
///
/// ```
/// use tower_throttle::key::{Bearer, PeerIp};
///
/// let by_token = Bearer::new().or(PeerIp::new());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bearer {
    longest: usize,
}

impl Bearer {
    /// Tokens of up to 8,192 bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { longest: DEFAULT_MAX_LEN }
    }

    /// The longest token that is a key, in bytes.
    #[must_use]
    pub const fn max_len(self, bytes: usize) -> Self {
        Self { longest: bytes }
    }

    /// Asks `other` for callers without a token.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or { first: self, second: other }
    }

    /// Returns the key of callers with that token: to look at, refund or reset what they have used.
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
    pub fn key(&self, token: &str) -> Option<SecretHash> {
        Some(SecretHash::of(token.as_bytes()))
    }
}

impl Default for Bearer {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> OptionalExtractor<Request<B>> for Bearer {
    fn find(&self, request: &Request<B>) -> Result<Option<Option<SecretHash>>, KeyError> {
        let line = single_value(&AUTHORIZATION, request.headers())?;
        let Some(token) = line.and_then(|value| token(value.as_bytes())) else { return Ok(None) };
        if token.len() > self.longest {
            return Err(KeyError::header(HeaderProblem::TooLong, &AUTHORIZATION));
        }
        Ok(Some(Some(SecretHash::of(token))))
    }
}

/// What stands behind the scheme and its spaces. No token at all is none.
fn token(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = credentials.split_at_checked(b"bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

impl<B> KeyExtractor<Request<B>> for Bearer {
    type Key = Option<SecretHash>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Option<SecretHash>>, KeyError> {
        self.find(request).map(|found| Some(found.flatten()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
