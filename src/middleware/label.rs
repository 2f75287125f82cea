//! A policy as its callers are told of it: built once, sent many times.

use bytes::Bytes;
use http::HeaderValue;

use super::{headers, problem};
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
        let quoted = headers::quoted(name);
        Ok(Self {
            policy_field: headers::policy_field(&quoted, policy),
            item: format!("{quoted};r="),
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
