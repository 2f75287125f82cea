//! The older and custom header fields: the fields of earlier drafts, `X-RateLimit-*`, and fields with custom names.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::response::report::PolicyReport;
use super::response::structured_field::{self, RATELIMIT, RATELIMIT_POLICY};
use crate::clock::since_epoch;

/// The format of `X-RateLimit-Reset`, in seconds, rounded up. On the response to an admitted call, the field says when
/// the budget is full again. On a rejection, the field says when the client can retry. The field is absent if this time
/// is unknown, or if waiting does not help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetFormat {
    /// A Unix time, read from this machine's wall clock. Clients compare this time with the `Date` field, which servers
    /// add. This format is the default, because GitHub sends it, and clients that know GitHub's API expect it.
    #[default]
    EpochSeconds,
    /// The number of seconds from now. Clients that know GitHub's API read this number as a Unix time long ago, and
    /// retry at once.
    DeltaSeconds,
}

/// A version of draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    V06,
    V07,
    V11,
}

/// The names of three header fields, which report the limit, the remaining units and a time. On a rejection, this is
/// the time at which the caller can retry. On other responses, it is the time at which the budget is full again. A
/// [`ResetFormat`] is the format of the time.
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
    /// Creates the names from lower-case strings. `reset` is the format of the field that `time` names.
    ///
    /// # Panics
    ///
    /// Panics if a name is not a valid header field name or has an upper-case letter. In a `const`, the panic is a
    /// compile error.
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
            // `from_static` panics if the name is not valid. A `const fn` cannot drop the result of `from_static`.
            // `forget` leaks nothing, since the result only refers to a static string.
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

/// Returns the names of the `X-RateLimit-*` fields.
pub(super) const fn x_rate_limit(reset: ResetFormat) -> FieldNames {
    FieldNames { names: ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"], reset }
}

/// The three fields of draft 6.
const DRAFT_06: FieldNames = FieldNames {
    names: ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
    reset: ResetFormat::DeltaSeconds,
};

/// The values of the policy that matters most, among those that are visible to callers. If policies denied the request,
/// this is the one with the longest wait. A wait that is unknown or does not help is treated as the longest. If no
/// policy denied the request, it is the policy with the fewest remaining units.
struct Summary {
    limit: u64,
    remaining: u64,
    /// On a rejection, the time until the caller can retry. On an admission, the time until the budget is full again.
    /// `None` if this time is unknown, or if waiting does not help.
    time: Option<Duration>,
}

impl Summary {
    /// Selects the policy that matters most. Returns `None` if no policy is visible to callers. On a rejection, `wait`
    /// is `Some(Some(time))`, or `Some(None)` if the time to wait is unknown or waiting does not help. On an admission,
    /// `wait` is `None`.
    fn new(reports: &[PolicyReport<'_>], wait: Option<Option<Duration>>) -> Option<Self> {
        let visible = || reports.iter().filter(|report| !report.is_hidden());
        let denial = visible()
            .filter(|report| !report.decision().is_allowed())
            .max_by_key(|report| report.decision().retry_after().unwrap_or(Duration::MAX));
        let report = denial.or_else(|| visible().min_by_key(|report| report.decision().remaining()))?;
        let decision = report.decision();
        let time = match wait {
            Some(wait) => wait,
            // It is unknown when calls in progress end.
            None if report.is_concurrent() => None,
            None => Some(decision.reset_after()),
        };
        Some(Self { limit: report.policy().quota, remaining: decision.remaining(), time })
    }
}

/// Adds the three fields with these names. If the time is unknown, the field of the time is left out. If one of the
/// fields is already present, or if no policy is visible to callers, adds no field.
pub(super) fn add_three(
    headers: &mut HeaderMap,
    reports: &[PolicyReport<'_>],
    FieldNames { names, reset }: FieldNames,
    wait: Option<Option<Duration>>,
) {
    let Some(summary) = Summary::new(reports, wait) else { return };
    let [limit, remaining, time] = names.map(HeaderName::from_static);
    if [&limit, &remaining, &time].into_iter().any(|name| headers.contains_key(name)) {
        return;
    }
    headers.insert(limit, structured_field::number(summary.limit));
    headers.insert(remaining, structured_field::number(summary.remaining));
    if let Some(span) = summary.time {
        let seconds = match reset {
            ResetFormat::DeltaSeconds => structured_field::whole_seconds(span),
            ResetFormat::EpochSeconds => structured_field::whole_seconds(since_epoch().saturating_add(span)),
        };
        headers.insert(time, structured_field::number(seconds));
    }
}

/// Adds the four fields of draft 6. If `RateLimit-Policy` is already present, adds no field. If `RateLimit-Policy` is
/// absent, but another of the four fields is present, adds only `RateLimit-Policy`.
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

/// Adds the two fields of draft 7, unless one of them is already present.
pub(super) fn add_draft_07(
    headers: &mut HeaderMap,
    reports: &[PolicyReport<'_>],
    wait: Option<Option<Duration>>,
) {
    let Some(summary) = Summary::new(reports, wait) else { return };
    if headers.contains_key(RATELIMIT) || headers.contains_key(RATELIMIT_POLICY) {
        return;
    }
    let [limit, remaining] = [summary.limit, summary.remaining].map(structured_field::clamp_integer);
    let mut text = format!("limit={limit}, remaining={remaining}");
    if let Some(span) = summary.time {
        text.push_str(&format!(
            ", reset={}",
            structured_field::clamp_integer(structured_field::whole_seconds(span))
        ));
    }
    headers.insert(RATELIMIT, structured_field::value(text.into_bytes()));
    add_nameless_policies(headers, reports);
}

/// Adds `RateLimit-Policy` in the form of drafts 6 and 7, in which policies have no names: `100;w=60, 1000;w=3600`.
fn add_nameless_policies(headers: &mut HeaderMap, reports: &[PolicyReport<'_>]) {
    let mut items = Vec::new();
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits() {
            let policy = quota.unwrap_or(label.policy());
            // A concurrency limit has no window, and this format requires one.
            if policy.is_concurrent() {
                continue;
            }
            let (quota, window) =
                (structured_field::clamp_integer(policy.quota), structured_field::seconds(policy.window));
            let item = format!("{quota};w={}", structured_field::clamp_integer(window));
            if !items.contains(&item) {
                items.push(item);
            }
        }
    }
    if !items.is_empty() {
        headers.insert(RATELIMIT_POLICY, structured_field::value(items.join(", ").into_bytes()));
    }
}
