//! One script decides a request for all limits, and a denial charges nothing.

use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tower_throttle::key::{Global, StoreKey, from_fn};
use tower_throttle::middleware::Shadow;
use tower_throttle::{Quota, RateLimitLayer};

use super::{App, Http, all, app, day, each, get, hello, key_of, limiter, status};
use crate::support::redis_server::RedisServer;
use crate::{connect, patient};

#[tokio::test]
async fn one_script_decides_a_request_and_a_denial_charges_nothing() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::ZERO).connect().await.unwrap();
    let layer = each!(store, TokenBucket::new(day(5)))
        .and(all!(store, (SlidingWindow::new(day(8)), FixedWindow::new(day(100)))));
    let app = app!(layer.clone());
    assert_eq!(status(&app, "a").await, 200, "the server learns the script");
    let before = (server.calls_of("evalsha"), server.calls_of("eval"));
    let mut admitted = vec![1, 0, 0];
    for (caller, key) in [(0, "a"), (1, "b"), (2, "c")] {
        for _ in 0..6 {
            let (status, headers) = app.clone().oneshot(get(key)).await.unwrap();
            assert!(status == 200 || status == 429, "{status}");
            admitted[caller] += u64::from(status == 200);
            let limits: Vec<_> = headers.get_all("ratelimit").iter().collect();
            assert_eq!(limits.len(), 2, "both limits are reported: {limits:?}");
        }
    }
    assert_eq!(admitted, [5, 3, 0]);
    let after = (server.calls_of("evalsha"), server.calls_of("eval"));
    assert_eq!((after.0 - before.0, after.1 - before.1), (18, 0), "one trip for each request");
    let [each, all] = &layer.stats()[..] else { panic!() };
    assert_eq!((each.calls.admitted, each.calls.denied, each.calls.denied_by_others), (8, 2, 9));
    assert_eq!((all.calls.admitted, all.calls.denied, all.calls.denied_by_others), (8, 9, 2));
}

#[tokio::test]
async fn a_request_that_another_limit_denies_keeps_the_units_of_a_shorter_period() {
    let server = RedisServer::start();
    let store = || async { patient(&server).remember_denials(Duration::ZERO).connect().await.unwrap() };
    let old = limiter!(store().await, "each", FixedWindow::new(Quota::per_second(10)));
    assert!(old.check_n("a", 8).await.unwrap().is_allowed());
    let store = store().await;
    let each = limiter!(store.clone(), "each", FixedWindow::new(day(10)));
    let layer = RateLimitLayer::with_limiter(from_fn(key_of), each.clone())
        .and(all!(store, FixedWindow::new(day(1))));
    let app = app!(layer);
    assert_eq!(status(&app, "b").await, 200);
    assert_eq!(status(&app, "a").await, 429, "the other limit denies it");
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    assert_eq!(each.peek("a").await.unwrap().remaining(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_apps_admit_exactly_what_both_limits_allow() {
    let server = RedisServer::start();
    macro_rules! exact {
        ($prefix:expr, $each:expr, $all:expr) => {{
            let (mut apps, mut limiters) = (Vec::new(), None);
            for _ in 0..2 {
                let store = patient(&server).prefix($prefix).remember_denials(Duration::ZERO);
                let store = store.connect().await.unwrap();
                let limits = (limiter!(store.clone(), "each", $each), limiter!(store, "all", $all));
                let each = RateLimitLayer::with_limiter(from_fn(key_of), limits.0.clone());
                let layer = each.and(RateLimitLayer::with_limiter(Global, limits.1.clone()).name("all"));
                let app: axum::Router =
                    axum::Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(layer);
                apps.push(app);
                limiters = Some(limits);
            }
            let get = |call: usize| {
                let key = format!("key-{}", call % 10);
                Request::get("/").header("x-api-key", key).body(axum::body::Body::empty()).unwrap()
            };
            let calls: Vec<_> =
                (0..400).map(|call| tokio::spawn(apps[call / 10 % 2].clone().oneshot(get(call)))).collect();
            let mut admitted = 0;
            for call in calls {
                match call.await.unwrap().unwrap().status().as_u16() {
                    200 => admitted += 1,
                    429 => {}
                    other => panic!("{other}"),
                }
            }
            let (each, all) = limiters.unwrap();
            let mut used = 0;
            for key in 0..10 {
                used += 15 - each.peek(&StoreKey::Key(format!("key-{key}"))).await.unwrap().remaining();
            }
            let left = all.peek(&StoreKey::Key(())).await.unwrap().remaining();
            assert_eq!((admitted, used, left), (100, 100, 0), "{}", $prefix);
        }};
    }
    fn key_of(request: &axum::extract::Request) -> Option<String> {
        Some(request.headers()["x-api-key"].to_str().unwrap().to_owned())
    }
    exact!("script", FixedWindow::new(day(15)), TokenBucket::new(day(100)));
    exact!(
        "windows",
        SlidingWindow::new(day(15)),
        (SlidingWindow::new(day(100)), FixedWindow::new(day(500)))
    );
    // A `SlidingLog` has no script.
    exact!("swap", SlidingLog::new(day(15)), FixedWindow::new(day(100)));
}

#[tokio::test]
async fn remembered_denials_cost_no_trips() {
    let server = RedisServer::start();
    let store = patient(&server).remember_denials(Duration::from_secs(600)).connect().await.unwrap();
    let layer = each!(store, FixedWindow::new(day(1))).and(all!(store, FixedWindow::new(day(3))));
    let app = app!(layer.clone());
    assert_eq!([status(&app, "a").await, status(&app, "a").await], [200, 429]);
    let before = server.calls_of("evalsha");
    for _ in 0..10 {
        assert_eq!(status(&app, "a").await, 429);
    }
    assert_eq!(server.calls_of("evalsha"), before);
    let [each, all] = &layer.stats()[..] else { panic!() };
    assert_eq!((each.calls.denied, all.calls.denied_by_others, all.calls.ended()), (11, 11, 12));
    assert_eq!(status(&app, "b").await, 200, "another caller is not affected");
}

#[tokio::test]
async fn shadow_mode_adds_no_trip_and_denies_nothing() {
    let server = RedisServer::start();
    let (store, shadow) = (connect(&server).await, Shadow::on());
    let layer =
        each!(store, FixedWindow::new(day(5))).and(all!(store, FixedWindow::new(day(2))).shadow(&shadow));
    let app = app!(layer.clone());
    assert_eq!(status(&app, "a").await, 200);
    let before = server.calls_of("evalsha");
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(status(&app, "a").await);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    assert_eq!(server.calls_of("evalsha") - before, 5);
    assert_eq!(shadow.denied(), 3);
    let all = &layer.stats()[1].calls;
    assert_eq!((all.admitted, all.shadow_denied, all.denied), (2, 3, 0));
}

#[tokio::test]
async fn policies_of_one_limiter_and_key_are_charged_together() {
    let server = RedisServer::start();
    let limiter = limiter!(connect(&server).await, "each", FixedWindow::new(day(5)));
    let layer = || RateLimitLayer::with_limiter(from_fn(key_of), limiter.clone());
    let app = app!(layer().and(layer().cost(|_: &Http| 2)));
    assert_eq!([status(&app, "a").await, status(&app, "a").await], [200, 429]);
    assert_eq!(limiter.peek(&StoreKey::Key("a".to_owned())).await.unwrap().remaining(), 2);
}
