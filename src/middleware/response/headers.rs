//! The header fields `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11). The module `formats`
//! has the older and custom fields.

use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderValue};

use super::options::Options;
use super::report::PolicyReport;
use super::retry_after;
use super::structured_field::{self, RATELIMIT, RATELIMIT_POLICY};
use crate::middleware::formats::{self, Draft};
use crate::middleware::policy::policy_name::PolicyName;

/// The waits that a rejection reports.
#[derive(Clone, Copy, Debug)]
pub(in crate::middleware) struct Waits {
    /// The time until the caller can retry, as in `Retry-After`. `None` if this time is unknown, or if waiting does not
    /// help.
    pub(in crate::middleware) wait: Option<Duration>,
    /// The jitter. It is added to the wait of each policy that denied the request.
    pub(in crate::middleware) extra: Duration,
    /// The maximum wait that is reported.
    pub(in crate::middleware) max: Duration,
}

/// Adds the configured fields. Hidden policies are left out. Fields that the inner service or an inner layer has set
/// are kept.
///
/// If the response is a rejection, `refused` contains the waits to report. Otherwise, `refused` is `None`.
#[inline]
pub(in crate::middleware) fn add_fields(
    headers: &mut HeaderMap,
    reports: &[PolicyReport<'_>],
    options: &Options,
    refused: Option<Waits>,
) {
    let wait = refused.map(|refused| refused.wait);
    match options.draft {
        Some(Draft::V11) => add_draft(headers, reports, refused),
        Some(Draft::V07) => formats::add_draft_07(headers, reports, wait),
        Some(Draft::V06) => formats::add_draft_06(headers, reports, wait),
        None => {}
    }
    if let Some(reset) = options.legacy {
        formats::add_three(headers, reports, formats::x_rate_limit(reset), wait);
    }
    if let Some(names) = options.custom {
        formats::add_three(headers, reports, names, wait);
    }
}

fn add_draft(headers: &mut HeaderMap, reports: &[PolicyReport<'_>], refused: Option<Waits>) {
    // Most layers have one policy with one limit, and most responses have neither of the two fields.
    if let [report] = reports
        && let Some(label) = report.sole_label()
        && add_new_fields(headers, label, || item(report, refused))
    {
        return;
    }
    // The fields that are already present, collected before this function adds any field.
    let others: Vec<HeaderValue> =
        headers.get_all(&RATELIMIT_POLICY).iter().chain(headers.get_all(&RATELIMIT)).cloned().collect();
    let is_present = |label: &PolicyName| {
        others.iter().any(|line| has_item(line.as_bytes(), label.name_item().as_bytes()))
    };
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits().filter(|(label, _)| !is_present(label)) {
            let value = match quota {
                None => label.policy_field.clone(),
                Some(quota) => structured_field::policy(label.name(), quota),
            };
            headers.append(RATELIMIT_POLICY, value);
        }
        if !is_present(report.label()) {
            headers.append(RATELIMIT, item(report, refused));
        }
    }
}

/// Adds both fields of a policy with one limit, unless one of them is already present. Returns whether they were added.
/// `item` returns the value of `RateLimit`. If neither field is present, the name of each field is hashed once.
fn add_new_fields(headers: &mut HeaderMap, label: &PolicyName, item: impl FnOnce() -> HeaderValue) -> bool {
    if headers.is_empty() {
        *headers = label.fields.clone();
        if let Some((_, value)) = headers.iter_mut().find(|(name, _)| *name == RATELIMIT) {
            *value = item();
        }
        return true;
    }
    let Entry::Vacant(policy) = headers.entry(RATELIMIT_POLICY) else { return false };
    policy.insert(label.policy_field.clone());
    if let Entry::Vacant(limit) = headers.entry(RATELIMIT) {
        limit.insert(item());
        return true;
    }
    headers.remove(RATELIMIT_POLICY);
    false
}

/// Returns the item of `RateLimit` for the reported limit of a policy.
#[inline]
fn item(report: &PolicyReport<'_>, refused: Option<Waits>) -> HeaderValue {
    let window = match refused.filter(|_| !report.decision().is_allowed()) {
        None => report.window(),
        Some(Waits { extra, max, .. }) => {
            report.window().map(|wait| wait.saturating_add(extra).min(max).min(retry_after::MAX_RETRY_AFTER))
        }
    };
    structured_field::item(&report.label().item, report.decision().remaining(), window)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
    use crate::clock::Nanos;
    use crate::decision::Decision;
    use crate::middleware::policy::info::PolicyInfo;
    use crate::middleware::policy::outcome::Outcome;
    use crate::middleware::response::Rejection;
    use crate::quota::Quota;
    use crate::store::Reservation;
    use http::header::{AGE, RETRY_AFTER};
    use std::sync::Arc;

    fn fields(algorithm: &impl Algorithm, decision: &Decision) -> [String; 3] {
        let info = PolicyInfo::new(algorithm, Arc::default());
        let (decision, reservation) = (*decision, Reservation::default());
        let outcome = Outcome { decision, is_shadow: false, reservation, details: None };
        let report = PolicyReport::new(&info, &outcome);
        let mut headers = HeaderMap::new();
        if let Some(wait) = Rejection::Limited(&[report]).retry_after() {
            headers.insert(RETRY_AFTER, retry_after::retry_after(wait));
        }
        let refused = Waits { wait: None, extra: Duration::ZERO, max: Duration::MAX };
        let refused = Some(refused).filter(|_| !decision.is_allowed());
        add_fields(&mut headers, &[report], &Options::new(), refused);
        [RATELIMIT_POLICY, RATELIMIT, RETRY_AFTER]
            .map(|name| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned())
    }

    #[test]
    fn prebuilt_fields_are_the_same_as_any_other() {
        let algorithm = TokenBucket::new(Quota::per_minute(100));
        let info = PolicyInfo::new(&algorithm, Arc::default());
        for remaining in [0, 9, 10, 99] {
            let outcome = Outcome::new(Decision::allow(100, remaining, 60_000_000_000), false);
            let report = PolicyReport::new(&info, &outcome);
            let [mut prebuilt, mut other] = [HeaderMap::new(), HeaderMap::new()];
            other.insert(AGE, HeaderValue::from_static("0"));
            for headers in [&mut prebuilt, &mut other] {
                add_fields(headers, &[report], &Options::new(), None);
            }
            other.remove(AGE);
            assert_eq!(prebuilt, other);
            assert_eq!(prebuilt.len(), 2);
        }
    }

    #[test]
    fn a_limit_that_an_inner_layer_has_reported_is_not_reported_again() {
        let info = PolicyInfo::new(&TokenBucket::new(Quota::per_minute(100)), Arc::default());
        let outcome = Outcome::new(Decision::allow(100, 9, 60_000_000_000), false);
        let report = PolicyReport::new(&info, &outcome);
        let (policy, item) = ("\"default\";q=100;w=60", "\"default\";r=9;t=6");
        for (name, inner, expected) in [
            (AGE, "0", [vec![policy], vec![item]]),
            (RATELIMIT, "\"default\";r=1", [vec![], vec!["\"default\";r=1"]]),
            (RATELIMIT, "\"other\";r=1", [vec![policy], vec!["\"other\";r=1", item]]),
            (RATELIMIT_POLICY, "\"default\";q=1;w=1", [vec!["\"default\";q=1;w=1"], vec![]]),
            (RATELIMIT_POLICY, "\"other\";q=1;w=1", [vec!["\"other\";q=1;w=1", policy], vec![item]]),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(inner));
            add_fields(&mut headers, &[report], &Options::new(), None);
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
