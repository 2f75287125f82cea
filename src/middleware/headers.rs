//! The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11), and those that came before
//! them.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::field;
use super::label::Label;
use super::options::{Options, Reset};
use super::responder::Report;
use crate::clock::since_epoch;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Adds the fields of each report that callers are told of. What the service behind or an inner limiter has set stays.
///
/// Denials are told with `extra` to their wait.
#[inline]
pub(super) fn add_fields(
    headers: &mut HeaderMap,
    reports: &[Report<'_>],
    options: &Options,
    extra: Duration,
) {
    if options.draft {
        add_draft(headers, reports, extra);
    }
    if let Some(reset) = options.legacy {
        add_legacy(headers, reports, reset, extra);
    }
}

fn add_draft(headers: &mut HeaderMap, reports: &[Report<'_>], extra: Duration) {
    // What others tell, which came before: the first line that is added here is none of it.
    let others = told_by_others(headers);
    let is_told =
        |label: &Label| others.iter().any(|line| has_item(line.as_bytes(), label.quoted().as_bytes()));
    for report in reports.iter().filter(|report| !report.is_hidden()) {
        for (label, quota) in report.limits().filter(|(label, _)| !is_told(label)) {
            let value = match quota {
                None => label.policy_field.clone(),
                Some(quota) => field::policy(label.name(), quota),
            };
            headers.append(RATELIMIT_POLICY, value);
        }
        if is_told(report.label()) {
            continue;
        }
        let window = match report.decision().is_allowed() {
            true => report.window(),
            false => report.window().map(|wait| wait.saturating_add(extra).min(field::LONGEST_WAIT)),
        };
        headers.append(RATELIMIT, field::item(&report.label().item, report.decision().remaining(), window));
    }
}

/// The lines of both fields that are there already.
fn told_by_others(headers: &HeaderMap) -> Vec<HeaderValue> {
    let lines = headers.get_all(RATELIMIT_POLICY).iter().chain(headers.get_all(RATELIMIT));
    lines.cloned().collect()
}

/// Whether a line has an item of that name, given as it is written: no name may stand in a field twice.
fn has_item(line: &[u8], quoted: &[u8]) -> bool {
    let (mut begins, mut inside, mut escaped) = (true, false, false);
    for (at, byte) in line.iter().enumerate() {
        if begins
            && let Some(behind) = line[at..].strip_prefix(quoted)
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

fn add_legacy(headers: &mut HeaderMap, reports: &[Report<'_>], reset: Reset, extra: Duration) {
    let visible = || reports.iter().filter(|report| !report.is_hidden());
    let denial = visible()
        .filter(|report| !report.decision().is_allowed())
        .max_by_key(|report| report.decision().retry_after().unwrap_or(Duration::MAX));
    let Some(most) = denial.or_else(|| visible().min_by_key(|report| report.decision().remaining())) else {
        return;
    };
    if [LIMIT, REMAINING, RESET].iter().any(|name| headers.contains_key(name)) {
        return;
    }
    let decision = most.decision();
    let whole = match decision.is_allowed() {
        true => decision.reset_after(),
        false => decision.reset_after().saturating_add(extra),
    };
    let whole = match reset {
        Reset::DeltaSeconds => field::whole_seconds(whole),
        Reset::EpochSeconds => field::whole_seconds(since_epoch().saturating_add(whole)),
    };
    headers.insert(LIMIT, HeaderValue::from(most.policy().quota));
    headers.insert(REMAINING, HeaderValue::from(decision.remaining()));
    // Of calls in progress, nobody knows when they end.
    if !most.is_concurrent() {
        headers.insert(RESET, HeaderValue::from(whole));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, TokenBucket};
    use crate::clock::Nanos;
    use crate::decision::Decision;
    use crate::middleware::label::Labels;
    use crate::middleware::responder::Refusal;
    use crate::middleware::told::Told;
    use crate::quota::Quota;
    use http::header::RETRY_AFTER;

    fn fields(algorithm: &impl Algorithm, decision: &Decision) -> [String; 3] {
        let (labels, told) = (Labels::unnamed(algorithm), Told::new(algorithm, *decision, false));
        let report = Report::new(&labels, &told);
        let mut headers = HeaderMap::new();
        if let Some(wait) = Refusal::Limit(&[report]).retry_after() {
            headers.insert(RETRY_AFTER, field::delay(wait));
        }
        add_fields(&mut headers, &[report], &Options::new(), Duration::ZERO);
        [RATELIMIT_POLICY, RATELIMIT, RETRY_AFTER]
            .map(|name| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned())
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
        let has = |line: &str, quoted: &str| has_item(line.as_bytes(), quoted.as_bytes());
        for line in [r#""a";q=1"#, r#""a""#, r#""b";q=1, "a";r=1"#, r#" "b" ,"a" ;q=1"#, r#""\"a\"", "a""#] {
            assert!(has(line, r#""a""#), "{line}");
        }
        for line in ["", r#""ab";q=1"#, r#""b";x="a""#, r#""\"a\"";q=1"#, r#"a;q=1"#, r#""b, \"a\"""#] {
            assert!(!has(line, r#""a""#), "{line}");
        }
        assert!(!has(r#""p,";q=1;w=1, ";q";q=1;w=1"#, r#"", ""#));
    }

    #[test]
    fn a_bucket_with_nothing_left_tells_when_the_next_unit_comes() {
        let bucket = TokenBucket::new(Quota::per_minute(7));
        let mut state = bucket.fresh(Nanos::ZERO, Nanos::ZERO);
        let decision = bucket.check(&mut state, Nanos::ZERO, 7);
        assert_eq!(fields(&bucket, &decision)[1], "\"default\";r=0;t=9");
    }

    #[test]
    fn a_window_tells_when_it_ends() {
        let window = FixedWindow::new(Quota::per_hour(7));
        let mut state = window.fresh(Nanos::ZERO, Nanos::ZERO);
        let decision = window.check(&mut state, Nanos::ZERO, 1);
        assert_eq!(fields(&window, &decision)[..2], ["\"default\";q=7;w=3600", "\"default\";r=6;t=3600"]);
    }
}
