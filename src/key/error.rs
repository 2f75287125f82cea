use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Why a request's key could not be had.
///
/// Its text says which rule was broken and what to change. It never repeats what the request said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    reason: Cow<'static, str>,
}

impl KeyError {
    /// An error that says `reason`. It is shown to callers and logged: put nothing into it that a caller sent.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into() }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for KeyError {}
