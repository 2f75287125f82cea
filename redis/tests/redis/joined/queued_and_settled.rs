//! Joined limits queue requests, give back cancelled ones, and settle those that were admitted.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket};
use tower_throttle::key::{Global, StoreKey, from_fn};
use tower_throttle::{Quota, RateLimitLayer};

use super::{App, Http, all, app, day, each, hello, key_of, limiter, status};
use crate::support::redis_server::RedisServer;
use crate::{connect, patient};

#[tokio::test]
async fn a_bucket_queues_requests_and_a_cancelled_one_gives_all_back() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = limiter!(store.clone(), "all", FixedWindow::new(day(10)));
    let bucket = || LeakyBucket::new(Quota::per(1, Duration::from_millis(300)).unwrap()).queue(5);
    let layer = each!(store, bucket()).and(RateLimitLayer::with_limiter(Global, window.clone()).name("all"));
    let app = app!(layer.clone());
    let start = std::time::Instant::now();
    assert_eq!(status(&app, "a").await, 200);
    let cancelled = timeout(Duration::from_millis(100), status(&app, "a")).await;
    assert!(cancelled.is_err(), "it is queued");
    let left = async || window.peek(&StoreKey::Key(())).await.unwrap().remaining();
    let patience = std::time::Instant::now();
    while left().await != 9 {
        assert!(patience.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(status(&app, "a").await, 200);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    assert_eq!(left().await, 8);
    let calls = &layer.stats()[0].calls;
    assert_eq!((calls.admitted, calls.queued, calls.cancelled), (2, 1, 1));
    // In joined layers with Redis, a window cannot queue requests.
    let queued = FixedWindow::new(day(1)).queue(3);
    let app = app!(
        RateLimitLayer::with_limiter(Global, limiter!(store.clone(), "queued", queued))
            .and(each!(store, bucket()))
    );
    assert_eq!(status(&app, "b").await, 503);
}

#[tokio::test]
async fn queued_requests_take_places_of_all_keys_together() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let bucket = LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let each = store.limiter("each", bucket).max_queued(1).build().unwrap();
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), each.clone()).name("each");
    let layer = layer.and(all!(store, FixedWindow::new(day(10))));
    let app = app!(layer.clone());
    assert_eq!([status(&app, "a").await, status(&app, "b").await], [200, 200]);
    let key = |key: &str| StoreKey::Key(key.to_owned());
    let mut waiting = pin!(status(&app, "a"));
    let begins = Duration::from_millis(50);
    while each.peek(&key("a")).await.unwrap().reset_after() <= Duration::from_secs(3_600) {
        assert!(timeout(begins, &mut waiting).await.is_err(), "it is queued");
    }
    assert!(timeout(begins, &mut waiting).await.is_err(), "it is queued");
    assert_eq!(status(&app, "b").await, 429);
    assert!(each.acquire(&key("b")).await.unwrap().is_queue_full());
    let calls = &layer.stats()[0].calls;
    assert_eq!((calls.admitted, calls.queue_full), (2, 1));
}

#[tokio::test]
async fn a_limit_that_admits_a_request_at_once_keeps_no_place_while_another_queues_it() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let bucket = || LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let each = store.limiter("each", bucket()).max_queued(1).build().unwrap();
    let all = limiter!(store, "all", bucket());
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), each.clone());
    let app = app!(layer.and(RateLimitLayer::with_limiter(Global, all.clone())));
    assert_eq!(status(&app, "a").await, 200);
    let begins = Duration::from_millis(50);
    let mut waiting = pin!(status(&app, "b"));
    while all.peek(&StoreKey::Key(())).await.unwrap().reset_after() <= Duration::from_secs(3_600) {
        assert!(timeout(begins, &mut waiting).await.is_err(), "it is queued");
    }
    assert!(timeout(begins, &mut waiting).await.is_err(), "it is queued");
    let alone = each.acquire(&StoreKey::Key("a".to_owned()));
    assert!(timeout(begins, alone).await.is_err(), "it finds a place");
}

#[tokio::test]
async fn a_request_that_another_limit_denies_was_not_queued() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::ZERO).connect().await.unwrap();
    let bucket = LeakyBucket::new(Quota::per_hour(1)).queue(5);
    let layer = each!(store, bucket).and(all!(store, FixedWindow::new(day(1))));
    let app = app!(layer.clone());
    assert_eq!([status(&app, "a").await, status(&app, "a").await], [200, 429]);
    let calls = &layer.stats()[0].calls;
    assert_eq!((calls.admitted, calls.queued, calls.denied_by_others), (1, 0, 1));
}

#[tokio::test]
async fn a_request_is_settled_by_its_response() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = limiter!(store.clone(), "each", FixedWindow::new(day(10)));
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), window.clone())
        .cost(|_: &Http| 5)
        .settle(|_: &Response<Full<Bytes>>| Some(2));
    let layer = layer.and(all!(store, FixedWindow::new(day(7))));
    let app = app!(layer.clone());
    assert_eq!(status(&app, "a").await, 200);
    assert_eq!(store.flush(Duration::from_secs(10)).await, 0);
    assert_eq!(window.peek(&StoreKey::Key("a".to_owned())).await.unwrap().remaining(), 8);
    let units: Vec<_> =
        layer.stats().iter().map(|policy| (policy.units.charged, policy.units.refunded)).collect();
    assert_eq!(units, [(0, 3), (0, 0)]);
}
