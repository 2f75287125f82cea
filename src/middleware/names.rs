//! The name of a policy, and the parts of responses that contain the name. These parts are built once and sent many
//! times.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};

use super::field_values::{
    self, MAX_RETRY_AFTER, NO_STORE, RATELIMIT, RATELIMIT_POLICY, retry_after_seconds,
};
use super::problem_json;
use crate::algorithm::{AlgorithmInfo, QuotaPolicy};
use crate::error::ConfigError;

/// The maximum length of a name, in bytes.
const MAX_LEN: usize = 256;

/// The names of a policy: one [`PolicyName`] for each of its limits, in the order of [`AlgorithmInfo::quotas`].
#[derive(Clone, Debug)]
pub(super) struct PolicyNames {
    names: Box<[PolicyName]>,
    /// The algorithm with these limits.
    algorithm: Arc<AlgorithmInfo>,
    /// `true` if the policy is not reported to callers.
    hidden: bool,
}

impl PolicyNames {
    pub(super) fn unnamed(algorithm: Arc<AlgorithmInfo>) -> Self {
        let names = algorithm.quotas().iter().map(|quota| PolicyName::unnamed(*quota)).collect();
        let mut names = Self { names, algorithm, hidden: false };
        names.deduplicate(&mut HashSet::new());
        names
    }

    /// Returns the same names for the limits of another algorithm, which has replaced the present one.
    pub(super) fn replaced(&self, algorithm: &Arc<AlgorithmInfo>) -> Self {
        let quotas = algorithm.quotas();
        let replaced = |(at, label): (usize, &PolicyName)| match quotas.get(at) {
            Some(quota) => {
                PolicyName { given: label.given.clone(), ..PolicyName::printable(label.name(), *quota) }
            }
            None => label.clone(),
        };
        let count = quotas.len().max(1);
        let names = self.names.iter().take(count).enumerate().map(replaced).collect();
        Self { names, algorithm: Arc::clone(algorithm), hidden: self.hidden }
    }

    /// Returns the algorithm with the limits that have these names.
    #[inline]
    pub(super) fn algorithm(&self) -> &Arc<AlgorithmInfo> {
        &self.algorithm
    }

    /// Gives the name `name` to all limits. For each limit except the first, a number is appended to the name.
    pub(super) fn rename(&mut self, name: &str) -> Result<(), ConfigError> {
        let names: Result<_, _> =
            self.names.iter().map(|label| PolicyName::new(name, label.policy)).collect();
        self.names = names?;
        self.deduplicate(&mut HashSet::new());
        Ok(())
    }

    pub(super) fn hide(&mut self) {
        self.hidden = true;
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Appends a number to each name that is already in `taken`: `default`, `default-2`, `default-3`. Adds all names to
    /// `taken`.
    pub(super) fn deduplicate(&mut self, taken: &mut HashSet<String>) {
        for label in &mut self.names {
            let mut name = label.given.clone();
            for number in 2_u32.. {
                if taken.insert(name.clone()) {
                    break;
                }
                name = label.numbered(number);
            }
            if *name != *label.name {
                *label =
                    PolicyName { given: label.given.clone(), ..PolicyName::printable(&name, label.policy) };
            }
        }
    }

    /// Returns the name of the first limit.
    pub(super) fn first(&self) -> &PolicyName {
        &self.names[0]
    }

    /// Returns the name of the limit with this index. An algorithm of other limits, which has replaced the one with
    /// these names or is not replaced yet, may decide a request: the name is then that of the last limit.
    #[inline]
    pub(super) fn of_limit(&self, index: usize) -> &PolicyName {
        &self.names[index.min(self.names.len() - 1)]
    }

    /// Returns the names of all limits.
    pub(super) fn all(&self) -> &[PolicyName] {
        &self.names
    }

    /// Returns the body of the rejection of a request that the limiter of this policy could not decide.
    pub(super) fn store_failed_body(&self) -> Bytes {
        if self.hidden { problem_json::reduced_capacity(&[]) } else { self.first().reduced_body() }
    }
}

/// The name and the quota of one limit, and the parts of responses that depend on nothing else.
#[derive(Clone, Debug)]
pub(super) struct PolicyName {
    name: Arc<str>,
    /// The name that was set, or `default`, without the number that makes `name` unique.
    given: String,
    policy: QuotaPolicy,
    /// The item of `RateLimit-Policy`.
    policy_field: HeaderValue,
    /// The start of the item of `RateLimit`, which ends just before the number of the remaining units.
    item: String,
    /// The body of a rejection with status 429, if no other policy that is visible to callers denied the request.
    exceeded: Bytes,
    /// The body of a rejection with status 503. It is sent if the limiter is closed, if its key table is full, or if
    /// its store failed.
    reduced: Bytes,
    /// The header fields that report this limit. `RateLimit` is the second, and its value is empty. These fields and
    /// those of `denied` are copied into responses, and values are set by their places, so that the names of fields are
    /// neither hashed nor compared for each response.
    fields: HeaderMap,
    /// The header fields of a usual rejection by this limit. `Retry-After` is the third and `RateLimit` the fifth, and
    /// their values are empty.
    denied: HeaderMap,
}

impl PolicyName {
    fn new(name: &str, policy: QuotaPolicy) -> Result<Self, ConfigError> {
        let printable = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !printable || name.is_empty() || name.len() > MAX_LEN {
            return Err(ConfigError::of_input(
                name,
                "cannot be a policy's name: header fields carry it, so give 1 to 256 printable ASCII characters \
                 (space to ~)",
            ));
        }
        Ok(Self::printable(name, policy))
    }

