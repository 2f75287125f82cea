//! Calls that are queued by one of several limits, or that none of them limits.

use std::time::Duration;

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
    // The budget is charged for all of them before the second is admitted.
    for (answer, budget) in [calls.0, calls.1, calls.2].iter().zip([59, 57, 57]) {
        assert_eq!(answer.status, 200);
        let names: Vec<_> = left(answer).into_iter().map(|(name, r, _)| (name, r)).collect();
        assert_eq!(names, [("budget".to_owned(), budget)], "the next slot of the line is near");
        let line = policies(answer).into_iter().find(|(name, ..)| name == "line");
        assert_eq!(line, Some(("line".to_owned(), 10, 1)));
    }
}

/// A limit that is charged at the arrival reports what it has when the call leaves the queue of another limit.
#[tokio::test(start_paused = true)]
async fn a_call_that_has_waited_reports_what_the_other_limit_has_now() {
    let line = LeakyBucket::new(Quota::per(1, Duration::from_secs(5)).unwrap()).queue(5);
    let layers = RateLimitLayer::new(Global, line)
        .name("line")
        .and(RateLimitLayer::new(Global, FixedWindow::new(Quota::per_minute(5))).name("window"));
    let app = app().layer(layers);
    let calls = tokio::join!(ask(&app), ask(&app), ask(&app), ask(&app), ask(&app));
    let calls = [calls.0, calls.1, calls.2, calls.3, calls.4];
    for (answer, (remaining, reset)) in calls.iter().zip([(4, 60), (0, 55), (0, 50), (0, 45), (0, 40)]) {
        let window = left(answer).into_iter().find(|(name, ..)| name == "window");
        assert_eq!(window, Some(("window".to_owned(), remaining, Some(reset))));
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
