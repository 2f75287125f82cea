//! A limit in shadow mode decides and counts like any other limit, but marks requests instead of denying them.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, Response};
use tower::ServiceExt;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, KeyError, KeyExtractor, MissingKey};
use tower_throttle::middleware::{HeaderFormat as Form, HttpResponder, ResetFormat, SendHeaders, Shadow};
use tower_throttle::{Decision, RateLimitLayer, RateLimiter};

use super::{ask, hourly, limiter, mark, marked};
use crate::header_parser::ParsedFields;
use crate::reference_service::{behind, limited};

#[test]
fn it_decides_counts_marks_and_lets_through() {
    let (clock, shadow) = (ManualClock::new(), Shadow::on());
    let limiter = limiter(hourly(2), &clock);
    let both = [Form::Draft11, Form::XRateLimit(ResetFormat::DeltaSeconds)];
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).shadow(&shadow);
    let service = limited(layer.responder(HttpResponder::new().headers(both)), marked());
    for n in 1..=5 {
        let response = ask(&service);
        assert_eq!(response.status(), 200);
        assert_eq!(ParsedFields::read(response.headers()), ParsedFields::default(), "callers get no fields");
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
        assert_eq!(response.extensions().get::<Decision>(), None, "nor are handlers");
        match mark(&response) {
            None => assert!(n <= 2),
            Some(denial) => {
                assert!(n > 2 && !denial.is_allowed());
                assert_eq!(denial.retry_after(), Some(Duration::from_secs(3_600)));
            }
        }
        assert_eq!(shadow.denied(), 5_u64.min(n).saturating_sub(2));
        assert_eq!(limiter.peek(&()).remaining(), 2_u64.saturating_sub(n));
    }
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(mark(&ask(&service)), None);
    assert_eq!(shadow.denied(), 3);
}

#[test]
fn a_request_is_marked_even_if_a_responder_reports_nothing() {
    let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
    let layer = RateLimitLayer::new(Global, hourly(1)).shadow(&Shadow::on());
    let joined = RateLimitLayer::new(Global, hourly(9)).and(layer.clone());
    for service in
        [limited(layer.clone().responder(silent), marked()), limited(joined.responder(silent), marked())]
    {
        layer.limiter().reset(&());
        assert_eq!([(); 3].map(|()| mark(&ask(&service)).is_some()), [false, true, true]);
    }
}

#[test]
fn it_is_switched_while_it_runs() {
    let shadow = Shadow::on();
    let switch = shadow.clone();
    let layer = RateLimitLayer::new(Global, hourly(1)).shadow(&shadow);
    let service = limited(layer, marked());
    assert!(shadow.is_on());
    assert_eq!(mark(&ask(&service)), None);
    assert!(mark(&ask(&service)).is_some());
    switch.set(false);
    assert!(!shadow.is_on());
    let response = ask(&service);
    assert_eq!((response.status().as_u16(), ParsedFields::read(response.headers()).left[0].r), (429, 0));
    assert_eq!(shadow.denied(), 1, "enforced denials are counted elsewhere");
    shadow.set(true);
    assert!(mark(&ask(&service)).is_some());
    assert_eq!(switch.denied(), 2);
}

#[test]
fn calls_in_progress_count_until_they_end() {
    let shadow = Shadow::on();
    let limiter = RateLimiter::new(Concurrency::per_key(2));
    let watched = RateLimitLayer::with_limiter(Global, limiter.clone()).shadow(&shadow);
    let real = || RateLimitLayer::new(Global, hourly(100));
    for service in [
        limited(watched.clone(), marked()),
        limited(watched.clone().and(real()), marked()),
        limited(real().and(watched), marked()),
    ] {
        let before = shadow.denied();
        let mut open: Vec<_> = (0..4).map(|_| ask(&service)).collect();
        assert_eq!((limiter.peek(&()).remaining(), shadow.denied() - before), (0, 2));
        open.truncate(1);
        assert_eq!(limiter.peek(&()).remaining(), 1);
        assert_eq!(mark(&ask(&service)), None);
        open.clear();
        assert_eq!(limiter.peek(&()).remaining(), 2);
    }
}

/// A key extractor that finds no key.
#[derive(Clone, Copy, Debug)]
struct Lost;

impl<Req> KeyExtractor<Req> for Lost {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Err(KeyError::new("lost"))
    }
}

#[test]
fn requests_without_a_key_are_counted_once() {
    let shadow = Shadow::on();
    let missing = |missing| RateLimitLayer::new(Lost, hourly(1)).missing_key(missing).shadow(&shadow);
    for joined in [false, true] {
        for (policy, denied) in [(MissingKey::Reject, 0), (MissingKey::Shared, 2), (MissingKey::Pass, 0)] {
            let before = shadow.denied();
            let layer = missing(policy);
            let real = RateLimitLayer::new(Global, hourly(9));
            let service = match joined {
                true => limited(layer.clone().and(real), behind(HeaderMap::new())),
                false => limited(layer.clone(), behind(HeaderMap::new())),
            };
            for _ in 0..3 {
                assert_eq!(ask(&service).status(), 200);
            }
            assert_eq!(shadow.denied() - before, denied, "{policy:?} {joined}");
            let counts = layer.stats().keys;
            let counted = [counts.rejected, counts.shared, counts.unlimited];
            let expected = [MissingKey::Reject, MissingKey::Shared, MissingKey::Pass];
            assert_eq!(
                counted,
                expected.map(|which| if which == policy { 3 } else { 0 }),
                "{policy:?} {joined}"
            );
        }
    }
}

#[tokio::test]
async fn shadow_limits_are_settled_as_well() {
    let (clock, shadow) = (ManualClock::new(), Shadow::on());
    let limiter = limiter(hourly(2), &clock);
    let free = |_: &Response<Body>| 0_u64;
    let watched = || RateLimitLayer::with_limiter(Global, limiter.clone()).settle(free).shadow(&shadow);
    let real = RateLimitLayer::new(Global, hourly(100));
    for service in [limited(watched(), marked()), limited(watched().and(real), marked())] {
        for _ in 0..5 {
            let response = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
            assert_eq!(mark(&response), None);
        }
        assert_eq!((shadow.denied(), limiter.peek(&()).remaining()), (0, 2));
    }
    // A call that the limit would have denied has no charge to refund.
    assert!(limiter.check_n(&(), 2).is_allowed());
    for _ in 0..3 {
        let service = limited(watched(), marked());
        assert!(mark(&service.oneshot(Request::new(Body::empty())).await.unwrap()).is_some());
        assert_eq!(limiter.peek(&()).remaining(), 0);
    }
}

#[test]
fn a_closed_shadow_limiter_rejects_nothing() {
    let shadow = Shadow::on();
    let layer = RateLimitLayer::new(Global, hourly(1)).shadow(&shadow);
    layer.limiter().close();
    let service = limited(layer, marked());
    let response = ask(&service);
    assert_eq!(response.status(), 200);
    assert!(mark(&response).unwrap().is_closed());
    shadow.set(false);
    assert_eq!(ask(&service).status(), 503);
}
