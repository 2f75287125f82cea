//! Joined limits of which one is closed.

use std::time::Duration;

use http::Response;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::algorithm::{FixedWindow, LeakyBucket};
use tower_throttle::key::{Global, StoreKey, from_fn};

use super::{App, app, day, get, hello, key_of, limiter, status};
use crate::connect;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn a_request_that_waits_is_rejected_when_one_of_its_limiters_is_closed() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let bucket = limiter!(store.clone(), "each", LeakyBucket::new(day(1)).queue(5));
    let window = limiter!(store.clone(), "all", FixedWindow::new(day(10)));
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), bucket.clone())
        .name("each")
        .and(RateLimitLayer::with_limiter(Global, window.clone()).name("all"));
    let app = app!(layer.clone());
    assert_eq!(status(&app, "a").await, 200);
    let waiting = tokio::spawn(app.clone().oneshot(get("a")));
    // The window counts the request that waits for the bucket.
    let left = async || window.peek(&StoreKey::Key(())).await.unwrap().remaining();
    while left().await != 8 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    bucket.close();
    assert_eq!(waiting.await.unwrap().unwrap().0, 503);
    while left().await != 9 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The next request makes no trip.
    let trips = server.calls_of("evalsha");
    assert_eq!(status(&app, "b").await, 503);
    assert_eq!(server.calls_of("evalsha"), trips);
    let [each, all] = &layer.stats()[..] else { panic!() };
    for (calls, policy) in [(bucket.stats().calls, each.calls), (window.stats().calls, all.calls)] {
        assert_eq!((calls.admitted, calls.ended()), (1, 3));
        assert_eq!((policy.admitted, policy.ended()), (1, 3));
    }
    assert_eq!((each.calls.closed, all.calls.denied_by_others), (2, 2));
    assert_eq!((bucket.stats().calls.closed, window.stats().calls.denied_by_others), (2, 2));
}
