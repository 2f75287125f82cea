//! The longest wait is reported, and a wait that is obeyed ends with an admission.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Quota, RateLimitLayer};

use super::{app, ask, left, limiter, policies};
use crate::support::{Answer, Random};

/// Asserts that a call that waits for the reported time is admitted, and that a call a second earlier is not.
async fn obeyed<A: Algorithm, B: Algorithm>(rules: impl Fn(Quota, Quota) -> (A, B)) {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut quota = || {
            let period = Duration::from_millis(1 + random.below(100_000));
            Quota::per(1 + random.below(6), period).unwrap()
        };
        let (a, b) = rules(quota(), quota());
        let clock = ManualClock::new();
        let apps = [
            app().layer(
                RateLimitLayer::with_limiter(Global, limiter(a.clone(), &clock))
                    .and(RateLimitLayer::with_limiter(Global, limiter(b.clone(), &clock))),
            ),
            app().layer(RateLimitLayer::with_limiter(Global, limiter((a.clone(), b.clone()), &clock))),
        ];
        for _ in 0..30 {
            clock.advance(Duration::from_millis(random.below(2_000)));
            let answers = [ask(&apps[0]).await, ask(&apps[1]).await];
            assert_eq!(answers[0].status, answers[1].status, "seed {seed}: {a:?}, {b:?}");
            if answers[0].status == 200 {
                continue;
            }
            let waits = answers.each_ref().map(Answer::retry_after);
            assert_eq!(waits[0], waits[1], "seed {seed}");
            if waits[0] > 1 {
                clock.advance(Duration::from_secs(waits[0] - 1));
                assert_eq!(ask(&apps[0]).await.status, 429, "seed {seed}: {a:?}, {b:?}");
                assert_eq!(ask(&apps[1]).await.status, 429, "seed {seed}: {a:?}, {b:?}");
            }
            clock.advance(Duration::from_secs(waits[0].min(1)));
            assert_eq!(ask(&apps[0]).await.status, 200, "seed {seed}: {a:?}, {b:?}");
            assert_eq!(ask(&apps[1]).await.status, 200, "seed {seed}: {a:?}, {b:?}");
        }
    }
}

#[tokio::test]
async fn a_wait_that_is_obeyed_ends_with_an_admission() {
    obeyed(|a, b| (TokenBucket::new(a), FixedWindow::new(b))).await;
    obeyed(|a, b| (SlidingWindow::new(a), SlidingLog::new(b))).await;
    obeyed(|a, b| (SlidingCounter::new(a), TokenBucket::new(b))).await;
    obeyed(|a, b| (FixedWindow::new(a).aligned(), LeakyBucket::new(b).queue(0))).await;
}

#[tokio::test]
async fn a_cost_that_fits_one_limit_only_gets_no_wait() {
    let clock = ManualClock::new();
    let small = limiter(FixedWindow::new(Quota::per_minute(2)), &clock);
    let large = limiter(FixedWindow::new(Quota::per_minute(9)), &clock);
    let five = |_: &Request<Body>| 5_u64;
    let layers = RateLimitLayer::with_limiter(Global, large.clone())
        .cost(five)
        .and(RateLimitLayer::with_limiter(Global, small).cost(five).name("small"));
    let app = app().layer(layers);
    assert!(large.check_n(&(), 9).is_allowed());
    let answer = ask(&app).await;
    assert_eq!((answer.status.as_u16(), answer.has("retry-after")), (429, false), "{answer:?}");
    assert_eq!(left(&answer), [("default".to_owned(), 0, Some(60)), ("small".to_owned(), 2, None)]);
    let answer = ask(&app).await;
    assert_eq!(policies(&answer).len(), 2);
}

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
