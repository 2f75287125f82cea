//! The header fields that report limits: `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11),
//! the fields of earlier drafts, `X-RateLimit-*`, and fields with custom names.

use std::time::Duration;
use std::{fmt, iter, ptr};

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::PolicyReport;
use crate::clock::since_epoch;
use crate::middleware::field_values::{self, RATELIMIT, RATELIMIT_POLICY};
use crate::middleware::names::PolicyName;
use crate::middleware::reported::Reported;

/// A format of the header fields that report limits to callers.
///
/// draft-ietf-httpapi-ratelimit-headers still changes, so more formats may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderFormat {
    /// `RateLimit` and `RateLimit-Policy`, as in draft-ietf-httpapi-ratelimit-headers-11. Each policy is reported with
    /// its name.
    ///
    /// A policy that queues requests, has nothing left, and has a unit again in less than a second is only in
    /// `RateLimit-Policy` of a response to an admitted request. The other formats do not report it on such a response.
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the policy that matters most. If
    /// policies denied the request, this is the one with the longest wait. Otherwise, it is the policy with the fewest
    /// remaining units.
    XRateLimit(ResetFormat),
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` of the same policy as in
    /// [`XRateLimit`](Self::XRateLimit), and `RateLimit-Policy`, as in draft 6. In this format, policies have no names,
    /// and the time is in seconds. This format cannot be combined with [`Draft11`](Self::Draft11), which has another
    /// form of `RateLimit-Policy`.
    Draft06,
    /// `RateLimit` of the policy that matters most (`limit=10, remaining=0, reset=5`), and `RateLimit-Policy`
    /// (`10;w=60`), as in draft 7. This format cannot be combined with [`Draft11`](Self::Draft11), which has another
    /// form of these fields.
    Draft07,
    /// Three header fields with custom names and the values of [`XRateLimit`](Self::XRateLimit).
    Custom(FieldNames),
    /// `retry-after-ms`, which has the wait of `Retry-After` in milliseconds, rounded up. This field is added to each
    /// rejection that reports a wait. The SDKs of OpenAI, Anthropic and Azure read this field.
    RetryAfterMs,
}

/// The format of `X-RateLimit-Reset`, in seconds, rounded up. On the response to an admitted call, the field says when
/// the budget is full again. On a rejection, the field says when the client can retry. The field is absent if this time
/// is unknown, or if waiting does not help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// A Unix time, read from this machine's wall clock. Clients compare this time with the `Date` field, which servers
    /// add. This format is the default, because GitHub sends it, and clients that know GitHub's API expect it.
    #[default]
    EpochSeconds,
    /// The number of seconds from now. Clients that know GitHub's API read this number as a Unix time long ago, and
    /// retry at once.
    DeltaSeconds,
}

/// The names of three header fields, which report the limit, the remaining units and a time. On a rejection, this is
/// the time at which the caller can retry. On other responses, it is the time at which the budget is full again. A
/// [`ResetFormat`] is the format of the time.
///
/// ```
/// use tower_throttle::middleware::{FieldNames, HeaderFormat, HttpResponder, ResetFormat};
///
/// const NAMES: FieldNames =
///     FieldNames::new("x-app-limit", "x-app-left", "x-app-reset", ResetFormat::EpochSeconds);
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
    /// Panics if a name is not a valid header field name or has an upper-case letter. The text has the name. In a
    /// `const`, the panic is a compile error.
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
            if !is_field_name(names[at]) {
                panic_of_name(names[at]);
            }
            at += 1;
        }
        Self { names, reset }
    }
}

/// Returns whether a name is a token of RFC 9110 without upper-case letters, as `HeaderName::from_static` takes it.
const fn is_field_name(name: &str) -> bool {
    let name = name.as_bytes();
    let mut at = 0;
    while at < name.len() {
        let is_valid = matches!(name[at], b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.'
            | b'^'..=b'`' | b'|' | b'~');
        if !is_valid {
            return false;
        }
        at += 1;
    }
    !name.is_empty() && name.len() < 1 << 16
}

