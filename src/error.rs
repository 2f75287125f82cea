//! Errors of a configuration. A denial is not an error: it is a [`Decision`](crate::Decision).

use std::error::Error;
use std::fmt;

pub use crate::quota::QuotaError;

/// The maximum number of characters of an invalid input that an error repeats.
const MAX_ECHO: usize = 60;

/// The boxed error of a limiter or of a service.
pub type BoxError = Box<dyn Error + Send + Sync>;

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

    /// Creates the error of a string that is not valid. The text shows the beginning of `input`, followed by `problem`.
    pub(crate) fn of_input(input: &str, problem: impl fmt::Display) -> Self {
        Self::new(format!("{:?} {problem}", beginning(input)))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for ConfigError {}

/// Returns the part of an invalid input that an error repeats.
pub(crate) fn beginning(input: &str) -> String {
    input.chars().take(MAX_ECHO).collect()
}
