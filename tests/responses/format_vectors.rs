//! The table of test vectors for the header fields, row by row, through the layer.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request};
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::HeaderFormat;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter};

use crate::reference_service::{Cost, CostOf, Service, behind, cost_of, limited};

const HUNDRED: Quota = Quota::per_minute(100);

fn layer<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimitLayer<Global, A, CostOf> {
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    RateLimitLayer::with_limiter(Global, limiter).cost(cost_of as fn(&_) -> _)
}

/// Returns a bucket of 100 a minute, and its clock.
fn bucket() -> (Service, ManualClock) {
    let clock = ManualClock::new();
    let layer = layer(TokenBucket::new(HUNDRED), &clock);
    (limited(layer, behind(HeaderMap::new())), clock)
}

/// Returns the status, `RateLimit-Policy`, `RateLimit` and `Retry-After`. Several lines of a field are joined.
async fn ask(service: &Service, cost: u64) -> (u16, String, String, String) {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(Cost(cost));
    let response = service.clone().oneshot(request).await.unwrap();
    let line = |name: &str| {
        let lines = response.headers().get_all(name).iter().map(|line| line.to_str().unwrap());
        lines.collect::<Vec<_>>().join(", ")
    };
    (response.status().as_u16(), line("ratelimit-policy"), line("ratelimit"), line("retry-after"))
}

async fn assert_fields(service: &Service, cost: u64, status: u16, item: &str, retry_after: &str) {
    let reported = ask(service, cost).await;
    let policy = r#""default";q=100;w=60"#;
    assert_eq!(reported, (status, policy.to_owned(), item.to_owned(), retry_after.to_owned()));
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test]
async fn a_fraction_of_a_token_is_not_counted() {
    let (service, clock) = bucket();
    assert_fields(&service, 1, 200, r#""default";r=99;t=60"#, "").await;
    clock.advance(millis(420));
    // 99.7 tokens are left.
    assert_fields(&service, 0, 200, r#""default";r=99;t=60"#, "").await;
}

#[tokio::test]
async fn a_wait_below_a_second_is_a_second() {
    let (service, clock) = bucket();
    assert_fields(&service, 100, 200, r#""default";r=0;t=1"#, "").await;
    clock.advance(millis(400));
    // The next token is available in 0.2 s.
    assert_fields(&service, 1, 429, r#""default";r=0;t=1"#, "1").await;
}

#[tokio::test]
async fn whole_seconds_stay_and_a_nanosecond_more_rounds_up() {
    let (service, clock) = bucket();
    assert_fields(&service, 100, 200, r#""default";r=0;t=1"#, "").await;
    assert_fields(&service, 5, 429, r#""default";r=0;t=3"#, "3").await;
    clock.advance(millis(600) - Duration::from_nanos(1));
    // The next token is available in 3.000000001 s.
    assert_fields(&service, 6, 429, r#""default";r=0;t=4"#, "4").await;
}

#[tokio::test]
async fn remaining_counts_calls_of_cost_one_after_an_expensive_call() {
    let (service, clock) = bucket();
    assert_fields(&service, 100, 200, r#""default";r=0;t=1"#, "").await;
    clock.advance(millis(2_340));
    // 3.9 tokens are left. A fourth is available in 0.66 s.
    assert_fields(&service, 5, 429, r#""default";r=3;t=1"#, "1").await;
}

#[tokio::test]
async fn a_cost_that_can_never_fit_gets_no_reset() {
    let (service, _) = bucket();
    assert_fields(&service, 101, 429, r#""default";r=100"#, "").await;
}

#[tokio::test]
async fn two_policies_are_both_reported() {
    let clock = ManualClock::new();
    let hour = layer(FixedWindow::new(Quota::per_hour(1_000)), &clock).name("hour");
    let day = layer(FixedWindow::new(Quota::per_day(5_000)), &clock).name("day");
    let service = limited(hour.and(day), behind(HeaderMap::new()));
    for _ in 0..5 {
        assert_eq!(ask(&service, 979).await.0, 200);
        clock.advance(Duration::from_secs(3_600));
    }
    // The day ends in 36,000 s.
    clock.set(Duration::from_secs(50_400));
    assert_eq!(ask(&service, 4).await.0, 200);
    let policies = r#""hour";q=1000;w=3600, "day";q=5000;w=86400"#.to_owned();
    let items = r#""hour";r=995;t=3600, "day";r=100;t=36000"#.to_owned();
    assert_eq!(ask(&service, 1).await, (200, policies, items, String::new()));
}

#[tokio::test]
async fn names_are_escaped() {
    let clock = ManualClock::new();
    let layer = layer(TokenBucket::new(Quota::per_second(1)), &clock).name(r#"a"b\c"#);
    let reported = ask(&limited(layer, behind(HeaderMap::new())), 1).await;
    assert_eq!((reported.1.as_str(), reported.2.as_str()), (r#""a\"b\\c";q=1;w=1"#, r#""a\"b\\c";r=0;t=1"#));
}

#[test]
fn names_that_no_field_can_carry_are_errors() {
    for name in ["é", "a\nb", "a\r\nx: y", "a\tb", "\u{7f}", "", &"x".repeat(257)] {
        let named = RateLimitLayer::new(Global, TokenBucket::new(HUNDRED)).try_name(name);
        assert!(named.is_err(), "{name:?}");
        let panics = || RateLimitLayer::new(Global, TokenBucket::new(HUNDRED)).name(name);
        assert!(std::panic::catch_unwind(panics).is_err(), "{name:?}");
    }
}

#[tokio::test]
async fn the_largest_quota_is_reported_as_the_largest_number() {
    let clock = ManualClock::new();
    let all = layer(FixedWindow::new(Quota::per_minute(u64::MAX)), &clock);
    let reported = ask(&limited(all, behind(HeaderMap::new())), 1).await;
    assert_eq!(reported.1, r#""default";q=999999999999999;w=60"#);
    assert_eq!(reported.2, r#""default";r=999999999999999;t=60"#);
}

/// The fields of draft 6 are structured fields, too, whose integers have at most 15 digits.
#[tokio::test]
async fn the_largest_quota_is_the_largest_number_in_older_drafts() {
    const MOST: &str = "999999999999999";
    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_minute(u64::MAX)));
    let limiter = limiter.clock(ManualClock::new()).build();
    let fields = async |draft| {
        let responder = HttpResponder::new().headers([draft]);
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(responder);
        let service = limited(layer, behind(HeaderMap::new()));
        service.oneshot(Request::new(Body::empty())).await.unwrap().headers().clone()
    };
    let sixth = fields(HeaderFormat::Draft06).await;
    assert_eq!([&sixth["ratelimit-limit"], &sixth["ratelimit-remaining"]], [MOST, MOST]);
    assert_eq!(sixth["ratelimit-policy"], format!("{MOST};w=60").as_str());
    let seventh = fields(HeaderFormat::Draft07).await;
    assert_eq!(seventh["ratelimit"], format!("limit={MOST}, remaining={MOST}, reset=60").as_str());
}