/// Panics with a text that has the name, also at compile time, when a panic formats nothing. So the text is put
/// together byte by byte. Of a long name, it has the beginning, and `?` for each byte that is not visible ASCII.
const fn panic_of_name(name: &str) -> ! {
    const TEXT: (&[u8], &[u8]) =
        (b"`", b"` is no name of a header field: take lower-case letters, digits and hyphens");
    const MAX: usize = 60;
    let mut text = [b' '; TEXT.0.len() + MAX + TEXT.1.len()];
    let (name, mut length) = (name.as_bytes(), 0);
    let shown = if name.len() < MAX { name.len() } else { MAX };
    let mut part = 0;
    while part < 3 {
        let (bytes, count) = match part {
            0 => (TEXT.0, TEXT.0.len()),
            1 => (name, shown),
            _ => (TEXT.1, TEXT.1.len()),
        };
        let mut at = 0;
        while at < count {
            text[length] = if bytes[at].is_ascii_graphic() || bytes[at] == b' ' { bytes[at] } else { b'?' };
            length += 1;
            at += 1;
        }
        part += 1;
    }
    match str::from_utf8(text.split_at(length).0) {
        Ok(text) => panic!("{}", text),
        Err(_) => panic!("the name of a header field has an invalid byte"),
    }
}

impl fmt::Debug for FieldNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FieldNames").field(&self.names).field(&self.reset).finish()
    }
}

/// The formats of the header fields that report limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldFormats {
    draft: Option<Draft>,
    legacy: Option<ResetFormat>,
    custom: Option<FieldNames>,
    retry_after_ms: bool,
}

/// A version of draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draft {
    V06,
    V07,
    V11,
}

impl FieldFormats {
    /// Creates the default, which is [`HeaderFormat::Draft11`].
    pub(super) const fn new() -> Self {
        Self { draft: Some(Draft::V11), legacy: None, custom: None, retry_after_ms: false }
    }

    /// Creates the formats of a list. If the list contains several drafts, only the last draft is used. The same is
    /// true of the other formats.
    pub(super) fn of(list: impl IntoIterator<Item = HeaderFormat>) -> Self {
        let mut formats = Self { draft: None, legacy: None, custom: None, retry_after_ms: false };
        for format in list {
            match format {
                HeaderFormat::Draft11 => formats.draft = Some(Draft::V11),
                HeaderFormat::Draft07 => formats.draft = Some(Draft::V07),
                HeaderFormat::Draft06 => formats.draft = Some(Draft::V06),
                HeaderFormat::XRateLimit(reset) => formats.legacy = Some(reset),
                HeaderFormat::Custom(names) => formats.custom = Some(names),
                HeaderFormat::RetryAfterMs => formats.retry_after_ms = true,
            }
        }
        formats
    }

    /// Returns whether the only format is the default.
    #[inline]
    pub(super) fn is_default(&self) -> bool {
        self.draft == Some(Draft::V11)
            && self.legacy.is_none()
            && self.custom.is_none()
            && !self.retry_after_ms
    }

    /// Returns whether there are fields that report limits.
    #[inline]
    pub(super) const fn report_limits(&self) -> bool {
        self.draft.is_some() || self.legacy.is_some() || self.custom.is_some()
    }

    /// Returns whether rejections have `retry-after-ms`.
    pub(super) fn has_retry_after_ms(&self) -> bool {
        self.retry_after_ms
    }

