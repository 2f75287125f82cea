use http::Request;

use crate::key::{KeyError, KeyExtractor};
use crate::store::{KeyWriter, SharedKey};

/// The HTTP method: one key per method, or one per class of methods.
///
/// `HEAD` has the key of `GET`, because in axum the handlers of `GET` also answer `HEAD`. With [`new`](Method::new),
/// `GET`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS`, `CONNECT` and `TRACE` have a key each. All other methods share
/// one key, because callers can invent methods. A layer that takes the method from a header (`X-HTTP-Method-Override`)
/// belongs outside the rate-limit layer.
///
/// ```
/// use tower_throttle::key::{Method, PeerIp};
///
/// // reading and writing have a budget each
/// let by_peer_and_class = (PeerIp::new(), Method::by_safety());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Method {
    classes: bool,
}

/// A method, or a class of methods.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MethodKey {
    /// One of the methods that have keys of their own.
    Known(http::Method),
    /// Any other method.
    Unknown,
    /// A method that only reads: `GET`, `HEAD`, `OPTIONS`, `TRACE` (RFC 9110, section 9.2.1).
    Safe,
    /// Any method that is not [safe](MethodKey::Safe).
    Unsafe,
}

impl Method {
    /// Creates an extractor with one key per method. Uncommon methods share a key.
    #[must_use]
    pub const fn new() -> Self {
        Self { classes: false }
    }

    /// Creates an extractor with two keys: one for methods that only read, and one for all others.
    #[must_use]
    pub const fn by_safety() -> Self {
        Self { classes: true }
    }
}

impl Method {
    /// Returns the key of requests with `method`, to peek at, refund or reset their usage.
    #[must_use]
    pub fn key(&self, method: &http::Method) -> MethodKey {
        use http::Method as M;

        match *method {
            _ if self.classes && method.is_safe() => MethodKey::Safe,
            _ if self.classes => MethodKey::Unsafe,
            M::HEAD => MethodKey::Known(M::GET),
            M::GET | M::POST | M::PUT | M::PATCH | M::DELETE | M::OPTIONS | M::CONNECT | M::TRACE => {
                MethodKey::Known(method.clone())
            }
            _ => MethodKey::Unknown,
        }
    }
}

impl SharedKey for MethodKey {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Self::Known(method) => text.variant("method", method),
            Self::Unknown => text.variant("method", &()),
            Self::Safe => text.variant("safe", &()),
            Self::Unsafe => text.variant("unsafe", &()),
        };
    }
}

/// The same text as that of the method's name. The impl is here because the store knows nothing of HTTP.
impl SharedKey for http::Method {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self.as_str());
    }
}

impl Default for Method {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> KeyExtractor<Request<B>> for Method {
    type Key = MethodKey;

    fn extract(&self, request: &Request<B>) -> Result<Option<MethodKey>, KeyError> {
        Ok(Some(self.key(request.method())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_counts_as_get_and_unknown_methods_share_one_class() {
        let key = |extractor: Method, method: &str| {
            extractor.extract(&Request::builder().method(method).body(()).unwrap()).unwrap().unwrap()
        };
        let (each, classes) = (Method::new(), Method::by_safety());
        assert_eq!(key(each, "HEAD"), key(each, "GET"));
        assert_ne!(key(each, "POST"), key(each, "GET"));
        assert_eq!(key(each, "FOO"), key(each, "BAR"));
        assert_eq!(key(each, "get"), MethodKey::Unknown, "methods differ by case");
        for (method, class) in [
            ("GET", MethodKey::Safe),
            ("HEAD", MethodKey::Safe),
            ("OPTIONS", MethodKey::Safe),
            ("POST", MethodKey::Unsafe),
            ("DELETE", MethodKey::Unsafe),
            ("FOO", MethodKey::Unsafe),
        ] {
            assert_eq!(key(classes, method), class, "{method}");
        }
    }
}
