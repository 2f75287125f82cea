//! Errors of a configuration. A denial is not an error: it is a [`Decision`](crate::Decision).

use std::error::Error;
use std::fmt;

/// The boxed error of a store or of a service.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The error of a [`Quota`](crate::Quota) that cannot be created.
///
/// The error's text says which values are accepted. If a string does not have the form of a quota, the text also shows
/// the beginning of that string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    ZeroLimit,
    ZeroBurst,
    ZeroPeriod,
    LongPeriod,
    Text { text: String, reason: &'static str },
}

/// The maximum number of characters of an invalid input that an error repeats.
const MAX_ECHO: usize = 60;

impl QuotaError {
    pub(crate) fn zero_limit() -> Self {
        Self { problem: Problem::ZeroLimit }
    }

    pub(crate) fn zero_burst() -> Self {
        Self { problem: Problem::ZeroBurst }
    }

    pub(crate) fn zero_period() -> Self {
        Self { problem: Problem::ZeroPeriod }
    }

    pub(crate) fn long_period() -> Self {
        Self { problem: Problem::LongPeriod }
    }

    pub(crate) fn text(text: &str, reason: &'static str) -> Self {
        let text = text.chars().take(MAX_ECHO).collect();
        Self { problem: Problem::Text { text, reason } }
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::ZeroLimit => f.write_str("a limit of 0 admits nothing: give a limit of at least 1"),
            Problem::ZeroBurst => f.write_str("a burst of 0 admits nothing: give a burst of at least 1"),
            Problem::ZeroPeriod => {
                f.write_str("a period of 0 has no rate: give a period of at least one nanosecond")
            }
            Problem::LongPeriod => f.write_str(
                "the period is too long: give a period of at most 292 years (2^63 - 1 nanoseconds)",
            ),
            Problem::Text { text, reason } => write!(
                f,
                "{text:?} is no quota: {reason}; accepted are a limit, `/` or `per`, and a time, \
                 such as \"100/minute\", \"10/s\", \"1000 per day\", \"5 per 2s\" or \"100/min burst 20\""
            ),
        }
    }
}

impl Error for QuotaError {}

/// The error of a string that cannot be a policy's name.
///
/// A policy's name is sent in the `RateLimit` header fields, whose strings contain only printable ASCII (RFC 9651,
/// section 3.3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNameError {
    name: String,
}

impl PolicyNameError {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.chars().take(MAX_ECHO).collect() }
    }
}

impl fmt::Display for PolicyNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} cannot be a policy's name: header fields carry it, so give 1 to 256 printable ASCII \
             characters (space to ~)",
            self.name
        )
    }
}

impl Error for PolicyNameError {}

/// The error of a list of networks, or of a number of proxies, that is not valid.
///
/// The error's text says what to write. If a single entry is the mistake, the text also names that entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    entry: Option<String>,
    reason: String,
}

impl NetworkError {
    pub(crate) fn entry(entry: &str, reason: String) -> Self {
        Self { entry: Some(entry.chars().take(MAX_ECHO).collect()), reason }
    }

    pub(crate) fn no_hops() -> Self {
        let reason = "to trust 0 proxies is to read no header: take `PeerIp`, or trust at least 1";
        Self { entry: None, reason: reason.to_owned() }
    }
}

impl NetworkError {
    /// Creates the error of a list of trusted proxies that contains all IPv4 or all IPv6 addresses.
    pub(crate) fn trusts_all(network: &dyn fmt::Display) -> Self {
        let reason = format!(
            "these proxies make up `{network}`, so every caller would be trusted and could choose its address: list the \
             networks that the proxies are in, or count them with `TrustedProxies::hops`"
        );
        Self { entry: None, reason }
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.entry {
            Some(entry) => write!(f, "{entry:?} is no network: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl Error for NetworkError {}

/// The error of a header name or a cookie name that an extractor cannot use.
///
/// The error's text says what to use instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNameError {
    name: String,
    instead: Hint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    Name,
    CookieName,
    Method(&'static str),
}

impl HeaderNameError {
    fn new(name: &str, instead: Hint) -> Self {
        Self { name: name.chars().take(MAX_ECHO).collect(), instead }
    }

    pub(crate) fn no_name(name: &str) -> Self {
        Self::new(name, Hint::Name)
    }

    pub(crate) fn no_cookie(name: &str) -> Self {
        Self::new(name, Hint::CookieName)
    }

    pub(crate) fn dedicated_method(name: &str, method: &'static str) -> Self {
        Self::new(name, Hint::Method(method))
    }
}

impl fmt::Display for HeaderNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.instead {
            Hint::Name => write!(f, "{name:?} is no header name: give one such as \"cf-connecting-ip\""),
            Hint::CookieName => write!(f, "{name:?} is no cookie name: give one such as \"session\""),
            Hint::Method(method) => write!(f, "{name:?} has a form of its own: take `ClientIp::{method}`"),
        }
    }
}

impl Error for HeaderNameError {}

/// The error of a [secret for keys](crate::store::KeySecret) that is too short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySecretError {
    len: usize,
}

impl KeySecretError {
    pub(crate) fn new(len: usize) -> Self {
        Self { len }
    }
}

impl fmt::Display for KeySecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.len;
        write!(
            f,
            "a secret of {len} bytes can be guessed: give at least 16 bytes, such as `openssl rand -hex 16` prints"
        )
    }
}

impl Error for KeySecretError {}