    /// Adds the configured fields. Hidden policies are left out. Fields that the inner service or an inner layer has
    /// set are kept. If one of them reports a limit of the same name, a number is appended to the name of this one.
    ///
    /// If the response is a rejection, `rejected` contains what it reports. Otherwise, `rejected` is `None`.
    #[inline]
    pub(super) fn add_fields(
        &self,
        headers: &mut HeaderMap,
        reports: &[PolicyReport<'_>],
        rejected: Option<Reported>,
    ) {
        let wait = rejected.map(|rejected| rejected.wait());
        match self.draft {
            Some(Draft::V11) => add_draft(headers, reports, rejected),
            Some(Draft::V07) => add_draft_07(headers, reports, wait),
            Some(Draft::V06) => add_draft_06(headers, reports, wait),
            None => {}
        }
        if let Some(reset) = self.legacy {
            add_three(headers, Summary::new(reports, wait), x_rate_limit(reset));
        }
        if let Some(names) = self.custom {
            add_three(headers, Summary::new(reports, wait), names);
        }
    }
}

fn add_draft(headers: &mut HeaderMap, reports: &[PolicyReport<'_>], rejected: Option<Reported>) {
    // Most layers have one policy with one limit, and most responses have neither of the two fields.
    if let [report] = reports
        && let Some(label) = report.sole_label()
        && has_item_of(report, rejected)
        && add_new_fields(headers, label, || item(report, rejected))
    {
        return;
    }
    // The fields that are already present, collected before this function adds any field.
    let others: Vec<HeaderValue> =
        headers.get_all(&RATELIMIT_POLICY).iter().chain(headers.get_all(&RATELIMIT)).cloned().collect();
    if !others.is_empty() {
        return add_beside(headers, &others, reports, rejected);
    }
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits() {
            headers.append(RATELIMIT_POLICY, label.policy_item(quota));
        }
        if has_item_of(report, rejected) {
            headers.append(RATELIMIT, item(report, rejected));
        }
    }
}

/// Adds the fields of the default format beside `others`, the fields that are already present. If the inner service, or
/// an inner layer, has reported a limit of the same name, a number is appended to the name.
fn add_beside(
    headers: &mut HeaderMap,
    others: &[HeaderValue],
    reports: &[PolicyReport<'_>],
    rejected: Option<Reported>,
) {
    let mut taken: Vec<String> = Vec::new();
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits() {
            let is_present =
                |name: &str| others.iter().any(|line| has_item(line.as_bytes(), name.as_bytes()));
            if rejected.is_some() && is_present(label.name_item()) {
                // The function that made the response to the rejection has reported this limit itself.
                continue;
            }
            let numbered = (2..).map(|number| label.numbered_item(number));
            let mut names = iter::once(label.name_item().to_owned()).chain(numbered);
            let Some(name) = names.find(|name| !taken.contains(name) && !is_present(name)) else { continue };
            headers.append(RATELIMIT_POLICY, renamed(label.policy_item(quota), label, &name));
            if ptr::eq(label, report.label()) && has_item_of(report, rejected) {
                headers.append(RATELIMIT, renamed(item(report, rejected), label, &name));
            }
            taken.push(name);
        }
    }
}

/// Returns an item that begins with the name of a limit, with `name` in place of that name.
fn renamed(item: HeaderValue, label: &PolicyName, name: &str) -> HeaderValue {
    match item.as_bytes().strip_prefix(label.name_item().as_bytes()) {
        Some(rest) if name != label.name_item() => field_values::value(&[name.as_bytes(), rest].concat()),
        _ => item,
    }
}

/// Adds both fields of a policy with one limit, unless one of them is already present. Returns whether they were added.
/// `item` returns the value of `RateLimit`. If neither field is present, the name of each field is hashed once.
fn add_new_fields(headers: &mut HeaderMap, label: &PolicyName, item: impl FnOnce() -> HeaderValue) -> bool {
    if headers.is_empty() {
        label.set_fields(headers, item);
        return true;
    }
    let Entry::Vacant(policy) = headers.entry(RATELIMIT_POLICY) else { return false };
    policy.insert(label.policy_item(None));
    if let Entry::Vacant(limit) = headers.entry(RATELIMIT) {
        limit.insert(item());
        return true;
    }
    headers.remove(RATELIMIT_POLICY);
    false
}

/// Returns whether `RateLimit` has an item of a policy.
#[inline]
fn has_item_of(report: &PolicyReport<'_>, rejected: Option<Reported>) -> bool {
    rejected.is_some() || !report.is_paced()
}

/// Returns the item of `RateLimit` for the reported limit of a policy.
#[inline]
fn item(report: &PolicyReport<'_>, rejected: Option<Reported>) -> HeaderValue {
    let window = match rejected.filter(|_| !report.decision().is_allowed()) {
        None => report.exact_window(),
        Some(rejected) => {
            let wait = report.exact_window();
            wait.map(|wait| rejected.with_jitter(wait).min(field_values::MAX_RETRY_AFTER))
        }
    };
    report.label().limit_item(report.decision().remaining(), window)
}

/// Returns whether a field value has an item with the serialized name `name_item`. A field must not contain two items
/// of the same name.
fn has_item(line: &[u8], name_item: &[u8]) -> bool {
    let (mut begins, mut inside, mut escaped) = (true, false, false);
    for (at, byte) in line.iter().enumerate() {
        if begins
            && let Some(behind) = line[at..].strip_prefix(name_item)
            && matches!(behind.first(), None | Some(b',' | b';' | b' ' | b'\t'))
        {
            return true;
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => (begins, inside) = (false, !inside),
            b',' if !inside => begins = true,
            b' ' | b'\t' => {}
            _ => begins = false,
        }
    }
    false
}

/// Returns the names of the `X-RateLimit-*` fields.
const fn x_rate_limit(reset: ResetFormat) -> FieldNames {
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
    /// Selects the policy that matters most. Returns `None` if no policy is visible to callers or, on an admission, if
    /// only their quotas are reported. On a rejection, `wait` is `Some(Some(time))`, or `Some(None)` if the time to
    /// wait is unknown or waiting does not help. On an admission, `wait` is `None`.
    fn new(reports: &[PolicyReport<'_>], wait: Option<Option<Duration>>) -> Option<Self> {
        let is_part =
            |report: &&PolicyReport<'_>| !report.is_hidden() && (wait.is_some() || !report.is_paced());
        let visible = || reports.iter().filter(is_part);
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

    /// Returns these values with numbers that are integers of structured fields. Times are short enough.
    fn clamped(self) -> Self {
        let [limit, remaining] = [self.limit, self.remaining].map(field_values::clamp_integer);
        Self { limit, remaining, ..self }
    }
}

/// Adds the three fields with these names. If the time is unknown, the field of the time is left out. If one of the
/// fields is already present, or if no policy is visible to callers, adds no field.
fn add_three(headers: &mut HeaderMap, summary: Option<Summary>, FieldNames { names, reset }: FieldNames) {
    let Some(summary) = summary else { return };
    let [limit, remaining, time] = names.map(HeaderName::from_static);
    if [&limit, &remaining, &time].into_iter().any(|name| headers.contains_key(name)) {
        return;
    }
    headers.insert(limit, field_values::number(summary.limit));
    headers.insert(remaining, field_values::number(summary.remaining));
    if let Some(span) = summary.time {
        let seconds = match reset {
            ResetFormat::DeltaSeconds => field_values::whole_seconds(span),
            ResetFormat::EpochSeconds => field_values::whole_seconds(since_epoch().saturating_add(span)),
        };
        headers.insert(time, field_values::number(seconds));
    }
}

/// Adds the four fields of draft 6. If `RateLimit-Policy` is already present, adds no field. If `RateLimit-Policy` is
/// absent, but another of the four fields is present, adds only `RateLimit-Policy`.
fn add_draft_06(headers: &mut HeaderMap, reports: &[PolicyReport<'_>], wait: Option<Option<Duration>>) {
    if headers.contains_key(RATELIMIT_POLICY) {
        return;
    }
    add_three(headers, Summary::new(reports, wait).map(Summary::clamped), DRAFT_06);
    add_nameless_policies(headers, reports);
}

/// Adds the two fields of draft 7, unless one of them is already present.
fn add_draft_07(headers: &mut HeaderMap, reports: &[PolicyReport<'_>], wait: Option<Option<Duration>>) {
    if headers.contains_key(RATELIMIT) || headers.contains_key(RATELIMIT_POLICY) {
        return;
    }
    if let Some(Summary { limit, remaining, time }) = Summary::new(reports, wait).map(Summary::clamped) {
        let mut text = format!("limit={limit}, remaining={remaining}");
        if let Some(span) = time {
            text.push_str(&format!(", reset={}", field_values::whole_seconds(span)));
        }
        headers.insert(RATELIMIT, field_values::value(text.as_bytes()));
    }
    add_nameless_policies(headers, reports);
}

/// Adds `RateLimit-Policy` in the form of drafts 6 and 7, in which policies have no names: `100;w=60, 1000;w=3600`.
fn add_nameless_policies(headers: &mut HeaderMap, reports: &[PolicyReport<'_>]) {
    let mut items = Vec::new();
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits() {
            let policy = quota.unwrap_or(*label.policy());
            // A concurrency limit has no window, and this format requires one.
            if policy.is_concurrent() {
                continue;
            }
            let (quota, window) =
                (field_values::clamp_integer(policy.quota), field_values::seconds(policy.window));
            let item = format!("{quota};w={}", field_values::clamp_integer(window));
            if !items.contains(&item) {
                items.push(item);
            }
        }
    }
    if !items.is_empty() {
        headers.insert(RATELIMIT_POLICY, field_values::value(items.join(", ").as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, AlgorithmInfo, FixedWindow, SlidingWindow, TokenBucket};
    use crate::clock::Nanos;
    use crate::decision::Decision;
    use crate::limiter::Reservation;
    use crate::middleware::info::PolicyInfo;
    use crate::middleware::outcome::Outcome;
    use crate::middleware::respond::Rejection;
    use crate::quota::Quota;
    use http::StatusCode;
    use http::header::{AGE, RETRY_AFTER};

    #[test]
    fn a_name_is_one_that_the_crate_http_takes() {
        for byte in 0..=255 {
            let name = [b'x', byte];
            if let Ok(text) = str::from_utf8(&name) {
                // The crate takes quotation marks, too, which RFC 9110 does not.
                let is_taken = HeaderName::from_lowercase(&name).is_ok() && byte != b'"';
                assert_eq!(is_field_name(text), is_taken, "{text:?}");
            }
        }
        assert!(!is_field_name("") && !is_field_name("é"));
        let long = "x".repeat(1 << 16);
        for length in [(1 << 16) - 1, 1 << 16] {
            let is_taken = HeaderName::from_lowercase(&long.as_bytes()[..length]).is_ok();
            assert_eq!(is_field_name(&long[..length]), is_taken, "{length}");
        }
    }

    #[test]
    fn the_panic_of_a_name_has_the_name_and_the_change() {
        let text_of = |name: &'static str| {
            let made =
                std::panic::catch_unwind(|| FieldNames::new("x-a", "x-b", name, ResetFormat::DeltaSeconds));
            made.unwrap_err().downcast_ref::<String>().unwrap().clone()
        };
        let change = "is no name of a header field: take lower-case letters, digits and hyphens";
        assert_eq!(text_of("X-App-Reset"), format!("`X-App-Reset` {change}"));
        assert_eq!(text_of("x app: größe"), format!("`x app: gr????e` {change}"));
        let long = "X".repeat(100);
        assert_eq!(text_of(Box::leak(long.into_boxed_str())), format!("`{}` {change}", "X".repeat(60)));
    }

    fn fields(algorithm: &impl Algorithm, decision: &Decision) -> [String; 3] {
        let info = PolicyInfo::new(AlgorithmInfo::of(algorithm));
        let outcome = Outcome::new(*decision, false, Reservation::default());
        let report = PolicyReport::new(&info, &outcome);
        let mut headers = HeaderMap::new();
        if let Some(wait) = Rejection::Limited(&[report]).retry_after() {
            headers.insert(RETRY_AFTER, field_values::retry_after(wait));
        }
        let rejected =
            Reported::new(StatusCode::TOO_MANY_REQUESTS, None, None, Duration::ZERO, Duration::MAX);
        let rejected = Some(rejected).filter(|_| !decision.is_allowed());
        FieldFormats::new().add_fields(&mut headers, &[report], rejected);
        [RATELIMIT_POLICY, RATELIMIT, RETRY_AFTER]
            .map(|name| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned())
    }

    #[test]
    fn prebuilt_fields_are_the_same_as_any_other() {
        let algorithm = TokenBucket::new(Quota::per_minute(100));
        let info = PolicyInfo::new(AlgorithmInfo::of(&algorithm));
        for remaining in [0, 9, 10, 99] {
            let decision = Decision::allow(100, remaining, 60_000_000_000);
            let outcome = Outcome::new(decision, false, Reservation::default());
            let report = PolicyReport::new(&info, &outcome);
            let [mut prebuilt, mut other] = [HeaderMap::new(), HeaderMap::new()];
            other.insert(AGE, HeaderValue::from_static("0"));
            for headers in [&mut prebuilt, &mut other] {
                FieldFormats::new().add_fields(headers, &[report], None);
            }
            other.remove(AGE);
            assert_eq!(prebuilt, other);
            assert_eq!(prebuilt.len(), 2);
        }
    }

    #[test]
    fn a_limit_whose_name_an_inner_layer_has_reported_gets_a_number() {
        let info = PolicyInfo::new(AlgorithmInfo::of(&TokenBucket::new(Quota::per_minute(100))));
        let outcome = Outcome::new(Decision::allow(100, 9, 60_000_000_000), false, Reservation::default());
        let report = PolicyReport::new(&info, &outcome);
        let (policy, item) = ("\"default\";q=100;w=60", "\"default\";r=9;t=6");
        let (second, second_item) = ("\"default-2\";q=100;w=60", "\"default-2\";r=9;t=6");
        let (third, third_item) = ("\"default-3\";q=100;w=60", "\"default-3\";r=9;t=6");
        for (name, inner, expected) in [
            (AGE, "0", [vec![policy], vec![item]]),
            (RATELIMIT, "\"default\";r=1", [vec![second], vec!["\"default\";r=1", second_item]]),
            (
                RATELIMIT,
                "\"default\", \"default-2\"",
                [vec![third], vec!["\"default\", \"default-2\"", third_item]],
            ),
            (RATELIMIT, "\"other\";r=1", [vec![policy], vec!["\"other\";r=1", item]]),
            (
                RATELIMIT_POLICY,
                "\"default\";q=1;w=1",
                [vec!["\"default\";q=1;w=1", second], vec![second_item]],
            ),
            (RATELIMIT_POLICY, "\"other\";q=1;w=1", [vec!["\"other\";q=1;w=1", policy], vec![item]]),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(inner));
            FieldFormats::new().add_fields(&mut headers, &[report], None);
            let values = [RATELIMIT_POLICY, RATELIMIT]
                .map(|name| headers.get_all(name).iter().cloned().collect::<Vec<_>>());
            assert_eq!(values, expected, "{inner}");
        }
    }

    #[test]
    fn vectors() {
        const MS: u64 = 1_000_000;
        let bucket = TokenBucket::new(Quota::per_minute(100));
        let policy = "\"default\";q=100;w=60";
        let deny = |remaining, wait| Decision::deny(100, remaining, Some(wait), 60_000 * MS);
        for (decision, item, retry) in [
            (Decision::allow(100, 99, 180 * MS), "\"default\";r=99;t=60", ""),
            (Decision::allow(100, 60, 24_000 * MS), "\"default\";r=60;t=36", ""),
            (deny(0, 200 * MS), "\"default\";r=0;t=1", "1"),
            (deny(0, 3_000 * MS), "\"default\";r=0;t=3", "3"),
            (deny(0, 3_000 * MS + 1), "\"default\";r=0;t=4", "4"),
            (deny(3, 660 * MS), "\"default\";r=3;t=1", "1"),
            (Decision::deny(100, 100, None, 0), "\"default\";r=100", ""),
        ] {
            assert_eq!(fields(&bucket, &decision), [policy, item, retry], "{decision:?}");
        }
    }

    #[test]
    fn an_item_is_found_by_its_name_and_nothing_else_is() {
        let has = |line: &str, name_item: &str| has_item(line.as_bytes(), name_item.as_bytes());
        for line in [r#""a";q=1"#, r#""a""#, r#""b";q=1, "a";r=1"#, r#" "b" ,"a" ;q=1"#, r#""\"a\"", "a""#] {
            assert!(has(line, r#""a""#), "{line}");
        }
        for line in ["", r#""ab";q=1"#, r#""b";x="a""#, r#""\"a\"";q=1"#, r#"a;q=1"#, r#""b, \"a\"""#] {
            assert!(!has(line, r#""a""#), "{line}");
        }
        assert!(!has(r#""p,";q=1;w=1, ";q";q=1;w=1"#, r#"", ""#));
    }

    #[test]
    fn an_empty_bucket_reports_when_the_next_unit_is_available() {
        let bucket = TokenBucket::new(Quota::per_minute(7));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
        let decision = bucket.check(&mut state, Nanos::ZERO, 7);
        assert_eq!(fields(&bucket, &decision)[1], "\"default\";r=0;t=9");
    }

    #[test]
    fn a_window_that_slides_is_never_reported_longer_than_its_period() {
        // The second call opens a slice; the period of its unit begins at the end of that slice.
        for slices in [1, 3, 10] {
            let window = SlidingWindow::new(Quota::per_minute(2)).slices(slices);
            let mut state = window.new_state(Nanos::ZERO, Nanos::ZERO);
            for (now, left) in [(Nanos(0), 1), (Nanos(1), 0)] {
                let decision = window.check(&mut state, now, 1);
                assert!(decision.is_allowed() && decision.reset_after() >= Duration::from_secs(60));
                let item = format!("\"default\";r={left};t=60");
                assert_eq!(fields(&window, &decision)[..2], ["\"default\";q=2;w=60", &item]);
            }
            let denial = window.check(&mut state, Nanos(1), 1);
            let [_, item, retry] = fields(&window, &denial);
            assert_eq!(item, format!("\"default\";r=0;t={retry}"));
        }
    }

    #[test]
    fn a_window_reports_when_it_ends() {
        let window = FixedWindow::new(Quota::per_hour(7));
        let mut state = window.new_state(Nanos::ZERO, Nanos::ZERO);
        let decision = window.check(&mut state, Nanos::ZERO, 1);
        assert_eq!(fields(&window, &decision)[..2], ["\"default\";q=7;w=3600", "\"default\";r=6;t=3600"]);
    }
}
