//! A policy as its callers are told of it: built once, sent many times.

use bytes::Bytes;
use http::HeaderValue;

use super::{field, problem};
use crate::algorithm::Policy;
use crate::error::NameError;

/// A policy's name, and the parts of answers that depend on nothing else.
#[derive(Clone, Debug)]
pub(super) struct Label {
    name: String,
    policy: Policy,
    /// The value of `RateLimit-Policy`.
    pub(super) policy_field: HeaderValue,
    /// The item of `RateLimit`, up to the number that remains.
    pub(super) item: String,
    /// The body of a 429.
    pub(super) exceeded: Bytes,
    /// The body of a 503.
    pub(super) reduced: Bytes,
}

impl Label {
    pub(super) fn new(name: &str, policy: Policy) -> Result<Self, NameError> {
        let printable = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !printable || name.is_empty() || name.len() > 256 {
            return Err(NameError::new(name));
        }
        Ok(Self {
            policy_field: field::policy(name, policy.quota, policy.window),
            item: field::item_start(name),
            exceeded: problem::quota_exceeded(name),
            reduced: problem::reduced_capacity(name),
            name: name.to_owned(),
            policy,
        })
    }

    pub(super) fn unnamed(policy: Policy) -> Self {
        match Self::new("default", policy) {
            Ok(label) => label,
            Err(_) => unreachable!("`default` is printable"),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn policy(&self) -> Policy {
        self.policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_name_that_no_header_can_carry_is_an_error() {
        let policy = Policy { quota: 1, window: Duration::from_secs(1) };
        for name in ["é", "a\nb", "a\r\nb", "", "\u{7f}", &"x".repeat(257)] {
            assert!(Label::new(name, policy).is_err(), "{name:?}");
        }
        for name in [r#"a"b\c"#, "per ip", &"x".repeat(256)] {
            assert!(Label::new(name, policy).is_ok(), "{name:?}");
        }
    }
}
