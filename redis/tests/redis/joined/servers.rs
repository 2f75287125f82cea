//! Joined limits work in a cluster, and a server that is gone is answered by 503, no limit, or the fallbacks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::key::{Global, from_fn};
use tower_throttle::middleware::{OnStoreError, Rejection};
use tower_throttle::{RateLimitLayer, RateLimiter};
use tower_throttle_redis::RedisStore;

use super::{App, Http, all, app, day, each, hello, key_of, limiter, status};
use crate::patient;
use crate::support::redis_server::{RedisCluster, RedisServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_the_keys_need_one_slot() {
    let cluster = RedisCluster::start();
    let builder = || RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(10));
    let layer = |store: &RedisStore| {
        each!(store, FixedWindow::new(day(5))).and(all!(store, FixedWindow::new(day(7))))
    };
    let errors = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&errors);
    let observed =
        layer(&builder().connect().await.unwrap()).on_reject(move |rejection: &Rejection<'_>, _: &Http| {
            if let Rejection::Store(error) = rejection {
                seen.lock().unwrap().push(format!("{error:?}"));
            }
        });
    assert_eq!(status(&app!(observed), "a").await, 503);
    let errors = errors.lock().unwrap().clone();
    assert!(errors.len() == 1 && errors[0].contains("one_slot"), "{errors:?}");
    let app = app!(layer(&builder().one_slot("app").prefix("slot").connect().await.unwrap()));
    let trips = || cluster.nodes.iter().map(|node| node.calls_of("evalsha")).sum::<u64>();
    assert_eq!(status(&app, "a").await, 200);
    let (before, mut admitted) = (trips(), 1);
    for call in 0..11 {
        admitted += u64::from(status(&app, if call < 5 { "a" } else { "b" }).await == 200);
    }
    assert_eq!(admitted, 7);
    assert!(trips() - before <= 11, "one trip for each request");
    // All limits of one caller are in one slot, even without this setting.
    let store = builder().prefix("own").connect().await.unwrap();
    let layer = each!(store, FixedWindow::new(day(5)));
    let writes =
        RateLimitLayer::with_limiter(from_fn(key_of), limiter!(store, "writes", FixedWindow::new(day(2))));
    let app = app!(layer.and(writes));
    assert_eq!([status(&app, "a").await, status(&app, "a").await, status(&app, "a").await], [200, 200, 429]);
}

#[tokio::test]
async fn a_server_that_is_gone_is_503_or_no_limit_or_the_fallbacks() {
    let mut server = RedisServer::start();
    let store = patient(&server).deadline(Duration::from_millis(50)).connect().await.unwrap();
    let window = |limit| FixedWindow::new(day(limit));
    let layer = each!(store, window(5)).and(all!(store, window(7)));
    let allow = each!(store, window(5)).on_store_error(OnStoreError::Allow);
    let (reject, half) = (app!(layer.clone()), app!(allow.clone().and(all!(store, window(7)))));
    let allow = app!(allow.and(all!(store, window(7)).on_store_error(OnStoreError::Allow)));
    let local = |name, limit, fallback| {
        let fallback = RateLimiter::new(window(fallback));
        store.limiter(name, window(limit)).fallback(fallback).build().unwrap()
    };
    let local_each = RateLimitLayer::with_limiter(from_fn(key_of), local("each", 5, 2));
    let local_all = RateLimitLayer::with_limiter(Global, local("all", 7, 3)).name("all");
    let local = local_each.and(local_all);
    let fallback = app!(local.clone());
    assert_eq!([status(&reject, "a").await, status(&fallback, "a").await], [200, 200]);
    server.kill();
    for _ in 0..10 {
        assert_eq!(
            [status(&reject, "a").await, status(&half, "a").await, status(&allow, "a").await],
            [503, 503, 200]
        );
    }
    let mut statuses = Vec::new();
    for key in ["a", "a", "a", "b", "b"] {
        statuses.push(status(&fallback, key).await);
    }
    assert_eq!(statuses, [200, 200, 429, 200, 429]);
    let [each, all] = local.stats().try_into().unwrap();
    assert_eq!((each.calls.admitted, each.calls.denied, each.calls.denied_by_others), (4, 1, 1));
    assert_eq!((all.calls.admitted, all.calls.denied, all.calls.denied_by_others), (4, 1, 1));
    assert_eq!(layer.stats()[1].store_errors, 10);
}
