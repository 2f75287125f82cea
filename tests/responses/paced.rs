//! What a limit that queues requests reports: its quota on each response, and what is left only where a client that
//! obeys it loses nothing.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, HeaderName, Request, Response};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, Smooth, Tiered, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::middleware::{HeaderFormat as Form, HttpResponder, ResetFormat};
use tower_throttle::{Quota, RateLimitLayer};

use crate::header_parser::ParsedFields;
use crate::reference_service::{Service, behind, limited};

fn paced(algorithm: impl Algorithm) -> Service {
    limited(RateLimitLayer::new(Global, algorithm), behind(HeaderMap::new()))
}

async fn ask(service: &Service) -> Response<Body> {
    service.clone().oneshot(Request::new(Body::empty())).await.unwrap()
}

/// Returns the values of the fields with these names. An absent field is empty.
fn values<const N: usize>(response: &Response<Body>, names: [&'static str; N]) -> [String; N] {
    let value = |name| response.headers().get(HeaderName::from_static(name));
    names.map(|name| value(name).map_or("", |value| value.to_str().unwrap()).to_owned())
}

fn draft(response: &Response<Body>) -> [String; 2] {
    values(response, ["ratelimit-policy", "ratelimit"])
}

#[tokio::test(start_paused = true)]
async fn an_admitted_request_to_a_fast_queue_reports_its_quota_only() {
    let ten = Quota::per_second(10);
    let policy = r#""default";q=10;w=1"#;
    for service in [
        paced(LeakyBucket::new(ten).queue(1)),
        paced(TokenBucket::new(ten.burst(1)).queue(1)),
        paced(Smooth::warming_up(ten, Duration::ZERO).queue(1)),
    ] {
        let [first, queued, denied] = [ask(&service), ask(&service), ask(&service)];
        let (first, queued, denied) = tokio::join!(first, queued, denied);
        for admitted in [first, queued] {
            let [reported_policy, reported] = draft(&admitted);
            assert_eq!((admitted.status().as_u16(), reported.as_str()), (200, ""));
            assert!(
                [policy, r#""default";q=1;w=1"#].contains(&reported_policy.as_str()),
                "{reported_policy}"
            );
        }
        assert_eq!(denied.status(), 429);
        assert_eq!(
            (&*draft(&denied)[1], &denied.headers()["retry-after"]),
            (r#""default";r=0;t=1"#, &"1".parse().unwrap())
        );
    }
    let leaky = paced(LeakyBucket::new(ten));
    assert_eq!(draft(&ask(&leaky).await), [policy, ""]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_queue_or_one_without_places_reports_when_the_next_unit_is_there() {
    let slow = paced(LeakyBucket::new(Quota::per_minute(1)));
    assert_eq!(draft(&ask(&slow).await), [r#""default";q=1;w=60"#, r#""default";r=0;t=60"#]);
    let one = paced(LeakyBucket::new(Quota::per_second(1)));
    assert_eq!(draft(&ask(&one).await), [r#""default";q=1;w=1"#, r#""default";r=0;t=1"#]);
    let unqueued = paced(LeakyBucket::new(Quota::per_second(10)).queue(0));
    assert_eq!(draft(&ask(&unqueued).await), [r#""default";q=10;w=1"#, r#""default";r=0;t=1"#]);
    for wait in [0, 50] {
        let hasty = LeakyBucket::new(Quota::per_second(10)).max_wait(Duration::from_millis(wait));
        let service = paced(hasty);
        assert_eq!(draft(&ask(&service).await)[1], r#""default";r=0;t=1"#, "{wait} ms");
        assert_eq!(ask(&service).await.status(), 429, "no request waits until the next slot");
    }
    let prioritised =
        paced(FixedWindow::new(Quota::per(1, Duration::from_millis(100)).unwrap()).priority(100));
    assert_eq!(draft(&ask(&prioritised).await), [r#""default";q=1;w=1"#, r#""default";r=0;t=1"#]);
}

/// The algorithm that a function chooses for a request says whether a queue takes the next one.
#[tokio::test(start_paused = true)]
async fn a_request_of_a_tier_is_reported_by_the_queue_of_the_tier() {
    let ten = TokenBucket::new(Quota::per_second(10).burst(1));
    for (base, tier, reported) in [
        (ten.clone(), ten.clone().queue(9), ""),
        (ten.clone().queue(9), ten.clone().queue(0), r#""default";r=0;t=1"#),
    ] {
        let layer = RateLimitLayer::new(Global, Tiered::new(base));
        let layer = layer.tier(move |_: &Request<Body>, (): &()| tier.clone());
        let service = limited(layer, behind(HeaderMap::new()));
        assert_eq!(draft(&ask(&service).await)[1], reported);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_queue_hides_no_joined_quota() {
    let joined = |formats: &[Form]| {
        let hourly = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(100))).name("hourly");
        let layer =
            RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_second(10))).name("paced").and(hourly);
        limited(layer.responder(HttpResponder::new().headers(formats.to_vec())), behind(HeaderMap::new()))
    };
    let response = ask(&joined(&[Form::Draft11])).await;
    let all = |name: &str| response.headers().get_all(name).iter().cloned().collect::<Vec<_>>();
    assert_eq!(all("ratelimit-policy"), [r#""paced";q=10;w=1"#, r#""hourly";q=100;w=3600"#]);
    assert_eq!(all("ratelimit"), [r#""hourly";r=99;t=3600"#]);
    let legacy = ask(&joined(&[Form::XRateLimit(ResetFormat::DeltaSeconds)])).await;
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(values(&legacy, names), ["100", "99", "3600"]);
    let sixth = ask(&joined(&[Form::Draft06])).await;
    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit-policy"];
    assert_eq!(values(&sixth, names), ["100", "99", "3600", "10;w=1, 100;w=3600"]);
    let seventh = ask(&joined(&[Form::Draft07])).await;
    assert_eq!(draft(&seventh), ["10;w=1, 100;w=3600", "limit=100, remaining=99, reset=3600"]);
}

#[tokio::test(start_paused = true)]
async fn a_fast_queue_alone_has_no_part_in_the_other_formats() {
    let layer = RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_second(10)));
    for (form, policy) in [
        (Form::XRateLimit(ResetFormat::DeltaSeconds), None),
        (Form::Draft06, Some("10;w=1")),
        (Form::Draft07, Some("10;w=1")),
    ] {
        layer.limiter().reset(&());
        let service =
            limited(layer.clone().responder(HttpResponder::new().headers([form])), behind(HeaderMap::new()));
        let headers = ask(&service).await.headers().clone();
        assert_eq!(headers.get("ratelimit-policy").map(|value| value.to_str().unwrap()), policy, "{form:?}");
        assert!(
            headers.keys().all(|name| !name.as_str().contains("limit") || name == "ratelimit-policy"),
            "{headers:?}"
        );
    }
}

/// Makes `requests` one after another. After each response, waits until `RateLimit` has units left, and after a
/// rejection for `Retry-After`. Returns the time that this takes.
async fn obeys(service: &Service, requests: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..requests {
        let response = ask(service).await;
        let ParsedFields { left, retry_after, .. } = ParsedFields::read(response.headers());
        let empty = left.iter().filter(|left| left.r == 0).filter_map(|left| left.t);
        tokio::time::sleep(Duration::from_secs(empty.chain(retry_after).max().unwrap_or(0))).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_obeys_a_queue_of_ten_a_second_makes_ten_requests_a_second() {
    let ten = Quota::per_second(10);
    for service in [
        paced(LeakyBucket::new(ten)),
        paced(TokenBucket::new(ten.burst(1)).queue(3)),
        paced(Smooth::warming_up(ten, Duration::ZERO)),
    ] {
        assert_eq!(obeys(&service, 101).await.as_millis(), 10_000);
    }
    let slow = paced(LeakyBucket::new(Quota::per_minute(1)));
    assert_eq!(obeys(&slow, 5).await, Duration::from_secs(5 * 60));
}
