//! Calls that are queued by one of several limits, or that none of them limits.

use axum::body::Body;
use http::Request;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Quota, RateLimitLayer};

use super::{app, ask, left, limiter, policies};

#[tokio::test(start_paused = true)]
async fn a_queued_call_reports_both_limits() {
    let line = LeakyBucket::new(Quota::per_second(10)).queue(3);
    let layers = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_minute(60)))
        .name("budget")
        .and(RateLimitLayer::new(Global, line).name("line"));
    let app = app().layer(layers);
    let calls = tokio::join!(ask(&app), ask(&app), ask(&app));
    for (n, answer) in [calls.0, calls.1, calls.2].iter().enumerate() {
        assert_eq!(answer.status, 200);
        let names: Vec<_> = left(answer).into_iter().map(|(name, r, _)| (name, r)).collect();
        assert_eq!(names, [("budget".to_owned(), 59 - n as u64)], "the next slot of the line is near");
        let line = policies(answer).into_iter().find(|(name, ..)| name == "line");
        assert_eq!(line, Some(("line".to_owned(), 10, 1)));
    }
}

#[tokio::test]
async fn a_layer_that_does_not_limit_a_request_reports_nothing() {
    let clock = ManualClock::new();
    let window = |limit| limiter(FixedWindow::new(Quota::per_minute(limit)), &clock);
    let nobody = from_fn(|_: &Request<Body>| None::<()>);
    let layer = |limit| RateLimitLayer::with_limiter(Global, window(limit));
    let app_of_one = app().layer(RateLimitLayer::with_limiter(nobody, window(1)).and(layer(2)).and(layer(3)));
    for (status, two, three) in [(200, 1, 2), (200, 0, 1), (429, 0, 1)] {
        let answer = ask(&app_of_one).await;
        assert_eq!(answer.status, status);
        assert_eq!(policies(&answer), [("default-2".to_owned(), 2, 60), ("default-3".to_owned(), 3, 60)]);
        let reported: Vec<_> = left(&answer).into_iter().map(|(name, r, _)| (name, r)).collect();
        assert_eq!(reported, [("default-2".to_owned(), two), ("default-3".to_owned(), three)]);
    }
    let app_of_none = app().layer(
        RateLimitLayer::with_limiter(nobody, window(1)).and(RateLimitLayer::with_limiter(nobody, window(1))),
    );
    for _ in 0..3 {
        let answer = ask(&app_of_none).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
    }
}
