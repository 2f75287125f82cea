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
        Self { problem: Problem::Text { text: beginning(text), reason } }
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

/// The error of a setting that is not valid, except for a [`Quota`](crate::Quota).
///
/// The error's text says what is wrong and what to write instead. If the invalid setting is a string, the text also
/// shows the beginning of that string. Secrets are not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    text: String,
}

impl ConfigError {
    /// Creates the error of a setting that is not valid, for a type of your own. An example is an algorithm of your own
    /// whose states cannot be stored. `text` says what to change.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    pub(crate) fn policy_name(name: &str) -> Self {
        Self::new(format!(
            "{:?} cannot be a policy's name: header fields carry it, so give 1 to 256 printable ASCII \
             characters (space to ~)",
            beginning(name)
        ))
    }

    pub(crate) fn network(entry: &str, reason: &str) -> Self {
        Self::new(format!("{:?} is no network: {reason}", beginning(entry)))
    }

    /// Creates the error of a list of trusted proxies that contains all IPv4 or all IPv6 addresses.
    pub(crate) fn trusts_all(network: &dyn fmt::Display) -> Self {
        Self::new(format!(
            "these proxies make up `{network}`, so every caller would be trusted and could choose its address: list the \
             networks that the proxies are in, or count them with `TrustedProxies::hops`"
        ))
    }

    pub(crate) fn no_hops() -> Self {
        Self::new("to trust 0 proxies is to read no header: take `PeerIp`, or trust at least 1")
    }

    pub(crate) fn header_name(name: &str) -> Self {
        Self::new(format!("{:?} is no header name: give one such as \"cf-connecting-ip\"", beginning(name)))
    }

    pub(crate) fn cookie_name(name: &str) -> Self {
        Self::new(format!("{:?} is no cookie name: give one such as \"session\"", beginning(name)))
    }

    pub(crate) fn dedicated_method(name: &str, method: &'static str) -> Self {
        Self::new(format!("{:?} has a form of its own: take `ClientIp::{method}`", beginning(name)))
    }

    pub(crate) fn short_secret(len: usize) -> Self {
        Self::new(format!(
            "a secret of {len} bytes can be guessed: give at least 16 bytes, such as `openssl rand -hex 16` prints"
        ))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for ConfigError {}

/// Returns the part of an invalid input that an error repeats.
fn beginning(input: &str) -> String {
    input.chars().take(MAX_ECHO).collect()
}
