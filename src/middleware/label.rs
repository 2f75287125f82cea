//! A policy as its callers are told of it: built once, sent many times.

use std::collections::HashSet;

use bytes::Bytes;
use http::HeaderValue;

use super::{field, problem};
use crate::algorithm::{Algorithm, Policy};
use crate::error::NameError;

/// The longest name.
const LONGEST: usize = 256;

/// The labels of a policy: one for each limit that it has on its key, in their order.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    labels: Box<[Label]>,
    /// Whether callers are not told of it.
    hidden: bool,
}

impl Labels {
    pub(super) fn unnamed(algorithm: &impl Algorithm) -> Self {
        let mut labels = Vec::new();
        algorithm.policies(&mut |policy| labels.push(Label::unnamed(policy)));
        Self { labels: labels.into(), hidden: false }.distinct(&mut HashSet::new())
    }

    /// All of that name; the second and others are numbered.
    pub(super) fn named(&self, name: &str) -> Result<Self, NameError> {
        let labels: Result<_, _> = self.labels.iter().map(|label| Label::new(name, label.policy)).collect();
        Ok(Self { labels: labels?, hidden: self.hidden }.distinct(&mut HashSet::new()))
    }

    pub(super) fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Numbers those whose name is `taken`: `default`, `default-2`, `default-3`.
    pub(super) fn distinct(mut self, taken: &mut HashSet<String>) -> Self {
        for label in &mut self.labels {
            let mut name = label.given.clone();
            for number in 2_u32.. {
                if taken.insert(name.clone()) {
                    break;
                }
                name = label.numbered(number);
            }
            if name != label.name {
                *label = Label { given: label.given.clone(), ..Label::printable(&name, label.policy) };
            }
        }
        self
    }

    pub(super) fn first(&self) -> &Label {
        &self.labels[0]
    }

    pub(super) fn all(&self) -> &[Label] {
        &self.labels
    }
}

/// A policy's name, and the parts of answers that depend on nothing else.
#[derive(Clone, Debug)]
pub(super) struct Label {
    name: String,
    /// The name without a number.
    given: String,
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
        if !printable || name.is_empty() || name.len() > LONGEST {
            return Err(NameError::new(name));
        }
        Ok(Self::printable(name, policy))
    }

    fn printable(name: &str, policy: Policy) -> Self {
        Self {
            policy_field: field::policy(name, policy),
            item: field::item_start(name),
            exceeded: problem::quota_exceeded(&[name]),
            reduced: problem::reduced_capacity(&[name]),
            name: name.to_owned(),
            given: name.to_owned(),
            policy,
        }
    }

    pub(super) fn unnamed(policy: Policy) -> Self {
        Self::printable("default", policy)
    }

    /// Its name as a structured-field string.
    pub(super) fn quoted(&self) -> &str {
        self.item.strip_suffix(";r=").unwrap_or(&self.item)
    }

    /// Its name with a number, no longer than a name may be.
    fn numbered(&self, number: u32) -> String {
        let number = format!("-{number}");
        // Names are ASCII: any place is one to cut.
        format!("{}{number}", &self.given[..self.given.len().min(LONGEST - number.len())])
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
        let policy = Policy::new(1, Duration::from_secs(1));
        for name in ["é", "a\nb", "a\r\nb", "", "\u{7f}", &"x".repeat(257)] {
            assert!(Label::new(name, policy).is_err(), "{name:?}");
        }
        for name in [r#"a"b\c"#, "per ip", &"x".repeat(256)] {
            assert!(Label::new(name, policy).is_ok(), "{name:?}");
        }
    }
}
