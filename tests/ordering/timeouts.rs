//! Timeouts outside and inside of a queue, and calls in progress, in paused time.

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use http_body_util::BodyExt;
use tokio::join;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_http::timeout::{ResponseBodyTimeoutLayer, TimeoutLayer};
use tower_throttle::algorithm::{Concurrency, LeakyBucket};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::guide_recipe::from_here;
use crate::{Fed, data};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn timeout(after: u64) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, seconds(after))
}

/// A body that begins and never ends.
async fn endless() -> Body {
    let (feed, fed) = Fed::new();
    feed.send(data("first")).unwrap();
    tokio::spawn(async move {
        feed.closed().await;
    });
    Body::new(fed)
}

fn routes() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/slow", get(pending::<()>))
        .route("/endless", get(endless))
}

async fn call(app: &Router, path: &str) -> Response {
    app.clone().oneshot(from_here(path)).await.unwrap()
}

/// Returns the status of the response, and the number of seconds until it arrived.
async fn ask(app: &Router, path: &str) -> (u16, u64) {
    let begin = Instant::now();
    let status = call(app, path).await.status().as_u16();
    (status, begin.elapsed().as_secs())
}

/// A limit of one call in ten seconds, with a queue for two calls.
fn queueing() -> RateLimiter<LeakyBucket> {
    RateLimiter::new(LeakyBucket::new(Quota::per(1, seconds(10)).unwrap()).queue(2))
}

fn at_a_time(calls: u64) -> RateLimiter<Concurrency> {
    RateLimiter::new(Concurrency::per_key(calls).queue(2))
}

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_ends_the_wait_in_the_queue_and_later_calls_move_up() {
    let limiter = queueing();
    let limit = || RateLimitLayer::with_limiter(Global, limiter.clone());
    let [timed, patient] = [routes().layer(limit()).layer(timeout(1)), routes().layer(limit())];
    assert_eq!(ask(&timed, "/").await, (200, 0));
    let behind = async {
        while limiter.queued() == 0 {
            tokio::task::yield_now().await;
        }
        ask(&patient, "/").await
    };
    // If the first call were not cancelled, it would wait for 10 seconds, and the second call for 20. The first call
    // was not charged.
    assert_eq!(join!(ask(&timed, "/"), behind), ((504, 1), (200, 10)));
    assert_eq!(limiter.queued(), 0);
    assert_eq!(ask(&patient, "/").await, (200, 10));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_inside_begins_when_the_wait_is_over() {
    let app = routes().layer(timeout(1)).layer(RateLimitLayer::with_limiter(Global, queueing()));
    assert_eq!(ask(&app, "/").await, (200, 0));
    assert_eq!(ask(&app, "/").await, (200, 10));
    assert_eq!(ask(&app, "/slow").await, (504, 11));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_releases_its_permit() {
    let limiter = at_a_time(1);
    let limit = || RateLimitLayer::with_limiter(Global, limiter.clone());
    let timed = routes().layer(limit()).layer(timeout(5));
    let behind = async {
        sleep(seconds(1)).await;
        ask(&timed, "/").await
    };
    assert_eq!(join!(ask(&timed, "/slow"), behind), ((504, 5), (200, 4)));
    assert!(limiter.try_acquire_permit(&()).is_ok());

    // A queued call leaves its place in the queue, too.
    let permit = limiter.try_acquire_permit(&()).unwrap();
    assert_eq!(ask(&timed, "/").await, (504, 5));
    assert_eq!(limiter.queued(), 0);
    drop(permit);
    assert!(limiter.try_acquire_permit(&()).is_ok());

    // With the timeout inside of the limit, a call waits as long as the calls before it take.
    let timed = routes().layer(timeout(5)).layer(limit());
    let (first, second, third) = join!(ask(&timed, "/slow"), ask(&timed, "/slow"), ask(&timed, "/slow"));
    assert_eq!([first, second, third], [(504, 5), (504, 10), (504, 15)]);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_until_the_last_byte_whatever_the_timeout() {
    let limiter = at_a_time(1);
    let limit = || RateLimitLayer::with_limiter(Global, limiter.clone());
    for timed in [routes().layer(limit()).layer(timeout(1)), routes().layer(timeout(1)).layer(limit())] {
        let response = call(&timed, "/endless").await;
        assert_eq!(response.status(), StatusCode::OK);
        sleep(seconds(100)).await;
        assert!(limiter.try_acquire_permit(&()).is_err());
        drop(response);
        assert!(limiter.try_acquire_permit(&()).is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_timeout_ends_a_stalled_stream() {
    let limiter = at_a_time(1);
    let limit = || RateLimitLayer::with_limiter(Global, limiter.clone());
    let body = || ResponseBodyTimeoutLayer::new(seconds(3));
    for timed in [routes().layer(limit()).layer(body()), routes().layer(body()).layer(limit())] {
        let begin = Instant::now();
        let mut body = call(&timed, "/endless").await.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
        assert!(limiter.try_acquire_permit(&()).is_err());
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(begin.elapsed().as_secs(), 3);
        drop(body);
        assert!(limiter.try_acquire_permit(&()).is_ok());
    }
}

/// Tests the guide's second stack.
#[tokio::test(start_paused = true)]
async fn a_call_that_the_rate_denies_takes_no_permit() {
    let limiter = at_a_time(1);
    let app = routes()
        .layer(RateLimitLayer::with_limiter(Global, limiter.clone()).name("at a time"))
        .layer(timeout(10))
        .layer(crate::limit(2));
    let (slow, held) = join!(ask(&app, "/slow"), async {
        sleep(seconds(1)).await;
        let held = ask(&app, "/").await;
        assert_eq!((ask(&app, "/").await, limiter.queued()), ((429, 0), 0));
        held
    });
    assert_eq!((slow, held), ((504, 10), (200, 9)));
}
