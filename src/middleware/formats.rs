//! Other forms of the header fields than those of the newest draft: of earlier drafts, and without a draft.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::response::PolicyReport;
use super::response::headers::{RATELIMIT, RATELIMIT_POLICY};
use super::response::options::ResetFormat;
use super::response::structured_field;
use crate::algorithm::QuotaUnit;
use crate::clock::since_epoch;

/// A version of draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    V06,
    V07,
    V11,
}

/// The names of three header fields: for the limit, for what remains, and for a time.
///
/// ```
/// use tower_throttle::middleware::{FieldNames, HeaderFormat, HttpResponder, ResetFormat};
///
/// const NAMES: FieldNames = FieldNames::new("x-app-limit", "x-app-left", "x-app-reset", ResetFormat::EpochSeconds);
/// let responder = HttpResponder::new().headers([HeaderFormat::Custom(NAMES)]);
/// # let _ = responder;
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FieldNames {
    names: [&'static str; 3],
    reset: ResetFormat,
}

impl FieldNames {
    /// Creates names from text in lower case, and how the time is written.
    ///
    /// # Panics
    ///
    /// If one of them is no name of a header field, or has a letter in upper case. In a `const` it does not compile then.
    #[must_use]
    pub const fn new(
        limit: &'static str,
        remaining: &'static str,
        time: &'static str,
        reset: ResetFormat,
    ) -> Self {
        let names = [limit, remaining, time];
        let mut at = 0;
        while at < names.len() {
            // Panics if it is none. Nothing is leaked: it is a reference.
            std::mem::forget(HeaderName::from_static(names[at]));
            at += 1;
        }
        Self { names, reset }
    }
}

impl fmt::Debug for FieldNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FieldNames").field(&self.names).field(&self.reset).finish()
    }
}

/// `X-RateLimit-*`.
pub(super) const fn x_rate_limit(reset: ResetFormat) -> FieldNames {
    FieldNames { names: ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"], reset }
}

/// The three fields of draft 6.
const DRAFT_06: FieldNames = FieldNames {
    names: ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
    reset: ResetFormat::DeltaSeconds,
};

/// What the policy that matters most says.
struct Most {
    limit: u64,
    remaining: u64,
    /// Until the budget is whole again, or until the caller may come back.
    time: Option<Duration>,
}

impl Most {
    /// `wait`: on a refusal, when to come back, if that is known.
    fn of(reports: &[PolicyReport<'_>], wait: Option<Option<Duration>>) -> Option<Self> {
        let visible = || reports.iter().filter(|report| !report.is_hidden());
        let denial = visible()
            .filter(|report| !report.decision().is_allowed())
            .max_by_key(|report| report.decision().retry_after().unwrap_or(Duration::MAX));
        let most = denial.or_else(|| visible().min_by_key(|report| report.decision().remaining()))?;
        let decision = most.decision();
        let time = match wait {
            Some(wait) => wait,
            // Nothing tells when calls in progress end.
            None if most.is_concurrent() => None,
            None => Some(decision.reset_after()),
        };
        Some(Self { limit: most.policy().quota, remaining: decision.remaining(), time })
    }
}

/// Adds three fields of these names, unless one of them is there.
pub(super) fn add_three(
    headers: &mut HeaderMap,
    reports: &[PolicyReport<'_>],
    FieldNames { names, reset }: FieldNames,
    wait: Option<Option<Duration>>,
) {
    let Some(most) = Most::of(reports, wait) else { return };
    let [limit, remaining, time] = names.map(HeaderName::from_static);
    if [&limit, &remaining, &time].into_iter().any(|name| headers.contains_key(name)) {
        return;
    }
    headers.insert(limit, HeaderValue::from(most.limit));
    headers.insert(remaining, HeaderValue::from(most.remaining));
    if let Some(span) = most.time {
        let seconds = match reset {
            ResetFormat::DeltaSeconds => structured_field::whole_seconds(span),
            ResetFormat::EpochSeconds => structured_field::whole_seconds(since_epoch().saturating_add(span)),
        };
        headers.insert(time, HeaderValue::from(seconds));
    }
}

/// Adds the four fields of draft 6.
pub(super) fn add_draft_06(
    headers: &mut HeaderMap,
    reports: &[PolicyReport<'_>],
    wait: Option<Option<Duration>>,
) {
    if headers.contains_key(RATELIMIT_POLICY) {
        return;
    }
    add_three(headers, reports, DRAFT_06, wait);
    add_nameless_policies(headers, reports);
}

/// Adds the two fields of draft 7.
pub(super) fn add_draft_07(
    headers: &mut HeaderMap,
    reports: &[PolicyReport<'_>],
    wait: Option<Option<Duration>>,
) {
    let Some(most) = Most::of(reports, wait) else { return };
    if headers.contains_key(RATELIMIT) || headers.contains_key(RATELIMIT_POLICY) {
        return;
    }
    let [limit, remaining] = [most.limit, most.remaining].map(structured_field::tame);
    let mut text = format!("limit={limit}, remaining={remaining}");
    if let Some(span) = most.time {
        text.push_str(&format!(", reset={}", structured_field::tame(structured_field::whole_seconds(span))));
    }
    headers.insert(RATELIMIT, structured_field::value(text.into_bytes()));
    add_nameless_policies(headers, reports);
}

/// `RateLimit-Policy` as it was before policies had names: `100;w=60, 1000;w=3600`.
fn add_nameless_policies(headers: &mut HeaderMap, reports: &[PolicyReport<'_>]) {
    let mut items = Vec::new();
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits() {
            let policy = quota.unwrap_or(label.policy());
            let item = match policy.unit {
                QuotaUnit::Requests => {
                    let (quota, window) =
                        (structured_field::tame(policy.quota), structured_field::seconds(policy.window));
                    format!("{quota};w={}", structured_field::tame(window))
                }
                // These have no window, which is required.
                QuotaUnit::ConcurrentRequests => continue,
            };
            if !items.contains(&item) {
                items.push(item);
            }
        }
    }
    if !items.is_empty() {
        headers.insert(RATELIMIT_POLICY, structured_field::value(items.join(", ").into_bytes()));
    }
}
