//! The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11), and `Retry-After` (RFC 9110, section
//! 10.2.3).

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::responder::Report;
use crate::algorithm::Policy;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MOST: u64 = 999_999_999_999_999;

/// Adds the fields of each report. What an inner service or an inner limiter has set stays.
pub(super) fn add_fields(headers: &mut HeaderMap, reports: &[Report<'_>]) {
    for report in reports {
        headers.append(RATELIMIT_POLICY, report.label.policy_field.clone());
        headers.append(RATELIMIT, item(report));
    }
}

/// Adds `Retry-After`, if waiting helps.
pub(super) fn add_retry_after(headers: &mut HeaderMap, wait: Option<Duration>) {
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds(wait)));
    }
}

/// Whole seconds, rounded up, at least 1.
fn seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

pub(super) fn policy_field(quoted: &str, policy: Policy) -> HeaderValue {
    let (quota, window) = (policy.quota.min(MOST), seconds(policy.window).min(MOST));
    value(format!("{quoted};q={quota};w={window}").into_bytes())
}

fn item(report: &Report<'_>) -> HeaderValue {
    let label = report.label.item.as_bytes();
    let remaining = Digits::of(report.decision.remaining().min(MOST));
    let window = report.window.map(|window| Digits::of(seconds(window).min(MOST)));
    let length = label.len() + remaining.len() + window.as_ref().map_or(0, |window| 3 + window.len());
    // Exactly as long as it gets: the bytes become the header's without another copy.
    let mut text = Vec::with_capacity(length);
    text.extend_from_slice(label);
    text.extend_from_slice(&remaining);
    if let Some(window) = window {
        text.extend_from_slice(b";t=");
        text.extend_from_slice(&window);
    }
    value(text)
}

fn value(text: Vec<u8>) -> HeaderValue {
    match HeaderValue::from_maybe_shared(Bytes::from(text)) {
        Ok(value) => value,
        Err(_) => unreachable!("names are printable, and so is the rest"),
    }
}

/// A structured-field string (RFC 9651, section 4.1.6) of a printable name.
pub(super) fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for char in name.chars() {
        if matches!(char, '"' | '\\') {
            text.push('\\');
        }
        text.push(char);
    }
    text.push('"');
    text
}

/// The decimal digits of a number, without an allocation.
struct Digits {
    digits: [u8; 20],
    start: usize,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let (mut digits, mut start) = ([b'0'; 20], 20);
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start };
            }
        }
    }
}

impl std::ops::Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, TokenBucket};
    use crate::clock::Nanos;
    use crate::decision::Decision;
    use crate::middleware::label::Label;
    use crate::quota::Quota;

    fn fields(algorithm: &impl Algorithm, decision: &Decision) -> [String; 3] {
        let label = Label::unnamed(algorithm.policy());
        let report = Report { label: &label, decision, window: algorithm.window(decision) };
        let mut headers = HeaderMap::new();
        add_retry_after(&mut headers, decision.retry_after());
        add_fields(&mut headers, &[report]);
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

    #[test]
    fn names_are_escaped_and_numbers_fit() {
        let policy = Policy { quota: u64::MAX, window: Duration::from_nanos(1) };
        let label = Label::new(r#"a"b\c"#, policy).unwrap();
        assert_eq!(label.policy_field, r#""a\"b\\c";q=999999999999999;w=1"#);
        for name in ["é", "a\nb", "a\r\nb", "", "\u{7f}", &"x".repeat(257)] {
            assert!(Label::new(name, policy).is_err(), "{name:?}");
        }
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 1, 9, 10, 999, u64::MAX] {
            assert_eq!(&*Digits::of(number), number.to_string().as_bytes());
        }
    }
}
