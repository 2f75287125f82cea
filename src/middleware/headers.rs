//! The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers-11), and `Retry-After` (RFC
//! 9110, section 10.2.3).

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use super::field;
use super::responder::Report;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the fields of each report. What an inner service or an inner limiter has set stays.
pub(super) fn add_fields(headers: &mut HeaderMap, reports: &[Report<'_>]) {
    for report in reports {
        for (label, quota) in report.limits() {
            let value = match quota {
                None => label.policy_field.clone(),
                Some(quota) => field::policy(label.name(), quota),
            };
            headers.append(RATELIMIT_POLICY, value);
        }
        let item = field::item(&report.label().item, report.decision().remaining(), report.window());
        headers.append(RATELIMIT, item);
    }
}

/// Adds `Retry-After`, if waiting helps.
pub(super) fn add_retry_after(headers: &mut HeaderMap, wait: Option<Duration>) {
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, field::delay(wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, TokenBucket};
    use crate::clock::Nanos;
    use crate::decision::Decision;
    use crate::middleware::label::Labels;
    use crate::middleware::told::Told;
    use crate::quota::Quota;

    fn fields(algorithm: &impl Algorithm, decision: &Decision) -> [String; 3] {
        let (labels, told) = (Labels::unnamed(algorithm), Told::new(algorithm, *decision, false));
        let report = Report::new(&labels, &told);
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
}