    fn printable(name: &str, policy: QuotaPolicy) -> Self {
        let policy_field = field_values::policy(name, policy);
        Self {
            fields: Self::prebuilt_fields(&policy_field),
            denied: Self::prebuilt_denied(&policy_field),
            policy_field,
            item: field_values::item_start(name),
            exceeded: problem_json::quota_exceeded(&[name]),
            reduced: problem_json::reduced_capacity(&[name]),
            name: name.into(),
            given: name.to_owned(),
            policy,
        }
    }

    fn unnamed(policy: QuotaPolicy) -> Self {
        Self::printable("default", policy)
    }

    /// Returns the item of `RateLimit-Policy`, with `quota` or, if this is `None`, with the quota for which the name
    /// was made.
    pub(super) fn policy_item(&self, quota: Option<QuotaPolicy>) -> HeaderValue {
        match quota {
            None => self.policy_field.clone(),
            Some(quota) => field_values::policy(self.name(), quota),
        }
    }

    /// Returns the item of `RateLimit`.
    #[inline]
    pub(super) fn limit_item(&self, remaining: u64, window: Option<Duration>) -> HeaderValue {
        field_values::item(&self.item, remaining, window.map(field_values::seconds))
    }

    /// Adds both fields to `headers`, which is empty. `item` returns the value of `RateLimit`.
    #[inline]
    pub(super) fn set_fields(&self, headers: &mut HeaderMap, item: impl FnOnce() -> HeaderValue) {
        replace_empty(headers, &self.fields);
        if let Some(limit) = headers.values_mut().nth(1) {
            *limit = item();
        }
    }

    /// Adds the header fields of a usual rejection by this limit to `headers`, which is empty.
    #[inline]
    pub(super) fn set_denied_fields(&self, headers: &mut HeaderMap, remaining: u64, wait: Duration) {
        replace_empty(headers, &self.denied);
        let seconds = field_values::seconds(wait.min(MAX_RETRY_AFTER));
        let window = (!self.policy.is_concurrent()).then_some(seconds);
        let mut values = headers.values_mut();
        if let (Some(retry), Some(limit)) = (values.nth(2), values.nth(1)) {
            *retry = retry_after_seconds(seconds);
            *limit = field_values::item(&self.item, remaining, window);
        }
    }

    /// Returns the body of a rejection with status 429, if no other policy that is visible to callers denied the
    /// request.
    #[inline]
    pub(super) fn exceeded_body(&self) -> Bytes {
        self.exceeded.clone()
    }

    /// Returns the body of a rejection with status 503.
    pub(super) fn reduced_body(&self) -> Bytes {
        self.reduced.clone()
    }

    /// Returns the name as a structured-field string.
    pub(super) fn name_item(&self) -> &str {
        self.item.strip_suffix(";r=").unwrap_or(&self.item)
    }

    /// Returns the name with `number` appended, as a structured-field string.
    pub(super) fn numbered_item(&self, number: u32) -> String {
        field_values::name_item(&self.numbered(number))
    }

    /// Returns the name that was set, with `number` appended. The name is cut so that the result does not exceed the
    /// maximum length.
    fn numbered(&self, number: u32) -> String {
        let number = format!("-{number}");
        // Names are ASCII, so each index is a character boundary.
        format!("{}{number}", &self.given[..self.given.len().min(MAX_LEN - number.len())])
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    #[inline]
    pub(super) fn policy(&self) -> &QuotaPolicy {
        &self.policy
    }

    fn prebuilt_fields(policy_field: &HeaderValue) -> HeaderMap {
        let mut fields = HeaderMap::new();
        fields.insert(RATELIMIT_POLICY, policy_field.clone());
        fields.insert(RATELIMIT, HeaderValue::from_static(""));
        fields
    }

    fn prebuilt_denied(policy_field: &HeaderValue) -> HeaderMap {
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_TYPE, problem_json::MEDIA_TYPE);
        fields.insert(CACHE_CONTROL, NO_STORE);
        fields.insert(RETRY_AFTER, HeaderValue::from_static(""));
        fields.extend(Self::prebuilt_fields(policy_field));
        fields
    }
}

/// Replaces a map, which is empty, by a copy of `fields`.
#[inline]
fn replace_empty(headers: &mut HeaderMap, fields: &HeaderMap) {
    let empty = mem::replace(headers, fields.clone());
    // A map without a capacity has allocated nothing, so nothing leaks. Its drop would look for entries all the same.
    if empty.capacity() == 0 {
        mem::forget(empty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::quota::Quota;
    use std::time::Duration;

    #[test]
    fn a_limit_without_a_name_has_the_last_name() {
        let window = || FixedWindow::new(Quota::per_hour(9));
        let names = PolicyNames::unnamed(AlgorithmInfo::of(&(window(), window())));
        assert_eq!(
            [0, 1, 2, 9].map(|index| names.of_limit(index).name()),
            ["default", "default-2", "default-2", "default-2"]
        );
    }

    #[test]
    fn a_name_that_no_header_can_carry_is_an_error() {
        let policy = QuotaPolicy::new(1, Duration::from_secs(1));
        for name in ["é", "a\nb", "a\r\nb", "", "\u{7f}", &"x".repeat(257)] {
            assert!(PolicyName::new(name, policy).is_err(), "{name:?}");
        }
        for name in [r#"a"b\c"#, "per ip", &"x".repeat(256)] {
            assert!(PolicyName::new(name, policy).is_ok(), "{name:?}");
        }
    }
}
