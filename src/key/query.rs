//! Keys from the query of the URL.

use std::fmt;

use http::Request;

use super::header::DEFAULT_MAX_LEN;
use super::or::{OptionalExtractor, Or};
use super::secret::decoded;
use super::{KeyError, KeyExtractor};
use crate::limiter::{KeyWriter, SharedKey};

/// The value of a parameter in the query of the URL, such as `42` in `/search?api_key=42`.
///
/// Callers without the parameter share one key, so a caller does not bypass the limit by omitting it. [`or`](Query::or)
/// uses another extractor for such callers. It is an error of the client (400) if the parameter stands in the query
/// twice, because the inner service might read either of them, or if its value is longer than
/// [`max_len`](Query::max_len), 8,192 bytes by default.
///
/// Names and values are percent-decoded, and a `+` is a space, as in a form. So one value has one budget, however a
/// caller spells it. The value is not checked: a caller that invents values gets a new budget for each value. Limit by
/// address as well.
///
/// URLs are logged by proxies and servers, and kept by browsers. So an API key is safer in a
/// [`Header`](crate::key::Header), if you may choose.
///
/// ```
/// use tower_throttle::key::{PeerIp, Query};
///
/// let by_api_key = Query::new("api_key").or(PeerIp::new());
/// ```
#[derive(Clone, Debug)]
pub struct Query {
    name: Box<str>,
    max_len: usize,
}

impl Query {
    /// Creates an extractor for the parameter `name`, which is case-sensitive and written without percent-encoding.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), max_len: DEFAULT_MAX_LEN }
    }

    /// Sets the maximum length of a value, in bytes, as the client sent the value: with percent-encodings. The default
    /// is 8,192. A longer value is an error of the client (400).
    #[must_use]
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.max_len = bytes;
        self
    }

    /// Returns the key of callers whose parameter has this `value`, to peek at, refund or reset their usage.
    ///
    /// If this extractor is a part of an [`Or`](super::Or), the layer has the key that
    /// [`first_key`](super::Or::first_key) or [`second_key`](super::Or::second_key) returns.
    #[must_use]
    pub fn key(&self, value: &str) -> QueryKey {
        QueryKey(Some(value.as_bytes().to_vec()))
    }

    /// Uses `other` for callers without the parameter.
    pub fn or<E>(self, other: E) -> Or<Self, E> {
        Or::new(self, other)
    }

    #[cold]
    fn error(&self, problem: &str) -> KeyError {
        KeyError::invalid(format!("the parameter `{}` {problem}", self.name))
    }
}

/// The key of a [`Query`]: the value of the parameter, or its absence.
///
/// The `Debug` form does not show the value, which may be a secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct QueryKey(Option<Vec<u8>>);

/// Writes the value itself, not a hash of the value. So anyone who can read the keys on another machine can read the
/// value.
impl SharedKey for QueryKey {
    fn write_to(&self, text: &mut KeyWriter) {
        match &self.0 {
            Some(value) => text.variant("query", value),
            None => text.variant("query", &()),
        };
    }
}

impl fmt::Debug for QueryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "QueryKey(..)" } else { "QueryKey(absent)" })
    }
}

impl<B> OptionalExtractor<Request<B>> for Query {
    fn find(&self, request: &Request<B>) -> Result<Option<QueryKey>, KeyError> {
        let pairs = request.uri().query().unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            decoded(name.as_bytes(), b' ').eq(self.name.bytes()).then_some(value)
        });
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(self.error("stands in the query twice, send it once")),
            (Some(value), None) if value.len() > self.max_len => {
                Err(self.error("is too long, send a shorter value"))
            }
            (Some(value), None) => Ok(Some(QueryKey(Some(decoded(value.as_bytes(), b' ').collect())))),
        }
    }
}

impl<B> KeyExtractor<Request<B>> for Query {
    type Key = QueryKey;

    fn extract(&self, request: &Request<B>) -> Result<Option<QueryKey>, KeyError> {
        Ok(Some(self.find(request)?.unwrap_or(QueryKey(None))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Global, OrKey};

    fn key(query: &str) -> Result<Option<QueryKey>, KeyError> {
        let request = Request::get(format!("/search?{query}")).body(()).unwrap();
        Query::new("api key").max_len(12).extract(&request)
    }

    #[test]
    fn one_value_has_one_budget_however_a_caller_spells_it() {
        let expected = Ok(Some(Query::new("api key").key("a b")));
        for query in ["api+key=a+b", "x=1&api%20key=a%20b&y", "%61pi+key=%61%20%62", "api+key=a+b&api_key=c"]
        {
            assert_eq!(key(query), expected, "{query}");
        }
        for query in ["api+key=a%2Bb", "api+key=a", "api+key=", "api+key", "", "API+key=a+b", "a=api+key=a+b"]
        {
            assert_ne!(key(query), expected, "{query}");
        }
        assert_eq!(key("api+key"), key("api+key="));
        assert_eq!(key(""), key("other=1"));
        assert_ne!(key(""), key("api+key="));
    }

    #[test]
    fn two_and_too_long_are_errors_that_name_the_parameter_and_not_the_value() {
        for query in ["api+key=secret&api+key=secret", "api+key=secret&api%20key=1", "api+key=secretsecrets"]
        {
            let error = key(query).unwrap_err();
            let text = error.to_string();
            assert!(error.is_invalid() && text.contains("api key") && !text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn or_uses_another_extractor_for_callers_without_the_parameter() {
        let by_key = Query::new("key").or(Global);
        let with = |uri: &str| Request::get(uri).body(()).unwrap();
        assert_eq!(by_key.extract(&with("/?key=a")), Ok(Some(OrKey::First(Query::new("key").key("a")))));
        for uri in ["/", "/?", "/?keys=a", "http://example.org"] {
            assert_eq!(by_key.extract(&with(uri)), Ok(Some(OrKey::Second(()))), "{uri}");
        }
        assert_eq!(format!("{:?}", Query::new("key").key("secret")), "QueryKey(..)");
    }
}
